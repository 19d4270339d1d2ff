# SPDX-License-Identifier: Apache-2.0
"""The control node's part of warm starts: what it records, whom it asks, and what it sends."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.instinct.fleet.plugins.action.instance_cache import ActionModule
from ansible_collections.instinct.fleet.plugins.action.vllm_server import ActionModule as ServerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import cache_records
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.cache_records import CacheRecords

KEY, OTHER = "a" * 32, "b" * 32
CONTENT = b"compiled"
SHA = hashlib.sha256(CONTENT).hexdigest()
RECORD = {"sha256": SHA, "bytes": len(CONTENT), "content": 8, "files": 1}
SERVERS = [
    {"name": "llama-0", "cache_key": KEY, "files": {}},
    {"name": "llama-1", "cache_key": KEY},
    {"name": "x"},
]


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheRecords:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return CacheRecords()


class Node:
    """A node whose module answers as told; its directory is here."""

    def __init__(self, top: Path, kind: type = ActionModule, **answers: Any) -> None:
        self.top, self.calls, self.answers = top, [], answers
        top.mkdir(exist_ok=True)
        shell = SimpleNamespace(tmpdir=str(top), join_path=os.path.join)
        self.action = kind.__new__(kind)
        self.action._task = SimpleNamespace(
            args={}, check_mode=False, delegate_to=None, async_val=0, action="x.y.vllm_server"
        )
        self.action._connection = SimpleNamespace(_shell=shell, fetch_file=shutil.copyfile)
        self.action._templar = SimpleNamespace(template=lambda value: value)
        self.action._transfer_file = shutil.copyfile
        self.action._lease = lambda _facts: {"run": "this"}
        self.action._execute_module = self.execute
        self.facts: dict[str, Any] = {"inventory_hostname": "n1"}

    def execute(
        self, module_args: dict[str, Any], task_vars: Any, module_name: str = "", **_more: Any
    ) -> dict[str, Any]:
        self.calls.append((module_name, module_args))
        if not module_name:
            return dict(self.answers["server"])
        if module_args["state"] == "packed":
            if self.answers["packed"]["bundles"]:
                Path(module_args["export"], SHA).write_bytes(self.answers.get("sent", CONTENT))
            return dict(self.answers["packed"])
        sent = {sha: Path(path).read_bytes() for sha, path in module_args.get("files", {}).items()}
        if sent:
            assert sent == {SHA: CONTENT}
            return {"changed": True, "actions": ["restore"], "warm": ["llama-0"], "missing": []}
        return dict(self.answers["restored"])


def recorded(records: CacheRecords, **more: Any) -> None:
    with records.claimed(KEY) as mine:
        assert mine
        received = records.incoming(SHA)
        received.write_bytes(CONTENT)
        records.add(KEY, {**RECORD, **more}, received)


def test_the_first_of_a_kind_is_packed_and_recorded(tmp_path: Path, records: CacheRecords) -> None:
    node = Node(tmp_path / "n1", packed={"changed": True, "actions": ["pack"], "bundles": {KEY: RECORD}})
    found = node.action.packed(SERVERS, node.facts)
    assert (found["changed"], found["warnings"]) == (True, [])
    assert [(name, args["instances"]) for name, args in node.calls] == [
        ("instinct.fleet.instance_cache", [{"name": "llama-0", "cache_key": KEY}])
    ]
    assert records.get(KEY) == {**RECORD, "host": "n1", "instance": "llama-0"}
    assert records.bundle(SHA).read_bytes() == CONTENT
    for path in (records.directory, records.bundle(SHA), records.directory / f"{KEY}.json"):
        assert path.stat().st_mode & 0o077 == 0
    node.action.packed(SERVERS, node.facts)
    assert len(node.calls) == 1  # there is one already: the node is not asked


def test_one_host_packs_while_others_go_on(tmp_path: Path, records: CacheRecords) -> None:
    node = Node(tmp_path / "n2")
    with records.claimed(KEY) as mine:
        assert mine
        assert node.action.packed(SERVERS, node.facts)["changed"] is False
    assert node.calls == []


@pytest.mark.parametrize(
    ("answers", "warned"),
    [
        ({"packed": {"bundles": {KEY: RECORD}}, "sent": b"tampered"}, "does not have the SHA-256"),
        ({"packed": {"bundles": {KEY: RECORD}}, "sent": b"short"}, "has 5 bytes, not 8"),
        ({"packed": {"bundles": {KEY: RECORD}}, "sent": CONTENT * 2}, "is longer than the 8 bytes"),
        ({"packed": {"bundles": {KEY: {**RECORD, "sha256": "/../../x"}}}}, "not a SHA-256"),
        (
            {"packed": {"bundles": {KEY: {**RECORD, "bytes": 2**31}}}},
            "for bytes, which is not a number from 0 to 107374",
        ),
        ({"packed": {"bundles": {KEY: {**RECORD, "files": -1}}}}, "for files, which is not a number"),
        ({"packed": {"bundles": {}, "warnings": ["too large"]}}, "too large"),
        ({"packed": {"bundles": {}, "failed": True, "msg": "no disk"}}, "no disk"),
    ],
)
def test_what_cannot_be_kept_is_said_and_not_recorded(
    tmp_path: Path, records: CacheRecords, answers: dict[str, Any], warned: str
) -> None:
    node = Node(tmp_path / "n1", **answers)
    found = node.action.packed(SERVERS, node.facts)
    assert warned in found["warnings"][0]
    assert records.get(KEY) is None
    assert not found.get("failed")
    assert {path.name for path in records.directory.iterdir()} <= {f"{KEY}.lock"}
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "n1"}


def test_what_compiles_nothing_is_not_asked_again(tmp_path: Path, records: CacheRecords) -> None:
    node = Node(tmp_path / "n1", packed={"bundles": {KEY: {**RECORD, "files": 0}}})
    for _time in range(2):
        node.action.packed(SERVERS, node.facts)
    node.action.restored(SERVERS, node.facts)
    assert len(node.calls) == 1


def test_a_node_that_lacks_it_gets_it(tmp_path: Path, records: CacheRecords) -> None:
    recorded(records)
    node = Node(tmp_path / "n2", restored={"changed": False, "missing": [SHA]})
    found = node.action.restored(SERVERS, node.facts)
    assert found["warm"] == ["llama-0"]
    assert [name for name, _args in node.calls] == ["instinct.fleet.instance_cache"] * 2
    first = node.calls[0][1]
    assert first["bundles"] == {KEY: RECORD}
    assert [item["name"] for item in first["instances"]] == ["llama-0", "llama-1"]


def test_without_a_record_no_node_is_asked(tmp_path: Path, records: CacheRecords) -> None:
    node = Node(tmp_path / "n1")
    assert node.action.restored(SERVERS, node.facts)["changed"] is False
    assert node.calls == []


def test_zero_turns_it_off(tmp_path: Path, records: CacheRecords) -> None:
    recorded(records)
    node = Node(tmp_path / "n1")
    node.facts["vllm_serve_bundle_limit"] = 0
    node.action.restored(SERVERS, node.facts)
    node.action.packed([{"name": "y", "cache_key": OTHER}], node.facts)
    assert node.calls == []


@pytest.mark.parametrize("asked", ["../../../secret", "b" * 64, None])
def test_a_node_gets_only_what_is_recorded_of_its_keys(
    tmp_path: Path, records: CacheRecords, asked: Any
) -> None:
    """It would be sent any file of the control node whose name ends like a bundle's."""
    recorded(records)
    (tmp_path / "home/secret.tar.gz").write_bytes(b"secret")
    node = Node(tmp_path / "n2", restored={"changed": False, "missing": [asked]})
    assert "which it was not offered" in node.action.restored(SERVERS, node.facts)["warnings"][0]
    assert list((tmp_path / "n2").iterdir()) == []


def test_a_transfer_that_fails_is_a_cold_start(tmp_path: Path, records: CacheRecords) -> None:
    recorded(records)
    node = Node(tmp_path / "n2", restored={"changed": False, "missing": [SHA]})

    def fail(*_args: Any) -> None:
        raise AnsibleError("the connection broke")

    node.action._transfer_file = fail
    assert "the connection broke" in node.action.restored(SERVERS, node.facts)["warnings"][0]


@pytest.mark.parametrize("damage", ["{", json.dumps({"sha256": SHA}), json.dumps({**RECORD, "bytes": 9})])
def test_a_record_that_is_not_whole_is_none(records: CacheRecords, damage: str) -> None:
    recorded(records)
    (records.directory / f"{KEY}.json").write_text(damage)
    assert records.get(KEY) is None


def test_the_oldest_go(records: CacheRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_records, "KEPT", 2)
    for number in range(3):
        content = str(number).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        received = records.incoming(sha256)
        records.directory.mkdir(parents=True, exist_ok=True)
        received.write_bytes(content)
        records.add(str(number) * 32, {**RECORD, "sha256": sha256, "bytes": 1}, received)
        os.utime(records.directory / f"{str(number) * 32}.json", (number, number))
    records.add("9" * 32, {**RECORD, "files": 0}, None)
    assert sorted(path.stem[0] for path in records.directory.glob("*.json")) == ["2", "9"]
    assert len(list(records.directory.glob("*.tar.gz"))) == 1


@pytest.mark.parametrize(
    ("state", "restores"), [(None, True), ("present", True), ("started", False), ("stopped", False)]
)
def test_servers_start_after_their_caches_were_restored(
    tmp_path: Path, records: CacheRecords, state: str | None, restores: bool
) -> None:
    recorded(records)
    restored = {
        "changed": True,
        "actions": ["restore"],
        "warm": ["llama-0"],
        "missing": [],
        "warnings": ["w"],
    }
    node = Node(
        tmp_path / "n1", ServerAction, restored=restored, server={"changed": False, "actions": ["start"]}
    )
    args = {"servers": SERVERS, **({"state": state} if state else {})}
    found = node.action.call(args, node.facts)
    names = [name for name, _args in node.calls]
    assert names == (["instinct.fleet.instance_cache", ""] if restores else [""])
    assert found["actions"] == (["restore", "start"] if restores else ["start"])
    assert found["changed"] is restores
