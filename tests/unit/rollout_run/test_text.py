# SPDX-License-Identifier: Apache-2.0
"""What follows from a batch, and what is told in the end."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import BENCHMARK
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.infrastructure import CLASSES
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.failures import (
    Failure,
    message_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.judge import judge_batch
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.text import (
    summarize_measurement,
    summarize_rollout,
    unmended_message,
)


def batch(number: int, units: list[list[str]], **keys: Any) -> dict[str, Any]:
    hosts = list(dict.fromkeys(name.partition("/")[0] for unit in units for name in unit))
    base = {
        "number": number,
        "of": 3,
        "operation": "upgrade",
        "deployment": "llama",
        "generation": 3,
        "holds": {"llama": 2},
        "lost": [],
        "canary": f"{hosts[0]}/llama-0" if number == 1 else "",
        "way_back": ["hold", "drain", "report", "serve_old", "confirm_hold"],
        "hosts": hosts,
        "all_hosts": hosts,
        "units": units,
        "text": f"batch {number} of 3: {hosts[0]}",
    }
    return {**base, **keys}


BATCHES = [batch(1, [["n1/llama-0"]]), batch(2, [["n1/llama-1"], ["n2/llama-0"]]), batch(3, [["n2/llama-1"]])]


@pytest.mark.parametrize(
    ("operation", "failures", "gone", "stop", "back", "why"),
    [
        ("upgrade", {}, [], False, False, ""),
        ("upgrade", {"n1": "slower by 30 %"}, [], True, True, "n1: slower by 30 %"),
        ("upgrade", {"n1": "a", "n2": "b"}, [], True, True, "n1: a; n2: b"),
        # A host that went away says nothing about the release.
        ("upgrade", {}, ["n2"], True, False, "n2 can no longer be reached"),
        ("upgrade", {"n1": "slow"}, ["n2"], True, True, "n1: slow"),
        ("rollback", {}, ["n3"], True, False, "n3 failed to start what must serve before others change"),
        # There is nothing to go back to.
        ("restart", {"n1": "out of memory"}, [], True, False, "n1: out of memory"),
        ("rollback", {"n1": "no image"}, [], True, False, "n1: no image"),
    ],
)
def test_what_follows(
    operation: str, failures: dict[str, str], gone: list[str], stop: bool, back: bool, why: str
) -> None:
    failed = {host: Failure(text, ("broken",)) for host, text in failures.items()}
    verdict = judge_batch({**BATCHES[1], "operation": operation}, failed, gone)
    assert (verdict.stop, verdict.back, verdict.why) == (stop, back, why)
    assert list(verdict.phases) == (["hold", "drain", "serve_old", "confirm_hold"] if back else [])
    assert verdict.turned == back
    assert verdict.to_json()["hold_why"] == why


@pytest.mark.parametrize(
    ("failures", "not_started", "phases"),
    [
        ({}, [], []),
        ({"n1": "slower"}, [], ["hold", "drain", "serve_old", "confirm_hold"]),
        ({"n1": "out of memory"}, ["n1"], ["hold", "drain", "report", "serve_old", "confirm_hold"]),
        ({"n2": "out of memory"}, ["n2"], ["hold", "drain", "serve_old", "confirm_hold"]),
    ],
    ids=["good", "measured", "did not start", "one that is not the canary did not start"],
)
def test_phases_that_follow_a_canary(
    failures: dict[str, str], not_started: list[str], phases: list[str]
) -> None:
    failed = {
        host: Failure(text, ("broken",), started=host not in not_started) for host, text in failures.items()
    }
    verdict = judge_batch(BATCHES[0], failed, [])
    assert list(verdict.phases) == phases
    assert verdict.to_json()["phases"] == phases


WIDE = batch(2, [["n1/llama-1"], ["n2/llama-0", "n3/llama-0"], ["n4/llama-0"]])
AWAY = ["drain", "serve_old"]

MIXED: dict[str, tuple[dict[str, tuple[str, ...]], list[str], list[str]]] = {
    # classes by host, phases that follow, and on which hosts; [] for all when the release is turned back
    "docker on one": ({"n1": ("docker",)}, AWAY, ["n1"]),
    "an engine over two hosts goes back on both": ({"n3": ("docker",)}, AWAY, ["n2", "n3"]),
    "a disk and a port": ({"n1": ("files", "port_in_use"), "n4": ("disk_full",)}, AWAY, ["n1", "n4"]),
    "no load balancer: all wait": ({"n1": ("balancer",), "n4": ("balancer",)}, [], []),
    "no load balancer for one, Docker for the other": (
        {"n1": ("balancer",), "n4": ("docker",)},
        AWAY,
        ["n4"],
    ),
    "another run works there": ({"n1": ("other_run",)}, [], []),
    "one instance of a host is bad": ({"n1": ("docker", "out_of_memory")}, [], []),
    "one host is bad, the other has no Docker": ({"n1": ("docker",), "n4": ("python_exception",)}, [], []),
    "a peer of its engine has no Docker": (
        {"n2": ("collective_failed",), "n3": ("docker",)},
        AWAY,
        ["n2", "n3"],
    ),
    "both hosts of an engine are bad": ({"n2": ("out_of_memory",), "n3": ("out_of_memory",)}, [], []),
    "a bad host, and an engine whose peer has no Docker": (
        {"n1": ("slower",), "n2": ("collective_failed",), "n3": ("docker",)},
        [],
        [],
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_a_failure_around_the_release_is_no_verdict_on_it(case: str) -> None:
    classes, phases, hosts = MIXED[case]
    failures = {host: Failure(f"broke {host}", found) for host, found in classes.items()}
    release = case != "a peer of its engine has no Docker" and any(
        not set(found) <= CLASSES for found in classes.values()
    )
    verdict = judge_batch(WIDE, failures, [])
    assert (verdict.stop, verdict.turned, verdict.resumable) == (True, release, not release)
    assert all(f"broke {host}" in verdict.why for host in classes)
    if release:
        assert [phase for phase in verdict.phases if "hold" in phase] == ["hold", "confirm_hold"]
        assert list(verdict.hosts) == WIDE["all_hosts"]
    else:
        assert (list(verdict.phases), list(verdict.hosts)) == (phases, hosts)
        assert verdict.back == bool(phases)
    # What is not an upgrade stops where it is, as ever.
    other = judge_batch({**WIDE, "operation": "rollback"}, failures, [])
    assert (other.stop, other.back, other.turned, other.resumable) == (True, False, False, False)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("instinct.fleet.vllm_server", "disk full"),
        ("instinct.fleet.serving_generation", "It serves, and is not held: disk full"),
    ],
)
def test_why_a_host_did_not_come_back(action: str, text: str) -> None:
    assert unmended_message(action, {"msg": "disk full"}) == text


def test_instances_that_nobody_recorded_are_named_in_the_end() -> None:
    batches = [batch(1, [["n1/llama-0"]], lost=["n1/llama-0", "n1/llama-1"])]
    text = summarize_rollout("upgrade", batches, 1, {"turned": True, "why": "x"}, {})
    assert (
        "Rolled back: generation 2 serves again, except for n1/llama-0, n1/llama-1, of which what ran" in text
    )


END = {
    "all is done": ("upgrade", None, {}, {}, ["Upgrade: 4 groups of 4 done."]),
    "the canary": (
        "upgrade",
        1,
        {"turned": True, "why": "n1: slower by 30 %"},
        {},
        [
            "0 groups of 4",
            "slower by 30 %",
            "Rolled back: generation 2 serves again",
            "llama is held. It ends when",
            "retry=true",
        ],
    ),
    "a later batch": (
        "upgrade",
        2,
        {"turned": True, "why": "x"},
        {},
        [
            "1 group of 4",
            "1 group of earlier batches still runs generation 3: rollback.yml -e deployment=llama",
        ],
    ),
    "it did not come back": (
        "upgrade",
        1,
        {"turned": True, "why": "x"},
        {"n1": "out of memory"},
        [
            "n1 could not be rolled back to generation 2: out of memory",
            "rollback.yml -e deployment=llama to try again",
        ],
    ),
    "a host is gone": (
        "upgrade",
        2,
        {"turned": False, "why": "n2 …"},
        {},
        ["When the host is reachable, run the same command again"],
    ),
    "Docker was dead, and the host went back": (
        "upgrade",
        2,
        {"turned": False, "resumable": True, "back": True, "hosts": ["n2"], "why": "n2: docker"},
        {},
        [
            "not a verdict on generation 3, so llama is not held",
            "Serves with its earlier generation again: n2.",
            "Fix the cause, then run the same command again: it continues from here.",
        ],
    ),
    "Docker is dead": (
        "upgrade",
        2,
        {"turned": False, "resumable": True, "back": True, "hosts": ["n2"], "why": "n2: docker"},
        {"n2": "docker"},
        [
            "not held",
            "n2 does not serve with its earlier generation yet: docker",
            "run the same command again: it continues from here.",
        ],
    ),
    "no load balancer": (
        "upgrade",
        2,
        {"turned": False, "resumable": True, "back": False, "hosts": [], "why": "x", "lost": {"lb": "off."}},
        {},
        ["Load balancer lb does not answer: off. When it is back", "not held", "run the same command again"],
    ),
    "a restart": (
        "restart",
        2,
        {"turned": False, "why": "x"},
        {},
        ["run the same command again; it continues from here"],
    ),
}


@pytest.mark.parametrize("case", END)
def test_the_end(case: str) -> None:
    operation, ended, verdict, unmended, texts = END[case]
    batches = [{**item, "operation": operation} for item in BATCHES]
    message = summarize_rollout(operation, batches, ended, verdict, unmended)
    assert [text for text in texts if text not in message] == []


MEASURED = [
    {**item, "operation": BENCHMARK, "phases": [], "way_back": ["return", "serve"]} for item in BATCHES
]


@pytest.mark.parametrize(
    ("failures", "gone", "stop", "phases", "hosts", "missed"),
    [
        ({}, [], False, [], ["n1", "n2"], []),
        # The instances of the host that failed return, and the next batch follows.
        ({"n1": ("",)}, [], False, ["return", "serve"], ["n1"], ["n1: broke"]),
        (
            {"n1": ("docker",), "n2": ("",)},
            [],
            False,
            ["return", "serve"],
            ["n1", "n2"],
            ["n1: broke; n2: broke"],
        ),
        # Nothing more can be drained where no load balancer answers, or another run has taken over.
        ({"n1": ("balancer",)}, [], True, ["return", "serve"], ["n1"], ["n1: broke"]),
        ({"n2": ("other_run",)}, [], True, ["return", "serve"], ["n2"], ["n2: broke"]),
        ({}, ["n2"], False, [], ["n1", "n2"], ["n2 can no longer be reached"]),
    ],
)
def test_a_measurement_goes_on_where_it_can(
    failures: dict[str, tuple[str, ...]], gone: list[str], stop: bool, phases: list[str], hosts: list[str],
    missed: list[str],
) -> None:  # fmt: skip
    failed = {host: Failure("broke", classes) for host, classes in failures.items()}
    verdict = judge_batch(MEASURED[1], failed, gone)
    assert (verdict.stop, list(verdict.phases), list(verdict.hosts)) == (stop, phases, hosts)
    assert verdict.to_json()["missed"] == [f"batch 2 of 3: n1: {text}" for text in missed]
    assert verdict.turned is False


def test_the_end_of_a_measurement() -> None:
    assert summarize_measurement(BENCHMARK, MEASURED, None, [], {}) == "Benchmark: 4 groups of 4 done."
    text = summarize_measurement(BENCHMARK, MEASURED, 2, ["n1: slow", "n1: slow"], {"n2": "no image."})
    assert text.splitlines() == [
        "Benchmark: 1 group of 4 done.",
        "Failed: n1: slow",
        "n2 has an instance that does not serve again: no image. The load balancers use it once it does; "
        "status.yml shows it, site.yml starts it.",
        "It stopped there. Fix the cause and run the same command again, which first returns what is drained.",
    ]


def test_the_end_of_a_rollout_of_which_nothing_was_left() -> None:
    message = summarize_rollout("deploy", [], None, {}, {})
    assert message == "Deploy: nothing was left to change, and the unfinished rollout is over."


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "slow"}, "slow"),
        (
            {
                "msg": "One or more items failed",
                "results": [{"msg": "ok"}, {"failed": True, "msg": "not in"}],
            },
            "not in",
        ),
        ({"results": []}, "no message"),
        ({"msg": "no package", "results": ["a line of dnf"]}, "no package"),
        ({"msg": "odd", "results": {"a": {"failed": True}}}, "odd"),
        ("text", "text"),
    ],
)
def test_the_error_of_a_task(result: Any, text: str) -> None:
    assert message_of(result) == text
