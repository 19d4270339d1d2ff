# SPDX-License-Identifier: Apache-2.0
"""What the first start compiled: packed, and restored elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.serving import cache_files
from ansible_collections.instinct.fleet.plugins.module_utils.serving.cache_marker import MARKER, warm_key
from ansible_collections.instinct.fleet.plugins.module_utils.serving.instance_caches import (
    CacheBundle,
    CachedInstance,
    pack_caches,
    parse_instances,
    restore_caches,
)
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store

KEY, OTHER = "a" * 32, "b" * 32
GRAPH = "vllm/torch_compile_cache/abc/rank_0_0/model"
PLAN = "vllm/startup_plan/startup_plan_1.json"
KERNEL = "triton/XYZ/kernel.hsaco"
LIMIT = 2**20


class Node:
    """A node's directory."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.store = Store(str(top / "store"))

    def write(self, name: str, path: str, text: str = "code", mode: int = 0o644) -> Path:
        file = self.top / "cache" / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def files(self, name: str) -> dict[str, str]:
        top = self.top / "cache" / name
        return {
            str(path.relative_to(top)): path.read_text()
            for path in sorted(top.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.name != MARKER
        }


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path))
    return Node(tmp_path)


def packed(node: Node, name: str = "llama-0", limit: int = LIMIT, export: str = "") -> dict[str, Any]:
    return pack_caches([CachedInstance(name, KEY)], limit, export, False, node.store)


def bundle_of(result: dict[str, Any]) -> dict[str, CacheBundle]:
    found = result["bundles"][KEY]
    return {KEY: CacheBundle(found["sha256"], found["bytes"], found["content"])}


def restored(
    node: Node, bundles: dict[str, CacheBundle], name: str = "llama-1", **files: str
) -> dict[str, Any]:
    return restore_caches([CachedInstance(name, KEY)], bundles, files, False, node.store)


def test_what_one_compiled_is_there_for_its_equal_on_the_same_node(node: Node) -> None:
    node.write("llama-0", GRAPH)
    node.write("llama-0", KERNEL, mode=0o755)
    node.write("llama-0", "supervise/state.json")
    node.write("llama-0", "vllm/gpu_p2p_access_cache_for_0,1.json")
    found = packed(node)
    assert (found["changed"], found["warnings"]) == (True, [])
    result = restored(node, bundle_of(found))
    assert (result["warm"], result["missing"], result["warnings"]) == (["llama-1"], [], [])
    assert node.files("llama-1") == {GRAPH: "code", KERNEL: "code"}
    assert (node.top / "cache/llama-1" / KERNEL).stat().st_mode & 0o777 == 0o755
    assert warm_key(paths.cache_dir("llama-1")) == warm_key(paths.cache_dir("llama-0")) == KEY
    again = restored(node, bundle_of(found))
    assert (again["changed"], again["warm"], again["actions"]) == (False, [], [])


def test_the_same_files_are_the_same_bytes(node: Node, tmp_path: Path) -> None:
    for name, order in (("llama-0", (GRAPH, KERNEL)), ("llama-1", (KERNEL, GRAPH))):
        for path in order:
            os.utime(node.write(name, path), (len(name), 5 if name == "llama-0" else 7))
    assert packed(node)["bundles"] == packed(node, "llama-1")["bundles"]


def test_another_node_asks_for_it_and_takes_what_was_sent(node: Node, tmp_path: Path) -> None:
    node.write("llama-0", GRAPH)
    export = tmp_path / "export"
    export.mkdir()
    bundles = bundle_of(packed(node, export=str(export)))
    sha256 = bundles[KEY].sha256
    elsewhere = Node(tmp_path / "n2")
    assert restored(elsewhere, bundles)["missing"] == [sha256]
    done = restored(elsewhere, bundles, **{sha256: str(export / sha256)})
    assert done["warm"] == ["llama-1"]
    assert elsewhere.store.manifest(f"caches {KEY}") is not None


def test_what_arrives_changed_is_refused_and_means_a_cold_start(node: Node, tmp_path: Path) -> None:
    node.write("llama-0", GRAPH)
    export = tmp_path / "export"
    export.mkdir()
    bundles = bundle_of(packed(node, export=str(export)))
    sha256 = bundles[KEY].sha256
    sent = export / sha256
    sent.write_bytes(bytes([sent.read_bytes()[0] ^ 1]) + sent.read_bytes()[1:])
    result = restored(Node(tmp_path / "n2"), bundles, **{sha256: str(sent)})
    assert (result["warm"], result["changed"]) == ([], False)
    assert "llama-1 starts cold" in result["warnings"][0]
    assert sha256 in result["warnings"][0]


def test_a_byte_that_changed_in_the_store_is_noticed_and_asked_for_again(node: Node) -> None:
    node.write("llama-0", GRAPH)
    bundles = bundle_of(packed(node))
    blob = Path(node.store.path(bundles[KEY].sha256))
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    result = restored(node, bundles)
    assert (result["missing"], result["warm"]) == ([bundles[KEY].sha256], [])
    assert not blob.exists()


def test_another_key_and_an_unknown_one_start_cold(node: Node) -> None:
    node.write("llama-0", GRAPH)
    bundles = bundle_of(packed(node))
    found = restore_caches([CachedInstance("llama-1", OTHER)], bundles, {}, False, node.store)
    assert (found["changed"], found["warm"], found["missing"]) == (False, [], [])


def test_what_is_there_stays_but_for_a_plan_of_another_start(node: Node) -> None:
    for path in (GRAPH, PLAN, KERNEL):
        node.write("llama-0", path, "new")
    node.write("llama-1", GRAPH, "old")
    node.write("llama-1", PLAN, "old")
    restored(node, bundle_of(packed(node)))
    assert node.files("llama-1") == {GRAPH: "old", KERNEL: "new", PLAN: "new"}


def test_links_are_not_followed_by_either(node: Node, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    node.write("llama-0", GRAPH)
    (node.top / "cache/llama-0/aiter").mkdir()
    (node.top / "cache/llama-0/aiter/module.so").symlink_to(secret)
    (node.top / "cache/llama-0/triton").symlink_to(tmp_path)
    bundles = bundle_of(packed(node))
    outside = tmp_path / "outside"
    outside.mkdir()
    (node.top / "cache/llama-1").mkdir()
    (node.top / "cache/llama-1/vllm").symlink_to(outside)
    result = restored(node, bundles)
    assert "llama-1 starts cold" in result["warnings"][0]
    assert list(outside.iterdir()) == []
    assert node.files("llama-0") == {GRAPH: "code"}
    restored(node, bundles, "llama-2")
    assert node.files("llama-2") == {GRAPH: "code"}


@pytest.mark.parametrize(
    "path",
    [
        "aiter/abc/build/module.o", "aiter/abc/build/lock_module", "triton/tmp.pid_7/kernel",
        "triton/X/kernel.json.tmp.pid", "vllm/torch_compile_cache/a.lock", "hf/module.py", "other/file",
    ],
)  # fmt: skip
def test_what_is_half_or_not_a_cache_is_left_out(node: Node, path: str) -> None:
    node.write("llama-0", GRAPH)
    node.write("llama-0", path)
    restored(node, bundle_of(packed(node)))
    assert node.files("llama-1") == {GRAPH: "code"}


def evil(change: Callable[[tarfile.TarInfo], None]) -> bytes:
    stream = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=stream) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        good = tarfile.TarInfo(GRAPH)
        good.size = 4
        archive.addfile(good, io.BytesIO(b"code"))
        item = tarfile.TarInfo(KERNEL)
        change(item)
        archive.addfile(item, io.BytesIO(b"x" * item.size))
    return stream.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda item: setattr(item, "name", "triton/../../../etc/cron.d/x"),
        lambda item: setattr(item, "name", "/etc/cron.d/x"),
        lambda item: setattr(item, "name", "supervise/state.json"),
        lambda item: setattr(item, "type", tarfile.DIRTYPE),
        lambda item: (setattr(item, "type", tarfile.SYMTYPE), setattr(item, "linkname", "/etc")),
        lambda item: (setattr(item, "type", tarfile.LNKTYPE), setattr(item, "linkname", GRAPH)),
        lambda item: setattr(item, "type", tarfile.CHRTYPE),
    ],
)
def test_an_archive_that_it_did_not_write_leaves_nothing(
    node: Node, tmp_path: Path, change: Callable[[tarfile.TarInfo], None]
) -> None:
    source = tmp_path / "evil.tar.gz"
    source.write_bytes(evil(change))
    (tmp_path / "target").mkdir()
    with pytest.raises(NodeError, match="is not a file of a cache"):
        cache_files.check_archive(str(source))
    with pytest.raises(NodeError, match="is not a file of a cache"):
        cache_files.unpack(str(source), str(tmp_path / "target"))
    assert {path.name for path in (tmp_path / "target").rglob("*") if path.is_file()} == {"model"}
    # Who restores checks all of it first.
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    bundle = {KEY: CacheBundle(sha256, source.stat().st_size, 4)}
    result = restored(node, bundle, **{sha256: str(source)})
    assert (result["warm"], node.files("llama-1")) == ([], {})
    assert "is not a file of a cache" in result["warnings"][0]


def test_modes_do_not_include_setuid(node: Node, tmp_path: Path) -> None:
    source = tmp_path / "evil.tar.gz"
    source.write_bytes(evil(lambda item: setattr(item, "mode", 0o6777)))
    (tmp_path / "target").mkdir()
    cache_files.unpack(str(source), str(tmp_path / "target"))
    assert (tmp_path / "target" / KERNEL).stat().st_mode & 0o7777 == 0o755


def test_caches_above_the_limit_are_said_and_left(node: Node) -> None:
    node.write("llama-0", GRAPH, "x" * 1000)
    found = packed(node, limit=999)
    assert (found["changed"], found["bundles"], node.store.blobs()) == (False, {}, [])
    assert "llama-0" in found["warnings"][0]
    assert "vllm_serve_bundle_limit" in found["warnings"][0]


def test_an_instance_that_compiled_nothing_has_nothing_to_give(node: Node) -> None:
    node.write("llama-0", "supervise/state.json")
    node.write("llama-0", cache_files.COMMAND)
    found = packed(node)
    assert (found["changed"], found["bundles"][KEY]["files"], node.store.blobs()) == (False, 0, [])


def test_check_mode_changes_nothing(node: Node) -> None:
    node.write("llama-0", GRAPH)
    found = pack_caches([CachedInstance("llama-0", KEY)], LIMIT, "", True, node.store)
    assert (found["changed"], found["actions"], node.store.blobs()) == (False, [], [])
    bundles = bundle_of(packed(node))
    result = restore_caches([CachedInstance("llama-1", KEY)], bundles, {}, True, node.store)
    assert (result["changed"], result["warm"], node.files("llama-1")) == (True, ["llama-1"], {})
    done = restored(node, bundles)
    assert (done["actions"], done["changed"]) == (result["actions"], True)  # the run does what was predicted


@pytest.mark.parametrize("content", ["", "{}", "[]", json.dumps({"key": "../x"}), "x" * 9000, "[" * 4000])
def test_a_marker_of_whatever_content_is_no_key(node: Node, content: str) -> None:
    node.write("llama-0", MARKER, content)
    assert warm_key(paths.cache_dir("llama-0")) == ""


def test_a_marker_that_is_a_pipe_does_not_block(node: Node) -> None:
    (node.top / "cache/llama-0").mkdir(parents=True)
    os.mkfifo(node.top / "cache/llama-0" / MARKER)
    assert warm_key(paths.cache_dir("llama-0")) == ""


@pytest.mark.parametrize("item", [{"name": "../x", "cache_key": KEY}, {"name": "llama-0", "cache_key": "x"}])
def test_instances_that_no_plan_has_are_refused(item: dict[str, str]) -> None:
    with pytest.raises(NodeError, match="is not an instance of the plan"):
        parse_instances([item])
