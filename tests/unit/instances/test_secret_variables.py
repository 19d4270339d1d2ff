# SPDX-License-Identifier: Apache-2.0
"""A deployment's secrets: a fingerprint in the plan, the values in one file, which bash reads as they are."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import (
    NO_KEY,
    InstanceKey,
    header_map,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.secret_files import (
    values_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import Deployment
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.secret_variables import (
    secret_sets,
    secrets_mark,
    secrets_text,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds.plan_world import deployment, plan, state

VALUE = "redis://:canary-7f31@store:6379/0"
KEY = InstanceKey("k", "m", True, header_map("sk-" + "a" * 30))
LLAMA = Deployment(0, "llama", "lab/tiny-llama", secrets=(("REDIS_URL", VALUE),))


def server(**keys: Any) -> dict[str, Any]:
    data: dict[str, Any] = plan({"n1": state()}, [deployment(**keys)]).to_json()
    return data["hosts"]["n1"]["servers"][0]


def test_the_value_is_in_no_part_of_a_plan() -> None:
    made = plan({"n1": state()}, [deployment(secrets={"REDIS_URL": VALUE})])
    shown = json.dumps(made.to_json()) + explain(made, full=True)
    assert "REDIS_URL" in shown
    assert "canary-7f31" not in shown


def test_the_container_gets_its_deployments_directory_and_reads_its_own_set() -> None:
    found = server(secrets={"REDIS_URL": VALUE})
    bind = "/etc/instinct-fleet/secrets/llama:/instinct-secrets:ro"
    assert bind in found["container"]["HostConfig"]["Binds"]
    assert f"\nsource /instinct-secrets/{found['secrets']}\n" in found["files"]["env"]["text"]
    without = server()
    assert "secrets" not in without
    assert "instinct-secrets" not in json.dumps(without)


def test_another_value_is_another_specification() -> None:
    first, second = (server(secrets={"REDIS_URL": value}) for value in (VALUE, VALUE + "1"))
    assert first["spec_hash"] != second["spec_hash"]
    assert first["spec_hash"] == server(secrets={"REDIS_URL": VALUE})["spec_hash"]


def test_the_fingerprint_needs_the_key_and_the_value() -> None:
    marks = {
        secrets_mark(LLAMA, KEY),
        secrets_mark(LLAMA, NO_KEY),
        secrets_mark(LLAMA, replace(KEY, map=header_map("sk-" + "b" * 30))),
        secrets_mark(replace(LLAMA, name="other"), KEY),
        secrets_mark(replace(LLAMA, secrets=(("REDIS_URL", VALUE + "1"),)), KEY),
    }
    assert len(marks) == 5
    assert all(len(mark) == 16 for mark in marks)
    assert secrets_mark(replace(LLAMA, endpoint=False), KEY) == secrets_mark(LLAMA, NO_KEY)
    assert secrets_mark(replace(LLAMA, secrets=()), KEY) == ""


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), max_size=3
    )
)
@settings(max_examples=20)
def test_bash_and_the_module_read_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    text = secrets_text((f"V{number}", value) for number, value in enumerate(values))
    assert values_of(text) == values
    file: Path = tmp_path_factory.mktemp("set") / "set"
    file.write_text(text, encoding="utf-8", newline="")
    shown = subprocess.run(
        ["bash", "-c", f"set -a; source {file}; env -0"], capture_output=True, check=True, env={}
    ).stdout.decode()
    found = dict(line.split("=", 1) for line in shown.split("\0")[:-1])
    assert [found[f"V{number}"] for number in range(len(values))] == values
    assert found["INSTINCT_SECRETS"].split() == [f"V{number}" for number in range(len(values))]


def test_what_the_module_is_given() -> None:
    wanted = [
        {"name": "llama", "secrets": {"B": "2" * 8, "A": "1" * 8}},
        {"name": "other", "secrets": {"C": "3" * 8}},
    ]
    servers = [{"deployment": "llama", "secrets": "ab12"}, {"deployment": "other"}]
    assert secret_sets(servers, wanted) == {
        "llama": {"ab12": "A=11111111\nB=22222222\nINSTINCT_SECRETS='A B'\n"}
    }
