# SPDX-License-Identifier: Apache-2.0
"""The action of vllm_server takes the secrets of its servers' deployments from the inventory, and of no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.action.vllm_server import ActionModule

DEPLOYMENTS = [
    {"name": "llama", "secrets": {"A": "canary-11"}},
    {"name": "other", "secrets": {"B": "canary-22"}},
]


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([{"name": "llama-0", "deployment": "llama", "secrets": "ab12cd34"}], {"llama"}),
        ([{"name": "llama-0", "deployment": "llama", "generation": 3}], None),  # the node has them
        ([{"name": "llama-0"}], None),
        ([], None),
    ],
)
def test_what_the_module_is_given(servers: list[dict[str, Any]], expected: set[str] | None) -> None:
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(args={"servers": servers, "state": "present"})
    facts = {"inventory_hostname": "n1", "hostvars": {"n1": {"vllm_deployments": DEPLOYMENTS}}}
    found = action.arguments(facts)
    assert found["servers"] == servers
    assert (set(found["secrets"]) if "secrets" in found else None) == expected
    assert "canary-22" not in str(found)
