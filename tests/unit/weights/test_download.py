# SPDX-License-Identifier: Apache-2.0
"""hf_model: a download container, resumed, verified, marked; and what it says when it cannot."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import files as files_on_node
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MASK
from ansible_collections.instinct.fleet.plugins.module_utils.observe.storage import read_model
from ansible_collections.instinct.fleet.plugins.module_utils.weights import download as fetch_on_node
from ansible_collections.instinct.fleet.plugins.modules import hf_model
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script

from tests.helpers.eventually import GENEROUS, eventually
from tests.helpers.module_docs import documented_by
from tests.worlds.fake_docker import FakeContainer, FakeDocker, Program
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
    mounts_of,
    put,
)

__all__ = ["args", "docker"]  # fixtures


def test_fetches_verifies_and_marks(docker: FakeDocker, args: dict[str, Any], run_module: Any) -> None:
    result, failed = run_module(hf_model.main, args, diff=True)
    assert not failed, result
    assert result["changed"]
    assert result["bytes"] == 2041
    repo = Path(args["cache_dir"]) / "hub/models--lab--tiny-llama"
    assert result["snapshot"] == str(repo / "snapshots" / COMMIT)
    assert json.loads((repo / ".instinct-fleet" / f"{COMMIT}.json").read_text()) == {
        "repo": "lab/tiny-llama",
        "commit": COMMIT,
        "revision": "main",
        "files": FILES,
        "include": [],
        "exclude": ["original/*"],
        "bytes": 2041,
        "verified": {name: f"sha256:{sha256(b'x' * size).hexdigest()}" for name, size in FILES.items()},
    }
    assert (repo / "refs/main").read_text() == COMMIT
    assert (repo / "blobs/config.json").stat().st_mode & 0o777 == 0o644
    assert docker.containers == {}
    assert result["diff"]["before"] == {"files": 0, "marked": False}
    assert result["diff"]["after"] == {"files": 3, "marked": True}
    assert not os.path.exists(fetch_on_node.SECRETS_DIR)


def test_node_state_takes_the_marker_for_complete(args: dict[str, Any], run_module: Any) -> None:
    run_module(hf_model.main, args)
    marker = f"{args['cache_dir']}/hub/models--lab--tiny-llama/.instinct-fleet/{COMMIT}.json"
    seen = read_model(marker, args["cache_dir"])
    assert (seen["repo"], seen["commit"], seen["complete"]) == ("lab/tiny-llama", COMMIT, True)


def test_the_container_has_the_network_the_cache_and_nothing_else(
    docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    seen: list[FakeContainer] = []

    def program(container: FakeContainer) -> int:
        seen.append(container)
        return download()(container)

    docker.programs["instinct-fetch-"] = program
    run_module(hf_model.main, {**args, "endpoint": "http://mirror.example/", "max_workers": 3})
    body = seen[0].body
    host = body["HostConfig"]
    assert body["Image"] == IMAGE
    assert mounts_of(seen[0]) == {"/hf": args["cache_dir"]}
    assert host["NetworkMode"] == "host"
    assert host["CapDrop"] == ["ALL"]
    assert not {"Devices", "DeviceRequests", "Privileged", "RestartPolicy"} & set(host)
    assert "HF_ENDPOINT=http://mirror.example" in body["Env"]
    assert config_of(seen[0]) == {
        "repo": "lab/tiny-llama",
        "commit": COMMIT,
        "cache_dir": "/hf/hub",
        "include": [],
        "exclude": ["original/*"],
        "max_workers": 3,
        "bandwidth": 0,
        "token_file": "",
        "proxy_file": "",
    }
    assert body["Entrypoint"][2] == script("download")


@pytest.mark.parametrize(
    ("endpoint", "bandwidth", "off"),
    [
        ("", 0, False),
        ("https://huggingface.co", 0, False),
        ("https://eu.huggingface.co/", 0, False),
        ("https://huggingface.co.example", 0, True),
        ("https://hf-mirror.example/hub", 0, True),
        ("http://10.0.0.5:8080", 0, True),
        ("", 1_000_000, True),
    ],
)
def test_xet_is_off_with_a_mirror_or_a_limit(
    docker: FakeDocker, args: dict[str, Any], run_module: Any, endpoint: str, bandwidth: int, off: bool
) -> None:
    seen: list[FakeContainer] = []

    def program(container: FakeContainer) -> int:
        seen.append(container)
        return download()(container)

    docker.programs["instinct-fetch-"] = program
    run_module(hf_model.main, {**args, "endpoint": endpoint, "bandwidth": bandwidth})
    assert ("HF_HUB_DISABLE_XET=1" in seen[0].body["Env"]) is off
    assert config_of(seen[0])["bandwidth"] == bandwidth


def test_nothing_is_downloaded_without_the_action_plugin(
    docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    result, failed = run_module(hf_model.main, {**args, "program": ""})
    assert failed
    assert "called without its action plugin" in result["msg"]
    assert docker.changes() == []


def test_second_run_changes_nothing_and_needs_no_hub(
    docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    run_module(hf_model.main, args)
    done = docker.changes()
    result, failed = run_module(hf_model.main, args, diff=True)
    assert not failed
    assert (result["changed"], result["actions"]) == (False, [])
    assert result["diff"]["before"] == result["diff"]["after"]
    assert docker.changes() == done


def prepare_nothing(_args: dict[str, Any], _docker: FakeDocker) -> None: ...


def prepare_cut_off_file(args: dict[str, Any], _docker: FakeDocker) -> None:
    for name, size in FILES.items():
        put(args["cache_dir"], name, size - (7 if "model" in name else 0))


def prepare_no_marker(args: dict[str, Any], _docker: FakeDocker) -> None:
    for name, size in FILES.items():
        put(args["cache_dir"], name, size)


def prepare_ended_container(args: dict[str, Any], docker: FakeDocker) -> None:
    prepare_no_marker(args, docker)
    docker.add_container(container_name(args), {"Image": IMAGE}, "exited")


def container_name(args: dict[str, Any]) -> str:
    return fetch_on_node.fetch_of({**defaults(), **args}).container


def defaults() -> dict[str, Any]:
    return {name: option.get("default") for name, option in hf_model.argument_spec().items()}


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (prepare_nothing, ["POST create", "POST start", "write ref", "verify", "write marker"]),
        (
            prepare_cut_off_file,
            ["remove", "POST create", "POST start", "write ref", "verify", "write marker"],
        ),
        (prepare_no_marker, ["write ref", "verify", "write marker"]),
        (prepare_ended_container, ["DELETE", "write ref", "verify", "write marker"]),
    ],
)
def test_check_mode_predicts_the_same_actions_and_touches_nothing(
    prepare: Callable[[dict[str, Any], FakeDocker], None],
    expected: list[str],
    docker: FakeDocker,
    args: dict[str, Any],
    run_module: Any,
) -> None:
    prepare(args, docker)
    predicted, failed = run_module(hf_model.main, args, check=True)
    assert not failed
    assert docker.changes() == []
    real, failed = run_module(hf_model.main, args)
    assert not failed, real
    assert predicted["actions"] == real["actions"]
    assert predicted["changed"] is real["changed"] is True
    assert docker.containers == {}
    words = {"refs/": "write ref", ".json": "write marker", "/create": "POST create", "/start": "POST start"}
    short = []
    for action in real["actions"]:
        verb = action.split()[0]
        named = [word for end, word in words.items() if word.startswith(verb) and end in action]
        short.append(named[0] if named else verb)
    assert short == expected
    assert run_module(hf_model.main, args)[0]["changed"] is False


def test_check_mode_without_an_engine_predicts_what_a_bare_one_gets(
    docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    bare, _ = run_module(hf_model.main, args, check=True)
    socket = f"{docker.path}.not"
    none, failed = run_module(hf_model.main, {**args, "docker_socket": socket}, check=True)
    assert not failed
    assert none["actions"] == bare["actions"]
    assert run_module(hf_model.main, {**args, "docker_socket": socket})[1]


def test_a_cut_off_file_is_fetched_anew(args: dict[str, Any], docker: FakeDocker, run_module: Any) -> None:
    prepare_cut_off_file(args, docker)
    run_module(hf_model.main, args)
    blob = Path(args["cache_dir"]) / "hub/models--lab--tiny-llama/blobs/model-00001-of-00002.safetensors"
    assert blob.stat().st_size == 2000


def test_waits_for_a_download_that_an_earlier_run_started(
    docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    go_on = threading.Event()

    def program(container: FakeContainer) -> int:
        assert go_on.wait(GENEROUS)
        return download()(container)

    docker.programs["instinct-fetch-"] = program
    first, failed = run_module(hf_model.main, {**args, "timeout": 0})
    assert failed
    assert "It continues in container instinct-fetch-" in first["msg"]
    predicted, _ = run_module(hf_model.main, args, check=True)
    before = len(docker.requests)

    def let_it_go_on() -> None:
        """It is over once the second run waits for it, and not before."""
        eventually("the second run", lambda: any("/wait" in text for text in docker.requests[before:]))
        go_on.set()

    threading.Thread(target=let_it_go_on, daemon=True).start()
    second, failed = run_module(hf_model.main, args)
    assert not failed, second
    assert second["actions"] == predicted["actions"]
    assert second["actions"][0].startswith("wait for container instinct-fetch-")
    assert sum("/containers/create" in request for request in docker.requests) == 1


def test_a_running_download_of_other_files_is_replaced(
    docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    docker.programs["instinct-fetch-"] = download(seconds=GENEROUS)
    run_module(hf_model.main, {**args, "exclude": ["else/*"], "timeout": 0})
    docker.programs["instinct-fetch-"] = download()
    result, failed = run_module(hf_model.main, args)
    assert not failed, result
    assert result["actions"][0].startswith("DELETE /containers/instinct-fetch-")


def test_a_container_removed_meanwhile(docker: FakeDocker, args: dict[str, Any], run_module: Any) -> None:
    docker.errors[f"POST /containers/{container_name(args)}/wait"] = (404, "no such container")
    result, failed = run_module(hf_model.main, args)
    assert failed
    assert "was removed while it downloaded" in result["msg"]


def test_too_little_disk_is_said_before(args: dict[str, Any], docker: FakeDocker, run_module: Any) -> None:
    for check in (True, False):
        result, failed = run_module(hf_model.main, {**args, "files": {"m.safetensors": 2**60}}, check=check)
        assert failed
        assert f"Not enough disk for lab/tiny-llama: {args['cache_dir']} has" in result["msg"]
        assert "hf_model_cache_dir" in result["msg"]
    assert docker.changes() == []


def test_partial_files_count_as_there(
    args: dict[str, Any], docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = Path(args["cache_dir"]) / "hub/models--lab--tiny-llama/blobs"
    blobs.mkdir(parents=True)
    (blobs / "1.incomplete").write_bytes(b"x" * 1500)
    monkeypatch.setattr(fetch_on_node, "free_bytes", lambda _path: fetch_on_node.DISK_MARGIN + 600)
    assert run_module(hf_model.main, args)[1] is False
    monkeypatch.setattr(fetch_on_node, "free_bytes", lambda _path: fetch_on_node.DISK_MARGIN + 400)
    (blobs / "1.incomplete").write_bytes(b"x" * 1500)
    for name in FILES:
        (blobs.parent / "snapshots" / COMMIT / name).unlink()
    assert "Not enough disk" in run_module(hf_model.main, args)[0]["msg"]


def test_what_a_killed_download_left_is_removed_unless_another_one_runs(
    args: dict[str, Any], docker: FakeDocker, run_module: Any
) -> None:
    blobs = Path(args["cache_dir"]) / "hub/models--lab--tiny-llama/blobs"
    blobs.mkdir(parents=True)
    (blobs / "1.0123abcd.incomplete").write_bytes(b"x" * 1500)
    (blobs / "2.incomplete").write_bytes(b"x" * 1500)
    other = docker.add_container("other", {"Image": IMAGE, "Labels": {"instinct-fleet.fetch": "x"}})
    assert "incomplete" not in json.dumps(run_module(hf_model.main, args, check=True)[0]["actions"])
    other.stopping.set()
    assert other.ended.wait(GENEROUS)
    predicted, _ = run_module(hf_model.main, args, check=True)
    result, failed = run_module(hf_model.main, args)
    assert not failed
    assert predicted["actions"] == result["actions"]
    assert (
        result["actions"][0]
        == f"remove {blobs}/1.0123abcd.incomplete (1.5 KiB that no download continues from)"
    )
    assert not (blobs / "1.0123abcd.incomplete").exists()
    assert (blobs / "2.incomplete").exists()


@pytest.mark.parametrize("got", [{}, {**FILES, "config.json": 10}])
def test_a_download_that_did_not_bring_everything_is_no_success(
    got: dict[str, int], docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    docker.programs["instinct-fetch-"] = download(got)
    result, failed = run_module(hf_model.main, args)
    assert failed
    assert "files are not as the hub listed them: config.json" in result["msg"]
    assert not Path(args["cache_dir"], "hub/models--lab--tiny-llama/.instinct-fleet").exists()


# ---- what the hub says ---------------------------------------------------------------------------

GATED = {"types": ["GatedRepoError", "RepositoryNotFoundError", "HfHubHTTPError"], "status": 403}
NO_REPO = {"types": ["RepositoryNotFoundError", "HfHubHTTPError"], "status": 404}
LOCAL = {"types": ["LocalEntryNotFoundError", "EntryNotFoundError", "FileNotFoundError"]}
HUB_ERRORS = [
    (
        None,
        [GATED],
        "gated, and no token was given. Accept its terms at https://huggingface.co/lab/tiny-llama",
    ),
    (CANARY, [GATED], "the account of this token has no access"),
    (None, [LOCAL, {**GATED, "status": 401}], "gated, and no token was given"),
    (None, [{"types": ["RevisionNotFoundError"], "status": 404}], f"it has no commit {COMMIT}"),
    (None, [NO_REPO], "has no such model, or it is private"),
    (CANARY, [NO_REPO], "the token's account may not see it"),
    (CANARY, [{**NO_REPO, "status": 401}], "does not accept the token"),
    (CANARY, [{"types": ["HfHubHTTPError"], "status": 401}], "does not accept the token"),
    (CANARY, [{"types": ["HfHubHTTPError"], "status": 403}], "has no right to read"),
    (None, [{"types": ["HfHubHTTPError"], "status": 429}], "limits the number of requests"),
    (
        None,
        [{"types": ["HfHubHTTPError"], "status": 503}],
        "answers, but keeps failing (HTTP 503)",
    ),
    *(
        (
            None,
            [LOCAL, {"types": [kind, "NetworkError"], "text": said}],
            "answers, but its answers keep ending before",
        )
        for kind, said in (
            (
                "RemoteProtocolError",
                "peer closed connection without sending complete message body (received 1 bytes)",
            ),
            (
                "ChunkedEncodingError",
                "('Connection broken: IncompleteRead(1048576 bytes read, 9 more expected)')",
            ),
            (
                "OSError",
                "Consistency check failed: file should be of size 9 but has size 1 (model.safetensors).",
            ),
        )
    ),
    (None, [{"types": ["ConnectionError", "RequestException"]}], "cannot be reached from this node"),
    (None, [{"types": ["ConnectError", "NetworkError"]}], "cannot be reached from this node"),
    (None, [LOCAL], "cannot be reached from this node"),
    (None, [{"types": ["SSLError", "ConnectionError"]}], "is not trusted inside the container"),
    (None, [{"types": ["OSError"], "errno": 28}], "is full"),
    (None, [{"types": ["RuntimeError"], "text": "x: No space left on device (os error 28)"}], "is full"),
    (None, [{"types": ["PermissionError", "OSError"], "errno": 13}], "cannot be written"),
    (None, [{"types": ["ModuleNotFoundError", "ImportError"]}], "has no usable huggingface_hub"),
    (
        None,
        [{"types": ["ValueError"], "text": "odd thing"}],
        "Cannot fetch lab/tiny-llama: ValueError: odd thing",
    ),
]


@pytest.mark.parametrize(("token", "causes", "plain"), HUB_ERRORS)
def test_hub_errors_in_plain_words(
    token: str | None,
    causes: list[dict[str, Any]],
    plain: str,
    docker: FakeDocker,
    args: dict[str, Any],
    run_module: Any,
) -> None:
    docker.programs["instinct-fetch-"] = failing(*causes)
    result, failed = run_module(hf_model.main, {**args, **({"token": token} if token else {})})
    assert failed
    assert plain in result["msg"]
    assert "lab/tiny-llama" in result["msg"]
    assert docker.containers == {}


@pytest.mark.parametrize(
    ("program", "plain"),
    [
        (failing(log="Killed\n", code=137), "stopped from outside (exit code 137)"),
        (
            failing(log="python3: bad\nlast words\n", code=2),
            "broke off (exit code 2): python3: bad | last words",
        ),
        (failing(log="INSTINCT-FETCH {broken\n", code=1), "broke off (exit code 1): INSTINCT-FETCH {broken"),
        (failing(log="\n", code=1), "it wrote no log"),
    ],
)
def test_a_download_without_a_report(
    program: Program, plain: str, docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    docker.programs["instinct-fetch-"] = program
    result, failed = run_module(hf_model.main, args)
    assert failed
    assert plain in result["msg"]


@pytest.mark.parametrize(
    ("error", "plain"),
    [
        (("POST /containers/create", 404, "No such image: x"), "Run the vllm_image role first"),
        (
            ("POST /containers/instinct-fetch", 400, 'exec: "python3": executable file not found in $PATH'),
            "has no python3 in its PATH",
        ),
        (("POST /containers/instinct-fetch", 500, "cgroup trouble"), "could not be started: cgroup trouble"),
    ],
)
def test_a_container_that_does_not_start(
    error: tuple[str, int, str], plain: str, docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    docker.errors[error[0]] = (error[1], error[2])
    if "create" not in error[0]:  # only the start fails, not the stop of a leftover, which is none
        docker.errors = {f"POST /containers/{container_name(args)}/start": (error[1], error[2])}
    result, failed = run_module(hf_model.main, args)
    assert failed
    assert plain in result["msg"]
    assert docker.containers == {}


# ---- secrets -------------------------------------------------------------------------------------


def everywhere(docker: FakeDocker, result: dict[str, Any], tmp_path: Path) -> str:
    """All that an onlooker could read: requests, container bodies, results, files."""
    texts = [json.dumps(result), *docker.requests]
    texts += [json.dumps(container.body) for container in docker.containers.values()]
    (tmp_path / "canary").write_text("a file's text")
    texts += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    found = "\n".join(texts)
    assert "a file's text" in found  # files are read
    assert all(container.name in found for container in docker.containers.values())
    return found


def test_the_token_is_in_its_file_while_the_container_starts_and_nowhere_else(
    docker: FakeDocker, args: dict[str, Any], run_module: Any, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}
    start = docker._run

    def run(container: FakeContainer) -> None:
        source = mounts_of(container)["/run/secrets/hf_token"]
        seen["text"] = Path(source).read_text()
        seen["mode"] = Path(source).stat().st_mode & 0o777
        seen["directory"] = Path(source).parent.stat().st_mode & 0o777
        seen["body"] = json.dumps(container.body)
        start(container)

    docker._run = run  # type: ignore[method-assign]
    result, failed = run_module(hf_model.main, {**args, "token": CANARY + "\n"})
    assert not failed, result
    assert (seen["text"], seen["mode"], seen["directory"]) == (CANARY, 0o600, 0o700)
    assert CANARY not in seen["body"]
    assert json.loads(json.loads(seen["body"])["Entrypoint"][3])["token_file"] == "/run/secrets/hf_token"
    assert CANARY not in everywhere(docker, result, tmp_path)
    assert not os.path.exists(os.path.join(fetch_on_node.SECRETS_DIR, "hf_token"))


BREAKS: list[Callable[[FakeDocker], None]] = [
    lambda d: d.programs.update(
        {"instinct-fetch-": failing({"types": ["HfHubHTTPError"], "text": f"401 {CANARY}"})}
    ),
    lambda d: d.programs.update({"instinct-fetch-": failing(log=f"boom {CANARY}", code=3)}),
    lambda d: d.programs.update({"instinct-fetch-": failing(log=f'INSTINCT-FETCH {{"causes": "{CANARY}"}}')}),
    lambda d: d.errors.update({"POST /containers/create": (500, CANARY)}),
    lambda d: d.errors.update({"GET /containers": (500, CANARY)}),
    lambda d: d.errors.update({"POST /containers/instinct-fetch": (500, CANARY)}),
    lambda d: d.images.clear(),
]
UNTOLD = (BREAKS[2], BREAKS[-1])
"""What is told of these never had it: a report that cannot be read is not shown."""


@pytest.mark.parametrize("break_it", BREAKS)
def test_the_token_is_in_no_message_and_left_nowhere(
    break_it: Callable[[FakeDocker], None],
    docker: FakeDocker,
    args: dict[str, Any],
    run_module: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_it(docker)
    result, failed = run_module(hf_model.main, {**args, "token": CANARY})
    assert failed
    assert "exception" not in result
    assert MASK in result["msg"] or break_it in UNTOLD  # it was in the message
    assert CANARY not in everywhere(docker, result, tmp_path)
    assert CANARY not in capsys.readouterr().err


def test_a_token_left_by_a_killed_run_is_removed(
    docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    os.makedirs(fetch_on_node.SECRETS_DIR)
    stale = Path(fetch_on_node.SECRETS_DIR, "hf_token")
    stale.write_text(CANARY)
    run_module(hf_model.main, args)
    assert not stale.exists()


# ---- input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"commit": "main"}, "is not a commit of 40 hex digits"),
        ({"commit": None}, "commit is needed"),
        ({"image": None}, "image is needed"),
        ({"files": {}}, "no file of lab/tiny-llama is wanted"),
        ({"files": {"../../etc/passwd": 1}}, "leads outside"),
        ({"files": {"/etc/passwd": 1}}, "leads outside"),
        ({"files": {"a": "many"}}, "'many', not a number of bytes"),
        ({"revision": "../x"}, "leads outside"),
        ({"repo": "../x"}, "neither a repository"),
        ({"repo": "a/b/c"}, "neither a repository"),
        ({"token": "short"}, "fewer than 8 characters"),
        ({"endpoint": "https://me:pw@mirror"}, "holds an account"),
        ({"repo": "/no/such/dir"}, "is not a directory of this node"),
    ],
)
def test_bad_input_is_refused_before_anything(
    change: dict[str, Any], words: str, docker: FakeDocker, args: dict[str, Any], run_module: Any
) -> None:
    result, failed = run_module(hf_model.main, {**args, **change})
    assert failed
    assert words in result["msg"]
    assert docker.requests == []


def test_a_model_given_by_path_is_only_looked_at(tmp_path: Path, docker: FakeDocker, run_module: Any) -> None:
    model = tmp_path / "model"
    model.mkdir()
    result, failed = run_module(hf_model.main, {"repo": str(model), "docker_socket": docker.path})
    assert failed
    assert "has neither config.json nor params.json" in result["msg"]
    (model / "config.json").write_text("{}")
    result, failed = run_module(hf_model.main, {"repo": str(model), "docker_socket": docker.path})
    assert not failed
    assert (result["changed"], result["snapshot"]) == (False, str(model))
    assert docker.requests == []


def test_a_commit_as_revision_needs_no_ref(args: dict[str, Any], run_module: Any) -> None:
    result, _ = run_module(hf_model.main, {**args, "revision": COMMIT})
    assert not any("/refs/" in action for action in result["actions"])
    assert not Path(args["cache_dir"], "hub/models--lab--tiny-llama/refs").exists()


def test_private_directories_can_be_made_by_several_threads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            list(pool.map(files_on_node.make_private, [str(tmp_path / f"{number}/a/b")] * 8))
    assert (tmp_path / "39/a").stat().st_mode & 0o777 == 0o700


def test_files_are_replaced_at_once(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    with pytest.raises(TypeError):
        files_on_node.write_atomic(str(target), 7, 0o600)  # type: ignore[arg-type]
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    files_on_node.write_atomic(str(target), "new\r\n", 0o640)
    assert files_on_node.read_text(str(target)) == "new\r\n"
    assert target.stat().st_mode & 0o777 == 0o640


def test_documentation_is_the_argument_spec() -> None:
    documented = documented_by(hf_model)
    spec = hf_model.argument_spec()
    assert set(documented["options"]) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required", "elements"):
            assert documented["options"][name].get(key) == option.get(key), (name, key)


def test_nothing_is_started_when_nothing_is_to_do(
    args: dict[str, Any], docker: FakeDocker, run_module: Any
) -> None:
    run_module(hf_model.main, args)
    assert any("/start" in request for request in docker.changes())
    docker.requests.clear()
    result, failed = run_module(hf_model.main, args)
    assert (failed, result["changed"], docker.changes()) == (False, False, [])
