# SPDX-License-Identifier: Apache-2.0
"""Instances under watch: what ends it early, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.serving.soak import watch

RUNS = {"State": {"Status": "running", "StartedAt": "1", "ExitCode": 0}}
FAILED = {"kind": "out_of_memory", "line": "HIP out of memory", "next_step": "Take less."}


class Containers:
    """An engine that tells one answer per look; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def container(self, name: str) -> Any:
        assert name == "instinct-llama-0"
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "cache_dir", lambda name: str(tmp_path / name))
    path = tmp_path / "llama-0" / "supervise" / "state.json"
    path.parent.mkdir(parents=True)
    return path


def look(*answers: Any, seconds: float = 0.05) -> None:
    watch(cast(DockerClient, Containers(*answers)), ["llama-0"], seconds, sleep=lambda _: None)


def test_it_goes_on_running(note: Path) -> None:
    look(RUNS)
    note.write_text(json.dumps({"state": "running", "failures": [FAILED]}))  # of before
    look(RUNS)
    note.write_text("{ not whole")
    look(RUNS)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ((RUNS, {"State": {"Status": "exited", "ExitCode": 1}}), "its container is exited with code 1"),
        ((RUNS, None), "its container is absent"),
        ((RUNS, {"State": {**RUNS["State"], "StartedAt": "2"}}), "was restarted while it was watched"),
    ],
)
def test_it_does_not(note: Path, answers: Any, text: str) -> None:
    with pytest.raises(NodeError, match=text):
        look(*answers)


def test_vllm_ended_in_it(note: Path) -> None:
    def fail(_: float) -> None:
        note.write_text(json.dumps({"state": "starting", "failures": [FAILED]}))

    with pytest.raises(NodeError, match=r"its vLLM ended .*out_of_memory: HIP out of memory \| Take less"):
        watch(cast(DockerClient, Containers(RUNS)), ["llama-0"], 5, sleep=fail)
