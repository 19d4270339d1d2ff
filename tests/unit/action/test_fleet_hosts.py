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


BOTH = {"all": ["n1", "n2", "n3", "n4"], "instinct": ["n1", "n2"], "load_balancer": ["n2", "n3"]}


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("n1", ""),
        ("n1,n3", ""),
        ("n1,n2,n3", ""),  # n1 alone is taken apart
        ("n4", ""),  # it left the groups
        (None, "--limit: this playbook takes hosts apart, and needs --limit to say which."),
        ("n2", "--limit leaves no host to take apart: n2 is in the group load_balancer."),
        ("load_balancer", "--limit leaves no host to take apart: n2, n3 are in the group load_balancer."),
        ("n9", "--limit n9: no host or group of the inventory has this name."),
    ],
)
def test_a_limit_of_hosts_that_leave(limit: str | None, said: str) -> None:
    lookup = LookupModule(loader=DataLoader())
    names = ["instinct", "load_balancer"]
    found = [problem.text() for problem in lookup._limit_problems(names, BOTH, limit, leaving=True)]
    assert [text.startswith(said) for text in found] == ([True] if said else [])
