# SPDX-License-Identifier: Apache-2.0
"""A quantization on a node: packages aside, one container without a network, an output that appears when complete."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.content.model_manifest import parse_statement
from ansible_collections.instinct.fleet.plugins.module_utils.content.probe_output import REPORT
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.quantize import (
    converge,
    environment,
    facts,
    paths,
)

from tests.helpers.eventually import eventually
from tests.helpers.hostile_tree import outside_of, state
from tests.worlds.fake_docker import FakeContainer, FakeDocker, serve_until_stopped
from tests.worlds.gpu_tree import Tree
from tests.worlds.quantize_world import planned, quantized_tensors, write_model, write_tensors

IMAGE = "rocm/vllm:x"
REPORT_OK = {
    "ok": True, "quantized": 8, "excluded": 1, "left": [], "unmatched": [], "kv_scales": 0, "compared": 8,
    "worst": {"tensor": "a.weight", "relative_error": 0.03}, "mean_relative_error": 0.02, "seconds": 1.0,
    "versions": {"amd-quark": "0.13"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All paths of the node below a directory of the test."""
    node = tmp_path / "node"
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(environment, "SECRETS", str(tmp_path / "run"))
    monkeypatch.setattr(environment, "PIP_CONF", str(tmp_path / "run/pip.conf"))
    for name, part in {"HOME": "quantize", "MODELS": "models", "HASHES": "hashes", "LOGS": "logs"}.items():
        monkeypatch.setattr(paths, name, str(node / part))
    return node


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path) as fake:
        fake.add_image(IMAGE)
        fake.programs[environment.CONTAINER] = lambda container: 0
        fake.programs["instinct-quantize-"] = quantizes
        yield fake


def place(container: FakeContainer, inside: str) -> Path:
    """Where a mount of the container is on the node."""
    mounts = container.body["HostConfig"]["Mounts"]
    return next(Path(mount["Source"]) for mount in mounts if mount["Target"] == inside)


def quantizes(container: FakeContainer) -> int:
    """The program: it writes weights as the backends do, for their owner alone."""
    if container.name == environment.CONTAINER:
        return 0
    output = place(container, paths.JOB_MOUNT) / paths.OUTPUT
    output.mkdir(mode=0o700)
    (output / "config.json").write_text('{"quantization_config": {"quant_method": "quark"}}')
    write_tensors(output / "model.safetensors", quantized_tensors("ptpc_fp8"))
    (output / "model.safetensors").chmod(0o600)
    container.log = f"\x1b[32mlines of a library\x1b[0m\n{REPORT}{json.dumps(REPORT_OK)}\n"
    return 0


def params(source: Path, **changes: Any) -> dict[str, Any]:
    plan = planned(gpus=[], source={"path": str(source)})
    return {
        "image": IMAGE, "packages": "", "index": "", "proxy": {}, "ca_file": None, "timeout": 60, "program": "program",
        "requirements": "amd-quark==0.13", "job": {**plan.job, "image": IMAGE}, **changes,
    }  # fmt: skip


def run(docker: FakeDocker, given: dict[str, Any], check: bool = False) -> dict[str, Any]:
    return converge.quantize(DockerClient(docker.path), given, check)


def test_the_output_is_a_readable_repository_with_card_record_and_manifest(
    tmp_path: Path, docker: FakeDocker, home: Path
) -> None:
    source = write_model(tmp_path / "source")
    result = run(docker, params(source))
    path = Path(result["path"])
    assert path == home / "models/Llama-70B-Instruct-ptpc-fp8" / result["commit"]
    assert stat.S_IMODE((path / "model.safetensors").stat().st_mode) == 0o644
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert set(parse_statement(result["statement"])) == {
        "README.md",
        "config.json",
        "model.safetensors",
        paths.RECORD,
    }
    record = json.loads((path / paths.RECORD).read_text())
    assert record["source"] == {"repo": "lab/Llama-70B-Instruct", "commit": "0123456789" * 4}
    assert record["result"]["versions"] == {"amd-quark": "0.13"}
    assert not os.path.exists(paths.work_dir(params(source)["job"]["key"]))
    assert "\x1b" not in next((home / "logs").iterdir()).read_text()


def test_the_same_inputs_give_the_same_commit(tmp_path: Path, docker: FakeDocker) -> None:
    source = write_model(tmp_path / "source")
    assert run(docker, params(source))["commit"] == run(docker, params(source))["commit"]


def test_the_job_has_no_network_no_token_and_reads_only(tmp_path: Path, docker: FakeDocker) -> None:
    seen: list[FakeContainer] = []
    docker.programs["instinct-quantize-"] = lambda container: seen.append(container) or quantizes(container)
    del docker.programs[environment.CONTAINER]
    run(docker, params(write_model(tmp_path / "source")))
    install, job = seen
    host = job.body["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["Devices"]) == ("none", ["ALL"], [])
    assert {mount["Target"] for mount in host["Mounts"] if not mount.get("ReadOnly")} == {paths.JOB_MOUNT}
    assert "QUARK_DISABLE_VLLM_PLUGIN=1" in job.body["Env"]
    assert 0 < host["CpuShares"] < 10
    assert not [name for name in job.body["Env"] if "TOKEN" in name]
    pip = install.body["Entrypoint"]
    assert "--require-hashes" in pip[2]
    assert install.body["HostConfig"]["NetworkMode"] == "host"


def test_packages_are_installed_once_and_a_directory_of_them_needs_no_network(
    tmp_path: Path, docker: FakeDocker, home: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    given = params(write_model(tmp_path / "source"), packages=str(wheels))
    first = run(docker, given)
    (made,) = [path for path in (home / "quantize").iterdir() if path.is_dir()]
    assert made.name.startswith("env-")
    again = run(docker, given)
    assert any(environment.CONTAINER in line for line in first["actions"])
    assert not any(environment.CONTAINER in line for line in again["actions"])


@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        (3, "this image has no pip", "also contains pip's own wheel"),
        (1, "ERROR: No matching distribution found for amd-quark==0.13", "pip download"),
        (1, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "not the one that was pinned"),
        (2, "ERROR: Could not connect", "set instinct_proxy"),
    ],
)
def test_a_failed_installation_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, docker: FakeDocker, home: Path, code: int, log: str, words: str
) -> None:
    def fails(container: FakeContainer) -> int:
        container.log = f"{log}\n"
        return code

    docker.programs[environment.CONTAINER] = fails
    with pytest.raises(NodeError, match=words):
        run(docker, params(write_model(tmp_path / "source")))
    assert not [path for path in (home / "quantize").iterdir() if path.is_dir()]


def reports(code: int, **report: Any) -> Callable[[FakeContainer], int]:
    def program(container: FakeContainer) -> int:
        container.log = f"{REPORT}{json.dumps(report)}\n" if report else "Killed\n"
        return code

    return program


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (reports(1, ok=False, kind="check", error="a.weight is off."), "a.weight is off"),
        (reports(1, ok=False, kind="memory", error="HIP"), "ran out of memory"),
        (reports(137), "ran out of memory"),
        (reports(1, ok=False, kind="job", error="ValueError: no template"), "no template"),
        (reports(1), "exit code 1: Killed"),
    ],
)
def test_a_failed_job_says_why_and_leaves_no_model(
    tmp_path: Path, docker: FakeDocker, home: Path, program: Callable[[FakeContainer], int], words: str
) -> None:
    docker.programs["instinct-quantize-"] = program
    with pytest.raises(NodeError, match=words) as error:
        run(docker, params(write_model(tmp_path / "source")))
    assert "logs/" in str(error.value)
    assert [path.name for path in (home / "models").iterdir()] == [".work"]
    assert list((home / "models/.work").iterdir()) == []


def test_a_job_that_runs_on_is_found_and_awaited(tmp_path: Path, docker: FakeDocker) -> None:
    """The control node died, or its patience ended: the container is the same in every run."""
    source = write_model(tmp_path / "source")
    docker.programs["instinct-quantize-"] = serve_until_stopped
    with pytest.raises(NodeError, match="It continues in container"):
        run(docker, params(source, timeout=0.2))
    (name,) = [name for name in docker.containers if name != environment.CONTAINER]
    container = docker.containers[name]
    actions = run(docker, params(source), check=True)["actions"]
    assert actions == [f"wait for container {name} (it quantizes {source})"]
    quantizes(container)
    docker.requests.clear()

    def end() -> None:
        """End it while it is awaited: one that has ended is begun anew."""
        eventually("it is awaited", lambda: any("/wait" in request for request in docker.requests))
        container.stopping.set()

    threading.Thread(target=end).start()
    with pytest.raises(NodeError, match="143"):
        run(docker, params(source))
    assert name not in docker.containers


def test_what_was_made_before_the_controller_died_is_published(tmp_path: Path, docker: FakeDocker) -> None:
    source = write_model(tmp_path / "source")
    given = params(source)
    work = Path(paths.work_dir(given["job"]["key"]))
    (work / paths.SHARED / paths.OUTPUT).mkdir(parents=True)
    (work / paths.SHARED / paths.OUTPUT / "config.json").write_text("{}")
    (work / paths.REPORT_FILE).write_text(json.dumps(REPORT_OK))
    docker.programs["instinct-quantize-"] = reports(1)
    docker.programs[environment.CONTAINER] = lambda container: 0
    assert os.path.exists(run(docker, given)["path"])


def hostile(output: Path, outside: Path, what: str) -> str:
    """Leave what must not be in an output; return the end of its path."""
    if what == "output":
        output.rename(output.parent / "away")
        output.symlink_to(outside)
        return "shared/output"
    path = output / what
    path.unlink(missing_ok=True)
    if what == "extra.json":
        path.symlink_to(outside / "secret")
    elif what == "d":
        path.symlink_to(outside / "directory")
    elif what == "shared.bin":
        os.link(outside / "secret", path)
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    return f"shared/output/{what}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "what", ["output", "extra.json", "d", "shared.bin", "pipe", "README.md", paths.RECORD, "manifest.json"]
)
def test_what_a_container_leaves_in_its_output_is_not_followed(
    what: str, tmp_path: Path, docker: FakeDocker, home: Path
) -> None:
    outside = outside_of(tmp_path)
    before, said = state(outside), []

    def program(container: FakeContainer) -> int:
        code = quantizes(container)
        if container.name != environment.CONTAINER:
            said.append(hostile(place(container, paths.JOB_MOUNT) / paths.OUTPUT, outside, what))
        return code

    docker.programs["instinct-quantize-"] = program
    with pytest.raises(NodeError) as error:
        run(docker, params(write_model(tmp_path / "source")))
    assert f"{said[-1]} " in str(error.value)
    assert state(outside) == before
    assert [path.name for path in (home / "models").iterdir()] == [".work"]


@pytest.mark.parametrize("kind", ["link", "pipe", "setuid"])
def test_what_a_container_leaves_among_packages_is_not_followed(
    kind: str, tmp_path: Path, docker: FakeDocker, home: Path
) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)

    def installs(container: FakeContainer) -> int:
        path = place(container, paths.ENV_MOUNT) / "package"
        if kind == "link":
            path.symlink_to(outside / "secret")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_text("")
            path.chmod(0o4777)
        return 0

    docker.programs[environment.CONTAINER] = installs
    if kind == "setuid":
        run(docker, params(write_model(tmp_path / "source")))
        (path,) = (home / "quantize").glob("env-*/package")
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    else:
        with pytest.raises(NodeError, match=r"env-\w+\.part/package is a"):
            run(docker, params(write_model(tmp_path / "source")))
        assert not list((home / "quantize").glob("env-*/complete.json"))
    assert state(outside) == before


def test_a_container_cannot_say_for_a_later_call_that_its_job_succeeded(
    tmp_path: Path, docker: FakeDocker, home: Path
) -> None:
    source = write_model(tmp_path / "source")

    def claims(container: FakeContainer) -> int:
        if container.name != environment.CONTAINER:
            mount = place(container, paths.JOB_MOUNT)
            (mount / paths.REPORT_FILE).write_text(json.dumps(REPORT_OK))
            (mount / paths.OUTPUT).mkdir()
            assert stat.S_IMODE(mount.parent.stat().st_mode) == 0o700  # its setuid files are for nobody
        return serve_until_stopped(container)

    docker.programs["instinct-quantize-"] = claims
    for _unused in range(2):
        with pytest.raises(NodeError, match="It continues in container"):
            run(docker, params(source, timeout=0.2))
    assert [path.name for path in (home / "models").iterdir()] == [".work"]


def test_check_mode_shows_the_containers_and_touches_nothing(
    tmp_path: Path, docker: FakeDocker, home: Path
) -> None:
    result = run(docker, params(write_model(tmp_path / "source")), check=True)
    assert [action.split(" ")[0] for action in result["actions"]] == ["POST", "POST", "write"]
    assert not home.exists()


def test_packages_that_the_role_copies_are_not_there_yet_in_check_mode(
    tmp_path: Path, docker: FakeDocker
) -> None:
    given = params(write_model(tmp_path / "source"))
    copied_later = {**given, "packages": paths.PACKAGES}
    assert f"from {paths.PACKAGES}" in run(docker, copied_later, check=True)["actions"][0]
    for wanted, check in ((copied_later, False), ({**given, "packages": "/data/wheels"}, True)):
        with pytest.raises(NodeError, match=f"{wanted['packages']} is not a directory"):
            run(docker, wanted, check)


def test_facts_of_a_directory_and_of_a_snapshot_of_the_hub(tmp_path: Path, docker: FakeDocker) -> None:
    local = write_model(tmp_path / "local", code=1)
    tree = Tree(tmp_path / "gpus").build()
    given = {"source": str(local), "calibration": "", "image": IMAGE}
    found = facts.read_facts(DockerClient(docker.path), given, root=str(tree.root))
    source = found["source"]
    assert (source["repo"], source["files"], len(source["commit"])) == (str(local), 1, 40)
    assert source["card"] == {"license": "llama3.1", "base_model": "lab/base"}
    assert len(found["gpus"]) == 8
    (local / "tokenizer.json").write_text("{ }")
    assert facts.read_source(str(local))["commit"] != source["commit"]
    snapshot = write_model(tmp_path / "hub/models--lab--tiny/snapshots" / ("ab" * 20))
    known = facts.read_source(str(snapshot))
    assert (known["repo"], known["commit"]) == ("lab/tiny", "ab" * 20)
    assert [known[key] for key in ("bytes", "files", "card")] == [
        source[key] for key in ("bytes", "files", "card")
    ]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["config.json", "README.md", "model.safetensors", "LICENSE"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_snapshot_is_not_read_through_what_a_container_left(tmp_path: Path, name: str, kind: str) -> None:
    outside = outside_of(tmp_path)
    snapshot = write_model(tmp_path / "hub/models--lab--tiny/snapshots" / ("ab" * 20))
    (snapshot / name).unlink(missing_ok=True)
    if kind == "link":
        (snapshot / name).symlink_to(outside / "secret")
    else:
        os.mkfifo(snapshot / name)
    with pytest.raises(NodeError, match=f"{snapshot}/{name} is "):
        facts.read_source(str(snapshot))


def test_a_link_that_leads_nowhere_is_said(tmp_path: Path) -> None:
    local = write_model(tmp_path / "local", code=1)
    (local / "extra.bin").symlink_to("nowhere")
    with pytest.raises(NodeError, match=r"extra\.bin is a link that leads nowhere"):
        facts.read_source(str(local))
    (local / "extra.bin").unlink()
    (tmp_path / "real").write_text("x")
    (local / "extra.bin").symlink_to(tmp_path / "real")
    assert facts.read_source(str(local))["files"] == 1


def test_a_source_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="is not a directory"):
        facts.read_source(str(tmp_path / "gone"))
    with pytest.raises(NodeError, match=r"has no config\.json"):
        facts.read_source(str(tmp_path))
    with pytest.raises(NodeError, match="quantize_calibration_file"):
        facts.read_calibration(str(tmp_path / "gone"), check=True)
    copied_later = facts.read_calibration(f"{paths.CALIBRATION}/texts.jsonl", check=True)
    assert copied_later["inside"] == "texts.jsonl"


def with_texts(source: Path, path: Path) -> dict[str, Any]:
    """The parameters of a job that reads calibration data."""
    given = params(source)
    texts = facts.read_calibration(str(path))
    data = {**given["job"]["data"], "calibration": {"samples": 1, "length": 1}}
    return {**given, "job": {**given["job"], "calibration": texts, "data": data}}


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_texts_of_the_control_node_are_the_jobs_own_and_go_with_it(
    ends: str, tmp_path: Path, docker: FakeDocker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = home / "quantize/calibration/chats.jsonl"
    copied.parent.mkdir(parents=True)
    copied.write_text('{"text": "of a user"}')
    monkeypatch.setattr(paths, "CALIBRATION", str(copied.parent))
    given = with_texts(write_model(tmp_path / "source"), copied)
    seen: list[Path] = []

    def program(container: FakeContainer) -> int:
        if container.name == environment.CONTAINER:
            return 0
        copied.unlink()  # as the role does, also when its patience ended
        seen.append(place(container, f"{paths.CALIBRATION_MOUNT}/chats.jsonl"))
        assert seen[-1].read_text() == '{"text": "of a user"}'
        assert stat.S_IMODE(seen[-1].parent.parent.stat().st_mode) == 0o700
        job = json.loads((place(container, paths.JOB_MOUNT) / paths.JOB).read_text())
        assert job["calibration"]["path"] == f"{paths.CALIBRATION_MOUNT}/chats.jsonl"
        return quantizes(container) if ends == "well" else 1

    docker.programs["instinct-quantize-"] = program
    if ends == "well":
        run(docker, given)
    else:
        with pytest.raises(NodeError, match="failed with exit code 1"):
            run(docker, given)
    assert not seen[-1].exists()
    assert not [
        path for path in home.rglob("*") if path.is_file() and "of a user" in path.read_text(errors="replace")
    ]
    (log,) = (home / "logs").iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (log, log.parent)] == [0o600, 0o700]


def test_of_a_file_of_the_host_the_job_sees_no_neighbour(tmp_path: Path, docker: FakeDocker) -> None:
    texts = tmp_path / "root/texts.txt"
    texts.parent.mkdir()
    texts.write_text("a text")
    seen: list[str] = []

    def program(container: FakeContainer) -> int:
        if container.name != environment.CONTAINER:
            mounts = container.body["HostConfig"]["Mounts"]
            seen.extend(
                mount["Source"] for mount in mounts if mount["Target"].startswith(paths.CALIBRATION_MOUNT)
            )
        return quantizes(container)

    docker.programs["instinct-quantize-"] = program
    run(docker, with_texts(write_model(tmp_path / "source"), texts))
    assert seen == [str(texts)]
    assert texts.read_text() == "a text"
