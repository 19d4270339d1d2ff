# SPDX-License-Identifier: Apache-2.0
"""What -e gives is text: every variable hears it as the value that a file of the inventory gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible.module_utils.common.validation import check_type_float, check_type_int
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import load_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    VARIABLES as OF_BALANCERS,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    parse_balancer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.host_settings import (
    VARIABLES,
    parse_settings,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
    typed_value,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.text_forms import (
    BOOLEANS,
    convert_value,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.action.test_action_base import HostVars

CATALOG = load_gpus()

KINDS = ("bool", "int", "float")
BY_KIND = {
    kind: sorted(name for name, item in public_variables().items() if item.type == kind) for kind in KINDS
}
FORMS = {True: ("true", "True", "yes", "on", "1", "Y"), False: ("false", "FALSE", "no", "off", "0", "n")}


def read(name: str, value: Any) -> Any:
    """A variable of a host, as the planner and every other reader gets it."""
    return InventoryReader({"hostvars": HostVars(n1={name: value})}).values("n1", (name,))[name]


@pytest.mark.parametrize("name", BY_KIND["bool"])
def test_every_boolean_is_heard_in_every_form(name: str) -> None:
    for value, forms in FORMS.items():
        assert [read(name, form) for form in forms] == [value] * len(forms)
        assert read(name, value) is value
    assert [read(name, number) for number in (1, 0, 1.0)] == [True, False, True]
    assert (read(name, "maybe"), read(name, 2)) == ("maybe", 2)


@pytest.mark.parametrize("name", [*BY_KIND["int"], *BY_KIND["float"]])
def test_every_number_is_heard_as_text(name: str) -> None:
    assert (read(name, "7"), type(read(name, "7"))) == (
        7,
        {"int": int, "float": float}[public_variables()[name].type],
    )
    assert read(name, "seven") == "seven"


@pytest.mark.parametrize(
    "name",
    sorted(
        name for name, item in public_variables().items() if item.type == "list" and item.elements != "dict"
    ),
)
def test_every_list_is_heard_as_text(name: str) -> None:
    items = [1, 2] if public_variables()[name].elements == "int" else ["1", "2"]
    assert read(name, "1, 2") == read(name, items) == items


def other_settings(parse: Any, names: tuple[str, ...], base: Mapping[str, Any]) -> list[str]:
    """The booleans and numbers among these variables that as text make other settings, or none."""
    wrong = []
    for name in names:
        kind = public_variables()[name].type if name in public_variables() else ""
        for value in {"bool": (True, False), "int": (2000,), "float": (0.5,)}.get(kind, ()):
            made = [parse({**base, name: form}) for form in (value, str(value), str(value).lower())]
            wrong += [name] if any(item != made[0] for item in made) else []
    return wrong


def test_text_makes_the_same_settings_of_a_host() -> None:
    assert other_settings(lambda own: parse_settings(own, CATALOG), VARIABLES, {}) == []
    assert parse_settings({"host_prep_numa_balancing": "yes"}, CATALOG)[0].numa_balancing is True
    wrong = parse_settings({"air_gap": "maybe"}, CATALOG)[1]
    assert [item.text() for item in wrong] == ["air_gap: must be true or false, not text."]


def test_text_makes_the_same_settings_of_a_balancer() -> None:
    assert other_settings(lambda own: parse_balancer(own, "lb"), OF_BALANCERS, {}) == []
    assert parse_balancer({"load_balancer_tls": "no", "load_balancer_port": "8444"}, "lb")[0].tls is False


@pytest.mark.parametrize("insecure", ["true", "yes", "1", True, "false", "0", False, None])
def test_a_token_goes_without_tls_where_the_operator_says_so(insecure: Any) -> None:
    own = {
        "hf_model_endpoint": "http://mirror",
        "hf_model_token": "hf_abcdefghij",
        "hf_model_insecure": insecure,
    }
    found = [*InventoryReader({"hostvars": HostVars(n1=own)}).clear_text_tokens(["n1"])]
    assert len(found) == (insecure in ("false", "0", False, None))


@given(
    st.text(max_size=8)
    | st.sampled_from(
        [*BOOLEANS, "1.0", "5", "-1", "1_000", "5.0", "1e3", "1e23", "1e100", "1e999999", "nan", "inf", " 7 "]
    )
)
def test_as_ansible_converts_options(text: str) -> None:
    try:
        assert convert_value(text, "bool") == boolean(text)
    except TypeError:
        assert convert_value(text, "bool") == text
    for kind, check in (("int", check_type_int), ("float", check_type_float)):
        found = convert_value(text, kind)
        if not isinstance(found, str):
            assert found == check(text)


def test_whole_numbers_are_exact_and_not_endless() -> None:
    assert [convert_value(text, "int") for text in ("1e23", "2.0", "1e30")] == [10**23, 2, 10**30]
    for text in ("1e31", "1e999999", "2.5", "nan", "-inf"):
        assert convert_value(text, "int") == text


def test_other_values_stay_as_they_are() -> None:
    assert typed_value("own_variable", "true") == "true"
    assert typed_value("deployment", "true") == "true"
    assert typed_value("vllm_deployments", "a,b") == "a,b"
    assert typed_value("gpu_clean", None) is None
    assert typed_value("gpu_clean", ["true"]) == ["true"]
    assert typed_value("store_quota", True) is True
    with pytest.raises(FleetError):
        InventoryReader({"hostvars": HostVars(n1={"store_quota": "{{ 1 / 0 }}"})}).values(
            "n1", ("store_quota",)
        )
