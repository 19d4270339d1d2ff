# SPDX-License-Identifier: Apache-2.0
"""vllm_image: pull by digest, build from source, and what it says when it cannot."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MASK
from ansible_collections.instinct.fleet.plugins.module_utils.docker import build, client
from ansible_collections.instinct.fleet.plugins.module_utils.docker import inspect_image as ask_of_the_module
from ansible_collections.instinct.fleet.plugins.module_utils.docker.build import _buildkit, decisive
from ansible_collections.instinct.fleet.plugins.module_utils.docker.build_plan import build_plan
from ansible_collections.instinct.fleet.plugins.module_utils.docker.images import explain_pull, parse_pull
from ansible_collections.instinct.fleet.plugins.module_utils.docker.inspect_image import container_of
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.modules import vllm_image

from tests.helpers.eventually import GENEROUS, eventually
from tests.helpers.module_docs import documented_by
from tests.worlds.fake_docker import ANSWER, CUT, STALLED, FakeContainer, FakeDocker

DIGEST = "sha256:" + "a" * 64
PULL = f"registry.example:5000/rocm/vllm@{DIGEST}"
REF = "registry.example:5000/rocm/vllm:0.11"
CANARY = "canary-Zq81-secret"


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "data"))
    with FakeDocker(tmp_path) as fake:
        yield fake


PROGRAM = "the program"


def pull_args(docker: FakeDocker, **more: Any) -> dict[str, Any]:
    return {"pull": PULL, "ref": REF, "docker_socket": docker.path, "program": PROGRAM, **more}


def requested(actions: list[str]) -> list[str]:
    """The requests that change something, as the engine gets them for these actions."""
    found = [action.partition(" (probe")[0] for action in actions]
    for action in actions:
        if " (probe " in action:
            name = action.partition("name=")[2].partition(" ")[0]
            found += [f"POST /containers/{name}/start", f"DELETE /containers/{name}?v=true"]
    return found


def answers() -> dict[str, Any]:
    """What is kept of images' answers, by file name."""
    return {path.name: json.loads(path.read_text()) for path in Path(paths.DATA_DIR).glob("images/*")}


def test_pulls_tags_and_reads_back(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_image.main, pull_args(docker), diff=True)
    assert not failed
    assert result["changed"]
    assert result["digest"] == DIGEST
    assert result["image_id"] == docker.images[PULL]["Id"] == docker.images[REF]["Id"]
    assert result["actions"] == [
        f"POST /images/create?fromImage=registry.example:5000/rocm/vllm&tag={DIGEST}",
        f"POST /images/{PULL}/tag?repo=registry.example:5000/rocm/vllm&tag=0.11",
        f"POST /containers/create?name={container_of(PULL)} (probe {PULL})",
    ]
    assert docker.changes() == requested(result["actions"])
    assert result["software"] == ANSWER
    assert result["diff"]["before"] == {"pulled": False, "tag": None, "vllm": None}
    assert result["diff"]["after"]["tag"] == result["image_id"]
    assert result["diff"]["after"]["vllm"] == ANSWER["vllm"]


def test_second_run_changes_nothing_and_asks_no_registry(docker: FakeDocker, run_module: Any) -> None:
    run_module(vllm_image.main, pull_args(docker))
    done = len(docker.changes())
    result, failed = run_module(vllm_image.main, pull_args(docker), diff=True)
    assert not failed
    assert not result["changed"]
    assert result["actions"] == []
    assert result["diff"]["before"] == result["diff"]["after"]
    assert len(docker.changes()) == done


@pytest.mark.parametrize("present", [False, True])
def test_check_mode_predicts_the_same_actions_and_touches_nothing(
    docker: FakeDocker, run_module: Any, present: bool
) -> None:
    if present:  # pulled before, but the tag names another image
        docker.add_image(PULL)
        docker.add_image(REF)
    predicted, _ = run_module(vllm_image.main, pull_args(docker), check=True)
    assert docker.changes() == []
    real, _ = run_module(vllm_image.main, pull_args(docker))
    assert predicted["actions"] == real["actions"]
    assert docker.changes() == requested(real["actions"])
    assert predicted["changed"]
    assert predicted["software"] is None


def test_a_ref_with_a_digest_gets_no_tag(docker: FakeDocker, run_module: Any) -> None:
    result, _ = run_module(vllm_image.main, pull_args(docker, ref=PULL))
    assert not [action for action in result["actions"] if "/tag?" in action]
    assert run_module(vllm_image.main, pull_args(docker, ref=PULL))[0]["changed"] is False


def test_docker_hub_names_are_the_engines(docker: FakeDocker, run_module: Any) -> None:
    args = {
        "pull": f"docker.io/rocm/vllm@{DIGEST}",
        "ref": "docker.io/rocm/vllm:1",
        "docker_socket": docker.path,
        "program": PROGRAM,
    }
    assert run_module(vllm_image.main, args)[0]["actions"][0].endswith(f"fromImage=rocm/vllm&tag={DIGEST}")


def test_the_account_goes_into_the_header_only(docker: FakeDocker, run_module: Any) -> None:
    args = pull_args(docker, registry_username="puller", registry_password=CANARY)
    result, _ = run_module(vllm_image.main, args)
    sent = [h["X-Registry-Auth"] for h in docker.headers if "X-Registry-Auth" in h]
    assert json.loads(base64.urlsafe_b64decode(sent[0])) == {
        "username": "puller",
        "password": CANARY,
        "serveraddress": "registry.example:5000",
    }
    assert CANARY not in json.dumps(result)
    assert CANARY not in "".join(docker.requests)


def test_too_little_disk_is_said_before_the_pull(docker: FakeDocker, run_module: Any) -> None:
    for check in (True, False):
        result, failed = run_module(vllm_image.main, pull_args(docker, bytes=2**60), check=check)
        assert failed
        assert f"{docker.root_dir} has" in result["msg"]
        assert "needs 3145728.0 TiB" in result["msg"]
        assert "playbooks/prune.yml" in result["msg"]
    assert docker.changes() == []


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (CUT, "The Docker engine closed the connection during /images/create."),
        (STALLED, "POST /images/create made no progress for a long time."),
    ],
)
def test_a_pull_that_breaks_off_goes_on_in_the_next_run(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    docker.faults["POST /images/create"] = fault
    with monkeypatch.context() as patch:
        if fault == STALLED:  # with less patience than the module's
            patch.setattr(client, "socket", SimpleNamespace(**{**vars(socket), "socket": docker.hasty()}))
        result, failed = run_module(vllm_image.main, pull_args(docker))
    assert failed
    assert result["msg"] == (
        f"The pull of {PULL} was interrupted: {why} Complete layers are kept: run again to resume."
    )
    assert docker.images == {}
    docker.faults.clear()
    result, failed = run_module(vllm_image.main, pull_args(docker))
    assert (failed, docker.images[REF]["RepoDigests"]) == (False, [PULL])


def test_an_image_is_not_asked_without_the_action_plugin(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_image.main, pull_args(docker, program=""))
    assert failed
    assert "called without its action plugin" in result["msg"]
    assert docker.changes() == []


def test_a_digest_that_is_not_what_came_is_refused(docker: FakeDocker, run_module: Any) -> None:
    docker.pulled = {"RepoDigests": ["registry.example:5000/rocm/vllm@sha256:" + "b" * 64]}
    result, failed = run_module(vllm_image.main, pull_args(docker))
    assert failed
    assert "lists it with digest sha256:bbb" in result["msg"]


REGISTRY_ERRORS = [
    ("manifest for x@sha256:aa not found: manifest unknown: manifest unknown", "no such image or digest"),
    (
        "pull access denied for rocm/vllm, repository does not exist or may require 'docker login': denied",
        "requires a login, or has no such repository",
    ),
    ('Head "https://r/v2/x/manifests/1": no basic auth credentials', "requires a login"),
    ("unauthorized: incorrect username or password", "requires a login"),
    ('Get "https://r:5000/v2/": http: server gave HTTP response to HTTPS client', '"insecure-registries"'),
    (
        'Get "https://r:5000/v2/": tls: first record does not look like a TLS handshake',
        '"insecure-registries"',
    ),
    ('Get "https://r/v2/": x509: certificate signed by unknown authority', "/etc/docker/certs.d/"),
    ('Get "https://r/v2/": dial tcp: lookup r on 1.1.1.1:53: no such host', "cannot be reached"),
    ('Get "https://r/v2/": dial tcp 10.0.0.1:443: connect: connection refused', "cannot be reached"),
    ('Get "https://r/v2/": context deadline exceeded (Client.Timeout exceeded)', "cannot be reached"),
    ("toomanyrequests: You have reached your pull rate limit.", "limits the number of pulls"),
    (
        "write /var/lib/docker/tmp/GetImageBlob1: no space left on device",
        "disk of Docker's directory is full",
    ),
    ("no matching manifest for linux/arm64/v8 in the manifest list entries", "this node's architecture"),
]


@pytest.mark.parametrize(("message", "plain"), REGISTRY_ERRORS)
def test_registry_errors_in_plain_words(
    message: str, plain: str, docker: FakeDocker, run_module: Any
) -> None:
    docker.pull_events = [{"status": "Pulling"}, {"error": message, "errorDetail": {"message": message}}]
    result, failed = run_module(vllm_image.main, pull_args(docker))
    assert failed
    assert plain in result["msg"]
    assert message in result["msg"]
    assert "registry.example:5000" in result["msg"]


def test_a_refused_account_is_named(docker: FakeDocker) -> None:
    want = parse_pull(PULL, REF, None, "puller", "long-enough")
    assert "does not accept the account 'puller'" in explain_pull(
        "unauthorized: authentication required", want
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"pull": "rocm/vllm:latest"}, "does not end in @sha256"),
        ({"pull": PULL, "registry_username": "me"}, "belong together"),
        ({"pull": PULL, "registry_username": "me", "registry_password": "short"}, "fewer than 8 characters"),
        ({}, "one of the following is required: pull, build"),
        ({"pull": PULL, "build": {"repo": "r", "ref": "x"}}, "mutually exclusive"),
        ({"build": {"repo": "https://u:pw@h/r.git", "ref": "x"}}, "holds an account"),
        ({"build": {"repo": "r"}}, "missing required arguments: ref"),
    ],
)
def test_bad_input_is_refused_before_anything(
    args: dict[str, Any], words: str, docker: FakeDocker, run_module: Any
) -> None:
    result, failed = run_module(vllm_image.main, {**args, "docker_socket": docker.path, "program": PROGRAM})
    assert failed
    assert words in result["msg"]
    assert docker.changes() == []


def test_no_engine(docker: FakeDocker, run_module: Any) -> None:
    args = pull_args(docker, docker_socket=f"{docker.path}.not")
    result, failed = run_module(vllm_image.main, args)
    assert failed
    assert "no Docker engine is installed" in result["msg"]
    # The engine is installed by the run that check mode predicts.
    predicted, failed = run_module(vllm_image.main, args, check=True, diff=True)
    assert not failed
    real, _ = run_module(vllm_image.main, pull_args(docker))
    assert predicted["actions"] == real["actions"]
    built, failed = run_module(
        vllm_image.main,
        {"build": BUILD, "docker_socket": args["docker_socket"], "program": PROGRAM},
        check=True,
    )
    assert not failed
    assert built["actions"][0].startswith("git clone ")


# ---- asking --------------------------------------------------------------------------------------


def test_an_image_is_asked_once(docker: FakeDocker, run_module: Any) -> None:
    """Also one that is there already; its answer is for every user of the node."""
    image = docker.add_image(PULL, REF)
    result, _ = run_module(vllm_image.main, pull_args(docker))
    assert (result["changed"], result["software"]) == (True, ANSWER)
    assert answers() == {f"{image['Id'][7:]}.json": ANSWER}
    path = next(Path(paths.DATA_DIR).glob("images/*"))
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    again, _ = run_module(vllm_image.main, pull_args(docker))
    assert (again["changed"], again["actions"], again["software"]) == (False, [], ANSWER)

    path.write_text("{")  # an answer that cannot be read counts as none
    assert run_module(vllm_image.main, pull_args(docker))[0]["software"] == ANSWER
    assert answers() == {f"{image['Id'][7:]}.json": ANSWER}


def test_the_container_that_asks_can_do_nothing_else(docker: FakeDocker, run_module: Any) -> None:
    image = docker.add_image(PULL, REF)
    bodies: list[dict[str, Any]] = []

    def program(container: FakeContainer) -> int:
        bodies.append(container.body)
        return 0

    docker.programs = {"instinct-ask-": program}
    run_module(vllm_image.main, pull_args(docker))
    host = bodies[0]["HostConfig"]
    assert bodies[0]["Entrypoint"][-1] == PROGRAM
    assert bodies[0]["Image"] == image["Id"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert not {"Mounts", "Binds", "Devices", "DeviceRequests", "Privileged"} & set(host)
    assert docker.containers == {}


@pytest.mark.parametrize(
    ("code", "log", "software"),
    [
        # No Python in the image: vLLM's command has answered.
        (
            0,
            "INFO 01-01 [__init__.py:241] x\n0.10.1.dev5+gabc.rocm641\n",
            ("0.10.1.dev5+gabc.rocm641", "rocm"),
        ),
        (127, "/bin/sh: 12: exec: vllm: not found\n", ("", "")),
        (1, "Traceback (most recent call last):\nSyntaxError: invalid syntax\n", ("", "")),
    ],
)
def test_answers_that_are_no_json(
    code: int, log: str, software: tuple[str, str], docker: FakeDocker, run_module: Any
) -> None:
    def program(container: FakeContainer) -> int:
        container.log = log
        return code

    docker.programs = {"instinct-ask-": program}
    result, failed = run_module(vllm_image.main, pull_args(docker))
    assert not failed
    assert (result["software"]["vllm"], result["software"]["platform"]) == software
    warned = "\n".join(map(str, result.get("warnings", [])))
    assert ("vllm_version" in warned) == (software[0] == "")
    # It is not asked again: the operator's word is needed now.
    assert run_module(vllm_image.main, pull_args(docker))[0]["changed"] is False


def killed(container: FakeContainer) -> int:
    return 137


def slow(container: FakeContainer) -> int:
    container.stopping.wait(GENEROUS)
    return 137


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda d: d.programs.update({"instinct-ask-": killed}), "was killed (exit code 137)"),
        (lambda d: d.programs.update({"instinct-ask-": slow}), "did not finish within 1 s"),
        (
            lambda d: d.errors.update({"POST /containers/create": (500, "boom")}),
            "cannot be probed: boom",
        ),
        (
            lambda d: d.errors.update({"POST /containers/create": (404, "No such image")}),
            "was removed in the meantime",
        ),
    ],
)
def test_an_image_that_cannot_be_asked_is_asked_again(
    break_it: Any, words: str, docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_of_the_module, "TIMEOUT", 1.0 if "within 1 s" in words else GENEROUS)
    programs = dict(docker.programs)
    break_it(docker)
    result, failed = run_module(vllm_image.main, pull_args(docker))
    assert failed
    assert words in result["msg"]
    assert result["changed"]
    assert answers() == {}
    assert docker.containers == {}
    docker.errors, docker.programs = {}, programs
    monkeypatch.setattr(ask_of_the_module, "TIMEOUT", GENEROUS)
    result, failed = run_module(vllm_image.main, pull_args(docker))
    assert (failed, result["software"]) == (False, ANSWER)


def test_what_a_killed_run_left_is_removed(docker: FakeDocker, run_module: Any) -> None:
    docker.add_image(PULL, REF)
    docker.programs["instinct-ask-"] = slow
    docker.add_container(container_of(PULL), {"Image": PULL})
    docker.programs.update(FakeDocker.PROGRAMS)
    result, failed = run_module(vllm_image.main, pull_args(docker))
    assert (failed, result["software"]) == (False, ANSWER)
    assert docker.containers == {}


# ---- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d: d.pull_events.append({"error": "x", "errorDetail": {"message": f"denied for {CANARY}"}}),
        lambda d: d.errors.update({"POST /images/create": (500, f"boom {CANARY}")}),
        lambda d: d.errors.update({"GET /images": (500, f"boom {CANARY}")}),
        lambda d: d.errors.update({"POST /images/registry": (500, f"boom {CANARY}")}),
        lambda d: setattr(d, "pulled", {"RepoDigests": [f"x@{CANARY}"]}),
        lambda d: setattr(d, "pulled", {"RepoDigests": {"broken": CANARY}, "Id": None}),
    ],
)
def test_the_password_is_in_no_message(
    break_it: Any, docker: FakeDocker, run_module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it(docker)
    args = pull_args(docker, registry_username="puller", registry_password=CANARY)
    result, failed = run_module(vllm_image.main, args)
    assert failed
    assert MASK in json.dumps(result)  # it was in the message
    assert CANARY not in json.dumps(result)
    assert "exception" not in result
    assert CANARY not in capsys.readouterr().err


# ---- build ---------------------------------------------------------------------------------------

BUILD = {
    "repo": "https://git.example/vllm.git",
    "ref": "v1",
    "args": {"USE_CYTHON": 1},
    "tag": "local/vllm:v1",
}


def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> Path:
    """A PATH with only these commands; returns the file in which they write how they were called."""
    directory = tmp_path / "bin"
    directory.mkdir()
    called = tmp_path / "called"
    for name, script in scripts.items():
        path = directory / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {called}\n{script}\n')
        path.chmod(0o755)
    for name in ("sh", "mkdir", "touch", "echo", "sleep", "setpriv"):
        (directory / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(directory))
    return called


GIT = """
case "$1" in
  clone) mkdir -p "$4/docker" && touch "$4/docker/Dockerfile.rocm" ;;
  -C) case "$3 $7" in
        rev-parse*origin*) exit 1 ;;
        rev-parse*) echo 0123456789012345678901234567890123456789 ;;
      esac ;;
esac
"""


def test_builds_with_the_documents_commands(
    docker: FakeDocker, run_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tools(tmp_path, monkeypatch, git=GIT, docker='echo "buildkit=$DOCKER_BUILDKIT"')
    args = {"build": BUILD, "program": PROGRAM, "docker_socket": docker.path}
    predicted, _ = run_module(vllm_image.main, args, check=True)
    assert not called.exists()
    plan = build_plan(BUILD, None)

    original = docker._get_images

    def images(http: Any, path: str, query: Any, body: Any) -> None:
        if called.exists() and "docker build " in called.read_text() and "local/vllm:v1" not in docker.images:
            docker.add_image("local/vllm:v1", Config={"Labels": {"instinct-fleet.build": plan.hash}})
        original(http, path, query, body)

    monkeypatch.setattr(docker, "_get_images", images)
    result, failed = run_module(vllm_image.main, args)
    assert not failed
    assert result["changed"]
    assert result["commit"] == "0123456789012345678901234567890123456789"
    assert result["actions"] == predicted["actions"]
    source = f"{paths.DATA_DIR}/build/{plan.hash[:12]}"
    lines = called.read_text().splitlines()
    assert lines[0] == f"git clone --quiet https://git.example/vllm.git {source}"
    assert lines[-1] == (
        f"docker build -f {source}.Dockerfile -t local/vllm:v1 --label "
        f"instinct-fleet.build={plan.hash} "
        f"--label instinct-fleet.build.commit={result['commit']} "
        f"--label instinct-fleet.build.inputs={result['inputs']} "
        f"--label instinct-fleet.build.bases={{}} --build-arg USE_CYTHON=1 {source}"
    )
    assert not os.path.exists(source)
    again, _ = run_module(vllm_image.main, args)
    assert again["changed"] is False
    assert again["image_id"] == result["image_id"]


@pytest.mark.parametrize(
    ("buildx", "version", "used"),
    [(0, "27.5.1", "1"), (1, "20.10.24", "1"), (1, "27.5.1", "0"), (1, "18.09.1", "0")],
)
def test_buildkit_is_used_where_the_client_has_it(
    buildx: int, version: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'case "$1" in buildx) exit {buildx};; --version) echo "Docker version {version}, build 297e128";; esac'
    tools(tmp_path, monkeypatch, docker=script)
    assert _buildkit() == used


def test_an_image_built_before_only_gets_its_tag(docker: FakeDocker, run_module: Any) -> None:
    plan = build_plan(BUILD, None)
    image = docker.add_image("other:tag", Config={"Labels": {"instinct-fleet.build": plan.hash}})
    result, _ = run_module(
        vllm_image.main, {"build": BUILD, "program": PROGRAM, "docker_socket": docker.path}
    )
    assert result["actions"][0] == f"POST /images/{image['Id']}/tag?repo=local/vllm&tag=v1"
    assert docker.changes() == requested(result["actions"])
    assert result["image_id"] == image["Id"]


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        ({"docker": ""}, "needs the command git"),
        ({"git": GIT}, "needs the command docker"),
        (
            {"git": "echo 'fatal: repository not found' >&2; exit 128", "docker": ""},
            "fatal: repository not found",
        ),
        (
            {"git": 'case "$1" in clone) mkdir -p "$4";; *) exit 1;; esac', "docker": ""},
            "no branch, tag or commit 'v1'",
        ),
        (
            {"git": GIT.replace("touch", "echo"), "docker": ""},
            "has no file docker/Dockerfile.rocm",
        ),
        (
            {"git": GIT, "docker": 'case "$1" in build) echo "ERROR: no pip"; echo done; exit 1;; esac'},
            "(exit code 1): ERROR: no pip",
        ),
        ({"git": GIT, "docker": 'case "$1" in build) sleep 20;; esac'}, "did not finish within 1 s"),
        (
            {
                "git": GIT,
                "docker": """case "$1" in build) trap '' TERM; while :; do sleep 600; done;; esac""",
            },
            "did not finish within 1 s",
        ),
        (
            {
                "git": GIT,
                "docker": 'case "$1" in buildx) exit 1;; --version) echo "Docker version 27.5.1, build x";;'
                ' build) echo "the --mount option requires BuildKit, not $DOCKER_BUILDKIT"; exit 1;; esac',
            },
            "requires BuildKit, not 0 It was built without BuildKit, which vLLM's Dockerfiles need: install ",
        ),
    ],
)
def test_a_build_that_fails_says_why(
    scripts: dict[str, str],
    words: str,
    docker: FakeDocker,
    run_module: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools(tmp_path, monkeypatch, **scripts)
    given = {"build": BUILD, "program": PROGRAM, "docker_socket": docker.path}
    limit = 1 if "within 1 s" in words else 60
    result, failed = run_module(vllm_image.main, {**given, "timeout": limit})
    assert failed
    assert words in result["msg"]
    assert not list(Path(paths.DATA_DIR).glob("build/*"))


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        ({"git": GIT.replace("exit 1", "exec sleep 600")}, "rev-parse --verify"),
        ({"docker": 'case "$1" in buildx) exec sleep 600;; esac'}, "docker buildx version"),
        ({"docker": 'case "$1" in buildx) exit 1;; --version) exec sleep 600;; esac'}, "docker --version"),
        (
            {
                "git": GIT.replace('touch "', 'echo FROM a:1 > "'),
                "docker": 'case "$1" in image) exec sleep 600;; esac',
            },
            "docker image inspect",
        ),
    ],
)
def test_a_build_does_not_wait_for_what_does_not_answer(
    scripts: dict[str, str],
    words: str,
    docker: FakeDocker,
    run_module: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "_QUICK_SECONDS", 1)
    tools(tmp_path, monkeypatch, **{"git": GIT, "docker": "", **scripts})
    result, failed = run_module(
        vllm_image.main, {"build": BUILD, "program": PROGRAM, "docker_socket": docker.path}
    )
    assert failed
    assert words in result["msg"]
    assert "gave no answer within 1 s, and was killed" in result["msg"]


@pytest.mark.parametrize("name", ["Dockerfile.rocm", "Dockerfile.rocm.dockerignore"])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_repository_s_link_to_a_file_of_the_node_is_not_followed(
    name: str,
    kind: str,
    docker: FakeDocker,
    run_module: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / name).write_text("root:$6$secret")
    (tmp_path / "host" / "Dockerfile.rocm").touch()
    place = '"$4/docker"' if kind == "directory" else f'"$4/docker/{name}"'
    target = tmp_path / "host" if kind == "directory" else tmp_path / "host" / name
    git = GIT.replace(
        '&& touch "$4/docker/Dockerfile.rocm"',
        f'&& touch "$4/docker/Dockerfile.rocm" && {sys.executable} -c "'
        "import os, shutil, sys; p = sys.argv[1]; "
        "shutil.rmtree(p) if os.path.isdir(p) else os.path.exists(p) and os.unlink(p); "
        f"os.symlink('{target}', p)\" {place}",
    )
    called = tools(tmp_path, monkeypatch, git=git, docker="")
    result, failed = run_module(
        vllm_image.main, {"build": BUILD, "program": PROGRAM, "docker_socket": docker.path}
    )
    assert failed
    assert "of https://git.example/vllm.git at v1 leads out of the repository" in result["msg"]
    assert "$6$secret" not in json.dumps(result)
    assert "docker build " not in called.read_text()


def test_a_link_within_the_repository_is_its_own_affair(
    docker: FakeDocker, run_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = GIT.replace(
        '&& touch "$4/docker/Dockerfile.rocm"',
        f'&& touch "$4/Real" && {sys.executable} -c "'
        'import os, sys; os.symlink(\'../Real\', sys.argv[1])" "$4/docker/Dockerfile.rocm"',
    )
    called = tools(tmp_path, monkeypatch, git=git, docker="")
    run_module(vllm_image.main, {"build": BUILD, "program": PROGRAM, "docker_socket": docker.path})
    assert "docker build " in called.read_text()


def test_the_hash_covers_every_input() -> None:
    hashes = {
        build_plan({**BUILD, **change}, None).hash
        for change in ({}, {"repo": "x"}, {"ref": "v2"}, {"dockerfile": "D"}, {"args": {"USE_CYTHON": "2"}})
    }
    assert len(hashes) == 5
    assert build_plan({**BUILD, "tag": "other:1"}, None).hash == build_plan(BUILD, None).hash


def test_the_tag_is_the_builds_else_the_ref_else_made_up() -> None:
    bare = {"repo": "r", "ref": "x"}
    assert build_plan({**bare, "tag": "a:1"}, "b:1").tag == "a:1"
    assert build_plan(bare, "b:1").tag == "b:1"
    made = build_plan(bare, None)
    assert made.tag == f"instinct-fleet/vllm:{made.hash[:12]}"


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([], "it printed nothing"),
        (["Step 1", "ok"], "ok"),
        (
            ["#7 1.2 ImportError: no x", "#7 ERROR: executor failed running [y]: exit code: 1"],
            "#7 1.2 ImportError",
        ),
        (
            ["#9 ERROR: gcc missing", "ERROR: process did not complete successfully: exit 1"],
            "#9 ERROR: gcc missing",
        ),
        (
            ["The command '/bin/sh -c false' returned a non-zero code: 1 error"],
            "The command '/bin/sh -c false'",
        ),
    ],
)
def test_decisive_line_of_a_build(lines: list[str], line: str) -> None:
    assert decisive(lines).startswith(line)


def test_a_password_in_the_repository_is_refused_without_saying_it() -> None:
    with pytest.raises(NodeError) as refused:
        build_plan({"repo": f"https://me:{CANARY}@h/r.git", "ref": "x"}, None)
    assert CANARY not in str(refused.value)


# ---- documentation -------------------------------------------------------------------------------


def test_documentation_is_the_argument_spec() -> None:
    documented = documented_by(vllm_image)
    spec = vllm_image.argument_spec()
    assert set(documented["options"]) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required"):
            assert documented["options"][name].get(key) == option.get(key), (name, key)


def test_what_a_build_runs_ends_with_it(tmp_path: Path) -> None:
    """Also when the module is killed: a build that goes on would give its image the tag after the next run's."""
    mark = tmp_path / "pid"
    code = (
        "from ansible_collections.instinct.fleet.plugins.module_utils.docker.build import _run\n"
        f"_run(['sh', '-c', 'echo $$ > {mark}; exec sleep 600'], 600, 'sleep')\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=env) as module:
        eventually("the command", lambda: mark.exists() and mark.read_text(encoding="utf-8").strip() != "")
        child = int(mark.read_text(encoding="utf-8"))
        module.kill()
    eventually("its end", lambda: not _runs(child))


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
