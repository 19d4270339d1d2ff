# SPDX-License-Identifier: Apache-2.0
"""Below a directory of a container's, no link is followed, whatever is done there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.disk.beneath import (
    directory_below,
    file_below,
    names_below,
    read_below,
    remove_below,
)
from ansible_collections.instinct.fleet.plugins.module_utils.disk.write_below import write_below

from tests.helpers.hostile_tree import outside_of, state


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top/dir").mkdir(parents=True)
    (tmp_path / "top/dir/file").write_text("text\r\n")
    return tmp_path / "top"


def leave(top: Path, outside: Path, what: str) -> None:
    """Leave something at dir/x, or dir itself as a link."""
    if what == "link to a file":
        (top / "dir/x").symlink_to(outside / "secret")
    elif what == "link to a directory":
        (top / "dir/x").symlink_to(outside / "directory")
    elif what == "dangling link":
        (top / "dir/x").symlink_to(outside / "made")
    elif what == "pipe":
        os.mkfifo(top / "dir/x")
    elif what == "directory":
        (top / "dir/x").mkdir()
    else:
        (top / "dir").rename(top / "old")
        (top / "dir").symlink_to(outside)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "what",
    ["link to a file", "link to a directory", "dangling link", "pipe", "directory", "a link on the way"],
)
def test_what_is_no_file_of_the_directory_is_refused_by_its_path(
    what: str, top: Path, tmp_path: Path
) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    leave(top, outside, what)
    path = "dir" if what == "a link on the way" else "dir/x"
    with pytest.raises(NodeError, match=f"^{top}/{path} is not a ") as error:
        read_below(str(top), "dir/x")
    assert "secret" not in str(error.value)
    with pytest.raises(NodeError, match=f"^{top}/{path} is not a "), file_below(str(top), "dir/x"):
        pass
    if what != "directory":
        with pytest.raises(NodeError, match=f"^{top}/{path} is not a directory of its own"):
            names_below(str(top), "dir/x")
        with pytest.raises(NodeError, match=f"^{top}/{path} is not a directory of its own"):
            write_below(str(top), "dir/x/made", "text", 0o644)
    assert state(outside) == before


@pytest.mark.parametrize("what", ["link to a file", "link to a directory", "dangling link", "pipe"])
def test_what_is_written_takes_the_name_and_not_the_place_to_which_it_leads(
    what: str, top: Path, tmp_path: Path
) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    leave(top, outside, what)
    write_below(str(top), "dir/x", "text", 0o640)
    assert (top / "dir/x").read_text() == "text"
    assert stat.S_IMODE((top / "dir/x").lstat().st_mode) == 0o640
    assert state(outside) == before
    assert sorted(os.listdir(top / "dir")) == ["file", "x"]


def test_a_directory_is_not_replaced_by_a_file(top: Path) -> None:
    with pytest.raises(NodeError, match=f"^{top}/dir is a directory"):
        write_below(str(top), "dir", "text", 0o644)
    assert os.listdir(top) == ["dir"]


def test_directories_are_made_on_the_way(top: Path) -> None:
    write_below(str(top), "a/b/file", "text", 0o600)
    assert read_below(str(top), "a/b/file") == "text"
    with directory_below(str(top), "a/c", make=True):
        assert names_below(str(top), "a") == ["b", "c"]


@pytest.mark.parametrize(
    "what", ["link to a file", "link to a directory", "dangling link", "pipe", "directory"]
)
def test_what_is_removed_is_the_name_alone(what: str, top: Path, tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    leave(top, outside, what)
    if what == "directory":
        (top / "dir/x/deep").mkdir()
        (top / "dir/x/deep/link").symlink_to(outside / "directory")
    remove_below(str(top), "dir/x")
    remove_below(str(top), "dir/x")
    remove_below(str(top), "nowhere/x")
    assert os.listdir(top / "dir") == ["file"]
    assert state(outside) == before


def test_nothing_is_removed_through_a_link(top: Path, tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    (top / "away").symlink_to(outside)
    with pytest.raises(NodeError, match=f"^{top}/away is not a directory of its own"):
        remove_below(str(top), "away/secret")
    assert state(outside) == before


@pytest.mark.parametrize(
    "path", ["../outside/secret", "dir/../../outside/secret", "/etc/passwd", "dir//x/y", "./x/y"]
)
def test_no_name_leads_out(path: str, top: Path, tmp_path: Path) -> None:
    outside_of(tmp_path)
    with pytest.raises(NodeError, match="is not a directory of its own"):
        read_below(str(top), path)


def test_what_is_not_there(top: Path) -> None:
    assert read_below(str(top), "dir/none") is None
    assert read_below(str(top), "none/none") is None
    assert read_below(f"{top}/none", "file") is None
    assert names_below(str(top), "none") == []


def test_a_text_is_read_as_it_is_up_to_its_limit(top: Path) -> None:
    assert read_below(str(top), "dir/file") == "text\r\n"
    assert read_below(str(top), "dir/file", 6) == "text\r\n"
    with pytest.raises(NodeError, match="has more than 5 bytes"):
        read_below(str(top), "dir/file", 5)
    (top / "bytes").write_bytes(b"\xff")
    assert read_below(str(top), "bytes") == "\ufffd"


def test_the_host_s_own_path_may_lead_through_links(top: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(top)
    assert read_below(f"{tmp_path}/other", "dir/file") == "text\r\n"


def test_a_name_cannot_write_on_the_terminal(top: Path) -> None:
    os.mkfifo(top / "x\x1b[2J\n")
    with pytest.raises(NodeError) as error:
        read_below(str(top), "x\x1b[2J\n")
    assert str(error.value).startswith(f"{top}/x\\x1b[2J\\x0a is not a regular file")


def test_no_descriptor_stays_open(top: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("dir", "dir/file/x", "../x"):
        with pytest.raises(NodeError):
            read_below(str(top), path)
    for path in ("dir/file", "none"):
        read_below(str(top), path)
    remove_below(str(top), "none/x")
    write_below(str(top), "dir/file", "", 0o600)
    assert len(os.listdir("/proc/self/fd")) == before
