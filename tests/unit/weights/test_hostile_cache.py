# SPDX-License-Identifier: Apache-2.0
"""Containers that download write into the cache as root: the host follows none of their links out of it."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.disk.hub_files import HubRepository, is_blob
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.weights import cache, in_store, rehash
from ansible_collections.instinct.fleet.plugins.module_utils.weights.snapshot import (
    Snapshot,
    remove_file,
    sizes,
)
from ansible_collections.instinct.fleet.plugins.modules import hf_model
from hypothesis import given, settings

from tests.helpers.hostile_tree import (
    DIRECTORY,
    FILE,
    HARD_LINK,
    LINK,
    Item,
    build,
    items,
    outside_of,
    state,
)
from tests.worlds.fake_docker import FakeContainer, FakeDocker
from tests.worlds.weights_world import COMMIT, args, docker, download, mounts_of

__all__ = ["args", "docker"]  # fixtures

NAME = "model-00001-of-00002.safetensors"
SNAPSHOT = f"snapshots/{COMMIT}"


def moved(path: Path, target: Path) -> None:
    """Put a link in the place of something."""
    path.rename(path.parent / f"{path.name}.away")
    path.symlink_to(target)


LEFT: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "a file of the snapshot": (
        f"{SNAPSHOT}/{NAME}",
        lambda repo, outside: moved(repo / SNAPSHOT / NAME, outside / "secret"),
    ),
    "the snapshot": (SNAPSHOT, lambda repo, outside: moved(repo / SNAPSHOT, outside)),
    "snapshots": ("snapshots", lambda repo, outside: moved(repo / "snapshots", outside)),
    "blobs": ("blobs", lambda repo, outside: moved(repo / "blobs", outside)),
    "a blob": (f"blobs/{NAME}", lambda repo, outside: moved(repo / "blobs" / NAME, outside / "secret")),
    "the repository": ("", moved),
    "hub": ("..", lambda repo, outside: moved(repo.parent, outside)),
    "refs": ("refs", lambda repo, outside: (repo / "refs").symlink_to(outside)),
    "markers": (".instinct-fleet", lambda repo, outside: (repo / ".instinct-fleet").symlink_to(outside)),
    "another file": ("x", lambda repo, outside: (repo / "x").symlink_to(outside / "secret")),
    "another directory": ("x", lambda repo, outside: (repo / "x").symlink_to(outside / "directory")),
    "a hard link": ("blobs/x", lambda repo, outside: os.link(outside / "secret", repo / "blobs/x")),
    "a pipe": ("blobs/x", lambda repo, _outside: os.mkfifo(repo / "blobs/x")),
    "a pipe as a file": (
        f"blobs/{NAME}",
        lambda repo, _outside: ((repo / "blobs" / NAME).unlink(), os.mkfifo(repo / "blobs" / NAME)),
    ),
}


def repository(given_args: dict[str, Any]) -> Path:
    return Path(given_args["cache_dir"]) / "hub/models--lab--tiny-llama"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", LEFT)
def test_what_a_download_leaves_is_not_followed(
    what: str,
    args: dict[str, Any],
    docker: FakeDocker,
    run_module: Any,
    tmp_path: Path,
) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    place, leave = LEFT[what]
    fetched = download()

    def program(container: FakeContainer) -> int:
        code = fetched(container)
        leave(Path(mounts_of(container)["/hf"]) / "hub/models--lab--tiny-llama", outside)
        return code

    docker.programs["instinct-fetch-"] = program
    for _unused in range(2):  # also when it is found by a later call
        result, failed = run_module(hf_model.main, args)
        assert failed
        path = os.path.normpath(repository(args) / place)
        assert f"{path} " in result["msg"], result["msg"]
        assert "Internal error" not in result["msg"]
        assert state(outside) == before
    found, failed = run_module(hf_model.main, args, check=True)
    assert "Internal error" not in found.get("msg", "")


@settings(max_examples=80)
@given(items())
def test_a_repository_is_made_readable_or_refused_by_the_name_of_what_is_wrong(wanted: list[Item]) -> None:
    with tempfile.TemporaryDirectory() as top:
        outside, store = outside_of(Path(top)), Store(f"{top}/store")
        blobs = [Item(DIRECTORY, "blobs", 0), Item(FILE, "h1", 1), Item(LINK, "good", 0, "blobs/h1")]
        snapshot = Snapshot(top, "lab/m", "main", COMMIT, {}, (), ())
        (Path(top) / "hub").mkdir()
        repo = Path(snapshot.repo_dir)
        made = build(repo, outside, [*blobs, *wanted])
        store.add(str(repo / "blobs/h1"), hashlib.sha256(b"content 1").hexdigest(), 9)
        before, tree = state(outside), state(repo)
        shared = (repo / "blobs/h1").stat().st_ino
        wrong = [path for path, kind in made.items() if not right(repo, path, kind, shared)]
        if wrong:
            with pytest.raises(NodeError) as error:
                cache.make_readable(snapshot, store)
            names = ["".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in path) for path in wrong]
            assert any(f"models--lab--m/{name} " in str(error.value) for name in names), str(error.value)
            assert state(repo) == tree
        else:
            cache.make_readable(snapshot, store)
            for path, kind in made.items():
                mode = stat.S_IMODE((repo / path).lstat().st_mode)
                if kind != LINK:
                    assert mode & 0o555 == 0o555 if kind == DIRECTORY else mode & 0o7446 == 0o444
        assert state(outside) == before


def right(repo: Path, path: str, kind: str, shared: int) -> bool:
    """Whether something may be in a repository of a cache."""
    if kind == LINK:
        target = os.readlink(repo / path)
        return (
            not os.path.isabs(target)
            and os.path.dirname(os.path.normpath(os.path.join(os.path.dirname(path), target))) == "blobs"
        )
    if kind in (FILE, HARD_LINK):
        found = (repo / path).stat()
        return found.st_nlink == 1 or found.st_ino == shared
    return kind == DIRECTORY


@pytest.mark.parametrize(
    ("path", "target", "blob"),
    [
        (f"{SNAPSHOT}/a", "../../blobs/h", True),
        (f"{SNAPSHOT}/d/a", "../../../blobs/h", True),
        (f"{SNAPSHOT}/a", "../../blobs/../blobs/h", True),
        (f"{SNAPSHOT}/a", "../../blobs", False),
        (f"{SNAPSHOT}/a", "../../blobs/h/x", False),
        (f"{SNAPSHOT}/a", "../../blobs/..", False),
        (f"{SNAPSHOT}/a", "../../../models--other--m/blobs/h", False),
        (f"{SNAPSHOT}/a", "../../../../../blobs/h", False),
        (f"{SNAPSHOT}/a", "/hf/hub/models--lab--m/blobs/h", False),
        (f"{SNAPSHOT}/a", "/blobs/h", False),
        (f"{SNAPSHOT}/a", "b", False),
    ],
)
def test_which_links_lead_to_a_blob(path: str, target: str, blob: bool) -> None:
    assert is_blob(path, target) is blob


def test_what_is_behind_a_link(tmp_path: Path) -> None:
    repo = HubRepository(str(tmp_path), "models--lab--m")
    top = tmp_path / repo.place
    (top / "blobs").mkdir(parents=True)
    (top / "snapshots/c").mkdir(parents=True)
    (top / "blobs/h").write_text("content")
    (top / "snapshots/c/a").symlink_to("../../blobs/h")
    (top / "snapshots/c/plain").write_text("text")
    (top / "snapshots/c/loop").symlink_to("../../blobs/loop")
    (top / "blobs/loop").symlink_to("h")
    assert (repo.behind("snapshots/c/a"), repo.size("snapshots/c/a")) == ("blobs/h", 7)
    assert (repo.behind("snapshots/c/plain"), repo.size("snapshots/c/plain")) == ("snapshots/c/plain", 4)
    assert repo.size("snapshots/c/none") is None
    with pytest.raises(NodeError, match=r"blobs/loop is not a regular file"):  # a blob is no link itself
        repo.size("snapshots/c/loop")


def hostile(tmp_path: Path) -> tuple[Snapshot, Path]:
    """A snapshot, one file of which leads out of the cache."""
    outside = outside_of(tmp_path)
    secret = (outside / "secret").read_bytes()
    hashes = {"a": f"sha256:{hashlib.sha256(secret).hexdigest()}"}
    snapshot = Snapshot(str(tmp_path / "hf"), "lab/m", "main", COMMIT, {"a": len(secret)}, (), (), hashes)
    os.makedirs(snapshot.path)
    Path(snapshot.path, "a").symlink_to(outside / "secret")
    return snapshot, outside


def test_a_file_of_the_host_does_not_get_into_the_store(tmp_path: Path) -> None:
    """Even if the lock has its hash: others would get it from here."""
    snapshot, outside = hostile(tmp_path)
    before, store = state(outside), Store(str(tmp_path / "store"))
    for use in (sizes, lambda it: in_store.share(store, it)):
        with pytest.raises(NodeError, match=f"{snapshot.path}/a is a link that does not lead to a blob"):
            use(snapshot)
    assert store.blobs() == []
    assert state(outside) == before


def test_of_a_link_that_leads_out_only_the_link_is_removed(tmp_path: Path) -> None:
    snapshot, outside = hostile(tmp_path)
    before = state(outside)
    remove_file(snapshot, "a")
    assert os.listdir(snapshot.path) == []
    assert state(outside) == before


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_reading_everything_again_does_not_follow_a_marker(tmp_path: Path, what: str) -> None:
    snapshot, outside = hostile(tmp_path)
    marker = Path(snapshot.repo_dir) / ".instinct-fleet" / f"{COMMIT}.json"
    marker.parent.mkdir()
    if what == "link":
        marker.symlink_to(outside / "secret")
    else:
        os.mkfifo(marker)
    with pytest.raises(NodeError, match=f"{marker} is not a regular file"):
        rehash.rehash(Store(str(tmp_path / "store")), [snapshot.cache_dir], str(tmp_path / "models"), True)
