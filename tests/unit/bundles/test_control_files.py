# SPDX-License-Identifier: Apache-2.0
"""Files of the control node go to a node, through a bundle, and to the other control node, with real stores."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.action import control_files as action
from ansible_collections.instinct.fleet.plugins.module_utils.bundles import control_files as taking
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.export import export_copy
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.modules import blob_bundle, control_files
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction

Json = dict[str, Any]
CONTENT = {
    "canary_args/chats.json": b"chats" * 1000,
    "quantize_packages/wheels/a.whl": b"wheel",
    "quantize_packages/wheels/b.whl": b"wheel",
}


class Runner:
    """The action plugin on a connection that copies files of this machine, and counts them."""

    def __init__(self, place: Path, run_module: Any) -> None:
        self.place, self.sent, self.fetched, self.shown = place, 0, 0, ""
        self.sources = {path: place / "outside" / path for path in CONTENT}
        for path, source in self.sources.items():
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_bytes(CONTENT[path])
        self._run = run_module

    def call(self, check: bool = False, **args: Any) -> Json:
        plugin = object.__new__(action.ActionModule)
        plugin._task = SimpleNamespace(check_mode=check)  # type: ignore[assignment]
        plugin._display = SimpleNamespace(display=self._show)  # type: ignore[assignment]
        (self.place / "tmp").mkdir(exist_ok=True)
        shell = SimpleNamespace(tmpdir=str(self.place / "tmp"), join_path=lambda *parts: "/".join(parts))
        plugin._connection = SimpleNamespace(_shell=shell, fetch_file=self._fetch)
        plugin._transfer_file = self._put  # type: ignore[method-assign]
        plugin._fixup_perms2 = lambda *_unused, **_named: None  # type: ignore[method-assign]
        found: Json = plugin.call({"store": str(self.place / "store"), **args}, {"check": check})
        return found

    def send(self, check: bool = False) -> Json:
        files = [{"path": path, "source": str(source)} for path, source in self.sources.items()]
        return self.call(check, state="sent", files=files)

    def module(self, args: Json, facts: Json) -> Json:
        result, failed = self._run(control_files.main, args, check=facts["check"])
        return {**result, "failed": failed}

    def _put(self, source: str, target: str) -> str:
        self.sent += 1
        shutil.copyfile(source, target)
        return target

    def _fetch(self, source: str, target: str) -> None:
        self.fetched += 1
        assert Path(source).parent == self.place / "tmp", "the remote user reads nothing else"
        assert stat.S_IMODE(Path(source).stat().st_mode) == 0o600
        shutil.copyfile(source, target)

    def _show(self, text: str) -> None:
        self.shown += text


@pytest.fixture
def runner(tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    found = Runner(tmp_path, run_module)
    monkeypatch.setattr(LeasedAction, "call", lambda _self, args, facts: found.module(args, facts))
    return found


def _bundle(runner: Runner, run_module: Callable[..., Any], sent: Json) -> Json:
    args = {"path": str(runner.place / "bundle"), "pins": {"images": {}, "models": {}}}
    made = {**args, "state": "created", "manifests": [sent["manifest"]], "store": str(runner.place / "store")}
    result, failed = run_module(blob_bundle.main, {**made, "about": {}, "lock": "the lock"})
    assert not failed, result
    loaded, failed = run_module(
        blob_bundle.main, {**args, "state": "loaded", "store": str(runner.place / "inside")}
    )
    assert not failed, loaded
    return dict(loaded)


def test_they_arrive_beside_the_other_inventory(runner: Runner, run_module: Any) -> None:
    predicted = runner.send(check=True)
    assert (predicted["changed"], predicted["manifest"], runner.sent) == (True, None, 0)
    assert not (runner.place / "store").exists()
    sent = runner.send()
    assert (sent["changed"], runner.sent, sent["actions"]) == (True, 2, predicted["actions"])
    assert sent["diff"] == predicted["diff"]
    again = runner.send()
    assert (again["changed"], runner.sent, again["manifest"]) == (False, 2, sent["manifest"])

    loaded = _bundle(runner, run_module, sent)
    there = {
        "state": "received", "files": loaded["files"], "directory": str(runner.place / "inventory/.bundle_files"),
        "store": str(runner.place / "inside"),
    }  # fmt: skip
    predicted = runner.call(True, **there)
    assert (predicted["changed"], runner.fetched, (runner.place / "inventory").exists()) == (True, 0, False)
    received = runner.call(**there)
    assert received == predicted
    for path, content in CONTENT.items():
        assert Path(there["directory"], path).read_bytes() == content
    assert f"quantize_packages: {there['directory']}/quantize_packages/wheels" in runner.shown
    assert runner.call(**there)["changed"] is False
    assert runner.fetched == len(CONTENT)


def test_each_batch_is_taken_and_the_next_run_goes_on(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action, "BATCH", 10)
    put = runner._put

    def broken(source: str, target: str) -> str:
        if runner.sent:
            raise OSError(28, "No space left on device")
        return put(source, target)

    monkeypatch.setattr(runner, "_put", broken)
    assert runner.send()["failed"]
    assert Store(str(runner.place / "store")).manifests() == []
    monkeypatch.setattr(runner, "_put", put)
    assert runner.send()["changed"]
    assert runner.sent == 2
    assert list((runner.place / "tmp").iterdir()) == []


def test_content_that_changed_on_its_way_is_refused(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(_source: str, target: str) -> str:
        Path(target).write_bytes(b"other")
        return target

    monkeypatch.setattr(runner, "_put", altered)
    found = runner.send()
    assert found["failed"]
    assert "is not the blob" in found["msg"]
    assert Store(str(runner.place / "store")).blobs() == []


def test_wrong_content_in_the_store_comes_again(runner: Runner) -> None:
    sent = runner.send()
    store = Store(str(runner.place / "store"))
    damaged = Path(store.path(store.blobs()[0]))
    content = damaged.read_bytes()
    damaged.write_bytes(b"x" * len(content))
    assert runner.send()["manifest"] == sent["manifest"]
    assert damaged.read_bytes() == content


def test_a_store_has_one_set_of_them(runner: Runner) -> None:
    runner.send()
    runner.sources.pop("canary_args/chats.json")
    runner.send()
    store = Store(str(runner.place / "store"))
    assert [len(item.files) for item in store.manifests()] == [2]
    assert len(store.blobs()) == 1


def test_too_little_disk_is_said_before_anything_is_sent(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "free_bytes", lambda _path: 1000)
    found = runner.send()
    assert "Not enough disk for the files of the control node" in found["msg"]
    assert runner.sent == 0


def modes(store: Store) -> set[int]:
    return {stat.S_IMODE(Path(store.path(sha256)).stat().st_mode) for sha256 in store.blobs()}


def test_only_root_reads_them_on_a_node_and_in_a_bundle(runner: Runner, run_module: Any) -> None:
    """They may be the users' own texts."""
    sent = runner.send()
    _bundle(runner, run_module, sent)
    for place in ("store", "inside"):
        assert modes(Store(str(runner.place / place))) == {0o600}
    bundle = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (runner.place / "bundle").iterdir()}
    assert {mode for name, mode in bundle.items() if name.endswith(".tar")} == {0o600}
    assert bundle["fleet.lock.json"] == bundle["bundle.json"] == 0o644


def test_what_an_earlier_version_left_readable_is_hidden(runner: Runner) -> None:
    runner.send()
    store = Store(str(runner.place / "store"))
    for sha256 in store.blobs():
        Path(store.path(sha256)).chmod(0o644)
    runner.send()
    assert modes(store) == {0o600}


def test_a_file_that_is_also_a_models_stays_readable(runner: Runner) -> None:
    store = Store(str(runner.place / "store"))
    content = CONTENT["canary_args/chats.json"]
    sha256 = hashlib.sha256(content).hexdigest()
    store.put(content, sha256)
    store.record(manifest_of("model a/b@1", [ManifestFile("tokenizer.json", len(content), sha256)]))
    runner.send()
    assert stat.S_IMODE(Path(store.path(sha256)).stat().st_mode) == 0o644
    assert modes(store) == {0o600, 0o644}


def test_only_files_of_a_control_node_are_copied_for_the_remote_user(runner: Runner, run_module: Any) -> None:
    store = Store(str(runner.place / "store"))
    content = b"weights"
    sha256 = hashlib.sha256(content).hexdigest()
    store.put(content, sha256)
    store.record(manifest_of("model a/b@1", [ManifestFile("w", len(content), sha256)]))
    for name in (sha256, "../../manifests/x", "0" * 64):
        target = runner.place / "out"
        args = {"state": "received", "files": [], "export": {name: str(target)}, "store": store.root}
        result, failed = run_module(control_files.main, args)
        assert failed
        assert "of a control node" in result["msg"]
        assert not target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_copy_belongs_to_who_has_the_directory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("text")
    (tmp_path / "tmp").mkdir()
    os.chown(tmp_path / "tmp", 4711, 4712)
    (tmp_path / "tmp/x").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").write_text("kept")
    export_copy(str(tmp_path / "secret"), str(tmp_path / "tmp/x"))
    status = (tmp_path / "tmp/x").lstat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (4711, 4712, 0o600)
    assert (tmp_path / "kept").read_text() == "kept"
