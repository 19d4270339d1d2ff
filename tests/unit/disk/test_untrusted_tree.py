# SPDX-License-Identifier: Apache-2.0
"""Whatever a container leaves in its directory, root on the host touches nothing outside of it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.disk.untrusted_tree import (
    DEEPEST,
    checked_entries,
    publish_tree,
    set_mode,
    walk,
)
from hypothesis import given, settings

from tests.helpers.hostile_tree import DIRECTORY, FILE, Item, build, items, outside_of, state


def named(message: str, path: str) -> bool:
    """Whether a message names a path as it may be printed."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in path) in message


@settings(max_examples=80)
@given(items())
def test_a_tree_is_published_or_refused_by_the_name_of_what_is_wrong(wanted: list[Item]) -> None:
    with tempfile.TemporaryDirectory() as place:
        outside = outside_of(Path(place))
        made = build(Path(place) / "tree", outside, wanted)
        before, tree = state(outside), state(Path(place) / "tree")
        wrong = [path for path, kind in made.items() if kind not in (FILE, DIRECTORY)]
        if not wrong:
            sizes = publish_tree(place, "tree")
            assert sorted(sizes) == sorted(path for path, kind in made.items() if kind == FILE)
            after = state(Path(place) / "tree")
            for path, kind in made.items():
                mode, owner, group, content = after[path]
                assert stat.S_IMODE(mode) == (0o755 if kind == DIRECTORY else 0o644)
                assert (owner, group) == (os.geteuid(), os.getegid())
                assert content == tree[path][3]
        else:
            with pytest.raises(NodeError) as error:
                publish_tree(place, "tree")
            assert any(named(str(error.value), f"tree/{path} ") for path in wrong), str(error.value)
            assert state(Path(place) / "tree") == tree
        assert state(outside) == before


@pytest.mark.parametrize("target", ["{outside}", "/etc", "../nowhere", "."])
def test_the_top_itself_must_be_a_directory(target: str, tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    (tmp_path / "tree").symlink_to(target.format(outside=outside))
    with pytest.raises(NodeError, match="tree is not a directory of its own"):
        publish_tree(str(tmp_path), "tree")
    (tmp_path / "tree").unlink()
    (tmp_path / "tree").write_text("")
    with pytest.raises(NodeError, match="tree is not a directory of its own"):
        publish_tree(str(tmp_path), "tree")
    assert state(outside) == before


def test_a_tree_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publish_tree(str(tmp_path), "tree")


def test_programs_stay_programs_where_they_are_expected(tmp_path: Path) -> None:
    for name, mode in (("program", 0o4711), ("data", 0o666)):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    publish_tree(str(tmp_path), programs=True)
    assert stat.S_IMODE((tmp_path / "program").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o644
    publish_tree(str(tmp_path))
    assert stat.S_IMODE((tmp_path / "program").stat().st_mode) == 0o644


def test_what_is_replaced_after_it_was_looked_at_is_not_followed(tmp_path: Path) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    for number, target in enumerate(("secret", "directory")):
        tree = tmp_path / f"tree{number}"
        tree.mkdir()
        if target == "directory":
            (tree / "x").mkdir()
        else:
            (tree / "x").write_text("")
        entries = walk(str(tree))
        entry = next(entries)
        (tree / "x").rename(tree / "away")
        (tree / "x").symlink_to(outside / target)
        with pytest.raises(NodeError, match=f"{tree}/x was replaced while it was being checked"):
            set_mode(entry, 0o777)
    assert state(outside) == before


def test_a_directory_that_is_replaced_while_it_is_walked_is_not_followed(tmp_path: Path) -> None:
    outside, tree = outside_of(tmp_path), tmp_path / "tree"
    (tree / "x").mkdir(parents=True)
    entries = walk(str(tree))
    assert next(entries).path == "x"
    (tree / "x").rmdir()
    (tree / "x").symlink_to(outside)
    with pytest.raises(NodeError, match="tree/x was replaced while it was being checked"):
        next(entries)


def test_another_file_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("one")
    (tmp_path / "y").write_text("other")
    for entry in walk(str(tmp_path)):
        if entry.path == "x":
            (tmp_path / "y").rename(tmp_path / "x")
            with pytest.raises(NodeError, match="was replaced"):
                set_mode(entry, 0o777)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o644


def test_what_vanishes_meanwhile_is_left_out(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    found = []
    for entry in walk(str(tmp_path)):
        found.append(entry.path)
        for name in "ab":
            if (tmp_path / name).exists():
                (tmp_path / name).rmdir()
    assert found == ["a", "c"]


def test_a_tree_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    """Each level costs a descriptor and a call on the stack; a container can make any number of them."""
    (tmp_path / "/".join("d" * (DEEPEST + 2))).mkdir(parents=True)
    with pytest.raises(NodeError, match=f"is more than {DEEPEST} directories deep"):
        list(checked_entries(str(tmp_path)))
