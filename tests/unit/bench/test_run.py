# SPDX-License-Identifier: Apache-2.0
"""vllm_bench: command lines; on a fake engine, containers, results, failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.action.vllm_bench import ActionModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench import run as benches
from ansible_collections.instinct.fleet.plugins.module_utils.bench.containers import (
    REPEATER,
    RepeatedRuns,
    container_body,
    parse_repeat,
    parse_target,
)
from ansible_collections.instinct.fleet.plugins.module_utils.bench.run import outcome
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths, run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.common.bench_metrics import normalise
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MASK
from ansible_collections.instinct.fleet.plugins.module_utils.serving.store_writer import GenerationWriter
from ansible_collections.instinct.fleet.plugins.modules import vllm_bench
from ansible_collections.instinct.fleet.plugins.plugin_utils.bundle import script
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.benchmark import bench_command
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.summary import collect

from tests.helpers.eventually import GENEROUS
from tests.helpers.module_docs import documented_by
from tests.worlds.bench_world import CANARY, COMMIT, IMAGE, RESULT, args, client, instance, result_dir
from tests.worlds.catalogue import knowledge
from tests.worlds.fake_docker import FakeContainer, FakeDocker, Program


def command(kind: str, arguments: dict[str, Any], **more: Any) -> list[str]:
    """The command line that measures an instance."""
    return list(bench_command(knowledge(), kind, instance(**more), arguments).argv)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    with FakeDocker(tmp_path) as fake:
        fake.add_image(IMAGE)
        for name in ("llama-0", "llama-1"):
            fake.add_container(f"instinct-{name}", {"Image": IMAGE})
        fake.programs["instinct-bench-"] = client()
        yield fake


# ---- command lines -------------------------------------------------------------------------------


def test_the_serve_client_asks_the_instance_with_the_snapshots_tokenizer() -> None:
    assert command("serve", {"num-prompts": 8, "ignore-eos": True}) == [
        "vllm", "bench", "serve",
        "--model", "lab/tiny-llama",
        "--served-model-name", "tiny",
        "--tokenizer", f"/hf/hub/models--lab--tiny-llama/snapshots/{COMMIT}",
        "--base-url", "http://127.0.0.1:8000",
        "--trust-remote-code",
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "50,90,95,99",
        "--save-result", "--result-dir", "/bench", "--result-filename", "result.json",
        "--num-prompts", "8", "--ignore-eos",
    ]  # fmt: skip


def test_arguments_go_over_the_defaults() -> None:
    words = command("serve", {"metric-percentiles": "99", "tokenizer": "/t"})
    assert words[words.index("--metric-percentiles") + 1] == "99"
    assert words[words.index("--tokenizer") + 1] == "/t"


@pytest.mark.parametrize("value", [False, None])
def test_false_and_null_leave_a_flag_out(value: Any) -> None:
    assert command("serve", {"ignore_eos": value}) == command("serve", {})


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("fd00::7", "http://[fd00::7]:8000"),
    ],
)
def test_the_url_is_where_the_instance_listens(listen: str, url: str) -> None:
    words = command("serve", {}, argv=["vllm", "serve", "m", "--host", listen])
    assert words[words.index("--base-url") + 1] == url


def test_a_local_model_is_its_own_tokenizer() -> None:
    words = command("serve", {}, model="/data/m", commit=None)
    assert words[words.index("--tokenizer") + 1] == "/data/m"


@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_offline_benchmarks_get_the_engine_arguments_without_the_front_ends(kind: str) -> None:
    assert command(kind, {"input-len": 32, "tensor-parallel-size": 4}) == [
        "vllm", "bench", kind,
        "--model", "lab/tiny-llama",
        "--revision", COMMIT,
        "--tensor-parallel-size", "4",
        "--trust-remote-code",
        "--compilation-config", '{"mode":3}',
        "--input-len", "32",
        "--output-json", "/bench/result.json",
    ]  # fmt: skip


def test_another_images_client_measures() -> None:
    other = {"image": "registry.example/vllm:old", "vllm": "0.7.3"}
    target = parse_target(instance(client=other), ["x"])
    assert container_body(target, "r", "/d")["Image"] == "registry.example/vllm:old"
    assert command("serve", {}, client=other)[:2] == ["python3", "/app/vllm/benchmarks/benchmark_serving.py"]


REFUSED = [
    ({"args": {"base_url": "http://x"}}, {}, "args.base_url: is set by the toolkit"),
    ({"args": {"--result-dir": "/x"}}, {}, "args.--result-dir: is set by the toolkit"),
    ({"args": {"result_file": "x"}}, {}, "args.result_file: is set by the toolkit"),
    ({"args": {"num_promts": 3}}, {}, "Did you mean num_prompts?"),
    ({"kind": "sevre"}, {}, "Did you mean serve?"),
    ({}, {"argv": None, "port": 0}, "targets[llama-0]: port, argv is missing"),
    ({}, {"vllm": "0.5.0"}, "targets[llama-0]: "),
]


def action(sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[str, Any]:
    """What the action plugin returns; what it sends to the module goes to `sent`."""

    def execute(_self: Any, module_args: dict[str, Any], **_more: Any) -> dict[str, Any]:
        sent.append(module_args)
        return {"changed": False}

    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    plugin = ActionModule.__new__(ActionModule)  # its parts of Ansible are not needed
    plugin._task = SimpleNamespace(
        action="instinct.fleet.vllm_bench", args=given, async_val=0, delegate_to=None
    )
    found: dict[str, Any] = plugin.run(None, {})
    return found


@pytest.mark.parametrize(("change", "more", "words"), REFUSED)
def test_what_cannot_be_measured_so_is_refused_before_anything(
    change: dict[str, Any], more: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    result = action(sent, monkeypatch, targets=[instance(**more)], **change)
    assert (result["failed"], sent) == (True, [])
    assert words in result["msg"]


def test_the_module_is_sent_command_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    targets = [instance(), instance("llama-1", vllm="0.9.0")]
    wanted = {"targets": targets, "args": {"seed": 7, "temperature": 0}, "timeout": 5}
    action(sent, monkeypatch, **wanted)
    action(sent, monkeypatch, **wanted, repeat="3")
    action(sent, monkeypatch, targets=targets, repeat=1, warmups=1)
    once, thrice, unseeded = sent
    assert set(once) == {"targets", "timeout", "commands", "program", "lease"}
    assert once["commands"]["llama-0"][-4:] == ["--seed", "7", "--temperature", "0"]
    assert once["commands"]["llama-1"][-2:] == ["--seed", "7"]  # 0.9.0 sends 0 without being told
    assert (thrice["seed"], thrice["commands"]["llama-0"][-2:]) == (7, ["--temperature", "0"])
    assert abs(unseeded["seed"] - time.time()) < 60


# ---- running -------------------------------------------------------------------------------------


def test_measures_and_returns_what_vllm_wrote(docker: FakeDocker, run_module: Any, tmp_path: Path) -> None:
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert not failed, result["msg"]
    assert result["changed"] is False
    entry = result["benchmarks"][0]
    assert entry["result"] == RESULT
    assert (entry["instance"], entry["deployment"], entry["kind"]) == ("llama-0", "llama", "serve")
    assert entry["digest"] == "sha256:" + "a" * 64
    assert entry["error"] is None
    assert entry["log"].splitlines() == ["100%|done", "============ Serving Benchmark Result ============"]
    assert entry["command"] == ["vllm", "bench", "serve", "--x"]
    assert abs(entry["started"] - time.time()) < 60
    assert entry["instance_plan"]["name"] == "llama-0"
    assert set(docker.containers) == {"instinct-llama-0", "instinct-llama-1"}
    assert not list((tmp_path / "var/bench").iterdir())  # of the measurement nothing is left


def test_the_report_takes_the_entries(docker: FakeDocker, run_module: Any) -> None:
    result, _ = run_module(vllm_bench.main, args(docker, instance()))
    measured = collect(["n1"], {"n1": {"__benchmark_serve": result}}, benches_redactor())
    assert measured.failures == ()
    assert measured.rows[0]["output_throughput"] == 100.0
    assert measured.rows[0]["instance"] == "llama-0"


def benches_redactor() -> Any:
    from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor

    return Redactor()


def test_the_container_is_the_instances_own_with_another_command(docker: FakeDocker, run_module: Any) -> None:
    seen: list[FakeContainer] = []

    def program(container: FakeContainer) -> int:
        seen.append(container)
        assert result_dir(container).stat().st_mode & 0o777 == 0o700
        return client()(container)

    docker.programs["instinct-bench-"] = program
    run_module(vllm_bench.main, args(docker, instance()))
    body = seen[0].body
    assert body["Image"] == IMAGE
    assert body["Labels"] == {"instinct-fleet.bench": "r1", "instinct-fleet.bench.instance": "llama-0"}
    assert body["Entrypoint"][:2] == ["/bin/bash", "-c"]
    assert ". /instinct/env" in body["Entrypoint"][2]
    assert body["Cmd"] == ["vllm", "bench", "serve", "--x"]
    assert body["HostConfig"]["Devices"] == [{"PathOnHost": "/dev/kfd"}]
    assert "RestartPolicy" not in body["HostConfig"]
    assert "/var/hf:/hf:ro" in body["HostConfig"]["Binds"]


def test_all_targets_at_once(docker: FakeDocker, run_module: Any) -> None:
    both = threading.Barrier(2, timeout=GENEROUS)

    def program(container: FakeContainer) -> int:
        both.wait()  # neither ends before the other one has begun
        return client()(container)

    docker.programs["instinct-bench-"] = program
    result, failed = run_module(vllm_bench.main, args(docker, instance(), instance("llama-1")))
    assert not failed, result["msg"]
    assert [entry["instance"] for entry in result["benchmarks"]] == ["llama-0", "llama-1"]


def test_check_mode_says_what_would_run(docker: FakeDocker, run_module: Any) -> None:
    predicted, failed = run_module(vllm_bench.main, args(docker, instance()), check=True)
    assert not failed
    assert docker.changes() == []
    assert predicted["benchmarks"] == []
    real, _ = run_module(vllm_bench.main, args(docker, instance()))
    assert predicted["actions"] == real["actions"]
    assert real["actions"][0] == (
        "POST /containers/create?name=instinct-bench-llama-0 (vllm bench serve --x)"
    )


def test_a_benchmark_left_by_a_killed_controller_is_removed(docker: FakeDocker, run_module: Any) -> None:
    docker.programs.clear()
    docker.add_container("instinct-bench-llama-0", {"Image": IMAGE})
    docker.programs["instinct-bench-"] = client()
    docker.requests.clear()
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert not failed, result["msg"]
    assert result["actions"][0] == "DELETE /containers/instinct-bench-llama-0 (left by an earlier run)"
    assert docker.changes()[0].startswith("POST /containers/instinct-bench-llama-0/stop")
    assert "instinct-bench-llama-0" not in docker.containers


def test_offline_needs_a_stopped_instance_and_serve_a_running_one(
    docker: FakeDocker, run_module: Any
) -> None:
    result, failed = run_module(vllm_bench.main, args(docker, instance(), kind="latency"))
    assert failed
    assert "runs and holds its GPUs" in result["msg"]
    docker.containers["instinct-llama-0"].status = "exited"
    docker.programs["instinct-bench-"] = client(
        {"avg_latency": 1.5, "latencies": [1.5], "percentiles": {"50": 1.5}}
    )
    result, failed = run_module(vllm_bench.main, args(docker, instance(), kind="latency"))
    assert not failed, result["msg"]
    assert result["benchmarks"][0]["result"]["avg_latency"] == 1.5
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert failed
    assert "does not run" in result["msg"]


def test_no_targets_is_nothing(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_bench.main, args(docker))
    assert not failed
    assert result["benchmarks"] == []


# ---- several runs ---------------------------------------------------------------------------------


def repeating(results: list[Any], code: int = 0) -> Program:
    """programs/bench_repeat.py: each run's JSON has its number."""

    def program(container: FakeContainer) -> int:
        for number, result in enumerate(results):
            (result_dir(container) / f"result.json.{number}").write_text(json.dumps(result))
        return code

    return program


def test_several_runs_share_a_container(docker: FakeDocker, run_module: Any) -> None:
    results = [{**RESULT, "output_throughput": float(number)} for number in range(3)]
    seen: list[FakeContainer] = []

    def program(container: FakeContainer) -> int:
        seen.append(container)
        return repeating([*results, RESULT])(container)

    docker.programs["instinct-bench-"] = program
    wanted = args(docker, instance(), repeat=3, warmups=2, seed=7, program="p")
    result, failed = run_module(vllm_bench.main, wanted)
    assert not failed, result["msg"]
    entry = result["benchmarks"][0]
    assert entry["results"] == results
    assert entry["result"] == results[-1]
    body = seen[0].body
    assert body["Entrypoint"][-6:] == ["p", "/bench", "result.json", "7", "2", "3"]
    assert result["actions"][0].endswith("--x, 5 times)")


def test_runs_before_a_failure_are_kept(docker: FakeDocker, run_module: Any) -> None:
    docker.programs["instinct-bench-"] = repeating([RESULT, {**RESULT, "completed": 7, "failed": 3}, RESULT])
    result, failed = run_module(vllm_bench.main, args(docker, instance(), repeat=3))
    assert failed
    assert result["benchmarks"][0]["results"] == [RESULT]
    assert "3 of 10 requests failed." in result["msg"]
    docker.programs["instinct-bench-"] = repeating([RESULT], code=2)
    result, failed = run_module(vllm_bench.main, args(docker, instance(), repeat=3))
    assert failed
    assert result["benchmarks"][0]["results"] == [RESULT]


def test_only_the_serve_benchmark_is_repeated() -> None:
    assert parse_repeat("serve", 1, 0, 7, "") is None
    assert parse_repeat("serve", 2, 1, 7, "program") == RepeatedRuns(1, 2, 7, "program")
    for kind, runs, warmups in (("latency", 2, 0), ("serve", 0, 0), ("serve", 1, -1)):
        with pytest.raises(NodeError):
            parse_repeat(kind, runs, warmups, 7, "")


def test_a_stored_instance_is_read_from_the_node(
    docker: FakeDocker, run_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path))
    store = GenerationWriter(str(tmp_path))
    whole_one = {**instance(), "vllm": "0.11.0"}
    server = whole_one.pop("server")
    member = {"name": "llama-0", "spec_hash": "s", "server": server, "described": whole_one}
    store.put("llama", "3.json", {"schema": 1, "generation": 3, "members": [member]})
    stands_for = {"name": "llama-0", "deployment": "llama", "generation": 3, "spec_hash": "s"}
    for given in (stands_for, {"name": "llama-0", "deployment": "llama", "server": stands_for}):
        assert parse_target(benches.complete_target(given, store), ["x"]).model == "lab/tiny-llama"
        result, failed = run_module(vllm_bench.main, args(docker, given))
        assert not failed, result["msg"]
        assert result["benchmarks"][0]["result"] == RESULT
        assert CANARY not in json.dumps(result)
    assert benches.complete_target(instance(), store) == instance()
    result, failed = run_module(vllm_bench.main, args(docker, {**stands_for, "generation": 4}))
    assert failed
    assert "Generation 4 of llama is not kept" in result["msg"]


def test_several_runs_need_the_action_plugin(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_bench.main, args(docker, instance(), repeat=3, program=""))
    assert failed
    assert "called without its action plugin" in result["msg"]
    assert docker.changes() == []
    assert not run_module(vllm_bench.main, args(docker, instance(), program=""))[1]  # one run needs none


CLIENT = """\
import json, sys
if "benchmark" in sys.argv[0]:
    import beside
print("imported" if not hasattr(sys, "seen") else "known")
sys.seen = True
words = sys.argv[1:]
if words[-1] == "103":
    sys.exit(3)
with open(words[words.index("--result-dir") + 1] + "/result.json", "w") as stream:
    json.dump(words, stream)
"""


@pytest.mark.parametrize("release", ["with a command", "with scripts"])
@pytest.mark.parametrize(("first", "code", "kept"), [(10, 0, ["11", "12", "13"]), (101, 3, ["102"])])
def test_several_runs_in_a_container(
    tmp_path: Path, release: str, first: int, code: int, kept: list[str]
) -> None:
    """A release's script imports what stands beside it, and nothing is imported from where the container begins."""
    for name in ("bin", "out", "scripts", "start"):
        (tmp_path / name).mkdir()
    vllm, benchmark = tmp_path / "bin/vllm", tmp_path / "scripts/benchmark_serving.py"
    for file in (vllm, benchmark):
        file.write_text(f"#!{sys.executable}\n{CLIENT}")
        file.chmod(0o755)
    (tmp_path / "scripts/beside.py").write_text("")
    (tmp_path / "start/json.py").write_text("raise AssertionError('imported from the working directory')")
    (tmp_path / "env").write_text("")
    words = ["vllm", "bench", "serve"] if release == "with a command" else ["python3", str(benchmark)]
    options = [script("bench_repeat"), f"{tmp_path}/out", "result.json", str(first), "1", "3"]
    repeater = REPEATER.replace("/instinct/env", f"{tmp_path}/env")
    done = subprocess.run(
        ["bash", "-c", repeater, "vllm-bench", *options, *words, "--result-dir", f"{tmp_path}/out"],
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}, cwd=tmp_path / "start",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stdout.split()[:2] == ["imported", "known"]
    found = [json.loads((tmp_path / f"out/result.json.{n}").read_text())[-1] for n in range(len(kept))]
    assert found == kept


# ---- results and failures ------------------------------------------------------------------------

THROUGHPUT_LOG = (
    "Throughput: 2.00 requests/s, 500.00 total tokens/s, 200.00 output tokens/s\n"
    "Total num prompt tokens:  1500\nTotal num output tokens:  1000\n"
)


def test_the_throughput_benchmarks_log_is_kept_for_its_output_tokens(
    docker: FakeDocker, run_module: Any
) -> None:
    docker.containers["instinct-llama-0"].status = "exited"
    raw = {"elapsed_time": 5.0, "num_requests": 10, "total_num_tokens": 2500}
    docker.programs["instinct-bench-"] = client(raw, log="noise\n" * 500 + THROUGHPUT_LOG)
    result, failed = run_module(vllm_bench.main, args(docker, instance(), kind="throughput"))
    assert not failed, result["msg"]
    entry = result["benchmarks"][0]
    assert normalise("throughput", entry["result"], entry["log"])["output_throughput"] == 200.0


OOM = "torch.OutOfMemoryError: HIP out of memory.\n"
OUTCOMES = [
    (RESULT, 0, None),
    ({**RESULT, "completed": 0, "failed": 10}, 0, "no request of 10 completed."),
    ({**RESULT, "completed": 7, "failed": 3}, 0, "3 of 10 requests failed."),
    (
        {key: RESULT[key] for key in RESULT if key != "failed"} | {"completed": 9},
        0,
        "1 of 10 requests failed.",
    ),
    (RESULT, None, "not done after 5 s"),
    (None, 0, "ended well, but wrote no result"),
    ("{broken", 0, "wrote no usable result"),
    ({"x": 1}, 0, "has no number 'completed'"),
    (None, 1, "out_of_memory: torch.OutOfMemoryError"),
]


@pytest.mark.parametrize(("result", "code", "error"), OUTCOMES)
def test_outcomes(result: Any, code: int | None, error: str | None) -> None:
    text = "" if result is None else result if isinstance(result, str) else json.dumps(result)
    found, why = outcome("serve", code, OOM, text, 5)
    if error is None:
        assert (found, why) == (RESULT, None)
    else:
        assert why is not None
        assert error in why


def test_nan_becomes_null() -> None:
    found, why = outcome("serve", 0, "", json.dumps({**RESULT, "std_ttft_ms": float("nan")}), 5)
    assert (found["std_ttft_ms"], why) == (None, None)


def test_old_goodput_key_and_missing_counts_are_understood() -> None:
    old = {key: RESULT[key] for key in RESULT if key != "failed"} | {"request_goodput:": 3.5}
    found, why = outcome("serve", 0, "", json.dumps(old), 5)
    assert why is None
    metrics = normalise("serve", found)
    assert (metrics["request_goodput"], metrics["failed"], metrics["total_token_throughput"]) == (
        3.5,
        0,
        150.0,
    )


def test_failed_requests_come_with_the_servers_words_and_the_numbers(
    docker: FakeDocker, run_module: Any
) -> None:
    docker.programs = {
        "instinct-bench-llama-0": client({**RESULT, "completed": 7, "failed": 3}),
        "instinct-bench-llama-1": client(),
    }
    docker.containers["instinct-llama-0"].log = "Memory access fault by GPU node-2 on address 0x1.\n"
    result, failed = run_module(vllm_bench.main, args(docker, instance(), instance("llama-1")))
    assert failed
    assert result["msg"].startswith(
        "1 of 2 serve benchmarks failed. llama-0: 3 of 10 requests failed. The server's log shows"
    )
    assert "Memory access fault" in result["msg"]
    assert result["benchmarks"][0]["result"]["completed"] == 7
    assert result["benchmarks"][1]["error"] is None


def test_a_client_that_fails_says_why(docker: FakeDocker, run_module: Any) -> None:
    log = "Traceback (most recent call last):\nValueError: Initial test run failed - Error: Not Found\n"
    docker.programs["instinct-bench-"] = client(None, 1, log)
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert failed
    assert "python_exception: ValueError: Initial test run failed - Error: Not Found" in result["msg"]
    assert set(docker.containers) == {"instinct-llama-0", "instinct-llama-1"}


def test_a_wrong_argument_is_blamed_on_the_benchmark(docker: FakeDocker, run_module: Any) -> None:
    docker.programs["instinct-bench-"] = client(
        None, 2, "vllm bench serve: error: unrecognized arguments: --x\n"
    )
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert failed
    assert "unrecognized arguments: --x | Correct benchmark_serve_args" in result["msg"]


def test_a_benchmark_that_hangs_is_stopped(docker: FakeDocker, run_module: Any) -> None:
    docker.programs["instinct-bench-"] = client(seconds=60)
    result, failed = run_module(vllm_bench.main, args(docker, instance(), timeout=1))
    assert failed
    assert "not done after 1 s, and stopped" in result["msg"]
    assert set(docker.containers) == {"instinct-llama-0", "instinct-llama-1"}


def test_a_container_that_docker_refuses(docker: FakeDocker, run_module: Any) -> None:
    docker.errors["POST /containers/create"] = (404, "No such image: x")
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert failed
    assert "could not be run: No such image" in result["msg"]


BAD_INPUT = [
    ({"run": "../x"}, {}, "is not a name"),
    ({"run": "a/b"}, {}, "is not a name"),
    ({"kind": "sevre"}, {}, "value of kind must be one of"),
    ({"commands": {}}, {}, "commands: none for llama-0"),
    ({}, {"model": None}, "targets[llama-0]: model is missing"),
    ({}, {"server": {}}, "server is missing"),
    ({}, {"server": {"container": {}}}, "server.container is missing"),
]


@pytest.mark.parametrize(("change", "more", "words"), BAD_INPUT)
def test_bad_input_is_refused_before_anything(
    change: dict[str, Any], more: dict[str, Any], words: str, docker: FakeDocker, run_module: Any
) -> None:
    result, failed = run_module(vllm_bench.main, args(docker, instance(**more), **change))
    assert failed
    assert words in result["msg"]
    assert docker.changes() == []


# ---- secrets -------------------------------------------------------------------------------------


def nothing(_docker: FakeDocker) -> None: ...


def unreadable(docker: FakeDocker) -> None:
    """A result that is not JSON; it is not shown."""
    docker.programs["instinct-bench-"] = client(f'{{"{CANARY}')


@pytest.mark.parametrize(
    "break_it",
    [
        nothing,
        lambda d: d.programs.update({"instinct-bench-": client(None, 1, f"ValueError: {CANARY} refused\n")}),
        unreadable,
        lambda d: d.programs.update({"instinct-bench-": client({**RESULT, "x": CANARY})}),
        lambda d: d.errors.update({"POST /containers/create": (500, CANARY)}),
        lambda d: d.errors.update({"GET /containers": (500, CANARY)}),
    ],
)
def test_the_api_key_is_in_no_message(
    break_it: Any, docker: FakeDocker, run_module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies: list[str] = []
    create = docker._post_containers

    def spy(http: Any, path: str, query: Any, body: Any) -> Any:
        bodies.append(json.dumps(body))
        return create(http, path, query, body)

    docker._post_containers = spy  # type: ignore[method-assign]
    break_it(docker)
    result, _failed = run_module(vllm_bench.main, args(docker, instance()))
    assert "exception" not in result
    measured = [(item["error"], item["result"], item["log"]) for item in result.get("benchmarks", [])]
    text = json.dumps([result.get("msg"), measured])
    assert (MASK in text) is (break_it not in (nothing, unreadable))  # it was in what was told
    assert CANARY not in json.dumps(result)
    assert CANARY not in "".join(docker.requests + bodies)
    assert CANARY not in capsys.readouterr().err
    (tmp_path / "canary").write_text(CANARY)  # where they are searched, it would be found
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if CANARY in path.read_text(errors="replace")] == ["canary"]


def test_documentation_is_the_argument_spec() -> None:
    documented = documented_by(vllm_bench)["options"]
    spec = vllm_bench.argument_spec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required", "elements", "choices"):
            assert documented[name].get(key) == option.get(key), (name, key)


def test_documented_entries_are_the_returned_ones(docker: FakeDocker, run_module: Any) -> None:
    result, _ = run_module(vllm_bench.main, args(docker, instance()))
    contains = yaml.safe_load(vllm_bench.RETURN)["benchmarks"]["contains"]
    assert set(result["benchmarks"][0]) == set(contains)
    assert benches.LOG_LINES >= 40
