# SPDX-License-Identifier: Apache-2.0
"""vllm_server on nodes that are half done or fail: remains of instances, full disks, an engine that breaks off."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths as places
from ansible_collections.instinct.fleet.plugins.module_utils.docker.lifecycle import stop_gracefully
from ansible_collections.instinct.fleet.plugins.module_utils.serving import converge
from ansible_collections.instinct.fleet.plugins.modules import vllm_server
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import bundle

from tests.helpers.eventually import GENEROUS
from tests.worlds.fake_docker import CUT, FakeContainer, FakeDocker
from tests.worlds.fake_vllm import crash, vllm
from tests.worlds.serving_world import IMAGE, args, deployed, docker, new_spec, spec, statuses, with_lib

SUPERVISOR = bundle("supervisor")

__all__ = ["docker"]  # a fixture

C = "/containers/instinct-llama-0"
NAME = "instinct-llama-0"


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Warnings; where Ansible puts them depends on whether its controller's code was loaded by another test."""
    said: list[str] = []
    monkeypatch.setattr(vllm_server.AnsibleModule, "warn", lambda _self, text: said.append(text))
    return said


# ---- removing what is left ---------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("container", ["", "running", "exited"])
def test_whatever_is_left_of_an_instance_is_removed(
    docker: FakeDocker, run_module: Any, container: str, directory: bool, cache: bool
) -> None:
    """A run that was cut off leaves any part of it; check mode tells the same as the run."""
    paths = [(places.instance_dir("llama-0"), directory), (places.cache_dir("llama-0"), cache)]
    for path, there in paths:
        if there:
            Path(path, "below").mkdir(parents=True)
    if container:
        docker.add_container(NAME, {"Image": IMAGE, "StopTimeout": 7}, container)
    expected = [f"POST {C}/stop?t=7"] if container == "running" else []
    expected += [f"DELETE {C}"] if container else []
    expected += [f"remove {path}" for path, there in paths if there]

    remove = args(docker, remove=["llama-0"])
    predicted, failed = run_module(vllm_server.main, remove, check=True, diff=True)
    assert (failed, predicted["actions"], docker.changes()) == (False, expected, [])
    result, failed = run_module(vllm_server.main, remove, diff=True)
    assert (failed, result["actions"], result["changed"]) == (False, expected, bool(expected))
    assert result["diff"] == predicted["diff"]
    assert [part["before_header"] for part in result["diff"]] == ([f"container {NAME}"] if expected else [])
    assert docker.containers == {}
    assert [path for path, _ in paths if os.path.exists(path)] == []
    assert run_module(vllm_server.main, remove)[0]["changed"] is False


def test_a_removed_container_gets_its_own_time_and_else_what_vllm_needs(
    docker: FakeDocker, run_module: Any
) -> None:
    docker.add_container("instinct-old-0", {"Image": IMAGE}, "running")
    docker.add_container("instinct-old-1", {"Image": IMAGE, "StopTimeout": 31}, "running")
    docker.add_container("instinct-old-2", {"Image": IMAGE, "StopTimeout": 32}, "exited")
    result, _ = run_module(vllm_server.main, args(docker, remove=["old-0", "old-1", "old-2"]))
    stops = ["POST /containers/instinct-old-0/stop?t=120", "POST /containers/instinct-old-1/stop?t=31"]
    assert [text for text in result["actions"] if "/stop" in text] == stops
    assert sorted(text for text in docker.changes() if "/stop" in text) == stops


def test_a_removal_comes_before_what_takes_its_place(docker: FakeDocker, run_module: Any) -> None:
    """Its GPUs and its port are free before the new one starts."""
    old = deployed(docker, run_module)
    new = spec("qwen-0", old["port"])
    docker.programs["instinct-qwen"] = vllm(new["port"])
    result, failed = run_module(vllm_server.main, args(docker, new, remove=["llama-0"]))
    assert not failed, result["msg"]
    kinds = [text.split("?")[0] for text in docker.changes()]
    assert kinds == [
        f"POST {C}/stop", f"DELETE {C}", "POST /containers/create", "POST /containers/instinct-qwen-0/start",
    ]  # fmt: skip
    assert statuses(docker) == {"instinct-qwen-0": "running"}


def test_the_cache_directory_can_be_read_by_the_container_and_by_no_user_of_the_host(
    docker: FakeDocker, run_module: Any
) -> None:
    before = os.umask(0)
    try:
        server = deployed(docker, run_module)
    finally:
        os.umask(before)
    assert Path(server["cache_directory"]).stat().st_mode & 0o777 == 0o755
    # A container's root may leave a setuid program in it.
    assert Path(server["cache_directory"]).parent.stat().st_mode & 0o777 == 0o700
    # One that is there stays as the operator set it.
    Path(server["cache_directory"]).chmod(0o750)
    new_spec(server)
    assert not run_module(vllm_server.main, args(docker, server))[1]
    assert Path(server["cache_directory"]).stat().st_mode & 0o777 == 0o750


# ---- disks that refuse -------------------------------------------------------------------------------


def a_file(path: str) -> None:
    """Where a directory is to be made: nothing can be written below it."""
    shutil.rmtree(path, ignore_errors=True)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("")


def full(*_args: object) -> None:
    """Where a full disk shows itself; the error has no file's name."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("reason", ["File exists", "No space left on device"])
def test_a_supervisor_that_cannot_be_written_stops_nothing(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    server = deployed(docker, run_module)
    place = places.lib_dir(SUPERVISOR.version)
    if reason == "File exists":
        a_file(place)
    else:
        place = places.lib_dir()
        monkeypatch.setattr(os, "fsync", full)
    new_spec(with_lib(server, SUPERVISOR.version))
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert (
        result["msg"]
        == f"{place} cannot be written: {reason}. Nothing was stopped. Check that disk, and run again."
    )
    assert (docker.changes(), statuses(docker)) == ([], {NAME: "running"})


def test_a_disk_that_is_full(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    server = spec()
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["msg"] == (
        f"1 of 1 instances failed. llama-0: files: {server['directory']}: No space left on device | Check that disk. "
        "Fix that and run again."
    )
    assert warned == ["The journal of this node could not be written: No space left on device."]


def test_files_that_cannot_be_written(docker: FakeDocker, run_module: Any) -> None:
    one, two = spec("llama-0"), spec("llama-1")
    docker.programs["instinct-llama-1"] = vllm(two["port"])
    a_file(one["cache_directory"])
    result, failed = run_module(vllm_server.main, args(docker, one, two))
    assert failed
    assert result["msg"] == (
        f"1 of 2 instances failed. The other one serves. llama-0: files: {one['cache_directory']}: File exists | "
        "Check that disk. Fix that and run again."
    )
    assert [item["state"] for item in result["servers"]] == ["failed", "ready"]
    assert statuses(docker) == {"instinct-llama-1": "running"}


def test_files_of_a_replacement_that_cannot_be_written(docker: FakeDocker, run_module: Any) -> None:
    """They are written before the old one stops, which serves on; the next run completes it."""
    server = deployed(docker, run_module)
    a_file(server["cache_directory"])
    new_spec(server)
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["servers"][0]["next_step"] == ("Check that disk. The running instance was not touched.")
    assert statuses(docker) == {NAME: "running"}
    os.unlink(server["cache_directory"])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    assert statuses(docker) == {NAME: "running"}
    assert docker.containers[NAME].body["Labels"]["instinct-fleet.spec"] == "2" * 64


def test_one_is_stopped_whatever_its_disk_says(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    a_file(server["cache_directory"])
    result, failed = run_module(vllm_server.main, args(docker, server, state="stopped"))
    assert not failed, result["msg"]
    assert statuses(docker) == {NAME: "exited"}


def test_a_journal_that_cannot_be_written_is_a_warning(
    docker: FakeDocker, run_module: Any, warned: list[str]
) -> None:
    """What was done is done."""
    journal = Path(places.STATE_DIR, "journal.log")
    journal.mkdir(parents=True)
    server = spec()
    docker.programs["instinct-"] = vllm(server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert (failed, result["servers"][0]["state"]) == (False, "ready")
    assert warned == [f"The journal {journal} could not be written: Is a directory."]
    # Nor does it hide why a server failed.
    end = docker.containers[NAME]
    end.stopping.set()
    assert end.ended.wait(GENEROUS)
    docker.programs["instinct-"] = crash("ValueError: no\n")
    warned.clear()
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["msg"].startswith("1 of 1 instances failed. llama-0: ")
    assert warned == [f"The journal {journal} could not be written: Is a directory."]


@pytest.mark.parametrize(
    ("wanted", "check", "lines"),
    [
        ("present", False, ["llama: llama-0 serves"]),
        ("present", True, []),
        ("removed", False, ["llama-0 removed"]),
        ("removed", True, []),
        ("never was", False, []),
    ],
)
def test_the_journal_has_what_was_done(
    docker: FakeDocker, run_module: Any, wanted: str, check: bool, lines: list[str]
) -> None:
    journal = Path(places.STATE_DIR, "journal.log")
    server = deployed(docker, run_module)
    journal.unlink()
    if wanted == "present":
        new_spec(server)
        given = args(docker, server)
    else:
        given = args(docker, remove=["llama-0" if wanted == "removed" else "other-0"])
    assert not run_module(vllm_server.main, given, check=check)[1]
    listed = journal.read_text().splitlines() if journal.exists() else []
    assert [line.partition(" ")[2] for line in listed] == lines


def test_a_generation_that_the_node_does_not_keep(docker: FakeDocker, run_module: Any) -> None:
    gone = {"name": "llama-0", "deployment": "llama", "generation": 7, "spec_hash": "1" * 64}
    result, failed = run_module(vllm_server.main, args(docker, gone))
    assert failed
    assert "Generation 7 of llama is not kept on this node" in result["msg"]
    assert docker.changes() == []


# ---- an engine that breaks off -----------------------------------------------------------------------


def test_an_engine_that_breaks_off_while_a_server_starts(docker: FakeDocker, run_module: Any) -> None:
    """What was started is left: it may come up, and the next run waits for it."""
    one, two = spec("llama-0"), spec("llama-1")

    def break_off(container: FakeContainer) -> int:
        docker.faults[f"GET {C}/json"] = CUT
        return vllm(one["port"])(container)

    docker.programs = {"instinct-llama-0": break_off, "instinct-llama-1": vllm(two["port"])}
    result, failed = run_module(vllm_server.main, args(docker, one, two))
    assert failed
    assert result["msg"].startswith(
        "1 of 2 instances failed. The other one serves. llama-0: docker: The Docker engine closed the connection in "
        "the middle of an answer. | Check the Docker engine, and run again."
    )
    assert [item.get("class") for item in result["servers"]] == ["docker", None]
    assert statuses(docker) == {"instinct-llama-0": "running", "instinct-llama-1": "running"}
    docker.faults.clear()
    result, failed = run_module(vllm_server.main, args(docker, one, two))
    assert (failed, [item["state"] for item in result["servers"]]) == (False, ["ready", "ready"])


def test_an_engine_that_breaks_off_before_anything_is_done(docker: FakeDocker, run_module: Any) -> None:
    server = deployed(docker, run_module)
    new_spec(server)
    docker.faults[f"GET {C}/json"] = CUT
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert result["msg"] == "The Docker engine closed the connection in the middle of an answer."
    assert result["class"] == "docker"
    assert docker.changes() == []


# ---- stops -------------------------------------------------------------------------------------------


def ends_with(code: int, oom_killed: bool = False) -> Callable[[FakeContainer], int]:
    def program(container: FakeContainer) -> int:
        container.stopping.wait(GENEROUS)
        container.oom_killed = oom_killed
        return code

    return program


@pytest.mark.parametrize(
    ("code", "oom_killed", "warnings"),
    [(143, False, 0), (0, False, 0), (137, False, 1), (137, True, 0)],
    ids=["ended", "ended well", "killed by Docker", "killed for its memory"],
)
def test_only_a_container_that_docker_had_to_kill_is_warned_about(
    docker: FakeDocker, run_module: Any, warned: list[str], code: int, oom_killed: bool, warnings: int
) -> None:
    docker.programs["instinct-"] = ends_with(code, oom_killed)
    docker.add_container(NAME, {"Image": IMAGE}, "running")
    result, failed = run_module(vllm_server.main, args(docker, remove=["llama-0"]))
    assert not failed, result["msg"]
    assert len(warned) == warnings
    assert all("did not stop within 120 s and was killed" in text for text in warned)


def test_one_that_vanishes_while_it_is_to_stop(docker: FakeDocker, tmp_path: Path) -> None:
    """Docker removes a container with --rm as soon as it ends, and another run may have been quicker."""
    client = converge.DockerClient(docker.path)
    assert stop_gracefully(client, "never-was", 1) == ""
    docker.add_container(NAME, {"Image": IMAGE}, "running")
    docker.errors[f"POST {C}/stop"] = (404, "No such container")
    assert stop_gracefully(client, NAME, 1) == ""
    docker.programs["instinct-"] = lambda container: docker.containers.pop(container.name) and 0
    docker.errors.clear()
    docker.containers.clear()
    container = docker.add_container(NAME, {"Image": IMAGE}, "created")
    container.status = "running"
    docker._run(container)
    assert container.ended.wait(GENEROUS)
    assert stop_gracefully(client, NAME, 1) == ""


# ---- what is told ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "wait", "check", "text"),
    [
        ("present", True, False, "ready"),
        ("present", False, False, "started"),
        ("present", True, True, "would be ready"),
        ("present", False, True, "would be started"),
        ("started", True, False, "ready"),
        ("stopped", True, False, "stopped"),
        ("stopped", False, False, "stopped"),
        ("stopped", True, True, "would be stopped"),
    ],
)
def test_states_of_servers(
    docker: FakeDocker, run_module: Any, state: str, wait: bool, check: bool, text: str
) -> None:
    server = deployed(docker, run_module)
    if state != "stopped":
        docker.containers[NAME].stopping.set()
        assert docker.containers[NAME].ended.wait(GENEROUS)
    result, failed = run_module(vllm_server.main, args(docker, server, state=state, wait=wait), check=check)
    assert not failed, result["msg"]
    assert [(item["state"], item["changed"]) for item in result["servers"]] == [(text, True)]
    assert ("seconds" in result) == (not check)


@pytest.mark.parametrize(
    ("count", "others"), [(1, ""), (2, " The other one serves."), (3, " The other 2 serve.")]
)
def test_how_many_failed(docker: FakeDocker, run_module: Any, count: int, others: str) -> None:
    specs = [spec(f"llama-{index}") for index in range(count)]
    for server in specs[1:]:
        docker.programs[f"instinct-{server['name']}"] = vllm(server["port"])
    docker.programs[NAME] = crash("ValueError: no\n")
    result, failed = run_module(vllm_server.main, args(docker, *specs))
    assert failed
    assert result["msg"].startswith(
        f"1 of {count} instances failed.{others} llama-0: python_exception: ValueError: no"
    )
    log = Path(specs[0]["directory"], "startup.log")
    assert f" Log: {log}." in result["msg"]
    assert "ValueError: no" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_an_engine_that_breaks_off_is_not_the_instances_fault(docker: FakeDocker, run_module: Any) -> None:
    """Its class says so, and a rollout does not take it for a verdict on the release."""
    server = deployed(docker, run_module)
    new_spec(server)
    docker.faults["POST /containers/create"] = CUT
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert failed
    assert [server["class"] for server in result["servers"]] == ["docker"]
