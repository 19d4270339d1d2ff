# SPDX-License-Identifier: Apache-2.0
"""Whether a benchmark goes on with a killed run: the decision, what is kept for it, and what the plan says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.begin import begin_run
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.continuation import (
    RunConfiguration,
    UnfinishedRun,
    choose_run,
    count_measured,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.unfinished_runs import (
    ProbeJournal,
    count_probes,
    keep_unfinished,
    read_unfinished,
    remove_unfinished,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.request import PlannedCells
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import KeptRuns

from tests.worlds.catalogue import knowledge

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
REQUEST = {"suite": "serving", "deployment": "all", "hosts": "n1, n2"}
PRINTS = {"benchmark_suite_args": "a1", "n1/llama-0": "b1", "n2/llama-0": "b2"}
WANTED = RunConfiguration(REQUEST, PRINTS)


def unfinished(name: str = "r1", begun: str = "2026-01-31T11:00:00Z", **changed: str) -> UnfinishedRun:
    """A run of WANTED, but for some values; "n1/llama-0" is n1_llama_0 here."""
    prints = {
        key: changed.get(key.replace("/", "_").replace("-", "_"), value) for key, value in PRINTS.items()
    }
    request = {key: changed.get(key, value) for key, value in REQUEST.items()}
    return UnfinishedRun(name, begun, RunConfiguration(request, prints))


@dataclass
class Case:
    """asked: the operator's name. chosen: the run that is performed, and whether it goes on."""

    what: str
    there: list[UnfinishedRun]
    chosen: tuple[str, bool]
    notes: tuple[str, ...] = ()
    asked: str = ""


OLD = "2026-01-30T11:59:59Z"
CASES = [
    Case("nothing is there", [], ("new", False)),
    Case("the same", [unfinished()], ("r1", True)),
    Case("the same with a name of its own", [unfinished("night")], ("night", True)),
    Case("almost a day old", [unfinished(begun="2026-01-30T12:00:01Z")], ("r1", True)),
    Case(
        "a day old",
        [unfinished(begun=OLD)],
        ("new", False),
        (f"run r1, begun {OLD}, unfinished: -e benchmark_run=r1 continues it",),
    ),
    Case("of a clock that is ahead", [unfinished(begun="2026-01-31T12:00:30Z")], ("r1", True)),
    Case(
        "another suite",
        [unfinished(suite="quick")],
        ("new", False),
        (
            "run r1, begun 2026-01-31T11:00:00Z, unfinished: it measures something else (suite quick, now serving)",
        ),
    ),
    Case(
        "other hosts, too many to show",
        [unfinished(hosts="n" * 99)],
        ("new", False),
        ("run r1, begun 2026-01-31T11:00:00Z, unfinished: it measures something else (other hosts)",),
    ),
    Case(
        "another deployment, and an instance that was replaced",
        [unfinished(deployment="llama", n1_llama_0="b9")],
        ("new", False),
        (
            "run r1, begun 2026-01-31T11:00:00Z, unfinished: it measures something else "
            "(deployment llama, now all; other n1/llama-0)",
        ),
    ),
    Case(
        "other arguments",
        [unfinished(benchmark_suite_args="a9")],
        ("new", False),
        (
            "run r1, begun 2026-01-31T11:00:00Z, unfinished: it measures something else "
            "(other benchmark_suite_args)",
        ),
    ),
    Case(
        "the newest of two, whatever their names",
        [unfinished("z", "2026-01-31T10:00:00Z"), unfinished("a"), unfinished("m", suite="quick")],
        ("a", True),
        (
            "run z, begun 2026-01-31T10:00:00Z, unfinished: -e benchmark_run=z continues it",
            "run m, begun 2026-01-31T11:00:00Z, unfinished: it measures something else (suite quick, now serving)",
        ),
    ),
    Case("another one is asked for", [unfinished()], ("r2", False), asked="r2"),
    Case("it is asked for", [unfinished(), unfinished("r2")], ("r1", True), asked="r1"),
    Case("it is asked for, at any age", [unfinished(begun=OLD)], ("r1", True), asked="r1"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_which_run_is_performed(case: Case) -> None:
    choice = choose_run(case.asked, "new", WANTED, case.there, NOW)
    assert (choice.run.name, choice.continues, choice.notes) == (*case.chosen, case.notes)
    there = {run.name: run.begun for run in case.there}
    assert choice.run.begun == (there[choice.run.name] if choice.continues else "2026-01-31T12:00:00Z")
    assert choice.run.configuration == WANTED


def test_a_name_of_something_else_is_refused() -> None:
    with pytest.raises(FleetError) as caught:
        choose_run("r1", "new", WANTED, [unfinished(suite="quick")], NOW)
    assert str(caught.value) == (
        "benchmark_run: run r1, begun 2026-01-31T11:00:00Z, is not finished, but measures something else: suite "
        "quick, now serving. Choose another name, or repeat the command of that run."
    )


def test_an_instance_that_did_not_run_before_is_no_difference_and_is_known_then() -> None:
    """A killed offline benchmark leaves instances stopped; they are measured once they run again."""
    fewer = RunConfiguration(REQUEST, {key: PRINTS[key] for key in ("benchmark_suite_args", "n1/llama-0")})
    for wanted, there in ((fewer, WANTED), (WANTED, fewer)):
        run = UnfinishedRun("r1", "2026-01-31T11:00:00Z", there)
        choice = choose_run("", "new", wanted, [run], NOW)
        assert (choice.continues, choice.run.configuration) == (True, WANTED)


# ---- what is kept ------------------------------------------------------------------------------------


def test_a_run_is_kept_until_its_results_are_written(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert read_unfinished(results) == []
    for run in (unfinished(), unfinished("r2"), unfinished()):
        keep_unfinished(results, run)
    record = results / ".r1.unfinished/run.json"
    assert record.stat().st_mode & 0o777 == 0o600
    assert read_unfinished(results) == [unfinished(), unfinished("r2")]
    (results / "r2").mkdir()  # it was killed after that
    assert read_unfinished(results) == [unfinished()]
    for text in ("", "[]", "{}", '{"begun": 1}', '{"begun": "today", "request": {}, "fingerprints": {}}'):
        record.write_text(text)
        assert read_unfinished(results) == []
    remove_unfinished(results, "r1")
    remove_unfinished(results, "r1")
    assert [path.name for path in sorted(results.iterdir())] == [".r2.unfinished", "r2"]


def test_probes_are_counted(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        ProbeJournal(tmp_path, "r1", host).add("w", {"cell": "c1"})
    with (tmp_path / ".r1.unfinished/n1.jsonl").open("a") as stream:
        stream.write('{"work": "cut off')
    assert (count_probes(tmp_path, "r1"), count_probes(tmp_path, "r2")) == (2, 0)


def test_cells_are_measured_when_all_blocks_are() -> None:
    planned = [PlannedCells("n1", "llama-0", "serve", 4, 3), PlannedCells("n2", "llama-0", "serve", 1, 3)]
    kept = {
        "n1": (
            KeptRuns("r1", "llama-0-serve", (3, 5, 2)),
            KeptRuns("r0", "llama-0-serve", (3, 3, 3, 3)),
            KeptRuns("r1", "llama-0-latency", (3,)),
        ),
        "n2": (KeptRuns("r1", "llama-0-serve", (3, 3)),),  # of more cells than there are now
    }
    assert count_measured("r1", planned, kept) == 3
    assert count_measured("r2", planned, kept) == 0


# ---- a plan ------------------------------------------------------------------------------------------

INSTANCES = [(host, {"name": "llama-0", "spec_hash": "s", "image": "i"}) for host in ("n1", "n2")]


def begin(results: Path, **given: Any) -> tuple[dict[str, Any], str]:
    """Plan a benchmark of two hosts, and begin it. given: options, or the hosts' variables."""
    options = {
        "kinds": ("serve",), "deployment": None, "instance": None, "live": False, "rate": None,
        "run": "", "results_dir": str(results),
        **{key: given.pop(key) for key in list(given) if "benchmark" not in key},
    }  # fmt: skip
    kept = {"n1": (KeptRuns("r1", "llama-0-serve", (3,)),)}
    record, lines = begin_run(knowledge(), options, {"n1": given, "n2": given}, INSTANCES, [], kept)
    keep_unfinished(results, UnfinishedRun.from_json(record["name"], record))
    return record, " ".join(" ".join(lines).split())


def test_the_same_command_goes_on(tmp_path: Path) -> None:
    first, said = begin(tmp_path, run="r1")
    assert (first["name"], said) == ("r1", "")
    again, said = begin(tmp_path)
    assert again == first
    assert said == (
        f"continues run r1, begun {first['begun']}: 1 of 2 cells are measured; -e benchmark_run=NEW begins another"
    )
    # Set to its default, a variable says nothing new.
    assert begin(tmp_path, benchmark_repeat=3)[0] == first
    other, said = begin(tmp_path, benchmark_serve_args={"num_prompts": 8})
    assert other["name"].startswith("20")
    assert said == (
        f"leaves run r1, begun {first['begun']}, unfinished: it measures something else (other benchmark_serve_args)"
    )
    with pytest.raises(FleetError, match=r"benchmark_run: run r1, .*, is not finished"):
        begin(tmp_path, run="r1", benchmark_repeat=5)
    with pytest.raises(FleetError, match=r"benchmark_run: .*'\.\./x' cannot name a run"):
        begin(tmp_path, run="../x")


def test_a_finished_run_is_never_continued(tmp_path: Path) -> None:
    begin(tmp_path, run="r1")
    (tmp_path / "r1").mkdir()
    assert begin(tmp_path, run="r1")[0]["name"] == "r1-2"
    assert begin(tmp_path, run="r1")[1].startswith("continues run r1-2, ")
    (tmp_path / "r1-2").mkdir()
    assert begin(tmp_path)[0]["name"].startswith("20")


def test_another_content_of_a_file_is_another_run(tmp_path: Path) -> None:
    chats, suite = tmp_path / "chats.json", tmp_path / "own.yml"
    chats.write_text("[]")
    suite.write_text(json.dumps({"suite": "own"}))
    given: dict[str, Any] = {
        "benchmark_suite": str(suite),
        "benchmark_suite_args": {"dataset_path": str(chats)},
    }
    first, _said = begin(tmp_path / "results", **given)
    assert begin(tmp_path / "results", **given)[0] == first
    chats.write_text("[1]")
    other, said = begin(tmp_path / "results", run="r2", **given)
    assert other["fingerprints"] != first["fingerprints"]
    suite.write_text(json.dumps({"suite": "own", "title": "x"}))
    _third, said = begin(tmp_path / "results", **given)
    assert "other benchmark_suite_args, content of the suite" in said
    assert "r2, begun" in said
    assert "(other content of the suite)" in said


def test_a_search_has_probes(tmp_path: Path) -> None:
    begin(tmp_path, run="r1", benchmark_suite="slo-search")
    ProbeJournal(tmp_path, "r1", "n1").add("w", {})
    assert "it has 1 probe; -e" in begin(tmp_path, benchmark_suite="slo-search")[1]
