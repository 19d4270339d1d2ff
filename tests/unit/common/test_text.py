# SPDX-License-Identifier: Apache-2.0
"""Lines for people: counts, lists of hosts, paragraphs."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import (
    interfaces_text,
    join_names,
    plural,
    wrap,
)


@pytest.mark.parametrize(
    ("count", "ending", "expected"),
    [(0, "s", "0 hosts"), (1, "s", "1 host"), (2, "es", "2 hostes"), (1024, "s", "1,024 hosts")],
)
def test_a_count_has_its_noun(count: int, ending: str, expected: str) -> None:
    assert plural(count, "host", ending) == expected


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (0, ""),
        (6, "n1, n2, n3, n4, n5, n6"),
        (7, "n1, n2, n3, n4, n5, … n7 (7 hosts)"),
    ],
)
def test_a_list_of_hosts_stays_short(hosts: int, expected: str) -> None:
    assert join_names([f"n{number}" for number in range(1, hosts + 1)]) == expected


def test_interfaces_have_their_addresses() -> None:
    assert interfaces_text([("eno1", ["10.0.0.1", "fe80::1"]), ("lo", ["127.0.0.1"])]) == (
        "eno1 10.0.0.1 fe80::1, lo 127.0.0.1"
    )


def test_names_with_hyphens_stay_whole() -> None:
    assert wrap("hosts gpu-node-1 gpu-node-2", 20, "- ", "  ") == ["- hosts gpu-node-1", "  gpu-node-2"]


@pytest.mark.parametrize(("whole", "expected"), [(False, ["12345678", "90"]), (True, ["1234567890"])])
def test_a_long_word_is_split_unless_it_has_to_stay_whole(whole: bool, expected: list[str]) -> None:
    assert wrap("1234567890", 8, whole=whole) == expected
