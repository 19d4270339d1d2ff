# SPDX-License-Identifier: Apache-2.0
"""What a host answers becomes a path, a name or a size here only if it is one, and no file without an end."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.node_answers import (
    AnswerError,
    fetch,
    file_name,
    known_request,
    path_in,
    sha256_in,
    size_in,
)
from hypothesis import given, settings
from hypothesis import strategies as st

OWN = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "/../../x",
        OWN[:-1],
        OWN + "0",
        OWN.upper(),
        f"{OWN}\n",
        5,
        [OWN],
        OWN.replace("0", "\u0660"),
    ],
)
def test_what_is_no_hash(value: Any) -> None:
    assert sha256_in({"sha256": OWN}) == OWN
    with pytest.raises(AnswerError, match="for sha256, which is not a SHA-256"):
        sha256_in({"sha256": value})


@pytest.mark.parametrize("value", [None, True, -1, 11, 1.5, "7", float("nan"), [7]])
def test_what_is_no_size(value: Any) -> None:
    assert [size_in({"bytes": good}, "bytes", 10) for good in (0, 7, 10)] == [0, 7, 10]
    with pytest.raises(AnswerError, match="for bytes, which is not a number from 0 to 10"):
        size_in({"bytes": value}, "bytes", 10)


@pytest.mark.parametrize("value", [None, 5, "", "/x", "../x", "a/../b", "a//b", "a/", "./a", "a\0b"])
def test_what_is_no_path_within_a_directory(value: Any) -> None:
    assert path_in({"path": "a/b-1/..c"}) == "a/b-1/..c"
    with pytest.raises(AnswerError, match="for path, which is not a path inside a directory"):
        path_in({"path": value})


def test_only_what_was_offered_is_sent() -> None:
    assert known_request("a", {"a": 1}) == "a"
    for value in ("b", "../a", None, ["a"]):
        with pytest.raises(AnswerError, match="which it was not offered"):
            known_request(value, {"a": 1})


@settings(max_examples=100)
@given(st.lists(st.text() | st.sampled_from(["..", "/", "\0", "a" * 300]), min_size=1, max_size=5))
def test_whatever_a_host_answers_a_name_stays_in_its_directory(parts: list[str]) -> None:
    name = file_name(*parts)
    assert os.path.basename(name) == name
    assert name not in ("", ".", "..")
    assert len(os.fsencode(f"{name}-99.json.gz")) < 255


def connection(write: Callable[[str], object]) -> Any:
    def fetch_file(_source: str, target: str) -> None:
        try:
            write(target)
        except (OSError, subprocess.CalledProcessError) as error:
            raise AnsibleError(f"failed to transfer file: {error}") from error

    return SimpleNamespace(fetch_file=fetch_file)


ENDLESS = {
    "a child": lambda target: subprocess.run(
        ["dd", "if=/dev/zero", f"of={target}", "bs=4096", "count=4096"], check=True, capture_output=True
    ),
    "this process": lambda target: Path(target).write_bytes(bytes(2**24)),
}


@pytest.mark.parametrize("writer", ENDLESS)
def test_a_file_that_does_not_end_stops_at_its_size(tmp_path: Path, writer: str) -> None:
    target, largest = tmp_path / "x", 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write(path: str) -> None:
        nonlocal largest
        try:
            ENDLESS[writer](path)
        finally:
            largest = target.stat().st_size

    with pytest.raises(AnswerError, match="/n/x is longer than the 10000 bytes that the host said"):
        fetch(connection(write), "/n/x", target, 10000)
    assert largest == 10000
    assert not target.exists()
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
    (tmp_path / "other").write_bytes(bytes(20000))


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_of_its_size_arrives(tmp_path: Path, size: int) -> None:
    fetch(connection(lambda target: Path(target).write_bytes(bytes(size))), "/n/x", tmp_path / "x", size)
    assert (tmp_path / "x").stat().st_size == size


def test_a_shorter_file_and_one_that_cannot_be_read_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(AnswerError, match="/n/x has 3 bytes, not 7 as the host said"):
        fetch(connection(lambda target: Path(target).write_bytes(b"abc")), "/n/x", tmp_path / "x", 7)

    def refuse(_target: str) -> None:
        raise OSError("no such file")

    with pytest.raises(AnsibleError, match="no such file"):
        fetch(connection(refuse), "/n/x", tmp_path / "x", 7)
    assert list(tmp_path.iterdir()) == []
