# SPDX-License-Identifier: Apache-2.0
"""hf_model at its edges: the container as a whole, full disks, waiting, and a Docker engine that breaks off."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.docker import client
from ansible_collections.instinct.fleet.plugins.module_utils.weights import download as fetch_on_node
from ansible_collections.instinct.fleet.plugins.modules import hf_model

from tests.helpers.eventually import GENEROUS
from tests.worlds.fake_docker import CUT, STALLED, FakeContainer, FakeDocker
from tests.worlds.weights_world import (
    CANARY,
    COMMIT,
    FILES,
    IMAGE,
    args,
    config_of,
    docker,
    download,
    failing,
    put,
)

__all__ = ["args", "docker"]  # fixtures

Args = dict[str, Any]


def test_the_whole_container(docker: FakeDocker, args: Args, run_module: Any) -> None:
    """No GPU, few rights, an init that passes signals on, and a log that cannot fill the disk."""
    seen: list[FakeContainer] = []
    docker.programs["instinct-fetch-"] = lambda container: seen.append(container) or download()(container)
    result, failed = run_module(hf_model.main, {**args, "token": CANARY})
    assert not failed, result
    body = seen[0].body
    secret = f"{fetch_on_node.SECRETS_DIR}/hf_token"
    assert body["HostConfig"] == {
        "Mounts": [
            {"Type": "bind", "Source": args["cache_dir"], "Target": "/hf"},
            {"Type": "bind", "Source": secret, "Target": "/run/secrets/hf_token", "ReadOnly": True},
        ],
        "NetworkMode": "host",
        "UsernsMode": "host",
        "Init": True,
        "CapDrop": ["ALL"],
        "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
        "SecurityOpt": ["no-new-privileges"],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}},
    }
    assert (body["Image"], body["User"], body["Entrypoint"][:2], body["Cmd"]) == (
        IMAGE,
        "0:0",
        ["python3", "-c"],
        [],
    )
    assert config_of(seen[0])["token_file"] == "/run/secrets/hf_token"
    assert dict(item.partition("=")[::2] for item in body["Env"]) == {
        "HF_HOME": "/hf",
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "60",
        "HF_TOKEN_PATH": "/run/secrets/hf_token",
    }
    assert stat.S_IMODE(os.stat(Path(args["cache_dir"], "hub")).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(fetch_on_node.SECRETS_DIR).st_mode) == 0o700
    assert not os.path.exists(secret)


def test_a_second_token_goes_the_way_of_the_first(docker: FakeDocker, args: Args, run_module: Any) -> None:
    """The directory for secrets is there by then, perhaps with other rights."""
    seen: list[str] = []

    def program(container: FakeContainer) -> int:
        seen.append(container.name)
        return download()(container)

    docker.programs["instinct-fetch-"] = program
    for _ in range(2):
        result, failed = run_module(hf_model.main, {**args, "token": CANARY})
        assert not failed, result
        assert stat.S_IMODE(os.stat(fetch_on_node.SECRETS_DIR).st_mode) == 0o700
        assert os.listdir(fetch_on_node.SECRETS_DIR) == []
        os.chmod(fetch_on_node.SECRETS_DIR, 0o755)
        shutil.rmtree(args["cache_dir"])
    assert len(seen) == 2


# ---- disks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "free", "refused"),
    [
        ([], 2041 + fetch_on_node.DISK_MARGIN, False),
        ([], 2040 + fetch_on_node.DISK_MARGIN, True),
        (["config.json"], 2030 + fetch_on_node.DISK_MARGIN, False),
        (["config.json"], 2029 + fetch_on_node.DISK_MARGIN, True),
        (list(FILES), 0, False),
    ],
    ids=["just enough", "a byte too few", "a part is there", "of a part a byte too few", "all is there"],
)
def test_room_for_what_is_missing(
    docker: FakeDocker, args: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch,
    there: list[str], free: int, refused: bool,
) -> None:  # fmt: skip
    for name in there:
        put(args["cache_dir"], name, FILES[name])
    monkeypatch.setattr(fetch_on_node, "free_bytes", lambda path: free)
    for check in (True, False):
        result, failed = run_module(hf_model.main, args, check=check)
        assert (failed, "Not enough disk" in result.get("msg", "")) == (refused, refused)


def test_a_download_that_is_under_way_needs_no_room_of_its_own(
    docker: FakeDocker, args: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow(container: FakeContainer) -> int:
        go_on.wait(GENEROUS)
        return download()(container)

    docker.programs["instinct-fetch-"] = slow
    assert run_module(hf_model.main, {**args, "timeout": 0})[1]
    monkeypatch.setattr(fetch_on_node, "free_bytes", lambda path: 0)
    predicted, failed = run_module(hf_model.main, args, check=True)
    assert not failed, predicted
    monkeypatch.setattr(fetch_on_node, "leave_if_abandoned", go_on.set)  # as soon as it is waited for
    result, failed = run_module(hf_model.main, args)
    assert not failed, result
    assert result["actions"] == predicted["actions"]


# ---- ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "log", "text"),
    [
        (0, "it went well, I believe\n", "broke off (exit code 0): it went well, I believe"),
        (0, "", "broke off (exit code 0): it wrote no log"),
        (0, "INSTINCT-FETCH [1]\n", "broke off (exit code 0): INSTINCT-FETCH [1]"),
        (0, 'INSTINCT-FETCH {"ok": false}\n', "broke off (exit code 0)"),
        (1, 'INSTINCT-FETCH {"ok": true}\n', "broke off (exit code 1)"),
        (143, "", "was stopped from outside (exit code 143). Run again to resume."),
    ],
)
def test_only_a_report_of_success_and_exit_code_0_is_success(
    docker: FakeDocker, args: Args, run_module: Any, code: int, log: str, text: str
) -> None:
    docker.programs["instinct-fetch-"] = failing(log=log or "\n", code=code)
    result, failed = run_module(hf_model.main, args)
    assert failed
    assert text in result["msg"]
    assert result["changed"] is True
    assert docker.containers == {}
    assert not list(Path(args["cache_dir"]).rglob(f"{COMMIT}.json"))


def test_what_a_download_said_is_kept_when_it_made_no_report(
    docker: FakeDocker, args: Args, run_module: Any
) -> None:
    docker.programs["instinct-fetch-"] = failing(log="one\ntwo\n", code=2)
    assert run_module(hf_model.main, args)[0]["log"] == ["one", "two"]
    docker.programs["instinct-fetch-"] = failing({"types": ["OSError"], "text": "x"}, code=1)
    assert run_module(hf_model.main, args)[0]["log"] == []


def test_an_ended_download_that_was_left_is_removed(docker: FakeDocker, args: Args, run_module: Any) -> None:
    """Its files are whole: only its container, its ref and the marker are left to do."""
    docker.programs["instinct-fetch-"] = download()
    assert run_module(hf_model.main, {**args, "timeout": 0})[1]
    (left,) = docker.containers.values()
    assert left.ended.wait(GENEROUS)
    predicted, _ = run_module(hf_model.main, args, check=True)
    docker.requests.clear()
    result, failed = run_module(hf_model.main, args)
    assert not failed, result
    assert result["actions"] == predicted["actions"]
    assert result["actions"][0] == f"DELETE /containers/{left.name} (left by an earlier run)"
    assert docker.changes() == [f"DELETE /containers/{left.name}?v=true"]
    assert run_module(hf_model.main, args)[0]["changed"] is False


# ---- an engine that breaks off -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "text"),
    [(CUT, "The Docker engine closed the connection in the middle of an answer."),
     (STALLED, "The Docker engine stopped in the middle of an answer.")],
)  # fmt: skip
def test_a_docker_that_breaks_off_while_it_is_waited_for(
    docker: FakeDocker, args: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch, fault: str, text: str
) -> None:
    """The download goes on by itself, and the next run waits for it."""

    def program(container: FakeContainer) -> int:
        docker.faults[f"GET /containers/{container.name}/logs"] = fault
        return download()(container)

    docker.programs["instinct-fetch-"] = program
    with monkeypatch.context() as patch:
        patch.setattr(client, "socket", SimpleNamespace(**{**vars(socket), "socket": docker.hasty()}))
        result, failed = run_module(hf_model.main, args)
    assert (failed, result["msg"]) == (True, text)
    docker.faults.clear()
    result, failed = run_module(hf_model.main, args)
    assert not failed, result
    assert sum("/containers/create" in request for request in docker.requests) == 1


def test_it_is_waited_for_in_slices(
    docker: FakeDocker, args: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a run whose control node went away ends soon."""
    monkeypatch.setattr(fetch_on_node, "_WAIT_SLICE", 0.05)
    looks: list[int] = []
    go_on = threading.Event()

    def look() -> None:
        looks.append(1)
        if len(looks) == 4:
            go_on.set()

    monkeypatch.setattr(fetch_on_node, "leave_if_abandoned", look)
    docker.programs["instinct-fetch-"] = lambda container: (go_on.wait(GENEROUS), download()(container))[1]
    result, failed = run_module(hf_model.main, args)
    assert not failed, result
    assert len(looks) >= 4


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"a": "many"}, "files: the size of a is 'many', not a number of bytes."),
        ({"a": None}, "the size of a is None"),
    ],
)
def test_sizes_that_are_none(docker: FakeDocker, args: Args, run_module: Any, files: Any, text: str) -> None:
    result, failed = run_module(hf_model.main, {**args, "files": files})
    assert failed
    assert text in result["msg"]


@pytest.mark.parametrize("endpoint", ["", "http://mirror.example", "http://mirror.example/"])
def test_a_download_of_another_hub_is_another_one(
    docker: FakeDocker, args: Args, run_module: Any, endpoint: str
) -> None:
    """What is under way from elsewhere is not waited for; a slash at the end makes no difference."""
    seen: list[str] = []

    def program(container: FakeContainer) -> int:
        seen.append(json.dumps(container.body["Labels"]))
        return download()(container)

    docker.programs["instinct-fetch-"] = program
    for given in (endpoint, endpoint.rstrip("/"), "http://other.example"):
        result, failed = run_module(hf_model.main, {**args, "endpoint": given})
        assert not failed, result
        shutil.rmtree(args["cache_dir"])
    assert seen[0] == seen[1] != seen[2]
