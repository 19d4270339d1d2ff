# SPDX-License-Identifier: Apache-2.0
"""YAML files of the toolkit: parsed once as long as they stay as they are, wherever that can be kept."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog import files

TEXT = "a: [1, 2.5, null, true, text]\nb: {c: d}\n"
DATA = {"a": [1, 2.5, None, True, "text"], "b": {"c": "d"}}


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode is written, whatever the environment says."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were parsed."""
    found: list[Path] = []
    real: Callable[[Path], Any] = files._parsed
    monkeypatch.setattr(files, "_parsed", lambda path: (found.append(path), real(path))[1])
    return found


def written(tmp_path: Path, text: str = TEXT) -> Path:
    path = tmp_path / "some.yml"
    path.write_text(text, encoding="utf-8")
    return path


def only_kept(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "__pycache__").iterdir()
    return found


def test_a_file_is_parsed_once(tmp_path: Path, parsed: list[Path]) -> None:
    path = written(tmp_path)
    first, second = files.read_yaml(path), files.read_yaml(path)
    assert first == second == DATA
    assert first["a"] is not second["a"]  # what one reader changes, another does not see
    assert parsed == [path]
    assert only_kept(tmp_path).name.startswith("some.yml.")


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_changed_is_parsed_again(tmp_path: Path, parsed: list[Path], change: str) -> None:
    path = written(tmp_path)
    files.read_yaml(path)
    before = path.stat()
    path.write_text("a: 1\n" if change == "size" else TEXT.replace("text", "TEXT"), encoding="utf-8")
    os.utime(path, ns=(0, before.st_mtime_ns + (change == "time")))
    expected = {"a": 1} if change == "size" else {**DATA, "a": [1, 2.5, None, True, "TEXT"]}
    assert files.read_yaml(path) == files.read_yaml(path) == expected
    assert len(parsed) == 2


@pytest.mark.parametrize("broken", [b"", b"no such form", None])
def test_what_is_kept_may_be_broken(tmp_path: Path, parsed: list[Path], broken: bytes | None) -> None:
    path = written(tmp_path)
    files.read_yaml(path)
    found = only_kept(tmp_path)
    found.write_bytes(found.read_bytes()[:-9] if broken is None else broken)
    assert files.read_yaml(path) == files.read_yaml(path) == DATA
    assert len(parsed) == 2


def test_where_nothing_can_be_written_it_is_parsed_each_time(tmp_path: Path, parsed: list[Path]) -> None:
    path = written(tmp_path)
    (tmp_path / "__pycache__").write_text("in the way", encoding="utf-8")
    assert files.read_yaml(path) == files.read_yaml(path) == DATA
    assert len(parsed) == 2


def test_nothing_is_kept_where_python_keeps_no_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = written(tmp_path)
    assert files.read_yaml(path) == DATA
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_kept_is_read_all_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, "since: 2026-11-01\n")
    assert files.read_yaml(path) == files.read_yaml(path) == {"since": datetime.date(2026, 11, 1)}
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_yaml_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(yaml.YAMLError):
        files.read_yaml(written(tmp_path, "a: [1\n"))
