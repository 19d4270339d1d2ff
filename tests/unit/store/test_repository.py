# SPDX-License-Identifier: Apache-2.0
"""A model that was made on one node comes to another: hashed, whole or not there, and wrong bytes healed by name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.action import model_repository as action
from ansible_collections.instinct.fleet.plugins.module_utils.common.files import sync_directory
from ansible_collections.instinct.fleet.plugins.module_utils.content.model_manifest import (
    MANIFEST,
    SIGNATURE,
    commit_of,
    hash_directory,
    statement,
    statement_text,
)
from ansible_collections.instinct.fleet.plugins.module_utils.content.prune import FoundBlobs, Roots
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import repository_name
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.observe.repositories import read_repositories
from ansible_collections.instinct.fleet.plugins.module_utils.store import received_repository, repository
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import parse_manifest
from ansible_collections.instinct.fleet.plugins.module_utils.store.repository import repositories_of
from ansible_collections.instinct.fleet.plugins.modules import (
    blob_bundle,
    blob_fetch,
    blob_verify,
    model_repository,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.prune_roots import kept_weights

from tests.unit.quantize.test_signature import private
from tests.worlds.quantize_world import write_model

Json = dict[str, Any]
WEIGHTS = "model.safetensors"


class Node:
    """A node's data directory, with what its modules do there."""

    def __init__(self, top: Path, run_module: Any) -> None:
        self.top, self._run = top, run_module
        self.store = Store(str(top / "store"))
        top.mkdir()

    def path(self, commit: str) -> Path:
        return self.top / "models/llama-fp8" / commit

    def take(self, commit: str, *, offered: bool, check: bool = False) -> tuple[Json, bool]:
        given = {"path": str(self.path(commit)), "name": name_of(commit), "offered": offered}
        found: tuple[Json, bool] = self._run(
            blob_fetch.main, {"repository": given, "store": self.store.root}, check=check
        )
        return found

    def place(self, commit: str, *, step: str = "place", check: bool = False) -> tuple[Json, bool]:
        given = {
            "path": str(self.path(commit)), "name": name_of(commit), "store": self.store.root, "step": step,
        }  # fmt: skip
        found: tuple[Json, bool] = self._run(model_repository.main, given, check=check)
        return found

    def observed(self) -> Json:
        (found,) = read_repositories(str(self.top))
        return found


def name_of(commit: str) -> str:
    return repository_name(f"/var/lib/instinct-fleet/models/llama-fp8/{commit}", "")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Any) -> Callable[[str], Node]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    return lambda name: Node(tmp_path / name, run_module)


@pytest.fixture
def made(node: Callable[[str], Node]) -> tuple[Node, str]:
    """The node that made the model, and the model's commit."""
    maker = node("maker")
    fresh = write_model(maker.top / "fresh")
    (fresh / "tokenizer").mkdir()
    (fresh / "tokenizer/vocab.json").write_text('{"the": 1}')
    files = hash_directory(str(fresh))
    commit = commit_of(files)
    maker.path(commit).parent.mkdir(parents=True)
    fresh.rename(maker.path(commit))
    (maker.path(commit) / MANIFEST).write_text(statement_text(statement("llama-fp8", files)))
    return maker, commit


def swarm(giving: Node, taking: Node, offer: Json) -> list[str]:
    """Move what one store lacks of the other's manifest, as the program does. Return what moved."""
    manifest = parse_manifest(offer["manifest"])
    missing = taking.store.missing(manifest)
    for sha256, size in missing.items():
        taking.store.add(shutil.copy(giving.store.path(sha256), taking.top), sha256, size, move=True)
    taking.store.record(manifest)
    return sorted(item.path for item in manifest.files if item.sha256 in missing)


def passed_on(maker: Node, other: Node, commit: str) -> list[str]:
    """All steps of a transfer. Return the files that moved."""
    offer, failed = maker.take(commit, offered=True)
    assert not failed, offer
    assert not other.take(commit, offered=False)[1]
    moved = swarm(maker, other, offer)
    placed, failed = other.place(commit)
    assert not failed, placed
    return moved


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def flip(path: Path) -> None:
    """Another byte, in place: every name of the file has it."""
    with path.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


def test_it_comes_whole_and_is_hashed_once(made: tuple[Node, str], node: Callable[[str], Node]) -> None:
    maker, commit = made
    (maker.path(commit) / SIGNATURE).write_text("{}")
    other = node("other")
    assert passed_on(maker, other, commit) == sorted(contents(maker.path(commit)))
    assert contents(other.path(commit)) == contents(maker.path(commit))
    assert (other.observed()["verified"], other.observed()["wrong"]) == (True, [])
    assert maker.observed()["verified"], "the one that gives it has hashed it too"
    assert len(maker.observed()["signature"]) == 12
    weights = other.path(commit) / WEIGHTS
    assert weights.stat().st_nlink == 2, "no space beside the store's"
    assert weights.stat().st_mode & 0o777 == 0o644
    again, failed = other.place(commit)
    assert (failed, again["changed"], again["actions"]) == (False, False, [])
    assert not list((other.top / "models/.work").iterdir())


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer/vocab.json"])
def test_a_tampered_copy_is_named_and_only_its_file_comes_again(
    made: tuple[Node, str], node: Callable[[str], Node], name: str
) -> None:
    maker, commit = made
    other = node("other")
    passed_on(maker, other, commit)
    flip(other.path(commit) / name)
    assert not other.observed()["verified"], "seen without hashing"
    offer, _unused = maker.take(commit, offered=True)
    taken, failed = other.take(commit, offered=False)
    assert (failed, taken["manifest"]) == (False, None)
    assert any(f"{name} is changed" in text for text in taken["warnings"])
    assert other.observed()["wrong"] == [name]
    assert swarm(maker, other, offer) == [name]
    placed, failed = other.place(commit)
    assert (failed, placed["changed"]) == (False, True)
    assert contents(other.path(commit)) == contents(maker.path(commit))
    assert other.observed()["verified"]


@pytest.mark.parametrize("signature_text", ["", "{}"])
def test_a_bundle_carries_it(
    made: tuple[Node, str],
    node: Callable[[str], Node],
    run_module: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signature_text: str,
) -> None:
    maker, commit = made
    other = node("other")
    pattern = re.compile(rf"{tmp_path}/maker/models/([^/]+)/([0-9a-f]{{40}})")
    monkeypatch.setattr(repository, "REPOSITORY", pattern)
    if signature_text:
        (maker.path(commit) / SIGNATURE).write_text(signature_text)
    given = {"path": str(maker.path(commit))}
    offer, failed = run_module(blob_fetch.main, {"repository": given, "store": maker.store.root})
    mark = maker.observed()["signature"]
    assert (failed, offer["manifest"]["name"]) == (False, repository_name(given["path"], mark))
    bundle = {"path": str(tmp_path / "bundle"), "state": "created", "lock": "{}"}
    pins: Json = {"images": {}, "models": {}}
    created, failed = run_module(
        blob_bundle.main,
        {**bundle, "pins": pins, "manifests": [offer["manifest"]], "store": maker.store.root},
    )
    assert not failed, created
    foretold, _failed = run_module(
        blob_bundle.main, {**bundle, "state": "loaded", "store": other.store.root}, check=True
    )
    loaded, failed = run_module(blob_bundle.main, {**bundle, "state": "loaded", "store": other.store.root})
    assert not failed, loaded
    assert (
        loaded["repositories"]
        == foretold["repositories"]
        == [{"path": given["path"], "name": offer["manifest"]["name"]}]
    )
    (found,) = loaded["repositories"]
    placed, failed = run_module(
        model_repository.main, {**found, "path": str(other.path(commit)), "store": other.store.root}
    )
    assert (failed, placed["changed"]) == (False, True), placed
    assert contents(other.path(commit)) == contents(maker.path(commit))
    assert (other.observed()["verified"], other.observed()["signature"]) == (True, mark)


def test_a_bundle_is_made_where_it_is(node: Callable[[str], Node]) -> None:
    refused, failed = node("bare").take("a" * 40, offered=True)
    assert failed
    assert "is not on this host, so it cannot give it to others. Name a host that has it" in refused["msg"]


TOP = "/var/lib/instinct-fleet/models"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (repository_name(f"{TOP}/llama-fp8/{'a' * 40}", ""), f"{TOP}/llama-fp8/{'a' * 40}"),
        (repository_name(f"{TOP}/llama-fp8/{'a' * 40}", "1" * 12), f"{TOP}/llama-fp8/{'a' * 40}"),
        (f"model org/name@{'a' * 40} {'1' * 12}", ""),
        (f"model {TOP}/../../../etc@{'a' * 40} unsigned", ""),
        (f"model {TOP}/..@{'a' * 40} unsigned", ""),
        (f"model {TOP}/.work@{'a' * 40} unsigned", ""),
        (f"model /etc/cron.d@{'a' * 40} unsigned", ""),
        (f"image {TOP}/llama-fp8@{'a' * 40} unsigned", ""),
        ("image sha256:1", ""),
    ],
)
def test_only_paths_of_models_are_given(name: str, path: str) -> None:
    assert repositories_of([name]) == ({path: name} if path else {})


def test_what_is_wrong_where_it_was_made_is_not_passed_on(
    made: tuple[Node, str], node: Callable[[str], Node]
) -> None:
    maker, commit = made
    assert not maker.take(commit, offered=True)[1]
    flip(maker.path(commit) / WEIGHTS)
    refused, failed = maker.take(commit, offered=True)
    assert failed
    assert f"{WEIGHTS} is changed. It is not passed on" in refused["msg"]
    assert "remove the directory and make it again" in refused["msg"]
    assert maker.observed()["wrong"] == [WEIGHTS]
    assert maker.store.manifests() == [], "the store's name of the same file is gone too"
    other = node("other")
    absent, failed = other.place(commit)
    assert failed
    assert "did not arrive" in absent["msg"]
    assert not other.path(commit).exists()


def test_a_manifest_of_other_files_is_refused(made: tuple[Node, str]) -> None:
    maker, commit = made
    path = maker.path(commit)
    flip(path / WEIGHTS)
    (path / MANIFEST).write_text(statement_text(statement("llama-fp8", hash_directory(str(path)))))
    refused, failed = maker.take(commit, offered=True)
    assert failed
    assert "lists the files of commit" in refused["msg"]
    assert maker.observed()["commit"] not in ("", commit)


@pytest.mark.parametrize("text", ["", "{", '{"predicate": 1}'])
def test_a_damaged_manifest_is_replaced(
    made: tuple[Node, str], node: Callable[[str], Node], text: str
) -> None:
    maker, commit = made
    other = node("other")
    passed_on(maker, other, commit)
    (other.path(commit) / MANIFEST).unlink()
    if text:
        (other.path(commit) / MANIFEST).write_text(text)
    assert (other.observed()["commit"], other.observed()["verified"]) == ("", False)
    passed_on(maker, other, commit)
    assert contents(other.path(commit)) == contents(maker.path(commit))


def test_wrong_content_of_the_store_is_not_made_visible(
    made: tuple[Node, str], node: Callable[[str], Node]
) -> None:
    maker, commit = made
    other = node("other")
    offer, _unused = maker.take(commit, offered=True)
    swarm(maker, other, offer)
    wanted = {item.path: item.sha256 for item in parse_manifest(offer["manifest"]).files}
    flip(Path(other.store.path(wanted[WEIGHTS])))
    refused, failed = other.place(commit)
    assert failed
    assert f"{WEIGHTS} is changed" in refused["msg"]
    assert not other.path(commit).exists()
    assert swarm(maker, other, offer) == [WEIGHTS]
    assert not other.place(commit)[1]


def test_one_that_was_killed_is_finished_by_the_next(
    made: tuple[Node, str], node: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, commit = made
    other = node("other")
    offer, _unused = maker.take(commit, offered=True)
    swarm(maker, other, offer)

    def killed(*_unused: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(received_repository, "sync_directory", killed)
    with pytest.raises(KeyboardInterrupt):
        other.place(commit)
    assert read_repositories(str(other.top)) == [], "nothing of it is visible"
    monkeypatch.setattr(received_repository, "sync_directory", sync_directory)
    assert not other.place(commit)[1]
    assert contents(other.path(commit)) == contents(maker.path(commit))
    assert not list((other.top / "models/.work").iterdir())


def test_check_mode_changes_nothing(made: tuple[Node, str], node: Callable[[str], Node]) -> None:
    maker, commit = made
    predicted, failed = maker.take(commit, offered=True, check=True)
    assert (failed, predicted["changed"], predicted["manifest"]) == (False, True, None)
    assert not (maker.top / "store").exists()
    other = node("other")
    predicted, failed = other.place(commit, check=True)
    assert (failed, predicted["actions"]) == (False, [f"place {other.path(commit)}"])
    assert not list(other.top.iterdir())


def test_check_mode_knows_a_model_that_is_as_it_was_made(made: tuple[Node, str]) -> None:
    maker, commit = made
    model = repository.LocalRepository(str(maker.path(commit)))
    name = model.name
    assert received_repository.is_as_named(model, name)
    assert not received_repository.is_as_named(model, f"{name}2")
    (maker.path(commit) / WEIGHTS).write_bytes(b"other")
    assert not received_repository.is_as_named(model, name)
    (maker.path(commit) / MANIFEST).write_text("{}")
    assert not received_repository.is_as_named(model, model.name)


def test_verify_reads_it_again(made: tuple[Node, str], run_module: Any) -> None:
    maker, commit = made
    assert not maker.take(commit, offered=True)[1]
    path = maker.path(commit) / WEIGHTS
    given = {"store": maker.store.root, "cache_dirs": [], "models": str(maker.top / "models")}
    assert not run_module(blob_verify.main, given)[1]
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    flip(path)
    os.utime(path, ns=times)
    assert maker.observed()["verified"], "a disk that flips a bit changes no time"
    found, failed = run_module(blob_verify.main, given, check=True)
    assert failed
    assert f"{WEIGHTS} of {maker.path(commit)}" in found["msg"]
    assert path.exists()
    assert run_module(blob_verify.main, given)[1]
    assert not path.exists()
    assert maker.observed()["wrong"] == [WEIGHTS]


def test_prune_keeps_what_a_deployment_names(made: tuple[Node, str]) -> None:
    _maker, commit = made
    name = name_of(commit)
    path = f"/var/lib/instinct-fleet/models/llama-fp8/{commit}"
    (kept,) = kept_weights(Lock(), [{"name": "llama", "model": f"{path}/"}, {"model": "/mnt/llama"}, "x"])
    repo, _unused, wanted = kept.partition("@")
    roots = {
        "a deployment": Roots(weights=frozenset([(repo, wanted)])),
        "an instance's files": Roots(commits=frozenset([commit])),
        "nothing": Roots(),
    }
    found = {why: FoundBlobs("1", name, 1).needed(given) for why, given in roots.items()}
    assert found == {"a deployment": True, "an instance's files": True, "nothing": False}


KEY, FOREIGN = private(), private()
TEXT = "the statement"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not signed"),
        (signature.sign(TEXT, FOREIGN), "not made with this key"),
        (signature.sign("another statement", KEY), "another"),
        (signature.sign(TEXT, KEY), ""),
    ],
)
def test_the_signature_is_verified_before_it_is_visible(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    steps: list[str] = []

    def call(_self: object, args: Json, _facts: Json) -> Json:
        steps.append(args["step"])
        return {"changed": True, "statement": TEXT, "signature": text}

    monkeypatch.setattr(TimedAction, "call", call)
    public = tmp_path / "models.pub"
    public.write_bytes(signature.public_key_of(KEY))
    plugin = action.ActionModule.__new__(action.ActionModule)
    found = plugin.call({"path": "/m", "name": "n", "public_key_file": str(public)}, {})
    assert steps == (["read"] if words else ["read", "place"])
    assert words in found.get("msg", "")
    assert bool(found.get("failed")) is bool(words)
