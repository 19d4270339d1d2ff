# SPDX-License-Identifier: Apache-2.0
"""The lookup that names a play's hosts: which patterns of --limit name something."""

from __future__ import annotations

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.instinct.fleet.plugins.lookup.fleet_hosts import LookupModule

SERVERS = {"all": ["n1", "n2"], "instinct": ["n1", "n2"]}


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("n1", ""),
        # Messages name the load balancers by their group, which a fleet without one does not have.
        ("n1,load_balancer", ""),
        ("load_balancer", "--limit load_balancer: leaves no host of the group instinct."),
        ("n1,load_balancers", "--limit load_balancers: no host or group of the inventory has this name."),
        ("n1,!n3", "--limit !n3: no host or group of the inventory has this name."),
    ],
)
def test_a_limit(limit: str, said: str) -> None:
    lookup = LookupModule(loader=DataLoader())
    found = [problem.text() for problem in lookup._limit_problems(["instinct"], SERVERS, limit)]
    assert [text.startswith(said) for text in found] == ([True] if said else [])
