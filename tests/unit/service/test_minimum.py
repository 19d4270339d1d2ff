# SPDX-License-Identifier: Apache-2.0
"""What stays in service, whatever a command takes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.minimum import (
    ServingEngine,
    minimum,
    parse_count,
    refusals,
)


def engines(picture: str) -> list[ServingEngine]:
    """Engines from "n1:sT n2:dt" or "a/n1:s b/n1:T", those of each host, and of one deployment or another.

    s serves, T serves and is taken, d is down or drained, t is that and taken.
    """
    found = []
    for word in picture.split():
        host, _, letters = word.rpartition(":")
        deployment, _, host = host.rpartition("/")
        name = deployment or "llama"
        found += [
            ServingEngine(name, f"{name}-{index}", tuple(host.split("+")), letter in "sT", letter in "Tt")
            for index, letter in enumerate(letters)
        ]
    return found


FEWER = "Take fewer at a time: --limit"
LAST, HALF = "the last one must stay in service", "2 must stay in service (rollout_min_available: 50%)"


@pytest.mark.parametrize(
    ("picture", "min_available", "text"),
    [
        # All is well.
        ("n1:ss n2:TT", None, ""),
        ("n1:ss n2:ss", None, ""),
        ("n1:ssT", None, ""),
        ("n1:s n2:T", "50%", ""),
        ("n1:s n2:T n3:T", 1, ""),
        ("n1:s n2:T n3:T", 0, ""),
        ("n1:s n2:s n3:s n4:T", "75%", ""),
        # Too few would be left.
        ("n1:TT n2:TT", None, f"llama: 4 of 4 serve; this would leave 0, and {HALF}. {FEWER} n1."),
        ("n1:s n2:T n3:T", None, f"llama: 3 of 3 serve; this would leave 1, and {HALF}. {FEWER} n2."),
        ("n1:T n2:T n10:T n9:T n3:T n4:T", None, "--limit n1,n2,n3."),
        ("n1:T n2:T", 0, f"2 of 2 serve; this would leave 0, and {LAST}. {FEWER} n1."),
        ("n1:T n2:s n3:s n4:s", "100%", "and 4 must stay in service (rollout_min_available: 100%). First return"),
        ("n1:TT", None, f"2 of 2 serve; this would leave 0, and {LAST}. {FEWER} n1 -e instance=llama-0."),
        ("n1:T", None, f"1 of 1 serve; this would leave 0, and {LAST}. First return others to service"),
        ("n1:T", 0, f"1 of 1 serve; this would leave 0, and {LAST}."),
        ("n1:T", 7, LAST),
        # What is down or drained is no capacity, and may always be taken.
        ("n1:dd n2:TT", None, f"2 of 4 serve; this would leave 0, and {HALF}. First return others to service: "
         "llama-0 on n1, llama-1 on n1 (undrain.yml; status.yml shows them)."),
        ("n1:dddddd n2:TT", None, "llama-2 on n1, llama-3 on n1, 2 more (undrain.yml"),
        ("n1:sd n2:sT", None, ""),
        ("n1:dd n2:ss n3:tt", None, ""),
        ("n1:s n2:d n3:d n4:t", None, ""),
        ("n1:ddd n2:ttt", None, ""),
        ("n1:sd n2:tT", None, f"2 of 4 serve; this would leave 1, and {HALF}. First return others"),
        ("n1:s n2:d n3:T n4:t", None, f"2 of 4 serve; this would leave 1, and {HALF}. {FEWER} n4."),
        # Each deployment counts for itself.
        ("a/n1:s a/n2:T b/n2:TT", None, f"b: 2 of 2 serve; this would leave 0, and {LAST}."),
        ("a/n1:T a/n2:s b/n2:T b/n1:s", None, ""),
        # An engine over two hosts goes as a whole.
        ("n1+n2:T n3+n4:s", None, ""),
        ("n1+n2:T n3+n4:T", None, f"2 of 2 serve; this would leave 0, and {LAST}. {FEWER} n1,n2."),
    ],
)  # fmt: skip
def test_what_is_refused(picture: str, min_available: Any, text: str) -> None:
    found = refusals(engines(picture), min_available)
    assert len(found) == (1 if text else 0), found
    assert text in "".join(item.text() for item in found)
    for item in found:
        assert item.fix.endswith(" To do it anyway, with 503 for clients: -e at_once=true.")


def test_where_only_whole_hosts_can_go_no_instance_is_named() -> None:
    picture = engines("n1:sd n2:TT")
    assert f"{FEWER} n2 -e instance=llama-0." in refusals(picture)[0].fix
    assert refusals(picture, whole_hosts=True)[0].fix.startswith(
        "First return others to service: llama-1 on n1 ("
    )


def test_every_deployment_is_told_and_the_way_out_holds_for_all() -> None:
    found = refusals(engines("b/n1:T b/n2:T b/n3:s a/n1:T"), limit_also=("lb",))
    assert [item.what.partition(":")[0] for item in found] == ["a", "b"]
    # n1 would do for b, and take the last one of a.
    assert {item.fix.partition(". ")[0] for item in found} == {f"{FEWER} n2,lb"}


def test_a_balancer_on_a_host_that_stops_is_named_once() -> None:
    found = refusals(engines("n1:T n2:T"), limit_also=("n1", "lb"))
    assert found[0].fix.startswith(f"{FEWER} n1,lb. ")
    found = refusals(engines("n1:sd n2:TT"), limit_also=("n2",))
    assert f"{FEWER} n2 -e instance=llama-0." in found[0].fix


@pytest.mark.parametrize(
    ("total", "min_available", "kept"),
    [
        (1, None, 1), (2, None, 1), (3, None, 2), (4, None, 2), (5, None, 3), (4, "75%", 3), (3, "75%", 3),
        (4, "0%", 1), (4, 0, 1), (4, 3, 3), (4, 9, 4), (4, "100%", 4),
    ],
)  # fmt: skip
def test_how_many_stay(total: int, min_available: Any, kept: int) -> None:
    assert minimum(total, min_available) == kept


@pytest.mark.parametrize(
    ("value", "count"),
    [(2, 2), ("2", 2), ("20%", "20%"), ("120%", None), ("a", None), (True, None), (1.5, None), ("-1", None)],
)
def test_counts(value: Any, count: Any) -> None:
    assert parse_count(value) == count
