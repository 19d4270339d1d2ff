# SPDX-License-Identifier: Apache-2.0
"""Hours for fetches, with time zones and changes of the clocks; and what goes around a proxy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fetch_window import parse_window
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.no_proxy import (
    behind_proxy,
    goes_around,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.fetch_rules import outside_window

from tests.worlds.plan_world import LOCK, PULL, apply_to_state, deployment, plan, problems, state


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "now", "inside"),
    [
        ("22:00-06:00", "2026-11-25 22:00", True),
        ("22:00-06:00", "2026-11-25 21:59", False),
        ("22:00-06:00", "2026-11-26 05:59", True),
        ("22:00-06:00", "2026-11-26 06:00", False),
        ("1:00 - 2:30", "2026-11-26 02:29", True),
        ("1:00 - 2:30", "2026-11-26 02:30", False),
        ("20:00-24:00", "2026-11-26 23:59", True),
        ("20:00-24:00", "2026-11-26 00:00", False),
        ("22:00-06:00 Europe/Berlin", "2026-11-25 21:30", True),  # 22:30 there
        ("22:00-06:00 Europe/Berlin", "2026-07-25 20:30", True),  # 22:30 in summer
        ("22:00-06:00 Europe/Berlin", "2026-07-25 19:59", False),
        ("02:00-03:00 Europe/Berlin", "2026-03-29 01:30", False),  # an hour that the clocks skip
        ("22:00-06:00 America/New_York", "2026-11-26 03:30", True),
    ],
)
def test_hours(window: str, now: str, inside: bool) -> None:
    found = parse_window(window)
    assert found is not None
    assert found.contains(at(now)) is inside


@pytest.mark.parametrize(
    ("window", "now", "opens"),
    [
        ("22:00-06:00", "2026-11-25 21:00", "2026-11-25 22:00"),
        ("22:00-06:00", "2026-11-25 23:00", "2026-11-26 22:00"),
        ("22:00-06:00 Europe/Berlin", "2026-07-25 12:00", "2026-07-25 20:00"),
        ("02:30-03:30 Europe/Berlin", "2026-03-29 00:00", "2026-03-29 01:30"),
    ],
)
def test_when_it_begins(window: str, now: str, opens: str) -> None:
    found = parse_window(window)
    assert found is not None
    assert found.opens(at(now)) == at(opens)


@pytest.mark.parametrize(
    "text",
    ["", "22:00", "22:00-22:00", "25:00-06:00", "22:00-06:60", "22-06", "20:00-24:30", "22:00-06:00 Europe/Nowhere",
     "22:00-06:00 ../etc/passwd", "22:00-06:00 UTC x"],
)  # fmt: skip
def test_what_is_no_window(text: str) -> None:
    assert parse_window(text) is None


@pytest.mark.parametrize("value", ["22-06", 1320, ["22:00-06:00"]])
def test_what_the_inventory_must_not_have(value: Any) -> None:
    (text,) = problems({"n1": state()}, [], fetch_window=value)
    assert text.startswith("fetch_window (host n1): is not a window of hours. Write")


def test_a_fetch_waits_for_its_hours_and_nothing_else_does() -> None:
    noon, night = at("2026-11-25 12:00"), at("2026-11-25 23:00")
    hours = {"fetch_window": "22:00-06:00"}
    made = plan({"n1": state(), "n2": state()}, [deployment()], own={"n1": hours, "n2": hours})
    (problem,) = outside_window(made, noon)
    assert problem.text() == (
        "fetch_window (hosts n1, n2): images or weights must be fetched, but it is outside the window "
        "22:00-06:00 UTC. It begins 2026-11-25 22:00 UTC; to fetch now, add -e fetch_now=true."
    )
    assert outside_window(made, night) == ()
    for told in (True, "true"):
        now = plan({"n1": state()}, [deployment()], **hours, fetch_now=told)
        assert outside_window(now, noon) == ()
    # The image is there, and has to be read before the weights are planned in the same run.
    unread = Lock({ref: replace(pin, software=None) for ref, pin in LOCK.images.items()}, LOCK.models)
    there = state(images=[{"id": "i", "tags": [], "digests": [PULL]}])
    partial = plan({"n1": there}, [deployment()], unread, **hours)
    assert partial.partial
    assert outside_window(partial, noon)
    after = apply_to_state(state(), made.to_json()["hosts"]["n1"])
    changed = plan({"n1": after}, [deployment(env={"A": "1"})], **hours)  # a restart
    assert changed.changes
    assert outside_window(changed, noon) == ()


@pytest.mark.parametrize(
    ("host", "no_proxy", "around"),
    [
        ("mirror.corp", ".corp", True),
        ("mirror.corp", "corp", True),
        ("mirror.corp", "*.corp", True),
        ("mirror.corp", "mirror.corp:5000", True),
        ("mirror.corp", "irror.corp", False),
        ("mirror.corp", "localhost, MIRROR.corp", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.2.0.0/16,10.1.2.4", False),
        ("mirror.corp", "10.0.0.0/8,", False),
        ("anything", "*", True),
        ("anything", "", False),
    ],
)
def test_what_goes_around_a_proxy(host: str, no_proxy: str, around: bool) -> None:
    assert goes_around(host, no_proxy) is around


def test_servers_of_ones_own_network() -> None:
    hosts = [
        "mirror.corp",
        "10.0.0.5",
        "huggingface.co",
        "registry",
        "localhost",
        "",
        "mirror.corp",
        "fd00::1",
    ]
    assert behind_proxy(hosts, "registry") == ["mirror.corp", "10.0.0.5", "fd00::1"]


@pytest.mark.parametrize(
    ("no_proxy", "line"),
    [
        ("localhost", "localhost,registry,10.0.0.9"),
        ("registry,10.0.0.0/8", ""),
        (None, "registry,10.0.0.9"),
    ],
)
def test_the_plan_names_what_the_proxy_would_not_find(no_proxy: str | None, line: str) -> None:
    proxy = {"https_proxy": "http://me:secret-of-mine@proxy:1", "no_proxy": no_proxy}
    keys = {
        "instinct_proxy": {key: text for key, text in proxy.items() if text},
        "hf_model_endpoint": "http://10.0.0.9:8080",
        "registry_override": {"registry.lab:5000": "registry:5000/hub"},
    }
    found = [
        text for text in plan({"n1": state()}, [deployment()], **keys).hosts[0].warnings if "proxy" in text
    ]
    assert [repr(line) in text for text in found] == ([True] if line else [])
    assert "secret-of-mine" not in "".join(found)
    del keys["instinct_proxy"]
    assert not any(
        "proxy" in text for text in plan({"n1": state()}, [deployment()], **keys).hosts[0].warnings
    )
