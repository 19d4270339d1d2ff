# SPDX-License-Identifier: Apache-2.0
"""Files of a bundle on the control node: only within their directory, only with their content, whole or not at all."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.control_node.placed_files import (
    PlacedFile,
    changed_files,
    parse_files,
    place_file,
    refuse_full_disk,
)

CONTENT = b"chats"
HASH = sha256(CONTENT).hexdigest()
FILE = PlacedFile("canary_args/chats.json", len(CONTENT), HASH)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "", "a/./b", "a\0b", "a/"])
def test_a_path_that_leads_away_is_refused(path: str) -> None:
    with pytest.raises(FleetError, match="which is not a path inside a directory"):
        parse_files([{"path": path, "size": 1, "sha256": HASH}])


@pytest.mark.parametrize("name", ["../../etc/passwd", "", HASH.upper(), HASH[:-1]])
def test_a_hash_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(FleetError, match="which is not a SHA-256"):
        parse_files([{"path": "a/b", "size": 1, "sha256": name}])


@pytest.mark.parametrize(
    ("there", "missing"), [(None, 1), (b"chats", 0), (b"chatz", 1), (b"longer content", 1)]
)
def test_only_what_differs_is_fetched(tmp_path: Path, there: bytes | None, missing: int) -> None:
    target = tmp_path / FILE.path
    if there is not None:
        target.parent.mkdir()
        target.write_bytes(there)
    found = changed_files([FILE], tmp_path)
    assert len(found) == missing
    for item in found:
        place_file(item, tmp_path, lambda _item, path: path.write_bytes(CONTENT) and None)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_links_and_what_is_in_the_way_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for number, step in enumerate(("link", "file", "directory", "linked file")):
        directory = tmp_path / str(number)
        directory.mkdir()
        if step == "link":
            (directory / "canary_args").symlink_to(outside)
        elif step == "file":
            (directory / "canary_args").write_text("")
        elif step == "directory":
            (directory / FILE.path).mkdir(parents=True)
        else:
            (directory / "canary_args").mkdir()
            (directory / FILE.path).symlink_to(outside / "chats.json")
        with pytest.raises(FleetError, match="is in the way of canary_args/"):
            changed_files([FILE], directory)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("arrived", [b"other", b"", None])
def test_other_content_is_refused_and_the_file_stays(tmp_path: Path, arrived: bytes | None) -> None:
    target = tmp_path / FILE.path
    target.parent.mkdir()
    target.write_bytes(b"earlier")

    def fetch(_item: PlacedFile, path: Path) -> None:
        if arrived is not None:
            path.write_bytes(arrived)

    with pytest.raises(FleetError, match=r"chats\.json (arrived with other content|cannot be written)"):
        place_file(FILE, tmp_path, fetch)
    assert target.read_bytes() == b"earlier"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("size", [-1, True, "7", None, 2**60])
def test_a_size_that_is_none_is_refused(size: object) -> None:
    with pytest.raises(FleetError, match="for size, which is not a number"):
        parse_files([{"path": "a/b", "size": size, "sha256": HASH}])


def test_files_that_do_not_fit_are_refused_before_one_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"free, but the bundle's files need 1\.0 TiB"):
        refuse_full_disk([FILE, PlacedFile("big", 2**40, HASH)], tmp_path / "not/there/yet")
    refuse_full_disk([FILE], tmp_path)
