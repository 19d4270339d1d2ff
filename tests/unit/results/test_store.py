# SPDX-License-Identifier: Apache-2.0
"""The store: files are the truth, and the index follows them whatever happened to it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.index import FILE, ResultsIndex
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.runs_on_disk import (
    read_run,
    resolve_run,
    run_names,
)

from tests.worlds.bench_samples import mixed_fleet, summary_of
from tests.worlds.compared_runs import row, side, store


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three runs, a day apart; the second of another deployment."""
    for day, deployment in enumerate(("llama", "qwen", "llama")):
        store(
            tmp_path,
            f"r{day}",
            side("x", [row(minute=1440 * day, deployment=deployment, speed=1000.0 + day)]),
        )
    (tmp_path / "latest").symlink_to("r2")
    (tmp_path / "comparisons").mkdir()
    (tmp_path / ".r9.tmp").mkdir()
    return tmp_path


def index_of(results: Path) -> ResultsIndex:
    index = ResultsIndex(results)
    index.update()
    return index


def values(results: Path, deployment: str = "llama") -> list[tuple[str, float]]:
    return [(run, item["output_throughput"]) for run, item in index_of(results).rows(deployment)]


# ---- runs ------------------------------------------------------------------------------------------


def test_runs_by_their_names(results: Path) -> None:
    assert run_names(results) == ["r0", "r1", "r2"]
    assert (resolve_run(results, "latest"), resolve_run(results, "r1")) == ("r2", "r1")
    (results / "latest").unlink()
    assert resolve_run(results, "latest") == "r2"


def test_an_unknown_run_gets_the_nearest_name(results: Path) -> None:
    with pytest.raises(FleetError, match=r"has no run r2x\. Did you mean r2\?"):
        resolve_run(results, "r2x")
    with pytest.raises(FleetError, match=r"has no results\. Measure first"):
        resolve_run(results / "nowhere", "latest")


def test_a_run_has_its_rows_and_hosts(results: Path) -> None:
    run = read_run(results, "r0")
    assert (run.started, len(run.rows), run.hosts["n1"]["driver"]) == ("2026-01-31T10:00:00Z", 1, "6.14.14")


def test_runs_of_before_there_were_rows(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/summary.json").write_text(json.dumps(summary_of(mixed_fleet())))
    run = read_run(tmp_path, "old")
    assert (len(run.rows), len(run.hosts), run.started) == (15, 3, "2026-01-31T10:15:02Z")
    assert len(list(index_of(tmp_path).rows("qwen"))) == 6


def test_a_killed_run_loses_only_its_last_row(results: Path) -> None:
    path = results / "r0/runs.jsonl"
    (results / "r0/summary.json").unlink()
    path.write_text(path.read_text() + '{"host": "n1", "inst')
    run = read_run(results, "r0")
    assert len(run.rows) == 1
    assert run.notes == (f"{path}:2: the last row is incomplete and was left out",)


@pytest.mark.parametrize("damage", ["not json\n", "[1]\n", '{"host": "n1"}\n'])
def test_damage_is_named_with_its_line(results: Path, damage: str) -> None:
    path = results / "r0/runs.jsonl"
    path.write_text(damage + path.read_text())
    with pytest.raises(FleetError, match=r"r0/runs\.jsonl:1: cannot be read: .*Restore the file"):
        read_run(results, "r0")
    (results / "r1/summary.json").write_text("{")
    with pytest.raises(FleetError, match=r"r1/summary\.json: cannot be read"):
        read_run(results, "r1")


# ---- the index -------------------------------------------------------------------------------------


def test_the_index_reads_each_run_once(results: Path) -> None:
    index = ResultsIndex(results)
    assert (index.update(), index.update()) == (3, 0)
    assert index.deployments() == ["llama", "qwen"]
    assert values(results) == [("r0", 1000.0), ("r2", 1002.0)]


def test_it_follows_new_longer_and_removed_runs(results: Path) -> None:
    index = index_of(results)
    store(results, "r3", side("x", [row(minute=9999, speed=1003.0)]))
    with (results / "r2/runs.jsonl").open("a") as stream:
        stream.write(json.dumps(row(minute=2890, speed=1002.5, block=2)) + "\n")
    (results / "r0/runs.jsonl").unlink()
    (results / "r0/summary.json").unlink()
    assert index.update() == 2
    assert values(results) == [("r2", 1002.0), ("r2", 1002.5), ("r3", 1003.0)]


@pytest.mark.parametrize("damage", [b"", b"no database" * 100, None])
def test_a_damaged_or_older_index_is_rebuilt(results: Path, damage: bytes | None) -> None:
    index_of(results)
    path = results / FILE
    if damage is None:
        with sqlite3.connect(path) as database:
            database.execute("DROP TABLE rows")
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
    else:
        path.write_bytes(damage)
    assert values(results) == [("r0", 1000.0), ("r2", 1002.0)]


def test_an_index_that_lost_a_table_is_rebuilt(results: Path) -> None:
    index_of(results)
    with sqlite3.connect(results / FILE) as database:
        database.execute("DROP TABLE runs")
    assert values(results) == [("r0", 1000.0), ("r2", 1002.0)]


def test_an_index_that_cannot_be_written_says_so(results: Path) -> None:
    (results / FILE).mkdir()
    with pytest.raises(FleetError, match=r"index\.sqlite: the index of the results cannot be written"):
        ResultsIndex(results).update()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_without_success_never_replaces_a_good_one(tmp_path: Path, order: tuple[int, int]) -> None:
    rows = [row(speed=1000.0, block=1), row(speed=1.0, block=1, completed=0)]
    store(tmp_path, "r", side("x", [rows[at] for at in order]))
    assert values(tmp_path) == [("r", 1000.0)]


def test_repeats_are_kept_and_a_cell_measured_again_replaces_itself(tmp_path: Path) -> None:
    rows = [row(speed=1.0, block=1), row(speed=2.0, block=2), row(speed=3.0, block=2)]
    store(tmp_path, "r", side("x", rows))
    assert values(tmp_path) == [("r", 1.0), ("r", 3.0)]


def test_the_run_before_has_one_of_the_deployments(results: Path) -> None:
    index = index_of(results)
    assert (index.before("r2"), index.before("r1"), index.before("r0")) == (["r0"], [], [])
