# SPDX-License-Identifier: Apache-2.0
"""What runs, judged: states, the load balancer's word, sums, and a table that stays readable with 512 instances."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    Generation,
    GenerationMember,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status import rows as s
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.fleet import order, status
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.rows import (
    StatusRow,
    reason_and_next_step,
    state_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.text import (
    age,
    hosts_text,
    text,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.actions import size

from tests import ROOT
from tests.helpers.some import some
from tests.worlds.status_world import LOAD, NOW, host, instance, server

OOM = {
    "at": NOW - 60, "seconds": 9.0, "served": 0.0, "code": 1, "kind": "out_of_memory", "line": "HIP out of memory.",
    "next_step": "Lower gpu_memory_utilization.", "log": "failure-1.log",
}  # fmt: skip


def says(state: str, why: str = "", *failures: dict[str, Any]) -> dict[str, Any]:
    return {"state": state, "since": NOW - 7200, "why": why, "failures": list(failures)}


DOWN = {"health": 0, "metrics": None}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, s.SERVING),
        ({"ready": False}, s.SERVING),  # it has generated tokens since it was started, whoever asked
        ({"ready": False, "metrics": {**LOAD, "generated": 0}}, s.UNPROVEN),
        ({"ready": False, "metrics": None}, s.UNPROVEN),
        ({"health": 503}, s.DEAD),
        (DOWN, s.SILENT),
        ({**DOWN, "supervisor": says("starting")}, s.STARTING),
        ({**DOWN, "supervisor": says("starting", "", OOM)}, s.FAILING),
        ({**DOWN, "supervisor": says("starting", "", {**OOM, "at": NOW - 1801})}, s.STARTING),  # an old story
        ({**DOWN, "supervisor": says("waiting", "waits for n2 (rank 1)", OOM)}, s.WAITING),
        ({**DOWN, "supervisor": says("gave_up", "", OOM, OOM, OOM)}, s.GAVE_UP),
        ({"supervisor": says("stopping")}, s.STOPPING),
        ({**DOWN, "supervisor": None}, s.STARTING),
        ({**DOWN, "supervisor": None, "restarts": 2}, s.FAILING),
        ({"status": "restarting", "exit_code": 1}, s.FAILING),
        ({"status": "exited", "exit_code": 0}, s.STOPPED),
        ({"status": "exited", "exit_code": 143}, s.STOPPED),
        ({"status": "created"}, s.STOPPED),
        ({"status": "exited", "exit_code": 1, "supervisor": says("running")}, s.CRASHED),
        ({"status": "dead"}, s.CRASHED),
        ({"status": "paused"}, s.PAUSED),
        ({"endpoint": None, "health": None, "metrics": None}, s.WORKING),
        ({"endpoint": None, "health": None, "metrics": None, "supervisor": says("waiting")}, s.WAITING),
    ],
)
def test_state(keys: dict[str, Any], expected: str) -> None:
    assert state_of(instance(**keys), NOW) == expected


def test_what_crashed_is_started_by_site_yml_and_its_cause_comes_first() -> None:
    """Docker leaves it as it is; the cause alone would leave it down."""
    _, next_step = reason_and_next_step(instance(failure=OOM, supervisor=None), s.CRASHED, "n1")
    assert next_step == f"{OOM['next_step'].rstrip('.')}; then site.yml starts it again"
    assert reason_and_next_step(instance(failure=None), s.CRASHED, "n1")[1] == "site.yml starts it again"


def test_every_state_but_the_good_ones_says_why_or_what_next() -> None:
    for state in some([state for state in s.TROUBLE if state != s.NOT_REACHED]):  # which depends on the host
        why, next_step = reason_and_next_step(instance(failure=OOM, supervisor=None), state, "n1")
        assert why or next_step, state
        assert "{" not in next_step


def test_the_runbook_explains_every_state() -> None:
    book = (ROOT / "docs/runbooks/status.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(.+?)` \|", book, re.MULTILINE)) == set(s.STATES)


def test_the_first_failure_of_a_series_is_the_one_that_is_told() -> None:
    later = {**OOM, "kind": "port_in_use", "line": "Address already in use"}
    row = status({"n1": host(instance(**DOWN, supervisor=says("gave_up", "", OOM, later, later)))}, {}).rows[
        0
    ]
    assert (row.state, row.failures) == (s.GAVE_UP, 3)
    assert row.why == "3 failures, the first: out_of_memory: HIP out of memory."
    assert row.next_step == "Lower gpu_memory_utilization."


@pytest.mark.parametrize(
    ("servers", "place", "state"),
    [
        ([], "", s.SERVING),
        ([server("n1")], s.IN, s.SERVING),
        ([server("n1", state="drain")], s.OUT, s.DRAINED),
        ([server("n1", up=False, check="L4CON")], s.DOWN, s.NO_TRAFFIC),
        ([server("n1"), server("n1", up=False)], "1 of 2", s.NO_TRAFFIC),
        ([server("n1"), server("n1", state="drain")], "1 of 2", s.DRAINED),
        ([server("n2")], "", s.SERVING),
    ],
)
def test_the_load_balancers_word(servers: list[dict[str, Any]], place: str, state: str) -> None:
    seen = {"n1": host(instance())}
    seen.update({f"lb{number}": host(servers=[item]) for number, item in enumerate(servers)})
    row = status(seen, {}).rows[0]
    assert (row.balancer, row.state) == (place, state)


@pytest.mark.parametrize(
    ("out", "why", "step"),
    [
        (
            {"by": "operator", "since": "T"},
            "drained by drain.yml at T",
            "undrain.yml --limit n1 -e instance=llama-0",
        ),
        (
            {"by": "run", "since": "T"},
            "drained by a run at T",
            "if that run is over, the next run of site.yml",
        ),
        (None, "drained by hand", "undrain.yml --limit n1 -e instance=llama-0"),
    ],
)
def test_what_is_drained_is_trouble_and_who_took_it_out_is_named(
    out: dict[str, Any] | None, why: str, step: str
) -> None:
    """It is lost capacity, whoever did it, and monitoring has to see it."""
    seen = {"n1": host(instance(), servers=[server("n1", state="drain", out=out)])}
    made = status(seen, {})
    assert made.rows[0].trouble
    assert made.rows[0].why == why
    assert made.rows[0].next_step.startswith(step)
    assert made.verdict() == "1 of 1 instances do not serve as they should: llama-0 on n1 (drained)."


def test_a_held_deployment_that_runs_two_generations_is_trouble() -> None:
    kept = [generation(2, llama_0="old"), generation(3, llama_0="aa")]
    hold = {"generation": 2, "why": "slower", "since": "2026-01-01T00:00:00Z"}
    history = {"deployment": "llama", "held": hold, "trial": None, "kept": kept}
    seen = {
        name: host(instance(spec_hash=spec), generations=[history])
        for name, spec in (("n1", "aa"), ("n2", "old"))
    }
    made = status(seen, {})
    verdict = (
        "llama is held at generation 2, but 1 of 2 instances run another one: rollback.yml -e deployment=llama "
        "-e generation=2 moves them, a few at a time"
    )
    assert made.verdict() == f"{verdict}."
    assert made.deployments[0].to_json()["divided"] == verdict
    assert "→ llama is held at generation 2" in text(made)
    seen["n1"]["instances"][0]["spec_hash"] = "old"
    assert status(seen, {}).verdict() == ""


PUBLICKEY = "Failed to connect to the host via ssh: root@n2: Permission denied (publickey)."


@pytest.mark.parametrize(
    ("why", "servers", "step", "drain"),
    [
        (
            "No route to host",
            [server("n2", up=False)],
            "check the host; drain.yml --limit n2 keeps it out",
            True,
        ),
        ("No route to host", [server("n2")], "the load balancer's checks reach it, so it serves", False),
        ("No route to host", [server("n2", state="drain")], "check the host", False),
        (PUBLICKEY, [server("n2")], "the load balancer's checks reach it, so it serves", False),
        (PUBLICKEY, [server("n2", up=False)], "The host answers, but refuses this user's key", True),
        # One of its two instances serves, and drain.yml would take both.
        (
            "No route",
            [server("n2"), server("n2", "llama-1", up=False)],
            "the load balancer's checks reach it",
            False,
        ),
        (
            "Module result deserialization failed: No start",
            [server("n2")],
            "the load balancer's checks",
            False,
        ),
    ],
)
def test_a_host_that_serves_is_not_advised_to_be_drained(
    why: str, servers: list[dict[str, Any]], step: str, drain: bool
) -> None:
    made = status({"lb": host(servers=servers)}, {"n2": why})
    for row in made.rows:
        assert row.next_step.startswith(step)
        assert ("drain.yml --limit" in row.next_step) == drain
    assert ("refuses this user's key" in made.rows[0].next_step) == (why == PUBLICKEY)
    assert ("no home directory" in made.rows[0].next_step) == ("deserialization" in why)


def test_a_host_of_which_nothing_is_known_has_its_hint_beside_the_error() -> None:
    lines = text(status({}, {"n2": PUBLICKEY})).splitlines()
    assert lines[1] == f"  n2: not reached: {PUBLICKEY}"
    assert lines[2].startswith("    → The host answers, but refuses this user's key")


def test_a_host_that_is_gone_has_rows_by_what_the_load_balancer_knows() -> None:
    servers = [server("n1"), server("n2", up=False), server("n2", "llama-1", up=False)]
    made = status({"n1": host(instance(), servers=servers)}, {"n2": "No route to host", "n3": "timed out"})
    assert [(row.host, row.instance, row.state, row.balancer) for row in made.rows] == [
        ("n2", "llama-0", s.NOT_REACHED, s.DOWN),
        ("n2", "llama-1", s.NOT_REACHED, s.DOWN),
        ("n1", "llama-0", s.SERVING, s.IN),
    ]
    assert made.deployments[0].serving == 1
    assert made.deployments[0].total == 3
    assert made.verdict() == "not reached: n2, n3."
    message = text(made)
    assert "n3: not reached: timed out" in message
    assert "drain.yml --limit n2" in message


def generation(number: int, **specs: str) -> dict[str, Any]:
    members = tuple(
        GenerationMember(name.replace("_", "-"), spec, 8000, (8000,)) for name, spec in specs.items()
    )
    return Generation("llama", number, members=members).to_json()


def test_generations_and_what_is_recorded_and_not_there() -> None:
    kept = [generation(2, llama_0="old", llama_1="bb"), generation(3, llama_0="aa", llama_1="bb")]
    history = {"deployment": "llama", "held": None, "trial": None, "kept": kept}
    made = status({"n1": host(instance(), generations=[history])}, {})
    assert [(row.instance, row.state, row.generation) for row in made.rows] == [
        ("llama-1", s.MISSING, 3), ("llama-0", s.SERVING, 3),
    ]  # fmt: skip
    assert "llama-1 on n1 (missing)" in made.verdict()
    held = {"generation": 2, "why": "canary: 30 % slower", "since": "2026-01-01T00:00:00Z"}
    seen = {
        name: host(instance(spec_hash="old"), generations=[{**history, "held": {**held, "since": since}}])
        for name, since in (("n1", "2026-01-01T00:00:01Z"), ("n2", held["since"]))
    }
    made = status(seen, {})
    assert {row.generation for row in made.rows} == {2}
    (line,) = made.held
    assert line.startswith(
        "llama is held at generation 2 since 2026-01-01T00:00:00Z (canary: 30 % slower), on hosts n1, n2. It ends when"
    )
    assert text(made).startswith(f"Held: {line[:60]}")  # before all else
    assert made.to_json()["held"] == [line]


def test_what_is_held_and_not_started_is_told_and_what_was_lifted_elsewhere_is_not() -> None:
    hold = {
        "generation": 0, "why": "slower", "since": "2026-01-01T00:00:00Z", "failed": [1], "together": ["llama"],
    }  # fmt: skip
    kept = [generation(1, chat_0="aa")]
    history = {"deployment": "chat", "held": hold, "trial": None, "kept": kept}
    away = {**history, "deployment": "away"}
    lifted = {**away, "held": None, "lifted": "2026-01-01T00:00:01Z"}
    made = status({"n1": host(generations=[history, away]), "n2": host(generations=[lifted])}, {})
    (line,) = made.held
    assert line.startswith(
        "chat is held, and not started, since 2026-01-01T00:00:00Z: generation 1 was turned back (slower), on host n1."
    )
    assert not [row for row in made.rows if row.deployment == "chat"]
    left = instance(name="chat-0", deployment="chat", spec_hash="aa")
    made = status({"n1": host(left, generations=[history])}, {})
    assert "chat is held and not started, but 1 of its instances exist: site.yml removes" in made.verdict()


@pytest.mark.parametrize(
    ("spec", "held", "step"),
    [
        ("aa", 2, "rollback.yml -e deployment=llama -e generation=2 starts it"),
        ("old", 2, "site.yml starts it"),
        ("aa", None, "site.yml starts it"),
        ("old", None, "upgrade.yml starts it"),
        ("unrecorded", None, "upgrade.yml starts it"),
    ],
    ids=["held, one runs another", "held, and equal", "equal", "divided", "of no record"],
)
def test_no_advice_replaces_at_once_what_serves(spec: str, held: int | None, step: str) -> None:
    """One host serves; the other's instance is stopped. site.yml is named only where it leaves the first alone."""
    kept = [generation(2, llama_0="old"), generation(3, llama_0="aa")]
    hold = {"generation": held, "why": "slower", "since": "2026-01-01T00:00:00Z"} if held else None
    history = {"deployment": "llama", "held": hold, "trial": None, "kept": kept}
    stopped = instance(spec_hash="old" if held else "aa", status="exited", metrics=None, health=None)
    seen = {
        "n1": host(instance(spec_hash=spec), generations=[history]),
        "n2": host(stopped, generations=[history]),
    }
    row = next(row for row in status(seen, {}).rows if row.state == s.STOPPED)
    assert row.next_step.startswith(step)


def test_a_record_that_is_not_understood_hides_nothing_else() -> None:
    made = status({"n1": host(instance(), generations=[{"deployment": "old", "kept": [{"schema": 9}]}])}, {})
    assert made.rows[0].state == s.SERVING
    assert "record of generations of old" in made.verdict()


def test_ranks_do_not_count_as_instances() -> None:
    rank = instance("llama-0", endpoint=None, health=None, metrics=None)
    made = status({"n1": host(instance()), "n2": host(rank)}, {})
    assert (made.deployments[0].serving, made.deployments[0].total) == (1, 1)
    assert made.verdict() == ""


def fleet(hosts: int, instances: int) -> dict[str, Any]:
    """Hosts with equal instances, and a load balancer that has all of them."""
    names = [f"mi300x-{number:02}" for number in range(1, hosts + 1)]
    seen = {name: host(*(instance(f"llama-{i}") for i in range(instances))) for name in names}
    seen["lb"] = host(servers=[server(name, f"llama-{i}") for name in names for i in range(instances)])
    return seen


CACHE = {"key": "a", "predicted_tokens": [1000, 2000], "lines": ["GPU KV cache size: 3,000 tokens"]}


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (CACHE, "has a KV cache of 3,000 tokens; 1,000 to 2,000 were predicted"),
        ({**CACHE, "predicted_tokens": [1000, 3000]}, ""),
        (
            {**CACHE, "predicted_tokens": [3001, 4000]},
            "has a KV cache of 3,000 tokens; 3,001 to 4,000 were predicted",
        ),
        ({**CACHE, "predicted_tokens": None}, ""),
        ({**CACHE, "lines": []}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_cache_outside_the_prediction_is_told(start: Any, why: str) -> None:
    seen = {"n1": host(instance("llama-0", start=start))}
    (row,) = status(seen, {}).rows
    assert (row.why, row.well) == (why, True)


OTHER = {"attention": {"planned": "aiter_fa", "running": ["triton"]}}
RUNS = "runs attention backend triton, not the planned aiter_fa"


@pytest.mark.parametrize(
    ("keys", "servers", "backend", "why"),
    [
        ({}, [], "aiter_fa", ""),
        (OTHER, [], "triton", RUNS),
        (
            {"attention": {"planned": "aiter_fa", "running": ["triton", "aiter_fa"]}},
            [],
            "triton, aiter_fa",
            "",
        ),
        ({"attention": {"planned": "aiter_fa", "running": []}}, [], "", ""),
        ({"attention": None}, [], "", ""),
        ({**OTHER, "endpoint": None, "health": None, "metrics": None}, [], "triton", RUNS),
        (
            OTHER,
            [server("n1", state="drain", out={"by": "run", "since": "T"})],
            "triton",
            f"drained by a run at T; {RUNS}",
        ),
        ({**OTHER, **DOWN, "supervisor": says("waiting", "waits for n2")}, [], "triton", "waits for n2"),
    ],
)
def test_another_attention_backend_is_told(
    keys: dict[str, Any], servers: list[dict[str, Any]], backend: str, why: str
) -> None:
    made = status({"n1": host(instance(**keys), servers=servers or None)}, {})
    assert (made.rows[0].backend, made.rows[0].why) == (backend, why)
    assert made.verdict() == "" or made.rows[0].state in (s.WAITING, s.DRAINED)  # it serves
    assert made.to_json()["instances"][0]["backend"] == backend


def test_instances_with_another_backend_have_a_line_of_their_own() -> None:
    seen = fleet(2, 2)
    seen["mi300x-02"]["instances"][1].update(OTHER)
    lines = text(status(seen, {})).splitlines()[4:]
    assert [line.split()[:2] for line in lines[:2]] == [
        ["mi300x-01,mi300x-02", "3"],
        ["mi300x-02", "llama-1"],
    ]
    assert lines[2:] == [f"      {RUNS}"]


def test_a_large_fleet_stays_readable() -> None:
    seen = fleet(64, 8)
    seen["mi300x-07"]["instances"][3].update(**DOWN, supervisor=says("gave_up", "", OOM, OOM, OOM))
    lines = text(status(seen, {"mi300x-99": "No route to host"})).splitlines()
    assert lines == [
        "Status: 512 instances of 1 deployment on 65 hosts: 511 serve, 1 gave up, 1 host not reached.",
        "  mi300x-99: not reached: No route to host",
        "",
        "llama: 511 of 512 serve, 512 of 512 in the balancer, 107,566 tokens/s, 1,533 running, 511 waiting",
        "  HOST            INSTANCE    STATE    VERSION  GEN  SINCE    KV    RUN  WAIT    TOK/S  RESTARTS  LB",
        "  mi300x-07       llama-3     gave up  0.11.2     -     2h     -      -     -        -         0  in",
        "      3 failures, the first: out_of_memory: HIP out of memory.",
        "      → Lower gpu_memory_utilization.",
        "  mi300x-[01:64]  511 in all  serving  0.11.2     -     6m  12 %  1,533   511  107,566         0  in",
    ]
    assert len(text(status(seen, {}), full=True).splitlines()) == 512 + 6


def test_width() -> None:
    long = instance(
        "a-deployment-with-a-long-name-0", restarts=12, supervisor=says("waiting", "x " * 200), **DOWN
    )
    message = text(status({"a-host.example.com": host(long)}, {"n2": "y " * 200}))
    assert max(map(len, message.splitlines())) <= 120
    assert text(status({}, {})) == "Status: nothing runs."


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["n1"], "n1"),
        (["n1", "n2"], "n1,n2"),
        (["n1", "n2", "n3", "n5"], "n[1:3],n5"),
        (["n8", "n9", "n10"], "n[8:10]"),
        (["a1.x", "a2.x", "a3.x"], "a[1:3].x"),
        (["a1.x", "a2.y", "b3.x"], "a1.x,a2.y,b3.x"),
        (["alpha", "beta", "gamma"], "alpha,beta,gamma"),
        ([f"host-{name}" for name in "abcdefgh"], "host-a … (8)"),
    ],
)
def test_hosts(hosts: list[str], expected: str) -> None:
    assert hosts_text(hosts) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(5, "5s"), (119, "119s"), (120, "2m"), (7199, "119m"), (172800, "2d")]
)
def test_age(seconds: float, expected: str) -> None:
    assert age(seconds) == expected


def test_as_json() -> None:
    data = json.loads(json.dumps(status(fleet(1, 2), {"n9": "gone"}).to_json()))
    assert data["deployments"]["llama"]["tokens"] == 421.0
    assert data["instances"][0]["balancer"] == "in"
    assert data["not_reached"] == {"n9": "gone"}


def test_trouble_comes_first() -> None:
    rows = [
        StatusRow("a", "n1", "a-0", s.SERVING),
        StatusRow("a", "n2", "a-0", s.GAVE_UP),
        StatusRow("a", "n3", "a-0", s.STARTING),
    ]
    assert [row.state for row in sorted(rows, key=order)] == [s.GAVE_UP, s.STARTING, s.SERVING]


@pytest.mark.parametrize(("percent", "named"), [(89, False), (90, True), (100, True)])
def test_a_disk_that_fills_up_is_named_with_the_next_step(percent: int, named: bool) -> None:
    disk = {"path": "/var/lib/docker", "percent": percent, "free_bytes": 3 << 30}
    found = status({"n1": host(instance(), disks=[disk]), "n2": host(instance())}, {})
    what = f"n1: the disk of /var/lib/docker is {percent} % full (3.0 GiB free). Next: prune.yml --limit n1 shows"
    assert (what in " ".join(text(found).split())) is named
    assert bool(found.to_json()["disks"]) is named
    assert found.verdict() == ""  # everything serves


@pytest.mark.parametrize(
    ("held", "quota", "percent"),
    [
        (89 << 30, 100 << 30, None),
        (90 << 30, 100 << 30, 90),
        (250 << 30, 100 << 30, 250),
        (250 << 30, 0, None),  # no limit
        (250 << 30, -1, None),  # which a plan refuses
        (None, 100 << 30, None),  # no Docker answers
    ],
)
def test_a_quota_that_fills_up_is_named_with_the_next_step(
    held: int | None, quota: int, percent: int | None
) -> None:
    found = status({"n1": host(instance(), held_bytes=held), "n2": host(instance())}, {}, {"n1": quota})
    said = " ".join(text(found).split())
    if percent is None:
        assert "store_quota" not in said
        assert found.to_json()["disks"] == {}
    else:
        assert (
            f"n1: images, weights and the content store take {size(held)}, {percent} % of store_quota (100.0 GiB). "
            "Next: prune.yml --limit n1 shows what can be removed" in said
        )
    assert found.verdict() == ""  # everything serves
