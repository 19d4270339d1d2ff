# SPDX-License-Identifier: Apache-2.0
"""vllm_server on a fake engine with servers that answer, crash, hang or refuse."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MASK
from ansible_collections.instinct.fleet.plugins.module_utils.credentials import secret_files
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerError
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failure_signatures import SIGNATURES
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failures import (
    SIGNATURES_FILE,
    Signature,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.instances import artefact
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.signatures import (
    parse_signatures,
)
from ansible_collections.instinct.fleet.plugins.module_utils.serving import (
    converge,
    readiness,
    staged_files,
    supervisor_versions,
)
from ansible_collections.instinct.fleet.plugins.module_utils.serving.attention import Proof
from ansible_collections.instinct.fleet.plugins.modules import vllm_server
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.start_log import (
    StartLog,
    read_start_log,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.compose import (
    server as planned_server,
)

from tests.helpers.eventually import GENEROUS
from tests.helpers.module_docs import documented_by
from tests.worlds.fake_docker import FakeContainer, FakeDocker
from tests.worlds.fake_vllm import crash, crash_loop, vllm
from tests.worlds.serving_world import (
    IMAGE,
    SUPERVISOR,
    args,
    deployed,
    docker,
    new_spec,
    spec,
    statuses,
    with_lib,
)

__all__ = ["docker"]  # a fixture


CANARY = "sk-canary-Zq81-secret"
OOM = "(EngineCore_DP0 pid=9) ERROR 10-24 12:00:05 [core.py:708] torch.OutOfMemoryError: HIP out of memory\n"


# ---- the happy way -------------------------------------------------------------------------------


def test_starts_several_waits_in_parallel_and_is_ready_by_tokens(docker: FakeDocker, run_module: Any) -> None:
    asked: list[dict[str, Any]] = []
    specs = [spec(f"llama-{index}", ready_timeout=GENEROUS) for index in range(4)]
    begin = threading.Barrier(len(specs), timeout=GENEROUS).wait  # none is ready before all are started
    for server in specs:
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"], begin=begin, asked=asked)
    result, failed = run_module(vllm_server.main, args(docker, *specs))
    assert not failed, result["msg"]
    assert result["changed"]
    assert [server["state"] for server in result["servers"]] == ["ready"] * 4
    assert all(server["tokens"] == 4 for server in result["servers"])
    assert asked[0] == {"model": "lab/tiny-llama", "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    creates = [request for request in docker.changes() if "/start" in request]
    assert len(creates) == 4


def test_writes_the_directory_for_root_only_and_labels_the_container(
    docker: FakeDocker, run_module: Any
) -> None:
    server = spec()
    docker.programs["instinct-"] = vllm(server["port"])
    run_module(vllm_server.main, args(docker, server))
    directory = Path(server["directory"])
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in directory.iterdir()} == {
        "serve.sh": "0o755",
        "env": "0o600",
        "container.json": "0o600",
        "spec.sha256": "0o600",
        "ready": "0o600",
    }
    assert (directory / "ready").read_text().strip() == docker.containers["instinct-llama-0"].id
    assert (directory / "spec.sha256").read_text() == "1" * 64 + "\n"
    for path in (directory, directory.parent, directory.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    assert Path(server["cache_directory"]).is_dir()
    assert docker.containers["instinct-llama-0"].body["Labels"] == {
        "instinct-fleet.instance": "llama-0",
        "instinct-fleet.deployment": "llama",
        "instinct-fleet.spec": "1" * 64,
    }


def test_node_state_computes_the_hash_of_what_is_written(docker: FakeDocker, run_module: Any) -> None:
    from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash

    server = spec()
    texts = {name: item["text"] for name, item in server["files"].items()}
    server["spec_hash"] = spec_hash(texts)
    docker.programs["instinct-"] = vllm(server["port"])
    run_module(vllm_server.main, args(docker, server))
    assert artefact(server["directory"])[0] == server["spec_hash"]


def test_second_run_changes_nothing(docker: FakeDocker, run_module: Any) -> None:
    server = spec()
    docker.programs["instinct-"] = vllm(server["port"])
    run_module(vllm_server.main, args(docker, server))
    done = docker.changes()
    result, failed = run_module(vllm_server.main, args(docker, server), diff=True)
    assert not failed
    assert (result["changed"], result["actions"], result["diff"]) == (False, [], [])
    assert result["servers"] == [
        {
            "name": "llama-0",
            "changed": False,
            "state": "ready",
            "tokens": 4,
            "ready_seconds": result["servers"][0]["ready_seconds"],
        }
    ]
    assert docker.changes() == done


def test_a_plans_server_is_what_the_module_takes(docker: FakeDocker) -> None:
    """The planner's function and the module's options have the same keys."""
    import inspect

    names = set(inspect.getsource(planned_server).split('"')[1::2])
    options = set(vllm_server.argument_spec()["servers"]["options"])
    assert options - {"generation"} <= names  # a stored one, see test_store.py
    assert {"cache_directory", "container_name"} <= options


# ---- changes -------------------------------------------------------------------------------------


def new_image(server: dict[str, Any]) -> None:
    server["container"] = {**server["container"], "Image": "other:1"}


C = "/containers/instinct-llama-0"
REPLACED = [
    "POST /containers/create?name=instinct-llama-0.next",
    f"POST {C}/stop?t=7",
    f"DELETE {C}?v=true",
    f"POST {C}.next/rename?name=instinct-llama-0",
    f"POST {C}/start",
]


def drift(server: dict[str, Any]) -> None:
    Path(server["directory"], "env").write_text("A='c'\n")


def drift_mode(server: dict[str, Any]) -> None:
    Path(server["directory"], "env").chmod(0o644)


CHANGES = [
    (lambda _d, s: new_spec(s), REPLACED, ["serve.sh", "spec.sha256"]),
    (lambda d, s: (d.add_image("other:1"), new_image(s)), REPLACED, []),
    (lambda _d, s: drift(s), [f"POST {C}/stop?t=7", f"POST {C}/start"], ["env"]),
    (lambda _d, s: drift_mode(s), [f"POST {C}/stop?t=7", f"POST {C}/start"], ["env"]),
    (lambda d, _s: end(d), [f"POST {C}/start"], []),
    (
        lambda d, s: (end(d), new_spec(s)),
        [r for r in REPLACED if "stop" not in r],
        ["serve.sh", "spec.sha256"],
    ),
    (lambda d, _s: gone(d), ["POST /containers/create?name=instinct-llama-0", f"POST {C}/start"], []),
]


def end(docker: FakeDocker) -> None:
    container = docker.containers["instinct-llama-0"]
    container.stopping.set()
    assert container.ended.wait(GENEROUS)


def gone(docker: FakeDocker) -> None:
    end(docker)
    del docker.containers["instinct-llama-0"]


@pytest.mark.parametrize(("change", "requests", "written"), CHANGES)
def test_a_change_takes_these_requests_and_check_mode_predicts_them(
    change: Any, requests: list[str], written: list[str], docker: FakeDocker, run_module: Any
) -> None:
    server = deployed(docker, run_module)
    change(docker, server)
    docker.requests.clear()
    predicted, failed = run_module(vllm_server.main, args(docker, server), check=True, diff=True)
    assert not failed
    assert docker.changes() == []
    assert predicted["servers"][0]["state"] == "would be ready"
    result, failed = run_module(vllm_server.main, args(docker, server), diff=True)
    assert not failed, result["msg"]
    assert docker.changes() == requests
    assert predicted["actions"] == result["actions"]
    assert predicted["diff"] == result["diff"]
    lines = [action.replace("?v=true", "") for action in result["actions"] if not action.startswith("write ")]
    assert lines == [request.replace("?v=true", "") for request in requests]
    files = [action.split("/")[-1].split()[0] for action in result["actions"] if action.startswith("write ")]
    assert files == written
    assert statuses(docker) == {"instinct-llama-0": "running"}
    assert run_module(vllm_server.main, args(docker, server))[0]["changed"] is False


def test_check_mode_without_an_engine_predicts_what_a_bare_one_gets(
    docker: FakeDocker, run_module: Any
) -> None:
    wanted = {**args(docker, spec()), "remove": ["old-0"]}
    bare, _ = run_module(vllm_server.main, wanted, check=True, diff=True)
    socket = f"{docker.path}.not"
    none, failed = run_module(vllm_server.main, {**wanted, "docker_socket": socket}, check=True, diff=True)
    assert not failed
    assert none["actions"] == bare["actions"] != []
    assert run_module(vllm_server.main, {**wanted, "docker_socket": socket})[1]


def test_the_diff_shows_states_and_texts_and_masks_secrets(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    server["spec_hash"] = "2" * 64
    server["files"]["env"]["text"] = f"A='c'\nVLLM_API_KEY='{CANARY}'\n"
    docker.programs["instinct-"] = vllm(server["port"], api_key=CANARY)
    result, failed = run_module(vllm_server.main, args(docker, server), diff=True)
    assert not failed, result["msg"]
    by_name = {part["before_header"].split("/")[-1]: part for part in result["diff"]}
    assert by_name["container instinct-llama-0"]["before"] == f"running, spec {'1' * 12}\n"
    assert by_name["container instinct-llama-0"]["after"] == f"running, spec {'2' * 12}\n"
    assert by_name["env"]["before"] == "A='b'\n"
    assert by_name["env"]["after"] == "A='c'\nVLLM_API_KEY=********\n"
    assert CANARY not in json.dumps(result)


def test_old_ones_all_stop_before_a_new_one_starts(docker: FakeDocker, run_module: Any) -> None:
    """Two instances that exchange their ports (and, as well, their GPUs)."""
    one, two = spec("llama-0"), spec("llama-1")
    for server in (one, two):
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"])
    assert not run_module(vllm_server.main, args(docker, one, two))[1]
    one["port"], two["port"] = two["port"], one["port"]
    for server in (one, two):
        server["spec_hash"] = "2" * 64
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"])
    docker.requests.clear()
    result, failed = run_module(vllm_server.main, args(docker, one, two))
    assert not failed, result["msg"]
    order = [request.split("?")[0].rsplit("/", 1)[1] for request in docker.changes() if "/st" in request]
    assert order == ["stop", "stop", "start", "start"]


def test_stops_run_in_parallel(docker: FakeDocker, run_module: Any) -> None:
    specs = [spec(f"llama-{index}") for index in range(3)]
    for server in specs:
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"])
    run_module(vllm_server.main, args(docker, *specs))
    # None is stopped before all are asked to stop.
    docker.before_stop = threading.Barrier(len(specs), timeout=GENEROUS).wait
    _result, failed = run_module(vllm_server.main, args(docker, *specs, state="stopped"))
    assert not failed
    assert set(statuses(docker).values()) == {"exited"}


def test_removes_with_directory(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    remove = args(docker, remove=["llama-0", "never-was"])
    predicted, _ = run_module(vllm_server.main, remove, check=True)
    result, failed = run_module(vllm_server.main, remove)
    assert not failed
    assert (
        result["actions"]
        == predicted["actions"]
        == [
            f"POST {C}/stop?t=7",
            f"DELETE {C}",
            f"remove {server['directory']}",
            f"remove {server['cache_directory']}",
        ]
    )
    assert docker.containers == {}
    assert not Path(server["directory"]).exists()
    assert run_module(vllm_server.main, remove)[0]["changed"] is False


def test_stopped_and_started(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    stop = args(
        docker, {"name": "llama-0", "container_name": "instinct-llama-0", "stop_timeout": 9}, state="stopped"
    )
    predicted, _ = run_module(vllm_server.main, stop, check=True)
    result, _ = run_module(vllm_server.main, stop)
    assert result["actions"] == predicted["actions"] == [f"POST {C}/stop?t=9"]
    assert result["servers"][0]["state"] == "stopped"
    assert statuses(docker) == {"instinct-llama-0": "exited"}
    assert run_module(vllm_server.main, stop)[0]["changed"] is False
    start = args(docker, server, state="started")
    predicted, _ = run_module(vllm_server.main, start, check=True)
    result, failed = run_module(vllm_server.main, start)
    assert not failed
    assert result["actions"] == predicted["actions"] == [f"POST {C}/start"]
    assert result["servers"][0]["tokens"] == 4
    assert run_module(vllm_server.main, start)[0]["changed"] is False


def test_stopped_when_there_is_none_is_nothing(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_server.main, args(docker, {"name": "llama-0"}, state="stopped"))
    assert not failed
    assert result["changed"] is False


def test_a_successor_left_by_a_killed_run_is_removed(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    docker.add_container("instinct-llama-0.next", {"Image": IMAGE}, "created")
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed
    assert statuses(docker) == {"instinct-llama-0": "running"}
    assert result["actions"] == [f"DELETE {C}.next (left by an earlier run)"]
    assert run_module(vllm_server.main, args(docker, server))[0]["changed"] is False


@pytest.mark.parametrize("cut_after", ["create", "stop", "DELETE", "rename"])
def test_a_run_killed_during_a_replacement_is_completed_by_the_next(
    cut_after: str, docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = deployed(docker, run_module)
    new_spec(server)
    method = {"create": "create", "stop": "stop", "DELETE": "remove", "rename": "rename"}[cut_after]
    owner, name = (converge.DockerClient, method) if method == "stop" else (converge, f"{method}_container")
    original = getattr(owner, name)

    class Killed(BaseException):
        pass

    def kill(self: Any, *values: Any) -> Any:
        original(self, *values)
        if not str(values[0]).endswith(".next") or method in ("create", "rename"):
            raise Killed

    monkeypatch.setattr(owner, name, kill)
    with pytest.raises(Killed):
        vllm_server.work({**defaults(), **args(docker, server)}, converge.Redactor(), False)
    monkeypatch.setattr(owner, name, original)
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert statuses(docker) == {"instinct-llama-0": "running"}
    assert docker.containers["instinct-llama-0"].body["Labels"]["instinct-fleet.spec"] == "2" * 64
    assert run_module(vllm_server.main, args(docker, server))[0]["changed"] is False


def defaults() -> dict[str, Any]:
    return {name: option.get("default") for name, option in vllm_server.argument_spec().items()}


def test_a_stop_that_ended_in_a_kill_is_warned_about(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where Ansible puts warnings depends on whether its controller's code was loaded by another test.
    said: list[str] = []
    monkeypatch.setattr(vllm_server.AnsibleModule, "warn", lambda _self, text: said.append(text))
    server = spec()
    inner = vllm(server["port"])

    def stubborn(container: FakeContainer) -> int:
        inner(container)
        return 137

    docker.programs["instinct-"] = stubborn
    run_module(vllm_server.main, args(docker, server))
    _result, failed = run_module(vllm_server.main, args(docker, server, state="stopped"))
    assert not failed
    assert "did not stop within 7 s and was killed: GPU memory may stay occupied" in said[0]


# ---- failures ------------------------------------------------------------------------------------

UNSTOPPABLE = (
    "cannot stop container: instinct-llama-0: tried to kill container, but did not receive an exit event"
)


@pytest.mark.parametrize(
    "broken", ["POST /containers/instinct-llama-0/stop", "DELETE /containers/instinct-llama-0"]
)
def test_what_docker_cannot_do_for_one_leaves_the_others_alone(
    broken: str, docker: FakeDocker, run_module: Any
) -> None:
    """As Docker says of a process that hangs in the driver."""
    servers = [spec(f"llama-{index}") for index in range(3)]
    for server in servers:
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"])
    assert not run_module(vllm_server.main, args(docker, *servers))[1]
    for server in servers:
        new_spec(server)
    docker.errors[broken] = (500, UNSTOPPABLE)
    result, failed = run_module(vllm_server.main, args(docker, *servers))
    assert failed
    assert result["msg"].startswith("1 of 3 instances failed. The other 2 serve. llama-0: ")
    assert UNSTOPPABLE in result["msg"]
    assert [item["state"] for item in result["servers"]] == ["failed", "ready", "ready"]
    assert [docker.containers[f"instinct-llama-{index}"].status for index in (1, 2)] == ["running"] * 2
    docker.errors.clear()
    again, failed = run_module(vllm_server.main, args(docker, *servers))
    assert not failed, again["msg"]
    assert [item["changed"] for item in again["servers"]] == [True, False, False]
    assert statuses(docker) == {f"instinct-llama-{index}": "running" for index in range(3)}


def test_one_that_cannot_be_stopped_keeps_its_files(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    old = {path.name: path.read_text() for path in Path(server["directory"]).iterdir()}
    docker.errors["POST /containers/instinct-llama-0/stop"] = (500, UNSTOPPABLE)
    new_spec(server)
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "cannot_stop"
    assert "playbooks/drain.yml" in result["servers"][0]["next_step"]
    now = {
        path.name: path.read_text() for path in Path(server["directory"]).iterdir() if path.suffix != ".next"
    }
    assert {name: text for name, text in now.items() if name != "startup.log"} == old


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ("POST /containers/instinct-old-0/stop", "cannot_stop"),
        ("DELETE /containers/instinct-old-0", "cannot_remove"),
    ],
)
def test_one_that_cannot_be_removed_leaves_the_others_alone(
    broken: str, kind: str, docker: FakeDocker, run_module: Any
) -> None:
    old, new = spec("old-0"), spec("llama-0")
    for server in (old, new):
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"])
    assert not run_module(vllm_server.main, args(docker, old))[1]
    docker.errors[broken] = (500, "no")
    result, failed = run_module(vllm_server.main, args(docker, new, remove=["old-0"]))
    assert failed
    assert result["msg"].startswith(
        f"1 of 2 instances failed. The other one serves. old-0 (to be removed): {kind}: no"
    )
    assert result["removed"] == []
    assert docker.containers["instinct-llama-0"].status == "running"
    assert Path(old["directory"]).exists()
    journal = Path(paths.STATE_DIR, "journal.log").read_text()
    assert "llama-0 serves" in journal
    assert "removed" not in journal
    docker.errors.clear()
    result, failed = run_module(vllm_server.main, args(docker, new, remove=["old-0"]))
    assert not failed, result["msg"]
    assert result["removed"] == ["old-0"]
    assert "old-0 removed" in Path(paths.STATE_DIR, "journal.log").read_text()


def no_room(*_args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_noticed_while_the_old_one_serves(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = deployed(docker, run_module)
    new_spec(server)
    monkeypatch.setattr(staged_files, "write_atomic", no_room)
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert "files: " in result["msg"]
    assert "No space left on device" in result["msg"]
    assert "The running instance was not touched." in result["msg"]
    assert docker.changes() == []
    assert statuses(docker) == {"instinct-llama-0": "running"}
    assert not list(Path(server["directory"]).glob("*.next"))


def test_files_that_a_killed_run_left_are_removed(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    Path(server["directory"], "env.next").write_text("A='killed'\n")
    new_spec(server)
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert not list(Path(server["directory"]).glob("*.next"))
    assert Path(server["directory"], "env").read_text() == "A='b'\n"


def test_one_that_serves_and_cannot_be_noted_serves(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(vllm_server.AnsibleModule, "warn", lambda _self, text: said.append(text))
    monkeypatch.setattr(converge, "write_atomic", no_room)
    server = spec()
    docker.programs["instinct-"] = vllm(server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert result["servers"][0]["state"] == "ready"
    assert said == [
        f"llama-0 serves, but {server['directory']}/ready cannot be written: No space left on device. "
        "Make room on that disk: until then each run asks this instance for tokens again."
    ]


def test_one_fails_the_others_serve(docker: FakeDocker, run_module: Any) -> None:
    good, bad = spec("llama-0"), spec("llama-1")
    docker.programs["instinct-llama-0"] = vllm(good["port"])
    docker.programs["instinct-llama-1"] = crash("INFO: starting\n" + OOM)
    result, failed = run_module(vllm_server.main, args(docker, good, bad))
    assert failed
    assert result["changed"]
    assert result["msg"].startswith("1 of 2 instances failed. The other one serves. llama-1: out_of_memory: ")
    outcome = result["servers"][1]
    assert (outcome["state"], outcome["class"]) == ("failed", "out_of_memory")
    assert "HIP out of memory" in outcome["log_line"]
    assert "gpu_memory_utilization" in outcome["next_step"]
    assert outcome["log_file"] == f"{bad['directory']}/startup.log"
    log = Path(outcome["log_file"])
    assert "HIP out of memory" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert statuses(docker) == {"instinct-llama-0": "running", "instinct-llama-1": "exited"}
    docker.programs["instinct-llama-1"] = vllm(bad["port"])
    again, failed = run_module(vllm_server.main, args(docker, good, bad))
    assert not failed
    assert [server["changed"] for server in again["servers"]] == [False, True]
    assert not log.exists()


def test_one_reason_of_many_is_told_once(docker: FakeDocker, run_module: Any) -> None:
    docker.programs["instinct-"] = crash(OOM)
    result, failed = run_module(
        vllm_server.main, args(docker, spec("llama-0"), spec("llama-1"), spec("other-0"))
    )
    assert failed
    assert result["msg"].startswith("3 of 3 instances failed. llama-0, llama-1, other-0: out_of_memory: ")
    assert result["msg"].count("HIP out of memory") == 1
    assert result["msg"].count("startup.log") == 3


def test_a_crash_loop_is_noticed_at_its_first_restart(docker: FakeDocker, run_module: Any) -> None:
    asked: list[int] = []

    def program(container: FakeContainer) -> int:
        """Docker restarts it once; whoever misses that waits until the time is up."""
        container.log += OOM
        container.restarts += 1
        container.status = "restarting"
        asked.append(len(docker.requests))
        container.stopping.wait()
        container.status = "running"
        return 1

    docker.programs["instinct-"] = program
    result, failed = run_module(vllm_server.main, args(docker, spec()))
    assert failed
    since = docker.requests[asked[0] :]
    looks = [request for request in since[: since.index(f"POST {C}/stop?t=7")] if request == f"GET {C}/json"]
    # The one that shows it, and what stops it looks, too; until the time was up there would be hundreds.
    assert len(looks) <= 5, since
    assert result["servers"][0]["class"] == "out_of_memory"
    assert statuses(docker) == {"instinct-llama-0": "exited"}
    assert any(f"POST {C}/stop" in request for request in docker.requests)


# ---- the program around vLLM -------------------------------------------------------------------------


def say(server: dict[str, Any], state: str, *failures: str) -> None:
    """What the supervisor of an instance notes."""
    path = Path(server["cache_directory"]) / "supervise/state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"at": 1, "kind": "out_of_memory", "line": line, "next_step": "Use more."} for line in failures]
    path.write_text(json.dumps({
        "schema": 1, "state": state, "since": 1, "why": "waits for n2 (rank 1)", "failures": lines, "peer": None,
    }))  # fmt: skip


def test_a_failure_is_told_as_the_supervisor_saw_it_first(docker: FakeDocker, run_module: Any) -> None:
    server = spec()

    def program(container: FakeContainer) -> int:
        say(server, "stopping", "HIP out of memory, the first", "another")
        return crash_loop("Address already in use\n")(container)

    docker.programs["instinct-"] = program
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert (result["servers"][0]["class"], result["servers"][0]["log_line"]) == (
        "out_of_memory", "HIP out of memory, the first",
    )  # fmt: skip
    # What was said of an earlier start is not taken for this one's.
    docker.programs["instinct-"] = crash_loop("Address already in use\n")
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "port_in_use"


def test_one_that_waits_is_told_with_its_reason(docker: FakeDocker, run_module: Any) -> None:
    server = spec(ready_timeout=1)

    def program(container: FakeContainer) -> int:
        say(server, "waiting")
        container.stopping.wait(GENEROUS)
        return 0

    docker.programs["instinct-"] = program
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "waiting"
    assert "vLLM was not started: waits for n2 (rank 1)" in result["servers"][0]["log_line"]


@pytest.mark.parametrize("state", ["present", "started"])
def test_one_that_gave_up_is_started_again(docker: FakeDocker, run_module: Any, state: str) -> None:
    server = deployed(docker, run_module)
    say(server, "gave_up", "HIP out of memory")
    result, failed = run_module(vllm_server.main, args(docker, server, state=state))
    assert not failed
    assert result["actions"] == [
        "POST /containers/instinct-llama-0/stop?t=7", "POST /containers/instinct-llama-0/start",
    ]  # fmt: skip


def test_the_supervisor_is_written_before_a_container_mounts_it(docker: FakeDocker, run_module: Any) -> None:
    server = with_lib(spec(), SUPERVISOR.version)
    docker.programs["instinct-"] = vllm(server["port"])
    place = Path(paths.lib_dir(SUPERVISOR.version))
    action = f"write {place} ({len(SUPERVISOR.files)} files)"
    actions = [action, f"write {place / SIGNATURES_FILE}"]
    result, _ = run_module(vllm_server.main, args(docker, server), check=True)
    assert result["actions"][:2] == actions
    assert not place.exists()
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed
    assert result["actions"][:2] == actions
    assert {str(path.relative_to(place)) for path in place.rglob("*.py")} == set(SUPERVISOR.files)
    assert {path.stat().st_mode & 0o777 for path in place.rglob("*.py")} == {0o644}
    assert place.stat().st_mode & 0o777 == (place / "instinct_supervise").stat().st_mode & 0o777 == 0o755
    assert run_module(vllm_server.main, args(docker, server))[0]["actions"] == []
    (place / "supervise.py").write_text("else")
    assert run_module(vllm_server.main, args(docker, server))[0]["actions"] == [action]
    assert (place / "supervise.py").read_text() == SUPERVISOR.files["supervise.py"]


def test_signatures_are_written_anew_and_nothing_is_started_for_them(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a version of the program that is not the present one, as a way back may start with it."""
    one, old = with_lib(spec(), SUPERVISOR.version), with_lib(spec("other-0"), "a" * 12)
    Path(paths.lib_dir("a" * 12)).mkdir(parents=True)
    for server in (one, old):
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"])
    assert not run_module(vllm_server.main, args(docker, one, old))[1]
    started = list(docker.changes())
    signatures = (Signature("cosmic_ray", ("bit flipped",), "Look up."), *SIGNATURES)
    monkeypatch.setattr(supervisor_versions, "SIGNATURES", signatures)
    files = [
        Path(paths.lib_dir(version)) / SIGNATURES_FILE for version in sorted(["a" * 12, SUPERVISOR.version])
    ]
    for check in (True, False):
        result, failed = run_module(vllm_server.main, args(docker, one, old), check=check)
        assert not failed
        assert (result["changed"], result["actions"]) == (True, [f"write {file}" for file in files])
        assert [parse_signatures(file.read_text()) == signatures for file in files] == [not check] * 2
    result, _ = run_module(vllm_server.main, args(docker, one, old))
    assert (result["changed"], result["actions"]) == (False, [])
    assert docker.changes() == started
    assert {file.stat().st_mode & 0o777 for file in files} == {0o644}


def test_supervisors_that_nothing_starts_with_are_removed(docker: FakeDocker, run_module: Any) -> None:
    """Kept are those of other containers, stopped ones too, and of generations that can be gone back to."""
    old, kept, unused = "a" * 12, "b" * 12, "c" * 12
    for version in (old, kept, unused):
        Path(paths.lib_dir(version)).mkdir(parents=True)
    generation = Path(paths.STATE_DIR) / "generations/llama/3.json"
    generation.parent.mkdir(parents=True)
    generation.write_text(json.dumps({"Binds": [f"{paths.lib_dir(kept)}:/instinct-lib:ro"]}))
    other = with_lib(spec("other-0"), old)
    docker.programs["instinct-other-0"] = vllm(other["port"])
    assert not run_module(vllm_server.main, args(docker, other))[1]
    assert sorted(path.name for path in Path(paths.lib_dir()).iterdir()) == [old, kept]
    run_module(vllm_server.main, args(docker, {"name": "other-0"}, state="stopped"))
    server = with_lib(spec(), SUPERVISOR.version)
    docker.programs["instinct-llama-0"] = vllm(server["port"])
    Path(paths.lib_dir(unused)).mkdir()
    result, failed = run_module(vllm_server.main, args(docker, server, remove=["other-0"]))
    assert not failed
    assert [text for text in result["actions"] if text.startswith(f"remove {paths.lib_dir()}")] == [
        f"remove {paths.lib_dir(old)}", f"remove {paths.lib_dir(unused)}",
    ]  # fmt: skip
    assert sorted(path.name for path in Path(paths.lib_dir()).iterdir()) == sorted([kept, SUPERVISOR.version])


def test_a_module_without_its_action_plugin_says_so_and_stops_nothing(
    docker: FakeDocker, run_module: Any
) -> None:
    server = with_lib(spec(), SUPERVISOR.version)
    result, failed = run_module(vllm_server.main, args(docker, server, program={}))
    assert failed
    assert "called without its action plugin" in result["msg"]
    assert docker.containers == {}


def test_a_supervisor_that_is_gone_stops_nothing(docker: FakeDocker, run_module: Any) -> None:
    server = with_lib(spec(), "d" * 12)
    docker.programs["instinct-"] = vllm(server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "supervisor_missing"
    assert docker.containers == {}


def test_health_alone_is_not_ready(docker: FakeDocker, run_module: Any) -> None:
    server = spec()
    docker.programs["instinct-"] = vllm(server["port"], dies_after=1)
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "gpu_fault"
    assert "Memory access fault" in result["servers"][0]["log_line"]


def test_a_death_without_a_known_cause_is_named_after_its_moment(docker: FakeDocker, run_module: Any) -> None:
    server = spec()
    docker.programs["instinct-"] = vllm(
        server["port"], dies_after=1, last_words="EngineDeadError: see above\n"
    )
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "died_at_first_request"
    assert "exited when tokens were requested" in result["servers"][0]["next_step"]


def test_a_missing_device_is_found_before_the_old_one_stops(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    new_spec(server)
    devices = [{"PathOnHost": "/dev/null"}, {"PathOnHost": "/dev/dri/renderD999"}]
    server["container"] = {**server["container"], "HostConfig": {"Devices": devices}}
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "no_device"
    assert "/dev/dri/renderD999 does not exist" in result["msg"]
    assert docker.changes() == []
    assert statuses(docker) == {"instinct-llama-0": "running"}


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        ({"tokens": 0}, "no_tokens", "the answer contains no generated token"),
        ({"status": 500, "message": "EngineDeadError"}, "no_tokens", "EngineDeadError"),
        ({"status": 404, "message": "The model `x` does not exist."}, "request_refused", "does not exist"),
        ({"status": 401}, "api_key", "error"),
    ],
)
def test_a_server_that_answers_without_tokens(
    behaviour: dict[str, Any], kind: str, words: str, docker: FakeDocker, run_module: Any
) -> None:
    server = spec()
    docker.programs["instinct-"] = vllm(server["port"], **behaviour)
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == kind
    assert words in result["servers"][0]["log_line"]
    assert statuses(docker) == {"instinct-llama-0": "exited"}


def test_a_server_that_never_answers(docker: FakeDocker, run_module: Any) -> None:
    def hang(container: FakeContainer) -> int:
        container.log = "INFO: Loading weights\n"
        container.stopping.wait(GENEROUS)
        return 143

    docker.programs["instinct-"] = hang
    result, failed = run_module(vllm_server.main, args(docker, spec(), timeout=1))
    assert failed
    assert result["servers"][0]["class"] == "not_ready"
    assert "no token after 1 s; it says: INFO: Loading weights" in result["servers"][0]["log_line"]
    assert "runtime.ready_timeout" in result["servers"][0]["next_step"]


def test_a_foreign_process_on_the_port(docker: FakeDocker, run_module: Any) -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        server = spec(port=foreign.getsockname()[1])
        result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "port_in_use"
    assert f"port {server['port']} is taken by pid " in result["servers"][0]["log_line"]
    assert statuses(docker) == {"instinct-llama-0": "created"}


REFUSALS = [
    (("POST /containers/create", 404, "No such image: x"), "image_missing", "run the vllm_image role"),
    (
        (
            f"POST {C}/start",
            500,
            'error gathering device information while adding custom device "/dev/kfd": no such',
        ),
        "no_device",
        "amdgpu driver is loaded",
    ),
    (
        (f"POST {C}/start", 400, "invalid mount: bind source path does not exist: /x"),
        "mount_missing",
        "Create it",
    ),
    ((f"POST {C}/start", 500, "OCI runtime create failed: odd"), "container_refused", "says why"),
    (
        (f"POST {C}/start", 500, "OCI: error setting rlimit type 8: not permitted"),
        "ulimits",
        "runtime.ulimits",
    ),
    ((f"POST {C}/start", 500, "odd"), "container_refused", "says why"),
]


@pytest.mark.parametrize(("error", "kind", "words"), REFUSALS)
def test_a_container_that_docker_refuses(
    error: tuple[str, int, str], kind: str, words: str, docker: FakeDocker, run_module: Any
) -> None:
    server = spec()
    docker.errors[error[0]] = (error[1], error[2])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == kind
    assert result["servers"][0]["log_line"] == error[2]
    assert words in result["servers"][0]["next_step"]
    assert "running" not in statuses(docker).values()
    docker.errors.clear()
    docker.programs["instinct-"] = vllm(server["port"])
    again, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, again["msg"]


def test_a_replacement_that_docker_refuses_leaves_the_old_one_serving(
    docker: FakeDocker, run_module: Any
) -> None:
    server = deployed(docker, run_module)
    server["spec_hash"] = "2" * 64
    server["container"] = {**server["container"], "Image": "missing:1"}
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert "The running instance was not touched." in result["msg"]
    assert statuses(docker) == {"instinct-llama-0": "running"}
    assert docker.containers["instinct-llama-0"].body["Labels"]["instinct-fleet.spec"] == "1" * 64
    assert Path(server["directory"], "spec.sha256").read_text() == "1" * 64 + "\n"


def test_a_replacement_that_does_not_start_says_how_to_go_on(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    new_spec(server)
    docker.errors[f"POST {C}/start"] = (500, "odd")
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert statuses(docker) == {"instinct-llama-0": "created"}
    assert "fix that and run again, which continues from here" in result["msg"]
    docker.errors.clear()
    assert not run_module(vllm_server.main, args(docker, server))[1]


def test_a_running_server_that_this_run_did_not_start_is_not_stopped(
    docker: FakeDocker, run_module: Any
) -> None:
    server = deployed(docker, run_module)
    server["served_model"] = "x"
    end(docker)
    docker.containers["instinct-llama-0"].stopping.clear()
    docker.programs["instinct-"] = vllm(server["port"], status=404, message="no model x")
    docker.containers["instinct-llama-0"].status = "running"
    docker._run(docker.containers["instinct-llama-0"])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["class"] == "request_refused"
    assert statuses(docker) == {"instinct-llama-0": "running"}
    assert docker.changes() == []


def test_started_keeps_the_container_of_a_server_that_fails(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    end(docker)
    docker.programs["instinct-"] = crash(OOM)
    result, failed = run_module(vllm_server.main, args(docker, server, state="started"))
    assert failed
    assert result["servers"][0]["class"] == "out_of_memory"
    assert statuses(docker) == {"instinct-llama-0": "exited"}


def test_a_container_removed_meanwhile(docker: FakeDocker, run_module: Any) -> None:
    def vanish(container: FakeContainer) -> int:
        del docker.containers[container.name]
        return 0

    docker.programs["instinct-"] = vanish
    result, failed = run_module(vllm_server.main, args(docker, spec()))
    assert failed
    assert result["servers"][0]["class"] == "removed"


# ---- headless ranks ------------------------------------------------------------------------------


def silent(log: str = "", exit_after: float | None = None) -> Any:
    """A server that never listens: it runs until it is stopped, or ends by itself."""

    def program(container: FakeContainer) -> int:
        container.log += log
        stopped = container.stopping.wait(exit_after)
        return 143 if stopped else 1

    return program


def test_servers_of_an_engine_over_hosts_are_started_first_and_waited_for_later(
    docker: FakeDocker, run_module: Any
) -> None:
    server = spec()
    may_begin = threading.Event()
    docker.programs["instinct-"] = vllm(server["port"], begin=lambda: may_begin.wait(GENEROUS))
    first, failed = run_module(vllm_server.main, args(docker, server, wait=False))
    assert not failed, first
    assert (first["changed"], [one["state"] for one in first["servers"]]) == (True, ["started"])
    may_begin.set()
    second, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, second
    assert (second["changed"], [one["state"] for one in second["servers"]]) == (False, ["ready"])
    assert second["servers"][0]["tokens"] == 4


@pytest.mark.parametrize(
    ("ended", "state", "failed", "text"),
    [
        # Another rank was stopped or lost: Docker starts this one again, and it waits.
        ("stopped", "waiting", False, ""),
        ("peer_lost", "waiting", False, ""),
        # It failed, and would fail again.
        ("out_of_memory", "waiting", True, "lab-n2 (rank 1) ended: out_of_memory: HIP out of memory"),
        ("stopped", "gave_up", True, ""),
    ],
)
def test_an_end_that_another_rank_caused(
    docker: FakeDocker, run_module: Any, ended: str, state: str, failed: bool, text: str
) -> None:
    server = spec()
    place = Path(server["cache_directory"]) / "supervise"
    peer = {
        "rank": 1,
        "host": "lab-n2",
        "kind": ended,
        "line": "HIP out of memory",
        "next_step": "",
        "at": 1.0,
    }
    said = {
        "schema": 1,
        "state": state,
        "since": 1.0,
        "why": "waits for lab-n2 (rank 1)",
        "failures": [],
        "peer": peer,
    }

    def program(container: FakeContainer) -> int:
        place.mkdir(parents=True, exist_ok=True)
        (place / "state.json").write_text(json.dumps(said))
        container.restarts += 1  # the supervisor has said why before Docker starts it again
        return vllm(server["port"], delay=0.3)(container)

    docker.programs["instinct-"] = program
    result, broken = run_module(vllm_server.main, args(docker, server))
    assert bool(broken) == failed, result
    assert text in json.dumps(result)


def test_a_headless_server_is_ready_when_it_stays(docker: FakeDocker, run_module: Any) -> None:
    with socket.socket() as other:  # its port is not looked at
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = spec("llama-0", other.getsockname()[1], headless=True)
        docker.programs["instinct-"] = silent("INFO: Launching vLLM headless multiproc executor\n")
        result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert (result["servers"][0]["state"], result["servers"][0]["tokens"]) == ("ready", 0)
    assert result["servers"][0]["ready_seconds"] >= 0.3
    assert statuses(docker) == {"instinct-llama-0": "running"}


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (silent("vllm: error: unrecognized arguments: --nnodes\n", 0.1), "unknown_flag"),
        (silent(OOM), "out_of_memory"),
        (silent(exit_after=0.1), "unknown"),
    ],
)
def test_a_headless_server_that_fails(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch, program: Any, kind: str
) -> None:
    if kind != "out_of_memory":  # one that ends is noticed, however late it gets its turn
        monkeypatch.setattr(readiness, "_STEADY_SECONDS", GENEROUS)
    docker.programs["instinct-"] = program
    result, failed = run_module(vllm_server.main, args(docker, spec(headless=True)))
    assert failed
    assert result["servers"][0]["class"] == kind


# ---- the memory that a start measured ------------------------------------------------------------------

MEMORY = {"key": "12ab", "predicted_tokens": [1000, 2000]}
MEASURED = (
    "(Worker_TP0 pid=7) INFO 10-24 12:00:01 [model_runner.py:1] Model loading took 4.75 GiB memory and 3.0 seconds\n"
    "(Worker_TP1 pid=8) INFO 10-24 12:00:01 [model_runner.py:1] Model loading took 4.75 GiB memory and 3.0 seconds\n"
    "(Worker_TP0 pid=7) INFO 10-24 12:00:02 [gpu_worker.py:1] Available KV cache memory: 166.0 GiB\n"
    "(EngineCore pid=6) INFO 10-24 12:00:02 [kv_cache_utils.py:1] GPU KV cache size: 2,176,000 tokens\n"
    "(APIServer pid=5) INFO 10-24 12:00:03 [loggers.py:1] Engine 000: GPU KV cache usage: 0.0%\n"
)


def start_of(server: dict[str, Any]) -> dict[str, Any]:
    """start.json of a server."""
    path = Path(server["directory"], "start.json")
    assert path.stat().st_mode & 0o777 == 0o600
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_what_a_start_measured_is_recorded_once(docker: FakeDocker, run_module: Any) -> None:
    server = spec(memory=MEMORY)
    docker.programs["instinct-"] = logs(MEASURED, vllm(server["port"]))
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    found = start_of(server)
    assert (found["key"], found["predicted_tokens"]) == ("12ab", [1000, 2000])
    assert found["container"] == docker.containers["instinct-llama-0"].id
    assert found["at"].endswith("Z")
    assert len(found["lines"]) == 3  # workers say the same
    assert read_start_log(found["lines"]) == StartLog(166 << 30, 2176000, None, int(4.75 * (1 << 30)))
    # What it measured once stays, and changes nothing.
    docker.containers["instinct-llama-0"].log = "what came later\n"
    second, _ = run_module(vllm_server.main, args(docker, {**server, "memory": {**MEMORY, "key": "34cd"}}))
    assert not second["changed"]
    assert start_of(server) == found


@pytest.mark.parametrize(
    ("memory", "log"),
    [({}, MEASURED), (None, MEASURED), (MEMORY, "nothing of memory\n"), (MEMORY, "")],
)
def test_without_figures_or_a_key_nothing_is_recorded(
    docker: FakeDocker, run_module: Any, memory: Any, log: str
) -> None:
    server = spec(memory=memory)
    docker.programs["instinct-"] = logs(log, vllm(server["port"]))
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert not Path(server["directory"], "start.json").exists()


# ---- the attention backend -----------------------------------------------------------------------

EXPECTED = {
    "planned": "aiter_fa",
    "lines": {
        "triton": ["Using Triton Attention backend."],
        "aiter_fa": ["Using Aiter Flash Attention backend."],
    },
}
AITER = "INFO 10-24 12:00:01 [rocm.py:2] Using Aiter Flash Attention backend.\n"
TRITON = "INFO 10-24 12:00:01 [rocm.py:2] Using Triton Attention backend.\n"


def logs(text: str, program: Any) -> Any:
    """A program that begins with these lines in its log."""

    def run(container: FakeContainer) -> int:
        container.log += text
        return int(program(container))

    return run


def noted(server: dict[str, Any]) -> dict[str, Any]:
    """attention.json of a server."""
    path = Path(server["directory"], "attention.json")
    assert path.stat().st_mode & 0o777 == 0o600
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    ("log", "running", "warned"),
    [
        (AITER, ["aiter_fa"], False),
        (TRITON, ["triton"], True),
        (TRITON + AITER, ["triton", "aiter_fa"], False),  # as of a model with a draft
        ("Using backend of a later release.\n", [], False),
    ],
)
def test_the_attention_backend_is_proved_by_the_log(
    docker: FakeDocker, run_module: Any, log: str, running: list[str], warned: bool
) -> None:
    server = spec(attention=EXPECTED)
    docker.programs["instinct-"] = logs(log, vllm(server["port"]))
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert result["servers"][0]["state"] == "ready"
    assert result["servers"][0]["attention_backend"] == (", ".join(running) or None)
    text = (
        "llama-0 runs attention backend triton, not the planned aiter_fa (log line: INFO 10-24 12:00:01 [rocm.py:2] "
        "Using Triton Attention backend.)."
    )
    assert result.get("warnings", []) == ([text] if warned else [])
    found = noted(server)
    assert (found["container"], found["planned"]) == (docker.containers["instinct-llama-0"].id, "aiter_fa")
    assert found["running"] == running


def test_what_a_log_proved_holds_for_its_container(docker: FakeDocker, run_module: Any) -> None:
    server = spec(attention=EXPECTED)
    docker.programs["instinct-"] = logs(TRITON, vllm(server["port"]))
    run_module(vllm_server.main, args(docker, server))
    docker.containers["instinct-llama-0"].log = "what came later\n"
    second, _ = run_module(vllm_server.main, args(docker, server))
    assert not second["changed"]
    assert second["servers"][0]["attention_backend"] == "triton"
    assert len(second["warnings"]) == 1
    # Another plan for the same container, as a newer catalogue may have it.
    third, _ = run_module(
        vllm_server.main, args(docker, {**server, "attention": {**EXPECTED, "planned": "triton"}})
    )
    assert ("warnings" in third, noted(server)["planned"]) == (False, "triton")
    # Another container is another proof, also before it is ready.
    docker.programs["instinct-"] = vllm(server["port"])
    fourth, failed = run_module(vllm_server.main, args(docker, {**server, "spec_hash": "2" * 64}))
    assert not failed, fourth["msg"]
    assert (fourth["servers"][0]["attention_backend"], "warnings" in fourth) == (None, False)
    assert noted(server)["running"] == []


def test_what_was_proved_is_forgotten_at_a_start(docker: FakeDocker, run_module: Any) -> None:
    server = spec(attention=EXPECTED)
    docker.programs["instinct-"] = logs(TRITON, vllm(server["port"]))
    run_module(vllm_server.main, args(docker, server))
    run_module(vllm_server.main, args(docker, server, state="stopped"))
    result, failed = run_module(vllm_server.main, args(docker, server, state="started", wait=False))
    assert not failed, result["msg"]
    assert not Path(server["directory"], "attention.json").exists()


def test_backends_that_differ_are_warned_about_once(docker: FakeDocker, run_module: Any) -> None:
    servers = [spec(f"llama-{number}", attention=EXPECTED) for number in range(2)]
    for server in servers:
        docker.programs[f"instinct-{server['name']}"] = logs(TRITON, vllm(server["port"]))
    result, _ = run_module(vllm_server.main, args(docker, *servers))
    (warning,) = result["warnings"]
    assert warning.startswith(
        "llama-0, llama-1 run attention backend triton, not the planned aiter_fa (log line: "
    )


def test_a_log_that_cannot_be_read_is_no_failure(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise DockerError("configured logging driver does not support reading", 501)

    monkeypatch.setattr(converge, "container_log", refuse)
    server = spec(attention=EXPECTED)
    docker.programs["instinct-"] = vllm(server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert result["servers"][0]["state"] == "ready"
    assert "attention_backend" not in result["servers"][0]


@pytest.mark.parametrize("text", ["", "[]", "no JSON", '{"container": "c", "planned": "x", "running": 1}'])
def test_a_file_that_proves_nothing(text: str) -> None:
    assert Proof.from_text(text, "c") is None


def test_a_proof_is_of_one_container() -> None:
    proof = Proof("c", "aiter_fa", ("triton",), "Using Triton Attention backend.")
    assert Proof.from_text(proof.to_text(), "c") == proof
    assert Proof.from_text(proof.to_text(), "d") is None


# ---- input and secrets ---------------------------------------------------------------------------

BAD_INPUT = [
    ({"name": "../x"}, {}, "is not a lower-case word"),
    ({"nmae": "x"}, {}, "Unsupported parameters"),
    ({"served_model": None}, {}, "served_model is missing, but state present needs it"),
    ({"directory": "relative/llama-0"}, {}, "is not an absolute path"),
    ({"directory": "/etc"}, {}, "ends in llama-0"),
    ({"attention": {"planned": "triton"}}, {}, "attention needs planned, and lines"),
    ({"attention": {"planned": "x", "lines": {"x": 1}}}, {}, "attention needs planned, and lines"),
    (
        {"files": {"attention.json": {"text": "", "mode": "0600"}}},
        {},
        "is not the name of an artefact's file",
    ),
    ({"files": {"../x": {"text": "", "mode": "0600"}}}, {}, "is not the name of an artefact's file"),
    ({"files": {"env": {"text": "x"}}}, {}, "needs text and mode"),
    ({"files": {"env": {"text": "x", "mode": "rw"}}}, {}, "needs text and mode"),
    ({}, {"remove": ["../../etc"]}, "is not the name of an instance"),
    ({}, {"state": "started"}, "has no container instinct-llama-0 to start"),
]


@pytest.mark.parametrize(("change", "more", "words"), BAD_INPUT)
def test_bad_input_is_refused_before_anything(
    change: dict[str, Any], more: dict[str, Any], words: str, docker: FakeDocker, run_module: Any
) -> None:
    result, failed = run_module(vllm_server.main, args(docker, spec(**change), **more))
    assert failed
    assert words in result["msg"]
    assert docker.changes() == []


def test_the_api_key_opens_the_server_and_shows_nowhere(docker: FakeDocker, run_module: Any) -> None:
    server = spec()
    server["files"]["env"]["text"] = f"VLLM_API_KEY='{CANARY}'\n"
    docker.programs["instinct-"] = vllm(server["port"], api_key=CANARY)
    result, failed = run_module(vllm_server.main, args(docker, server), diff=True)
    assert not failed, result["msg"]
    assert CANARY not in json.dumps(result)
    assert CANARY not in "".join(docker.requests)
    assert CANARY not in json.dumps(docker.containers["instinct-llama-0"].body)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d, _p: d.programs.update(
            {"instinct-": crash(f"non-default args: {{'api_key': ['{CANARY}']}} {CANARY}\n")}
        ),
        lambda d, p: d.programs.update({"instinct-": vllm(p, status=400, message=f"key {CANARY}")}),
        lambda d, _p: d.errors.update({"POST /containers/create": (500, CANARY)}),
        lambda d, _p: d.errors.update({"GET /containers": (500, CANARY)}),
        lambda d, _p: d.errors.update({f"POST {C}/start": (500, CANARY)}),
    ],
)
def test_the_api_key_is_in_no_message(
    break_it: Any, docker: FakeDocker, run_module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = spec()
    server["files"]["env"]["text"] = f"VLLM_API_KEY='{CANARY}'\n"
    break_it(docker, server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server), diff=True)
    assert failed
    assert "exception" not in result
    assert MASK in json.dumps(result)  # it was in the message
    assert CANARY not in json.dumps(result)
    assert CANARY not in capsys.readouterr().err
    (tmp_path / "canary").write_text(CANARY)  # where they are searched, it would be found
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "env"]
    assert [path.name for path in files if CANARY in path.read_text(errors="replace")] == ["canary"]


def test_documentation_is_the_argument_spec() -> None:
    def compare(documented: dict[str, Any], options: dict[str, Any]) -> None:
        assert set(documented) == set(options)
        for name, option in options.items():
            for key in ("type", "default", "required", "elements", "choices"):
                assert documented[name].get(key) == option.get(key), (name, key)
            if "options" in option:
                compare(documented[name]["suboptions"], option["options"])

    compare(documented_by(vllm_server)["options"], vllm_server.argument_spec())
    returned = yaml.safe_load(vllm_server.RETURN)
    assert {"servers", "removed", "actions", "seconds"} == set(returned)


# ---- secrets -------------------------------------------------------------------------------------

MARK, OLD_MARK = "ab" * 8, "cd" * 8
SETS = {"llama": {MARK: f"REDIS_URL={CANARY}\nINSTINCT_SECRETS=REDIS_URL\n"}}


def secrets_on(node: str = "llama") -> dict[str, str]:
    directory = Path(paths.STATE_DIR) / "secrets" / node
    return {file.name: file.read_text() for file in directory.iterdir()} if directory.exists() else {}


def with_secrets(mark: str = MARK, **more: Any) -> dict[str, Any]:
    server = spec(secrets=mark, **more)
    server["files"]["env"]["text"] += f"source /instinct-secrets/{mark}\n"
    return server


def test_secrets_are_written_for_root_before_the_start_and_shown_nowhere(
    docker: FakeDocker, run_module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = with_secrets()
    path = f"{paths.STATE_DIR}/secrets/llama/{MARK}"
    checked, _failed = run_module(vllm_server.main, args(docker, server, secrets=SETS), check=True)
    assert f"write {path} (mode 0600)" in checked["actions"]
    assert secrets_on() == {}
    docker.programs["instinct-"] = vllm(server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server, secrets=SETS), diff=True)
    assert not failed, result["msg"]
    assert secrets_on() == SETS["llama"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    assert CANARY not in json.dumps([checked, result]) + capsys.readouterr().err
    assert CANARY not in json.dumps(docker.containers["instinct-llama-0"].body) + "".join(docker.requests)
    again, _failed = run_module(vllm_server.main, args(docker, server, secrets=SETS))
    assert not again["changed"]


def test_a_log_that_repeats_a_secret_is_masked(docker: FakeDocker, run_module: Any) -> None:
    server = with_secrets(name="llama-0")
    docker.programs["instinct-"] = crash(f"ValueError: cannot reach {CANARY}\n")
    result, failed = run_module(vllm_server.main, args(docker, server, secrets=SETS))
    assert failed
    assert CANARY not in json.dumps(result)
    assert MASK in json.dumps(result)


def test_an_instance_whose_secrets_are_not_to_be_had_fails_alone_and_stays(
    docker: FakeDocker, run_module: Any
) -> None:
    server = deployed(docker, run_module)
    new_spec(server)
    server["secrets"] = OLD_MARK
    other = spec("other-0")
    docker.programs.clear()  # it is found by the beginning of its name
    docker.programs["instinct-other-0"] = vllm(other["port"])
    result, failed = run_module(vllm_server.main, args(docker, server, other))
    assert failed
    assert [(item["name"], item["state"], item.get("class")) for item in result["servers"]] == [
        ("llama-0", "failed", "secrets_missing"),
        ("other-0", "ready", None),
    ]
    assert statuses(docker)["instinct-llama-0"] == "running"


def test_sets_that_nothing_names_any_more_are_removed(docker: FakeDocker, run_module: Any) -> None:
    kept = Path(paths.STATE_DIR) / "generations" / "llama" / "1.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"env": f"source /instinct-secrets/{OLD_MARK}"}))
    for mark in (OLD_MARK, "ef" * 8):
        file = Path(paths.STATE_DIR) / "secrets" / "llama" / mark
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("A=12345678\n")
    server = with_secrets()
    docker.programs["instinct-"] = vllm(server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server, secrets=SETS))
    assert not failed, result["msg"]
    assert sorted(secrets_on()) == sorted([MARK, OLD_MARK])
    assert f"remove {paths.STATE_DIR}/secrets/llama/{'ef' * 8}" in result["actions"]


def test_a_disk_that_takes_no_secrets_stops_nothing(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = deployed(docker, run_module)
    new_spec(server)
    server["secrets"] = MARK

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(secret_files, "write_atomic", full)
    result, failed = run_module(vllm_server.main, args(docker, server, secrets=SETS))
    assert failed
    assert "No space left on device. Nothing was stopped." in result["msg"]
    assert statuses(docker)["instinct-llama-0"] == "running"


def test_a_fingerprint_is_no_path(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_server.main, args(docker, spec(secrets="../../passwd")))
    assert failed
    assert "servers[llama-0]: secrets is '../../passwd', not a fingerprint." in result["msg"]
