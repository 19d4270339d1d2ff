# SPDX-License-Identifier: Apache-2.0
"""Typos in names of variables are told; names of the operator's own are not."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.unknown_variables import (
    FORMER,
    FORMER_EXTRA,
    unknown_extra_variables,
    unknown_variables,
)

KNOWN = ("vllm_deployments", "gpu_partition_memory", "gpu_partition_compute", "offline", "hf_model_token")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("vllm_deployment", "vllm_deployments"),
        ("gpu_partition_memry", "gpu_partition_memory"),
        ("offlin", "offline"),
        ("hf_model_tokens", "hf_model_token"),
        ("ansible_host", ""),
        ("vllm_default_image", ""),
        ("hf_token", ""),
        ("gpu_partition", ""),
        ("hf_cache_token", ""),
        ("gpu_partition_mem", "gpu_partition_memory"),
        ("vllm_image", ""),
        ("vllm_deployments", ""),
    ],
)
def test_misspelt(name: str, near: str) -> None:
    assert unknown_variables([name], KNOWN) == ({name: near} if near else {})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("generaton", "generation"),
        ("deploymnt", "deployment"),
        ("instnce", "instance"),
        ("rety", "retry"),
        ("resaon", "reason"),
        ("canray", "canary"),
        ("serial", "rollout_serial"),
        ("soak", "rollout_soak"),
        ("min_available", "rollout_min_available"),
        ("min_in", "rollout_min_available"),
        ("upgrade_sreial", "rollout_serial"),
        ("deployment", ""),
        ("stage", ""),
        ("ansible_user", ""),
    ],
)
def test_a_slip_behind_e_is_an_error(name: str, near: str) -> None:
    listed = unknown_extra_variables([name], public_variables())
    assert [f"Did you mean {near}?" in text for text in listed] == ([True] if near else [])


RENAMED = {
    "upgrade_serial": "rollout_serial",
    "upgrade_min_in": "rollout_min_available",
    "upgrade_soak": "rollout_soak",
    "load_balancer_min_in": "load_balancer_min_available",
}
GENERAL = {"again": "retry", "why": "reason"}


def test_every_former_name_leads_to_a_variable_that_is_there() -> None:
    assert (FORMER, FORMER_EXTRA) == (RENAMED, GENERAL)
    assert {*RENAMED.values(), *GENERAL.values()} <= public_variables().keys()
    assert not {*RENAMED, *GENERAL} & public_variables().keys()


@pytest.mark.parametrize(("old", "new"), {**RENAMED, **GENERAL}.items())
def test_a_former_name_behind_e_is_an_error(old: str, new: str) -> None:
    assert unknown_extra_variables([old, new], public_variables(), {**FORMER, **FORMER_EXTRA}) == (
        f"-e {old}: is now called {new}. Write -e {new}=…; if it is your own variable, rename it.",
    )


@pytest.mark.parametrize("name", GENERAL)
def test_a_general_word_is_the_operators_own_elsewhere(name: str) -> None:
    """In an inventory, and with -e where a playbook may not be the toolkit's."""
    assert unknown_extra_variables([name], public_variables()) == ()
    assert unknown_variables([name], public_variables()) == {}
    assert list(reader({name: "x"}).misspelled(["n1"], public_variables())) == []


class HostVars(dict[str, dict[str, Any]]):
    """Variables of hosts as Ansible has them."""

    def raw_get(self, name: str) -> dict[str, Any]:
        return self[name]


def reader(variables: dict[str, Any]) -> InventoryReader:
    return InventoryReader({"hostvars": HostVars(n1=variables)})


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_former_name_in_the_inventory_is_an_error(old: str, new: str) -> None:
    """Also where a template uses it, with which a name that only resembles one is the operator's own."""
    for variables in ({old: 2}, {old: 2, "own": "{{ " + old + " }}"}):
        (problem,) = reader(variables).misspelled(["n1"], public_variables())
        assert problem.text() == f"{old} (host n1): is now called {new}. Rename it."


def test_what_resembles_a_former_name_leads_to_the_present_one() -> None:
    assert unknown_variables(["upgrade_min_inn"], public_variables()) == {
        "upgrade_min_inn": "rollout_min_available"
    }
