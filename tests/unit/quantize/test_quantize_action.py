# SPDX-License-Identifier: Apache-2.0
"""model_quantize on the control node: what the module is asked, in order, and that the key never leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.action import model_quantize as action
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.content.model_manifest import (
    statement,
    statement_text,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.source import find_source
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ModelPin

from tests.unit.quantize.test_quantize_job import REPORT_OK
from tests.unit.quantize.test_signature import private
from tests.worlds.quantize_world import COMMIT, facts, planned

STATEMENT = statement_text(statement("m", {"config.json": "a" * 64}))
MADE = {
    "changed": True, "actions": ["POST"], "report": REPORT_OK, "path": "/models/m/c", "commit": COMMIT,
    "statement": STATEMENT, "signature": "", "bytes": 5, "files": 1,
}  # fmt: skip


class Node:
    """Stands for the module on the node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seen: Any) -> None:
        self.calls: list[dict[str, Any]] = []
        self.seen = facts(**seen)
        self.printed: list[str] = []
        monkeypatch.setattr(ProgramAction, "call", lambda _self, args, _facts: self.answer(args))

    def answer(self, args: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(args)
        match args["step"]:
            case "facts":
                return {"changed": False, "facts": self.seen}
            case "run":
                return dict(MADE)
            case _:
                return {"changed": True, "actions": ["write"]}

    def run(self, **args: Any) -> dict[str, Any]:
        plugin = action.ActionModule.__new__(action.ActionModule)
        plugin._task = type("Task", (), {"delegate_to": None})()
        plugin._display = type("Display", (), {"display": lambda _self, text: self.printed.append(text)})()
        given = {"source": "/data/models/m", "image": "i", **args}
        return dict(plugin.call(given, {"inventory_hostname": "n1"}))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(private())
    path.chmod(0o600)
    return path


def test_it_reads_plans_runs_and_signs_and_the_key_stays(
    monkeypatch: pytest.MonkeyPatch, key_file: Path
) -> None:
    node = Node(monkeypatch)
    result = node.run(signing_key_file=str(key_file))
    assert [call["step"] for call in node.calls] == ["facts", "run", "sign"]
    assert not any("signing" in name for call in node.calls for name in call)
    assert "PRIVATE" not in str(node.calls)
    bundle = node.calls[2]["signature"]["text"]
    public = signature.public_key_of(key_file.read_bytes())
    assert result["signed"] == signature.verify(bundle, STATEMENT, public)
    for words in ("model: /models/m/c", "8 matrices quantized", "accuracy.yml", "signed with the key"):
        assert words in node.printed[0]


def test_what_is_there_is_not_made_again_but_signed_if_it_is_not(
    monkeypatch: pytest.MonkeyPatch, key_file: Path
) -> None:
    plan = planned()
    there = {"name": plan.job["name"], "commit": COMMIT, "key": plan.job["key"], "path": "/models/m/c",
             "statement": STATEMENT, "signature": ""}  # fmt: skip
    node = Node(monkeypatch, outputs=[there])
    result = node.run()
    assert ([call["step"] for call in node.calls], result["changed"]) == (["facts"], False)
    assert "There already: /models/m/c" in node.printed[0]
    signed = {**there, "signature": signature.sign(STATEMENT, key_file.read_bytes())}
    assert Node(monkeypatch, outputs=[signed]).run(signing_key_file=str(key_file))["changed"] is False
    assert Node(monkeypatch, outputs=[there]).run(signing_key_file=str(key_file))["changed"] is True


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"scheme": "fp9"}, "is not a scheme"),
        ({"signing_key_file": "/gone"}, "cannot be read"),
        ({"samples": "many"}, "is not a number"),
    ],
)
def test_wrong_input_is_refused_before_the_node_is_asked(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], words: str
) -> None:
    node = Node(monkeypatch)
    result = node.run(**args)
    assert result["failed"]
    assert words in result["msg"]
    assert node.calls == []


def test_a_key_that_others_can_read_is_refused(monkeypatch: pytest.MonkeyPatch, key_file: Path) -> None:
    key_file.chmod(0o644)
    assert "chmod 600" in Node(monkeypatch).run(signing_key_file=str(key_file))["msg"]


def test_what_does_not_fit_is_refused_with_nothing_run(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, disk_free=0)
    assert "are needed for the output" in node.run()["msg"]
    assert [call["step"] for call in node.calls] == ["facts"]


PIN = ModelPin(
    COMMIT,
    (
        ("config.json", 5),
        ("model.safetensors", 10),
        ("original/consolidated.00.pth", 10),
        ("pytorch_model.bin", 9),
    ),
    None,
    (("model.safetensors", "sha256:" + "a" * 64), ("pytorch_model.bin", "sha256:" + "b" * 64)),
)
OPTIONS = {"source": "lab/tiny", "revision": "main", "image": "i", "include": []}


def test_a_model_of_the_hub_is_downloaded_by_commit_without_other_formats() -> None:
    found = find_source(OPTIONS, "/data/hf/", "", lambda *_args: PIN)
    assert found["path"] == f"/data/hf/hub/models--lab--tiny/snapshots/{COMMIT}"
    (model,) = found["models"]
    assert model["files"] == {"config.json": 5, "model.safetensors": 10}
    assert model["hashes"] == {"model.safetensors": "sha256:" + "a" * 64}


def test_weights_that_a_deployment_has_are_left_as_they_are() -> None:
    there = {"repo": "lab/tiny", "commit": COMMIT, "cache_dir": "/data/hf", "complete": True}
    assert find_source(OPTIONS, "/data/hf/", "", lambda *_args: PIN, [there])["models"] == []
    for other in ({"complete": False}, {"commit": "9" * 40}, {"cache_dir": "/hf"}):
        assert find_source(OPTIONS, "/data/hf", "", lambda *_args: PIN, [{**there, **other}])["models"]


def test_a_path_is_taken_as_it_is_and_others_are_refused() -> None:
    assert find_source({**OPTIONS, "source": "/data/m/"}, "/hf", "", lambda *_args: PIN)["path"] == "/data/m"
    for wrong in ("a/b/c", "../x", "/data/../etc", ""):
        with pytest.raises(FleetError, match="quantize_source"):
            find_source({**OPTIONS, "source": wrong}, "/hf", "", lambda *_args: PIN)
    pickles = ModelPin(COMMIT, (("pytorch_model.bin", 9),))
    with pytest.raises(FleetError, match="pickles are not loaded"):
        find_source(OPTIONS, "/hf", "", lambda *_args: pickles)
