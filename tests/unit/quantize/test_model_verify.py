# SPDX-License-Identifier: Apache-2.0
"""Models that are directories of a node are compared with their manifests: a tampered file is named, nothing starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.action import model_verify as action
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.content.model_manifest import (
    MANIFEST,
    SIGNATURE,
    BadManifest,
    commit_of,
    hash_directory,
    parse_statement,
    statement,
    statement_text,
)
from ansible_collections.instinct.fleet.plugins.module_utils.quantize import verify
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature

from tests.unit.quantize.test_signature import private
from tests.worlds.quantize_world import write_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with its manifest."""
    monkeypatch.setattr(verify, "HASHES", str(tmp_path / "hashes"))
    path = write_model(tmp_path / "model")
    (path / MANIFEST).write_text(statement_text(statement("model", hash_directory(str(path)))))
    return path


def verified(*paths: Path, **changes: Any) -> dict[str, Any]:
    given = {
        "paths": [str(path) for path in paths],
        "targets": [],
        "required": False,
        "reread": False,
        **changes,
    }
    return verify.verify_models(given)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


Change = Callable[[Path], object]
TAMPERED: list[tuple[Change, str]] = [
    (lambda path: flip(path / "model.safetensors"), "model.safetensors is changed"),
    (lambda path: flip(path / "config.json"), "config.json is changed"),
    (lambda path: (path / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    (lambda path: (path / "modeling.py").write_text("run()"), "modeling.py is not in the manifest"),
    (lambda path: (path / MANIFEST).write_text("{}"), "not a statement of model-signing"),
    (
        lambda path: (path / MANIFEST).write_text((path / MANIFEST).read_text().replace("0", "1")),
        "of another kind",
    ),
]


def test_a_model_as_its_manifest_says_passes_twice_and_is_read_once(model: Path, tmp_path: Path) -> None:
    (found,) = verified(model)["models"]
    assert (found["files"], found["signature"]) == (5, "")
    assert len(list((tmp_path / "hashes").iterdir())) == 1
    assert verified(model)["models"] == [found]


@pytest.mark.parametrize("before", [False, True], ids=["unseen", "verified before"])
@pytest.mark.parametrize(("change", "words"), TAMPERED, ids=[row[1] for row in TAMPERED])
def test_a_tampered_copy_is_refused_by_the_names_of_its_files(
    model: Path, change: Change, words: str, before: bool
) -> None:
    if before:
        verified(model)
    change(model)
    with pytest.raises(NodeError, match=words) as error:
        verified(model)
    assert str(model) in str(error.value)


def test_bytes_that_changed_without_a_trace_are_found_when_read_again(model: Path) -> None:
    verified(model)
    weights = model / "model.safetensors"
    before = weights.stat()
    flip(weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(NodeError, match=r"model\.safetensors is changed"):
        verified(model, reread=True)


def test_instances_of_the_hub_and_directories_of_others_are_left_alone(model: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other")
    targets = [{"model": "lab/tiny"}, {"model": str(model)}, {"model": str(other)}, {}]
    found = verified(targets=targets)
    assert ([item["path"] for item in found["models"]], found["unsigned"]) == ([str(model)], [str(other)])
    with pytest.raises(NodeError, match="models without one are refused"):
        verified(other, required=True)


def test_a_manifest_that_was_removed_is_noticed_by_its_signature(model: Path) -> None:
    (model / SIGNATURE).write_text("{}")
    (model / MANIFEST).unlink()
    with pytest.raises(NodeError, match="the manifest was removed"):
        verified(model)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd"])
def test_a_manifest_names_no_file_elsewhere(name: str) -> None:
    with pytest.raises(BadManifest, match="outside"):
        parse_statement(statement_text(statement("m", {name: "a" * 64})))


def test_a_link_to_a_directory_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "more").symlink_to(tmp_path)
    with pytest.raises(NodeError, match="is a link to a directory"):
        verified(model)


def test_the_commit_is_that_of_the_files(model: Path) -> None:
    files = hash_directory(str(model))
    assert commit_of(files) == commit_of(dict(reversed(files.items())))
    assert commit_of({**files, "config.json": "0" * 64}) != commit_of(files)


# ---- signatures, on the control node


def judged(monkeypatch: pytest.MonkeyPatch, model: Path, key_file: Path | str) -> dict[str, Any]:
    """The action plugin's result for what the module found."""
    monkeypatch.setattr(TimedAction, "call", lambda self, args, facts: verified(model))
    plugin = action.ActionModule.__new__(action.ActionModule)
    return plugin.call({"public_key_file": str(key_file)}, {})


def test_a_signed_model_is_verified_with_the_operators_key(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, public = private(), tmp_path / "public"
    public.write_bytes(signature.public_key_of(key))
    (model / SIGNATURE).write_text(signature.sign((model / MANIFEST).read_text(), key))
    (found,) = judged(monkeypatch, model, public)["models"]
    assert found["key"] == signature.fingerprint(public.read_bytes())
    assert "statement" not in found
    assert judged(monkeypatch, model, "")["models"][0]["key"] == ""


def test_unsigned_models_and_those_of_other_keys_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = tmp_path / "public"
    public.write_bytes(signature.public_key_of(private()))
    result = judged(monkeypatch, model, public)
    assert result["failed"]
    assert "it is not signed" in result["msg"]
    (model / SIGNATURE).write_text(signature.sign((model / MANIFEST).read_text(), private()))
    assert "was not made with this key" in judged(monkeypatch, model, public)["msg"]
    assert "cannot be read" in judged(monkeypatch, model, tmp_path / "gone")["msg"]


def test_a_tampered_file_with_a_new_manifest_fails_by_its_signature(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, public = private(), tmp_path / "public"
    public.write_bytes(signature.public_key_of(key))
    (model / SIGNATURE).write_text(signature.sign((model / MANIFEST).read_text(), key))
    flip(model / "model.safetensors")
    (model / MANIFEST).write_text(statement_text(statement("model", hash_directory(str(model)))))
    assert "it signs another manifest" in judged(monkeypatch, model, public)["msg"]
