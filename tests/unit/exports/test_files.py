# SPDX-License-Identifier: Apache-2.0
"""Runs are found by name, and an export never loses what somebody else wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.files import (
    find_run,
    read_run,
    write_files,
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for run in ("20260131T101500Z", "january"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "summary.json").write_text(json.dumps({"run": run, "benchmarks": [{"host": run}]}))
    (tmp_path / "latest").symlink_to("january")
    (tmp_path / "other").mkdir()
    return tmp_path


def test_a_run_is_found_by_name_and_the_newest_by_latest(results: Path) -> None:
    assert find_run(results, "20260131T101500Z").name == "20260131T101500Z"
    assert find_run(results, "latest").name == "january"


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ("janary", "there is no run 'janary' in .*Did you mean january"),
        ("other", "there is no run 'other' in .*Valid: 20260131T101500Z, january, latest"),
        ("../x", "there is no run '../x'"),
    ],
)
def test_an_unknown_run(results: Path, run: str, text: str) -> None:
    with pytest.raises(FleetError, match=text):
        find_run(results, run)


def test_no_results_at_all(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"there are no results in .*benchmark\.yml"):
        find_run(tmp_path / "none", "latest")


def test_runs_are_read_where_there_are_any(results: Path) -> None:
    directory = results / "january"
    assert read_run(directory).runs == read_run(directory).cells
    (directory / "runs.jsonl").write_text('{"host": "a"}\n{"host": "b"}\n')
    assert [row["host"] for row in read_run(directory).runs] == ["a", "b"]
    (directory / "summary.json").write_text("{")
    with pytest.raises(FleetError, match="cannot be read"):
        read_run(directory)


def test_an_export_is_written_once(tmp_path: Path) -> None:
    files = {"mad/perf.csv": "a\n", "csv/runs.csv": "b\n"}
    assert write_files(tmp_path / "new", files, overwrite=False)
    assert (tmp_path / "new/mad/perf.csv").read_text() == "a\n"
    assert not write_files(tmp_path / "new", files, overwrite=False)
    assert sorted(path.name for path in (tmp_path / "new").rglob("*") if path.is_file()) == [
        "perf.csv",
        "runs.csv",
    ]


def test_files_with_other_content_stay_without_overwrite(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("mine\n")
    files = {"a.csv": "export\n", "b.csv": "export\n"}
    with pytest.raises(FleetError, match=r"has files with other content: a\.csv\..*overwrite=true"):
        write_files(tmp_path, files, overwrite=False)
    assert (tmp_path / "a.csv").read_text() == "mine\n"
    assert not (tmp_path / "b.csv").exists()
    assert write_files(tmp_path, files, overwrite=True)
    assert (tmp_path / "a.csv").read_text() == "export\n"


def test_nothing_is_written_to_see_what_would_be(tmp_path: Path) -> None:
    assert write_files(tmp_path / "new", {"a": "1"}, overwrite=False, write=False)
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FleetError, match=r"cannot be written: .*Choose another directory"):
        write_files(tmp_path / "file", {"a/b": "1"}, overwrite=False)
