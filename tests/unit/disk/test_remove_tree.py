# SPDX-License-Identifier: Apache-2.0
"""What a container nested deeper than Python can remove is named with the command that does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.disk.beneath import remove_below, remove_tree

from tests.helpers.hostile_tree import outside_of, state

DEEP = 1500  # more than Python's calls, and than open files


def nested(top: Path, outside: Path) -> None:
    """Nest directories deeper than a path can be written."""
    top.mkdir()
    (top / "link").symlink_to(outside)
    inside = os.open(top, os.O_RDONLY)
    for _unused in range(DEEP):
        os.mkdir("d" * 10, dir_fd=inside)
        child = os.open("d" * 10, os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = child
    os.symlink(outside, "link", dir_fd=inside)
    os.close(inside)


REMOVALS: list[Callable[[Path], None]] = [
    lambda path: remove_tree(str(path)),
    lambda path: remove_below(str(path.parent), path.name),
]


@pytest.mark.parametrize("remove", REMOVALS)
def test_what_is_nested_too_deep_is_said(remove: Callable[[Path], None], tmp_path: Path) -> None:
    outside, tree = outside_of(tmp_path), tmp_path / "tree"
    before = state(outside)
    try:
        nested(tree, outside)
        with pytest.raises(
            NodeError, match=rf"^{tree} cannot be removed: .*\. Run rm -rf {tree} there, and run again\.$"
        ):
            remove(tree)
    finally:  # pytest itself could not, and every later run with it
        subprocess.run(["rm", "-rf", str(tree)], check=True)
    assert not tree.exists()
    assert state(outside) == before


@pytest.mark.parametrize("remove", REMOVALS)
def test_the_rest_goes_and_nothing_that_links_lead_to(remove: Callable[[Path], None], tmp_path: Path) -> None:
    outside, tree = outside_of(tmp_path), tmp_path / "tree"
    before = state(outside)
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/link").symlink_to(outside / "directory")
    remove(tree)
    remove(tree)  # what is not there needs no removal
    assert not tree.exists()
    assert state(outside) == before
