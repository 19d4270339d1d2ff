# SPDX-License-Identifier: Apache-2.0
"""host_prune: what nothing refers to goes, and whatever anybody refers to, or somebody else made, stays."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_names import (
    FROM_STORE,
    Override,
    mirror_ref,
)
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import (
    STORE_REGISTRY,
    parse_ref,
)
from ansible_collections.instinct.fleet.plugins.module_utils.content.prune import (
    FoundBlobs,
    FoundImage,
    FoundThings,
    FoundWeights,
    Roots,
    removals,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.host import prune_node
from ansible_collections.instinct.fleet.plugins.module_utils.host.prune_node import PrunePaths, converge
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.module_utils.swarm import swarm_job, swarm_member
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_state import SwarmState, write_state
from ansible_collections.instinct.fleet.plugins.modules import host_prune
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.prune_roots import (
    kept_images,
    kept_weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.module_docs import documented_by
from tests.worlds.fake_docker import FakeDocker

OLD, NEW, THIRD = "1" * 40, "2" * 40, "3" * 40
TAG, DIGEST = "r.example/vllm:1", "r.example/vllm@sha256:" + "1" * 64

# ---- the decision ------------------------------------------------------------------------------------

IMAGE = FoundImage("sha256:1", (TAG, DIGEST), 100, probed=True)
WEIGHTS = FoundWeights("/hf", "a/b", OLD, 50)
FOUND = FoundThings(
    (IMAGE,), (WEIGHTS,), {"llama-0": 7}, {"run-1": 1}, {"12ab": 1}, texts={"chats.jsonl": 1}, jobs={"0a": 1}
)
ALL = [
    "image r.example/vllm:1", f"weights a/b@{OLD[:12]}", "cache llama-0", "bench run-1", "dataset 12ab",
    "calibration chats.jsonl", "quantize-job 0a",
]  # fmt: skip


def named(found: FoundThings, roots: Roots) -> list[str]:
    return [f"{item.kind} {item.target}" for item in removals(found, roots)]


@pytest.mark.parametrize(
    ("roots", "kept"),
    [
        (Roots(), []),
        (Roots(images=frozenset([TAG])), ALL[:1]),
        (Roots(images=frozenset([DIGEST])), ALL[:1]),
        (Roots(images=frozenset(["sha256:1"])), ALL[:1]),
        (Roots(images=frozenset(["r.example/vllm:2"])), []),
        (Roots(weights=frozenset([("a/b", OLD)])), ALL[1:2]),
        (Roots(weights=frozenset([("a/b", NEW), ("c/d", OLD)])), []),
        (Roots(commits=frozenset([OLD])), ALL[1:2]),
        (Roots(fetching=frozenset(["a/b"])), ALL[1:2]),
        (Roots(shared_caches=frozenset(["/hf"])), ALL[1:2]),
        (Roots(shared_caches=frozenset(["/other"])), []),
        (Roots(instances=frozenset(["llama-0"])), ALL[2:3]),
        (Roots(measuring=True), ALL[3:5]),
        (Roots(quantizing=True), ALL[5:]),
    ],
)
def test_what_stays(roots: Roots, kept: list[str]) -> None:
    assert named(FOUND, roots) == [item for item in ALL if item not in kept]


@pytest.mark.parametrize(
    ("image", "goes"),
    [
        (IMAGE, True),
        (replace(IMAGE, probed=False, built=True), True),
        (replace(IMAGE, probed=False), False),  # never read by the toolkit
        (replace(IMAGE, used=True), False),
        (replace(IMAGE, names=()), True),
        (replace(IMAGE, names=(TAG, "r.example/vllm:2")), True),
        (replace(IMAGE, names=(TAG, "mine:1")), False),  # somebody gave it a name of their own
        (replace(IMAGE, names=("r.example:5000/vllm", "r.example:5000/vllm:1")), True),
        (replace(IMAGE, names=("r.example:5000/vllm:1", "r.example:5000/vllm@sha256:1")), True),
        (replace(IMAGE, names=("vllm", "vllm:1")), True),
        (replace(IMAGE, names=("r.example:5000/vllm", "r.example:6000/vllm")), False),
        (replace(IMAGE, names=("r.example:5000/vllm", "r.example:5000/mine")), False),
        (replace(IMAGE, names=("r.example/a/vllm:1", "r.example/b/vllm:1")), False),
    ],
)
def test_images_of_the_toolkit(image: FoundImage, goes: bool) -> None:
    assert bool(removals(FoundThings(images=(image,)), Roots())) is goes


HEX = "a" * 64
DIGESTED = f"rocm/vllm@sha256:{HEX}"
MIRROR = (
    Override("docker.io/rocm", "mirror.example/hub"),
    Override("docker.io", "mirror.example/all"),
    Override("ghcr.io", "mirror.example/all"),
)
BUILT = replace(IMAGE, names=("own/vllm:1-ab", f"r.example:5000/ai/vllm@sha256:{HEX}"), built=True)


@pytest.mark.parametrize(
    ("names", "kept", "stays"),
    [
        # A reference by digest alone, as Docker knows it from a mirror or the content store.
        ([f"mirror.example/hub/vllm@sha256:{HEX}"], DIGESTED, True),
        ([f"mirror.example/hub/vllm@sha256:{HEX}"], f"docker.io/{DIGESTED}", True),
        ([f"mirror.example/all/rocm/vllm@sha256:{HEX}"], DIGESTED, True),
        ([f"mirror.example/all/org/x@sha256:{HEX}"], f"ghcr.io/org/x@sha256:{HEX}", True),
        ([f"{STORE_REGISTRY}/docker.io/rocm/vllm@sha256:{HEX}"], DIGESTED, True),
        (
            [f"{STORE_REGISTRY}/registry.lab_5000/lab/vllm@sha256:{HEX}"],
            f"registry.lab:5000/lab/vllm@sha256:{HEX}",
            True,
        ),
        (
            [DIGESTED],
            f"{STORE_REGISTRY}/docker.io/{DIGESTED}",
            True,
        ),  # what an instance of an air-gapped host ran
        ([DIGESTED], f"rocm/vllm:tag@sha256:{HEX}", True),
        (["ubuntu:24.04"], "docker.io/library/ubuntu:24.04", True),
        (["mirror.example/hub/vllm:old"], "rocm/vllm:old", True),
        # Nothing refers to it: its other name is no reason to keep it.
        (["rocm/vllm:old", f"mirror.example/hub/vllm@sha256:{HEX}"], "rocm/vllm:new", False),
        (["rocm/vllm:old", f"{STORE_REGISTRY}/docker.io/rocm/vllm@sha256:{HEX}"], "rocm/vllm:new", False),
        (
            [f"{STORE_REGISTRY}/docker.io/rocm/vllm@sha256:{HEX}", f"mirror.example/hub/vllm@sha256:{HEX}"],
            "x",
            False,
        ),
        (["ghcr.io/org/x:1", f"mirror.example/all/org/x@sha256:{HEX}"], "x", False),
        # Somebody's own name.
        (["mine:1", f"mirror.example/hub/vllm@sha256:{HEX}"], "x", True),
        (["rocm/vllm:old", "mirror.example/team/app:1"], "x", True),
        (["rocm/vllm:old", f"mirror.example/all/org/app@sha256:{HEX}"], "x", True),
        (["rocm/vllm:old", f"{STORE_REGISTRY}/docker.io/other/vllm@sha256:{HEX}"], "x", True),
    ],
)
def test_an_image_is_known_by_its_own_name_wherever_it_was_pulled_from(
    names: list[str], kept: str, stays: bool
) -> None:
    found = FoundThings(images=(replace(IMAGE, names=tuple(names)),))
    assert bool(removals(found, Roots(images=frozenset([kept]), overrides=MIRROR))) is not stays


@pytest.mark.parametrize(
    ("image", "pushed", "stays"),
    [
        (BUILT, (), True),  # of whom the registry's name is, is not known
        (BUILT, ("r.example:5000/ai/vllm",), False),
        (BUILT, ("r.example:5000/ai/other",), True),
        (replace(BUILT, names=(*BUILT.names, "mine:1")), ("r.example:5000/ai/vllm",), True),
        (replace(BUILT, names=("own/vllm:1-ab", f"{STORE_REGISTRY}/r.example_5000/ai/vllm@sha256:{HEX}")),
         ("r.example:5000/ai/vllm",), False),
    ],
)  # fmt: skip
def test_a_name_under_which_the_toolkit_pushed_is_nobody_elses(
    image: FoundImage, pushed: tuple[str, ...], stays: bool
) -> None:
    assert bool(removals(FoundThings(images=(image,)), Roots(pushed=frozenset(pushed)))) is not stays


REPOSITORIES = st.sampled_from(
    ["docker.io/rocm/vllm", "docker.io/library/ubuntu", "ghcr.io/org/x", "registry.lab:5000/a/b"]
)
RULES = st.lists(
    st.builds(
        Override,
        st.sampled_from(
            ["docker.io", "docker.io/rocm", "ghcr.io", "registry.lab:5000", "registry.lab:5000/a"]
        ),
        st.sampled_from(["mirror.example", "mirror.example/hub", "mirror.example/hub/deep", "m.lan:5001/x"]),
    ),
    max_size=4,
)


@settings(max_examples=100)
@given(REPOSITORIES, RULES, st.booleans(), st.booleans())
def test_whatever_the_mirrors_a_pulled_image_is_found_again(
    repository: str, rules: list[Override], stored: bool, tagged: bool
) -> None:
    """It stays while something refers to it, and goes when nothing does, with its own tag besides or without."""
    ref = parse_ref(f"{repository}@sha256:{HEX}")
    there = mirror_ref(ref, (FROM_STORE,) if stored else rules)
    names = [f"{there.repository}@sha256:{HEX}", *([f"{ref.repository}:1"] if tagged else [])]
    found = FoundThings(images=(replace(IMAGE, names=tuple(names)),))
    known = Roots(images=frozenset([f"{ref.repository}@sha256:{HEX}"]), overrides=tuple(rules))
    assert not removals(found, known)
    assert removals(found, replace(known, images=frozenset()))


@pytest.mark.parametrize(
    ("name", "roots", "kept"),
    [
        (f"image {DIGEST.partition('@')[2]}", Roots(), False),
        (f"image {DIGEST.partition('@')[2]}", Roots(images=frozenset([DIGEST])), True),
        (f"image {DIGEST.partition('@')[2]}", Roots(images=frozenset([TAG])), False),
        (f"model a/b@{OLD} 12ab", Roots(), False),
        (f"model a/b@{OLD} 12ab", Roots(weights=frozenset([("a/b", OLD)])), True),
        (f"model a/b@{OLD} 12ab", Roots(weights=frozenset([("a/b", NEW)])), False),
        (f"model a/b@{OLD} 12ab", Roots(commits=frozenset([OLD])), True),
        (f"model a/b@{OLD} 12ab", Roots(fetching=frozenset(["a/b"])), True),
        ("build own/vllm:1-ab", Roots(), False),
        ("files of the control node", Roots(), True),  # bundles are made of them, or brought them
        ("build own/vllm:1-ab", Roots(images=frozenset(["own/vllm:1-ab"])), True),
        ("blobs-of-no-manifest", Roots(weights=frozenset([("a/b", OLD)])), False),
    ],
)
def test_what_the_content_store_keeps_for_other_nodes(name: str, roots: Roots, kept: bool) -> None:
    found = removals(FoundThings(stored=(FoundBlobs("1", name, 5),)), roots)
    assert not found if kept else [item.bytes for item in found] == [5]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"model a/b@{OLD} 12ab", f"model a/b@{OLD}"),  # without the hash of its files
        ("build own/vllm:1-ab", "build own/vllm:1-ab"),
        ("blobs-of-no-manifest", "blobs-of-no-manifest"),
    ],
)
def test_how_what_the_content_store_keeps_is_shown(name: str, shown: str) -> None:
    (item,) = removals(FoundThings(stored=(FoundBlobs("1", name, 5),)), Roots())
    assert (item.name, item.target, item.bytes) == ("1", shown, 5)


def test_the_largest_come_first() -> None:
    found = FoundThings(caches={"a": 1, "b": 3, "c": 2})
    assert [item.target for item in removals(found, Roots())] == ["b", "c", "a"]


def test_what_the_control_node_refers_to() -> None:
    lock = Lock(
        {"r.example/vllm:1": ImagePin("sha256:" + "a" * 64), "rocm/vllm:2": ImagePin("sha256:" + "b" * 64)},
        {model_key("", "a/b", "main"): ModelPin(OLD), model_key("http://m:1", "c/d", "x@y"): ModelPin(NEW)},
    )
    deployments = [{"image": "other:1"}, {"build": {"tag": "local/vllm:1"}}, {"build": {}}, "no map"]
    assert kept_images(lock, deployments) == [
        "local/vllm:1", "other:1", "r.example/vllm:1", "r.example/vllm@sha256:" + "a" * 64, "rocm/vllm:2",
        "rocm/vllm@sha256:" + "b" * 64,
    ]  # fmt: skip
    assert kept_weights(lock) == [f"a/b@{OLD}", f"c/d@{NEW}"]


# ---- on a node ---------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    with FakeDocker(tmp_path) as fake:
        yield fake


@pytest.fixture
def node(tmp_path: Path) -> PrunePaths:
    return PrunePaths((str(tmp_path / "hf"),), str(tmp_path / "etc"), str(tmp_path / "var"))


def put(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def fetched(
    node: PrunePaths, commit: str, files: dict[str, str], marker: bool = True, repo: str = "a/b"
) -> Path:
    """A commit in the cache: blobs by their content, links, a ref, and the toolkit's marker."""
    top = Path(node.caches[0]) / f"hub/models--{repo.replace('/', '--')}"
    for name, content in files.items():
        blob = put(top / "blobs" / content, content * 100)
        link = top / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    put(top / "refs" / f"of-{commit[0]}", commit)
    if marker:
        put(top / f".instinct-fleet/{commit}.json", "{}")
    return top


def recorded(node: PrunePaths, **keys: Any) -> None:
    """A kept generation."""
    made = {"generation": 1, "image": "none", "weights": [], "members": [], **keys}
    put(Path(node.state_dir) / "generations/llama/summary.json", json.dumps({"kept": [made]}))
    put(Path(node.state_dir) / "generations/llama/1.json", "{}")


def image(docker: FakeDocker, node: PrunePaths, *names: str) -> dict[str, Any]:
    """An image that the toolkit has pulled."""
    found = docker.add_image(*names)
    put(Path(node.data_dir) / "images" / f"{found['Id'].partition(':')[2]}.json", "{}")
    return found


def prune(docker: FakeDocker, node: PrunePaths, check: bool = False, **roots: Any) -> list[str]:
    kept = Roots(**{name: frozenset(value) for name, value in roots.items()})
    result = converge(DockerClient(docker.path), node, kept, check)
    assert result["changed"] is bool(result["actions"])
    return result["actions"]


def test_everything_that_nothing_refers_to(docker: FakeDocker, node: PrunePaths) -> None:
    found = image(docker, node, TAG, DIGEST)
    top = fetched(node, OLD, {"config.json": "old", "sub/m.bin": "shared"})
    fetched(node, NEW, {"config.json": "new", "sub/m.bin": "shared"})
    put(Path(node.data_dir) / "cache/gone-0/triton/x", "12345")
    put(Path(node.data_dir) / "bench/run-1/llama-0-serve/result.json")
    put(Path(node.data_dir) / "dataset/12ab/chats.json")
    recorded(node, weights=[["a/b", NEW]])
    actions = ["remove image r.example/vllm:1 (1000 bytes)", f"remove weights a/b@{OLD[:12]} (300 bytes)",
               "remove cache gone-0 (5 bytes)", "remove bench run-1 (1 bytes)",
               "remove dataset 12ab (1 bytes)"]  # fmt: skip
    assert prune(docker, node, check=True) == actions
    assert docker.changes() == []
    assert (top / "snapshots" / OLD).exists()
    assert prune(docker, node) == actions
    assert found["Id"] not in docker.images
    assert sorted(path.name for path in (top / "blobs").iterdir()) == ["new", "shared"]
    assert [sorted(os.listdir(top / name)) for name in ("snapshots", "refs", ".instinct-fleet")] == [
        [NEW], ["of-2"], [f"{NEW}.json"],
    ]  # fmt: skip
    assert (top / "snapshots" / NEW / "sub/m.bin").read_text() == "shared" * 100
    assert [os.listdir(f"{node.data_dir}/{name}") for name in ("cache", "bench", "images")] == [[], [], []]
    assert prune(docker, node) == []


def test_what_a_kept_generation_needs_stays(docker: FakeDocker, node: PrunePaths) -> None:
    image(docker, node, DIGEST)
    fetched(node, OLD, {"config.json": "old"})
    put(Path(node.data_dir) / "cache/llama-0/x")
    recorded(node, image=DIGEST, weights=[["a/b", OLD]], members=[{"name": "llama-0"}])
    assert prune(docker, node) == []


def test_what_files_of_an_instance_name_stays(docker: FakeDocker, node: PrunePaths) -> None:
    fetched(node, OLD, {"config.json": "old"})
    put(Path(node.data_dir) / "cache/llama-0/x")
    put(Path(node.state_dir) / "instances/llama-0/serve.sh", f"vllm serve /hf/hub/x/snapshots/{OLD} --port 1")
    assert prune(docker, node) == []


SERVER = {"files": {"serve.sh": {"text": f"exec vllm serve c/d --revision {NEW}"}}}


@pytest.mark.parametrize(
    ("record", "stays"),
    [
        ({"members": [{"name": "llama-0", "server": SERVER}]}, True),
        ({"members": [{"name": "llama-0", "server": {}}], "why": f"--revision {NEW} → {THIRD}"}, False),
        ({"members": [{"name": "llama-0"}], "why": f"--revision {NEW} → {THIRD}"}, True),  # a damaged one
        ([NEW], True),
    ],
)
def test_what_a_kept_generation_starts_stays_and_not_what_it_came_after(
    docker: FakeDocker, node: PrunePaths, record: Any, stays: bool
) -> None:
    fetched(node, NEW, {"config.json": "new"})
    why = f"--revision {NEW} → {THIRD}"
    recorded(node, members=[{"name": "llama-0"}], why=why)
    put(Path(node.state_dir) / "generations/llama/1.json", json.dumps(record))
    put(Path(node.state_dir) / "generations/llama/state.json", json.dumps({"held": {"why": why}}))
    gone = [f"remove weights a/b@{NEW[:12]} (300 bytes)"]
    assert prune(docker, node) == ([] if stays else gone)


def mounting(source: str) -> dict[str, Any]:
    return {"HostConfig": {"Mounts": [{"Source": source}]}}


CONTAINERS: dict[str, tuple[Callable[[PrunePaths], dict[str, Any]], str, list[str]]] = {
    # a container, its state, and what stays because of it
    "another's with the image, stopped": (lambda _node: {"Image": TAG}, "exited", ["image"]),
    "another's that mounts the cache": (lambda node: mounting(node.caches[0]), "exited", ["weights"]),
    "another's that mounts a part of it": (
        lambda node: mounting(f"{node.caches[0]}/hub"),
        "running",
        ["weights"],
    ),
    "another's that mounts the disk": (lambda _node: mounting("/"), "running", ["weights"]),
    "another's that mounts something else": (lambda node: mounting(f"{node.caches[0]}-2"), "running", []),
    "a download of the model": (
        lambda _node: {
            "Labels": {"instinct-fleet.fetch": "x"},
            "Entrypoint": ["python3", json.dumps({"repo": "a/b"})],
        },
        "running",
        ["weights"],
    ),
    "a download of another one": (
        lambda _node: {
            "Labels": {"instinct-fleet.fetch": "x"},
            "Entrypoint": ["python3", json.dumps({"repo": "c/d"})],
        },
        "running",
        [],
    ),
    "a measurement": (
        lambda _node: {"Labels": {"instinct-fleet.bench": "r1"}},
        "running",
        ["bench", "dataset"],
    ),
    "a measurement that ended": (lambda _node: {"Labels": {"instinct-fleet.bench": "r1"}}, "exited", []),
    "the instance": (lambda _node: {"Labels": {"instinct-fleet.instance": "llama-0"}}, "exited", ["cache"]),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_what_a_container_needs_stays(case: str, docker: FakeDocker, node: PrunePaths) -> None:
    body, status, kept = CONTAINERS[case]
    image(docker, node, TAG, DIGEST)
    fetched(node, OLD, {"config.json": "old"})
    put(Path(node.data_dir) / "cache/llama-0/x")
    put(Path(node.data_dir) / "bench/run-1/x")
    put(Path(node.data_dir) / "dataset/12ab/x")
    docker.add_container("some", body(node), status)
    went = {text.split()[1] for text in prune(docker, node)}
    assert went == {"image", "weights", "cache", "bench", "dataset"} - set(kept)


def test_what_another_tool_made_stays(docker: FakeDocker, node: PrunePaths) -> None:
    docker.add_image("ubuntu:24.04")
    image(docker, node, TAG, "mine:1")
    top = fetched(node, OLD, {"config.json": "old"}, marker=False)
    put(top / "blobs/abc.incomplete")
    put(Path(node.caches[0]) / "hub/datasets--a--b/.instinct-fleet" / f"{OLD}.json")
    assert prune(docker, node) == []


def test_a_commit_shares_files_with_one_of_another_tool(docker: FakeDocker, node: PrunePaths) -> None:
    top = fetched(node, OLD, {"config.json": "same", "m.bin": "own"})
    fetched(node, THIRD, {"config.json": "same"}, marker=False)
    assert prune(docker, node) == [f"remove weights a/b@{OLD[:12]} (300 bytes)"]
    assert (top / "snapshots" / THIRD / "config.json").exists()
    assert sorted(path.name for path in (top / "blobs").iterdir()) == ["same"]


def test_nothing_goes_when_a_record_cannot_be_read(docker: FakeDocker, node: PrunePaths) -> None:
    fetched(node, OLD, {"config.json": "old"})
    put(Path(node.state_dir) / "generations/llama/summary.json", "{")
    with pytest.raises(prune_node.NodeError, match=r"so it is unknown what it keeps: .*Nothing was removed"):
        prune(docker, node)
    assert docker.changes() == []


def test_what_docker_keeps_is_an_error(docker: FakeDocker, node: PrunePaths) -> None:
    image(docker, node, TAG)
    docker.errors["DELETE /images"] = (409, "conflict: unable to remove")
    with pytest.raises(prune_node.NodeError, match=f"Docker keeps image {TAG}: conflict"):
        prune(docker, node)
    docker.errors["DELETE /images"] = (404, "gone")
    with pytest.raises(prune_node.NodeError, match=f"Still there after removal: image {TAG}"):
        prune(docker, node)


@pytest.mark.parametrize("busy", ["", "container", "stopped", "module"])
def test_what_a_killed_quantization_left(docker: FakeDocker, node: PrunePaths, busy: str) -> None:
    """Its texts are the users' own. A job that ended well is published by the next run."""
    data, killed, done = Path(node.data_dir), "0123456789abcdef", "f123456789abcdef"
    put(data / "quantize/calibration/chats.jsonl", "12345")
    put(data / f"models/.work/{killed}/calibration/chats.jsonl", "123")
    put(data / f"models/.work/{killed}/shared/output/model.safetensors", "1234")
    put(data / f"models/.work/{done}/report.json", "{}")
    put(data / "models/.work/received-x/file")
    if busy in ("container", "stopped"):
        docker.add_container(
            "instinct-quantize-x", {"Image": "x", "Labels": {"instinct-fleet.quantize": "x"}}
        )
        if busy == "stopped":
            docker.containers["instinct-quantize-x"].status = "exited"
    with run_lock.run_lock("model_quantize", 0) if busy == "module" else contextlib.nullcontext():
        actions = prune(docker, node)
    gone = ["remove calibration chats.jsonl (5 bytes)", f"remove quantize-job {killed} (7 bytes)"]
    assert actions == ([] if busy else gone)
    assert os.listdir(data / "quantize/calibration") == (["chats.jsonl"] if busy else [])
    left = [done, "received-x"]
    assert sorted(os.listdir(data / "models/.work")) == sorted([*left, killed] if busy else left)


def test_no_other_module_works_meanwhile(
    docker: FakeDocker, node: PrunePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_node, "LOCK_SECONDS", 0)
    for name in ("vllm_image", "hf_model", "vllm_bench"):
        with run_lock.run_lock(name, 0), pytest.raises(run_lock.Busy):
            prune(docker, node)
        with run_lock.run_lock(name, 0):
            assert prune(docker, node, check=True) == []


def test_the_module(
    docker: FakeDocker, node: PrunePaths, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(node, OLD, {"config.json": "old"})
    fetched(node, NEW, {"config.json": "new"})
    docker.add_image(TAG, Config={"Labels": {"instinct-fleet.build": "x"}})
    monkeypatch.setattr(host_prune, "PrunePaths", lambda caches: replace(node, caches=caches))
    given = {"cache_dirs": [node.caches[0] + "/"], "docker_socket": docker.path}
    result, failed = run_module(host_prune.main, {**given, "images": [TAG], "weights": [f"a/b@{NEW}"]})
    assert not failed, result
    assert (result["actions"], result["bytes"]) == ([f"remove weights a/b@{OLD[:12]} (300 bytes)"], 300)
    result, failed = run_module(host_prune.main, {**given, "docker_socket": docker.path + ".not"}, check=True)
    assert not failed  # a host without Docker
    assert set(documented_by(host_prune)["options"]) == set(host_prune.argument_spec())


def _kept(store: Store, name: str, *contents: bytes) -> None:
    files = [ManifestFile(f"f{at}", len(item), sha256(item).hexdigest()) for at, item in enumerate(contents)]
    for item in contents:
        store.put(item, sha256(item).hexdigest())
    store.record(manifest_of(name, files))


def test_the_content_store_is_pruned_with_what_it_belongs_to(docker: FakeDocker, node: PrunePaths) -> None:
    store = node.store
    _kept(store, f"image {DIGEST.partition('@')[2]}", b"shared", b"old")
    _kept(store, f"model a/b@{NEW} 12ab", b"shared", b"weights")
    store.put(b"loose", sha256(b"loose").hexdigest())
    kept = Roots(weights=frozenset([("a/b", NEW)]))

    first = converge(DockerClient(docker.path), node, kept, False)
    assert first["actions"] == [
        "remove stored blobs-of-no-manifest (5 bytes)",
        f"remove stored image {DIGEST.partition('@')[2]} (3 bytes)",
    ]
    assert {item.name for item in store.manifests()} == {f"model a/b@{NEW} 12ab"}
    assert store.verify() == {}
    assert converge(DockerClient(docker.path), node, kept, False)["changed"] is False


def test_bundles_of_caches_go_with_the_last_instance_that_had_them(
    tmp_path: Path, docker: FakeDocker
) -> None:
    store = Store(str(tmp_path / "store"))
    for key, content in (("a" * 32, b"1"), ("b" * 32, b"2")):
        digest = sha256(content).hexdigest()
        store.put(content, digest)
        store.record(manifest_of(f"caches {key}", [ManifestFile("caches.tar.gz", 1, digest)]))
    for name, key in (("llama-0", "a" * 32), ("gone-0", "b" * 32)):
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "warm.json").write_text(json.dumps({"key": key}))
    (tmp_path / "state/instances/llama-0").mkdir(parents=True)
    node = PrunePaths((), str(tmp_path / "state"), str(tmp_path))
    result = converge(DockerClient(docker.path), node, Roots(), False)
    assert len(result["actions"]) == 2, result["actions"]
    assert [item.name for item in store.manifests()] == [f"caches {'a' * 32}"]
    assert store.blobs() == [sha256(b"1").hexdigest()]
    assert converge(DockerClient(docker.path), node, Roots(), False)["changed"] is False


def test_what_a_program_receives_stays(
    docker: FakeDocker, node: PrunePaths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program of a transfer runs by itself; what it has so far, and what it writes beside, is not touched."""
    store = node.store
    received = sha256(b"received").hexdigest()
    files = [ManifestFile("1", 8, received), ManifestFile("2", 9, "2" * 64)]
    moved = manifest_of(f"image {DIGEST.partition('@')[2]}", files)
    store.put(b"received", received)
    Path(store.incoming(moved)).joinpath("2" * 64).write_text("a part")
    put(Path(store.root) / f"incoming/{'2' * 64}.77.88", "being written")
    put(Path(store.root) / "manifests/.1.json.x7y", "being writ")
    monkeypatch.setattr(swarm_job, "RUN_DIR", str(tmp_path / "run"))
    directory = put(tmp_path / "run" / moved.id / swarm_member.PROGRAM, "import time; time.sleep(60)").parent
    program = subprocess.Popen([sys.executable, str(directory / swarm_member.PROGRAM)])
    try:
        write_state(str(directory), SwarmState(phase="running", pid=program.pid))
        assert prune(docker, node) == ["remove stored damaged-manifest (10 bytes)"]
        assert store.unfinished()[moved.id] == moved
    finally:
        program.kill()
        program.wait()
    assert prune(docker, node, images=[DIGEST]) == ["remove stored unfinished-transfer (13 bytes)"]
    size = 8 + len("a part") + len(moved.text) + 1
    assert prune(docker, node) == [f"remove stored {moved.name} ({size} bytes)"]
    assert (store.blobs(), store.unfinished()) == ([], {})


def test_a_commit_that_only_the_files_of_a_kept_generation_name_stays(
    docker: FakeDocker, node: PrunePaths
) -> None:
    fetched(node, OLD, {"config.json": "old"})
    recorded(node)
    put(Path(node.state_dir) / "generations/llama/1.json", json.dumps({"server": f"--model /hf/{OLD}"}))
    assert prune(docker, node) == []


def test_weights_that_came_back_while_their_removal_was_unfinished_stay(
    docker: FakeDocker, node: PrunePaths
) -> None:
    top = fetched(node, OLD, {"config.json": "old"})
    put(top / f".instinct-fleet/{OLD}.removing", "{}")
    assert prune(docker, node, weights=[("a/b", OLD)]) == []
    assert prune(docker, node) == [f"remove weights a/b@{OLD[:12]} (300 bytes)"]
    assert os.listdir(top / ".instinct-fleet") == []
