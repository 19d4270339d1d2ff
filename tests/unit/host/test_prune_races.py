# SPDX-License-Identifier: Apache-2.0
"""In check mode nothing is locked: a download, a measurement or another run may remove whatever is being counted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.content.prune import Roots
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.host.prune_node import PrunePaths, converge
from ansible_collections.instinct.fleet.plugins.module_utils.observe.held_bytes import held_bytes
from ansible_collections.instinct.fleet.plugins.module_utils.observe.repositories import read_repositories
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.observe.storage import read_models, read_store

from tests.helpers.hostile_tree import outside_of, state
from tests.helpers.vanishing import vanishing
from tests.worlds.fake_docker import FakeDocker

OLD = "1" * 40
MARKER = {"repo": "a/b", "commit": OLD, "bytes": 1, "files": {"m": 1}, "exclude": [], "include": []}


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def full(tmp_path: Path) -> PrunePaths:
    """A node with something of every kind."""
    top = tmp_path / "node"
    node = PrunePaths((str(top / "hf"),), str(top / "etc"), str(top / "data"))
    repo = top / "hf/hub/models--a--b"
    put(repo / "blobs/h")
    put(repo / "blobs/h2.incomplete")
    put(repo / f"snapshots/{OLD}/sub/plain")
    (repo / f"snapshots/{OLD}/m").symlink_to("../../blobs/h")
    put(repo / "refs/main", OLD)
    put(repo / f".instinct-fleet/{OLD}.json", json.dumps(MARKER))
    put(top / "hf/hub/models--c--d/blobs/h")
    for place in ("cache/gone/triton/x/y", "bench/run-1/a/b", "dataset/12ab/c", f"images/{'1' * 64}.json"):
        put(top / "data" / place)
    put(top / "data/models/made" / OLD / "sub/config.json")
    put(top / "data/models/made" / OLD / "manifest.json", "{}")
    for place in (f"blobs/sha256/{'a' * 64}", "manifests/x.json", "incoming/y/z", "incoming/loose"):
        put(top / "data/store" / place)
    put(top / "etc/instances/llama/serve.sh", "vllm")
    return node


def counted(node: PrunePaths, docker: FakeDocker) -> None:
    converge(DockerClient(docker.path), node, Roots(), True)


def observed(node: PrunePaths, _docker: FakeDocker) -> None:
    source = Source("/")
    read_models(source, list(node.caches))
    read_store(source, node.data_dir)
    held_bytes(node.data_dir, list(node.caches))
    read_repositories(node.data_dir)
    broken = [item for item in source.problems if "manifests/x.json" not in item["what"]]
    assert broken == []


@pytest.mark.parametrize("look", [counted, observed])
def test_what_vanishes_after_it_was_listed_is_no_error(
    look: Callable[[PrunePaths, FakeDocker], None],
    full: PrunePaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    top = tmp_path / "node"
    shutil.copytree(top, tmp_path / "kept", symlinks=True)
    with FakeDocker(tmp_path) as docker:
        with vanishing(monkeypatch, top, 0) as none:
            look(full, docker)
        assert none.count >= 5
        for at in range(1, none.count + 1):
            shutil.rmtree(top)
            shutil.copytree(tmp_path / "kept", top, symlinks=True)
            with vanishing(monkeypatch, top, at) as seen:
                look(full, docker)
            assert seen.count >= at


LINKS = ("hub", "hub/models--a--b", "hub/models--a--b/snapshots", "hub/models--a--b/.instinct-fleet")


@pytest.mark.parametrize("place", LINKS)
def test_nothing_is_removed_through_a_link_that_a_download_left(
    place: str, full: PrunePaths, tmp_path: Path
) -> None:
    outside = outside_of(tmp_path)
    put(outside / f"{OLD}.json")
    (outside / OLD).mkdir()
    put(outside / OLD / "file")
    before, path = state(outside), Path(full.caches[0]) / place
    path.rename(tmp_path / "away")
    path.symlink_to(outside)
    with (
        FakeDocker(tmp_path) as docker,
        pytest.raises(NodeError, match=f"{path} is not a directory of its own"),
    ):
        converge(DockerClient(docker.path), full, Roots(), False)
    assert state(outside) == before


def test_of_a_link_that_leads_out_of_the_cache_only_the_link_is_removed(
    full: PrunePaths, tmp_path: Path
) -> None:
    outside = outside_of(tmp_path)
    before, repo = state(outside), Path(full.caches[0]) / "hub/models--a--b"
    (repo / f"snapshots/{OLD}/secret").symlink_to(outside / "secret")
    (repo / f"snapshots/{OLD}/directory").symlink_to(outside / "directory")
    with FakeDocker(tmp_path) as docker:
        actions = converge(DockerClient(docker.path), full, Roots(), False)["actions"]
    assert f"remove weights a/b@{OLD[:12]} (2 bytes)" in actions
    assert os.listdir(repo / "snapshots") == []
    assert state(outside) == before


@pytest.mark.timeout(30)
def test_a_marker_that_is_a_pipe_does_not_hold_up_who_looks(tmp_path: Path) -> None:
    marker = tmp_path / f"hf/hub/models--a--b/.instinct-fleet/{OLD}.json"
    marker.parent.mkdir(parents=True)
    os.mkfifo(marker)
    source = Source("/")
    assert read_models(source, [str(tmp_path / "hf")]) == ([], [])
    assert source.problems == [
        {"what": str(marker), "error": "broken marker: ValueError: not a regular file"}
    ]
    marker.unlink()
    marker.symlink_to(put(tmp_path / "other.json", json.dumps(MARKER)))
    assert read_models(source, [str(tmp_path / "hf")]) == ([], [])
    assert "Too many levels of symbolic links" in source.problems[-1]["error"]
