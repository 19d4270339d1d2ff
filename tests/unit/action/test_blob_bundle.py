# SPDX-License-Identifier: Apache-2.0
"""A bundle's id is printed where it is made, and compared where it is read; a key signs it, without leaving here."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.action.blob_bundle import ActionModule
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.modules import blob_bundle
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature

from tests.unit.quantize.test_signature import private

Json = dict[str, Any]
PINS: Json = {"images": {}, "models": {}}


class Node:
    """A node with a content store, and what the control node sent to it and printed."""

    def __init__(self, directory: Path, run_module: Any) -> None:
        self.directory = directory
        self.run_module = run_module
        self.store = Store(str(directory / "store"))
        digest = sha256(b"weights").hexdigest()
        self.store.put(b"weights", digest)
        self.manifest = manifest_of("model lab/m@1", [ManifestFile("m", 7, digest)])
        self.store.record(self.manifest)
        self.sent: list[Json] = []
        self.printed: list[str] = []
        self.after_read: Callable[[], object] = lambda: None

    def execute(self, module_args: Json) -> Json:
        self.sent.append(module_args)
        args = {key: value for key, value in module_args.items() if key != "lease"}
        result, failed = self.run_module(blob_bundle.main, {"store": self.store.root, **args})
        if args.get("step") == "read":
            self.after_read()
        return {**result, "failed": True} if failed else dict(result)

    def play(self, state: str, **args: Any) -> Json:
        """Run the action plugin."""
        plugin = ActionModule.__new__(ActionModule)
        given = {"state": state, "path": str(self.directory / "bundle"), "pins": PINS, **args}
        if state == "created":
            given |= {"manifests": [self.manifest.to_json()], "lock": "the lock"}
        plugin._task = SimpleNamespace(
            action="instinct.fleet.blob_bundle", args=given, check_mode=False, delegate_to=None, async_val=0
        )
        plugin._display = SimpleNamespace(display=self.printed.append, warning=self.printed.append)
        self.sent.clear()
        self.printed.clear()
        return plugin.run(None, {"inventory_hostname": "n1"})


@pytest.fixture
def node(tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path, run_module)
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(
        ActionBase, "_execute_module", lambda _self, module_args, **_more: made.execute(module_args)
    )
    # The lease is another test's matter.
    monkeypatch.setattr(blob_bundle, "run_leased", lambda _module, call: call)
    return made


@pytest.fixture
def key(tmp_path: Path) -> dict[str, str]:
    secret = private()
    (tmp_path / "key").write_bytes(secret)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key.pub").write_bytes(signature.public_key_of(secret))
    return {"secret": str(tmp_path / "key"), "public": str(tmp_path / "key.pub")}


def test_the_id_is_printed_with_the_command_of_the_other_side(node: Node) -> None:
    result = node.play("created")
    (text,) = node.printed
    assert text.startswith(f"n1: bundle_id {result['bundle_id']}, not signed")
    assert (
        f"playbooks/bundle_verify.yml --limit HOST -e bundle_dir=… -e bundle_id={result['bundle_id']}" in text
    )
    again = node.play("created")
    assert (again["changed"], again["bundle_id"]) == (False, result["bundle_id"])
    assert result["bundle_id"] in node.printed[0], "it may be wanted again"


@pytest.mark.parametrize("state", ["verified", "loaded"])
def test_without_an_id_only_integrity_was_checked_and_is_said_to_be(node: Node, state: str) -> None:
    own = node.play("created")["bundle_id"]
    result = node.play(state)
    assert "nothing says who made it" in result["origin"]
    assert node.printed == [f"n1: {result['origin']}"]
    result = node.play(state, id=own)
    assert result["origin"] == f"The bundle is the expected one: its id is {own}."
    assert node.printed == [f"n1: {result['origin']}"]


@pytest.mark.parametrize("state", ["verified", "loaded"])
@pytest.mark.parametrize("wanted", ["f" * 64, "no id"])
def test_another_id_is_refused_before_anything_is_read(node: Node, state: str, wanted: str) -> None:
    own = node.play("created")["bundle_id"]
    result = node.play(state, id=wanted)
    assert result["failed"]
    assert (own if len(wanted) == 64 else "is not the id of a bundle") in result["msg"]
    assert "Nothing of it was loaded" in result["msg"]
    assert [args.get("step") for args in node.sent] == (["read"] if len(wanted) == 64 else [])


def test_a_consistent_forgery_is_whole_and_not_the_expected_one(node: Node) -> None:
    """Whoever has the disk writes another bundle: all its hashes fit."""
    own = node.play("created")["bundle_id"]
    for path in (node.directory / "bundle").iterdir():
        path.unlink()
    digest = sha256(b"evil").hexdigest()
    node.store.put(b"evil", digest)
    node.manifest = manifest_of("model lab/m@1", [ManifestFile("m", 4, digest)])
    node.store.record(node.manifest)
    node.play("created")
    assert not node.play("verified").get("failed")
    assert "is expected" in node.play("verified", id=own)["msg"]


def test_a_bundle_that_is_exchanged_after_its_id_was_read_is_refused(node: Node) -> None:
    own = node.play("created")["bundle_id"]
    index = node.directory / "bundle/bundle.json"

    def exchange() -> None:
        index.write_text(json.dumps({**json.loads(index.read_text()), "about": {"release": "2"}}))

    node.after_read = exchange
    result = node.play("loaded", id=own)
    assert result["failed"]
    assert f"{own} was expected" in result["msg"]


def test_a_key_signs_and_stays_here(node: Node, key: dict[str, str]) -> None:
    made = node.play("created", signing_key_file=key["secret"], signing_key_password="")
    assert made["changed"]
    assert "signed with the key" in node.printed[0]
    assert not any(
        {"signing_key_file", "signing_key_password", "public_key_file"} & set(args) for args in node.sent
    )
    assert not node.play("created", signing_key_file=key["secret"])["changed"]
    for state in ("verified", "loaded"):
        result = node.play(state, public_key_file=key["public"])
        assert "it is signed with the key" in result["origin"]


@pytest.mark.parametrize("state", ["verified", "loaded"])
def test_a_bundle_without_the_signature_that_is_wanted_is_refused(
    node: Node, key: dict[str, str], state: str
) -> None:
    own = node.play("created", signing_key_file=key["secret"])["bundle_id"]
    (node.directory / "bundle/bundle.json.sig").unlink()
    result = node.play(state, public_key_file=key["public"])
    assert result["failed"]
    assert "it is not signed" in result["msg"]
    assert "-e bundle_id=" in result["msg"]
    assert [args["step"] for args in node.sent] == ["read"]
    assert not node.play(state, public_key_file=key["public"], id=own).get("failed")


def test_an_unusable_key_is_refused_before_a_bundle_is_made(node: Node, tmp_path: Path) -> None:
    result = node.play("created", signing_key_file=str(tmp_path / "none"))
    assert "cannot be read" in result["msg"]
    assert node.sent == []
