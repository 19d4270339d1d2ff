# SPDX-License-Identifier: Apache-2.0
"""vllm_bench: command lines; on a fake engine, containers, results, failures."""

from __future__ import annotations

import json
import os
import shutil
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
from ansible_collections.instinct.fleet.plugins.module_utils.bench.containers import (
    START,
    complete_target,
    container_body,
    parse_target,
)
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import normalise
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MASK
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store_writer import (
    GenerationWriter,
)
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.modules import vllm_bench
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.suite import PRECISE
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import collect
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.benchmark import bench_command

from tests.helpers.eventually import GENEROUS
from tests.helpers.module_docs import documented_by
from tests.worlds.bench_world import (
    CANARY,
    COMMIT,
    IMAGE,
    RESULT,
    args,
    client,
    instance,
    job,
    result_dir,
)
from tests.worlds.catalogue import knowledge
from tests.worlds.fake_docker import FakeContainer, FakeDocker


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
        "--save-detailed",
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
    assert "--save-detailed" not in command("serve", {"save_detailed": value})


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
    target = parse_target(instance(client=other), job())
    assert container_body(target, "r", "/d", "p")["Image"] == "registry.example/vllm:old"
    assert command("serve", {}, client=other)[:2] == ["python3", "/app/vllm/benchmarks/benchmark_serving.py"]


@pytest.mark.parametrize(
    ("endpoint", "deployment"),
    [(None, "llama"), ({"url": "u"}, "llama"), ({"url": "u", "deployments": "green:llama"}, "green:llama")],
)
def test_rows_name_all_deployments_that_answer(endpoint: dict[str, str] | None, deployment: str) -> None:
    assert parse_target(instance(endpoint=endpoint), job()).deployment == deployment


REFUSED = [
    ({"args": {"base_url": "http://x"}}, {}, "args.base_url: is set by the toolkit"),
    ({"args": {"--result-dir": "/x"}}, {}, "args.--result-dir: is set by the toolkit"),
    ({"args": {"result_file": "x"}}, {}, "args.result_file: is set by the toolkit"),
    ({"args": {"num_promts": 3}}, {}, "Did you mean num_prompts?"),
    ({"kind": "sevre"}, {}, "Did you mean serve?"),
    ({"suite": "servin"}, {}, "unknown suite. Did you mean serving?"),
    ({"suite": "seed-latency"}, {}, "seed-latency has no serve."),
    ({"suite": "serving", "overrides": {"block": 1}}, {}, "Did you mean blocks?"),
    ({"repeat": "many"}, {}, "repeat: 'many' is not a number."),
    ({"args": {"seed": "x"}}, {}, "args.seed: 'x' is not a number."),
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
    plugin._display = SimpleNamespace(warning=lambda text: None)
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


def test_the_module_is_sent_a_job_for_each_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    targets = [instance(), instance("llama-1", vllm="0.9.0")]
    load = {"random_input_len": 8, "random_output_len": 4, "max_concurrency": 2}
    wanted = {"targets": targets, "args": {**load, "seed": 7, "temperature": 0}, "timeout": 5}
    action(sent, monkeypatch, **wanted)
    action(sent, monkeypatch, **wanted, repeat="3", warmups=1, half_width=0.01)
    action(sent, monkeypatch, targets=targets, repeat=1, most=4)
    once, thrice, unseeded = sent
    assert set(once) == {"targets", "timeout", "jobs", "program", "lease"}
    first, second = (once["jobs"][name]["cells"][0]["argv"] for name in ("llama-0", "llama-1"))
    assert first[-2:] == ["--temperature", "0"]
    assert second[-2:] == ["--max-concurrency", "2"]  # 0.9.0 sends 0 without being told
    numbers = {
        "blocks": 1,
        "most": 1,
        "half_width": 0.02,
        "warmups": 0,
        "seed": 7,
        "order": [["in8-out4-c2"]],
        "suite": None,
    }
    assert once["timeout"] == 5
    (cell,) = once["jobs"]["llama-0"].pop("cells")
    assert once["jobs"]["llama-0"] == numbers
    assert (cell["cell"], cell["metric"]) == ("in8-out4-c2", "output_throughput")
    assert "--seed" not in cell["argv"]
    assert {**thrice["jobs"]["llama-1"], "cells": []} == {
        **numbers, "cells": [], "blocks": 3, "most": 10, "half_width": 0.01, "warmups": 1,
        "order": [["in8-out4-c2"]] * 10,
    }  # fmt: skip
    assert abs(unseeded["jobs"]["llama-0"]["seed"] - time.time()) < 60
    assert unseeded["jobs"]["llama-0"]["most"] == 1  # one run has no interval that could be narrowed


def test_a_suite_makes_cells_in_the_same_order_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    targets = [instance(), instance("llama-1", vllm="0.9.0")]
    result = action(
        sent, monkeypatch, targets=targets, suite="serving", overrides={"blocks": 2, "seed": 3}, timeout=10,
        args={"num_prompts": 5}, repeat=9,
    )  # fmt: skip
    assert not result.get("failed"), result
    (given,) = sent
    first, second = (given["jobs"][name] for name in ("llama-0", "llama-1"))
    names = [cell["cell"] for cell in first["cells"]]
    assert len(names) > 3
    assert given["timeout"] == 10 * len(names)
    assert (first["suite"], first["blocks"], first["most"], first["seed"]) == ("serving", 2, 2, 3)
    assert [sorted(block) for block in first["order"]] == [sorted(names)] * 2
    assert first["order"][0] != first["order"][1]
    assert second["order"] == first["order"]
    assert {cell["kind"] for cell in first["cells"]} == {"serve"}
    assert all("--seed" not in cell["argv"] for cell in first["cells"])
    assert (
        parse_target(instance(), first).job.cells == first["cells"]
    )  # the module takes what the planner composes


# ---- running -------------------------------------------------------------------------------------


def test_measures_and_returns_what_vllm_wrote(docker: FakeDocker, run_module: Any, tmp_path: Path) -> None:
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert not failed, result["msg"]
    assert result["changed"] is False
    entry = result["benchmarks"][0]
    (run,) = entry["runs"]
    assert run["result"] == RESULT
    assert (run["block"], run["order"], run["seed"], run["error"], run["detail"]) == (1, 1, 7, None, None)
    assert run["client_cpu_share"] == 0.25
    assert abs(run["started"] - time.time()) < 60
    assert (entry["instance"], entry["deployment"], entry["kind"]) == ("llama-0", "llama", "serve")
    assert entry["digest"] == "sha256:" + "a" * 64
    assert entry["error"] is None
    assert entry["command"] == ["vllm", "bench", "serve", "--x"]
    assert entry["instance_plan"]["name"] == "llama-0"
    assert "server" not in entry["instance_plan"]
    assert set(docker.containers) == {"instinct-llama-0", "instinct-llama-1"}
    # It stays until it is reported; without a name no other call can go on with it.
    assert [path.name for path in (tmp_path / "var/bench").iterdir()] == ["r1"]
    shutil.rmtree(tmp_path / "var/bench/r1")
    result, failed = run_module(vllm_bench.main, {**args(docker, instance()), "run": ""})
    assert not failed, result["msg"]
    assert not list((tmp_path / "var/bench").iterdir())


def test_the_report_takes_the_entries(docker: FakeDocker, run_module: Any) -> None:
    result, _ = run_module(vllm_bench.main, args(docker, instance()))
    measured = collect(["n1"], {"n1": {"__benchmark_serve": result}}, benches_redactor())
    assert measured.failures == ()
    assert measured.rows[0]["output_throughput"] == 100.0
    assert measured.rows[0]["instance"] == "llama-0"
    assert measured.rows[0]["live"] is False


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
    bind = "/var/lib/instinct-fleet/dataset/12ab:/dataset/12ab:ro"
    run_module(vllm_bench.main, args(docker, instance(), jobs={"llama-0": {**job(), "binds": [bind]}}))
    body = seen[0].body
    assert body["Image"] == IMAGE
    assert bind in body["HostConfig"]["Binds"]
    assert body["Labels"] == {"instinct-fleet.bench": "r1", "instinct-fleet.bench.instance": "llama-0"}
    assert body["Entrypoint"][:2] == ["/bin/bash", "-c"]
    assert ". /instinct/env" in body["Entrypoint"][2]
    assert body["Entrypoint"][-1] == "p"
    assert body["Cmd"] == ["/bench"]
    assert body["HostConfig"]["Devices"] == [{"PathOnHost": "/dev/kfd"}]
    assert "RestartPolicy" not in body["HostConfig"]
    assert "/var/hf:/hf:ro" in body["HostConfig"]["Binds"]


ENDPOINT = {"balancer": "lb", "url": "https://192.0.2.1:8443", "key": "sk-live-Ab12-secret", "ca": "PEM\n"}


def test_a_client_of_the_load_balancer_has_its_key_in_a_private_file(
    docker: FakeDocker, run_module: Any
) -> None:
    seen: list[tuple[str, str, int, str]] = []

    def program(container: FakeContainer) -> int:
        files = [result_dir(container) / name for name in ("client.env", "client.pem")]
        seen.append(
            (*(file.read_text() for file in files), files[0].stat().st_mode & 0o777, str(container.body))
        )
        return client({**RESULT, "x": ENDPOINT["key"]})(container)

    docker.programs["instinct-bench-"] = program
    result, failed = run_module(vllm_bench.main, args(docker, instance(endpoint=ENDPOINT)))
    assert not failed, result["msg"]
    ((env, ca, mode, body),) = seen
    assert env == "export OPENAI_API_KEY=sk-live-Ab12-secret\nexport SSL_CERT_FILE=/bench/client.pem\n"
    assert (ca, mode) == ("PEM\n", 0o600)
    assert ". /bench/client.env" in body
    assert ENDPOINT["key"] not in body + json.dumps(result)
    assert result["benchmarks"][0]["live"] is True
    assert "endpoint" not in result["benchmarks"][0]["instance_plan"]
    measured = collect(["n1"], {"n1": {"__benchmark_serve": result}}, benches_redactor())
    assert measured.rows[0]["live"] is True


def test_its_requests_go_to_the_load_balancer() -> None:
    argv = command("serve", {"request_rate": 2.0, "max_concurrency": None}, endpoint=ENDPOINT)
    assert argv[argv.index("--base-url") + 1] == ENDPOINT["url"]
    assert argv[argv.index("--request-rate") + 1] == "2.0"
    assert "--max-concurrency" not in argv


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
    assert result["benchmarks"][0]["runs"][0]["result"]["avg_latency"] == 1.5
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert failed
    assert "does not run" in result["msg"]


def test_no_targets_is_nothing(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_bench.main, args(docker))
    assert not failed
    assert result["benchmarks"] == []


# ---- several runs and cells ------------------------------------------------------------------------


def test_several_runs_share_a_container(docker: FakeDocker, run_module: Any) -> None:
    docker.programs["instinct-bench-"] = client(
        lambda _cell, words: {**RESULT, "output_throughput": float(words[-1])}
    )
    wanted = args(docker, instance(), work=job(blocks=3, most=3, warmups=2))
    result, failed = run_module(vllm_bench.main, wanted)
    assert not failed, result["msg"]
    runs = result["benchmarks"][0]["runs"]
    assert [(run["block"], run["seed"], run["result"]["output_throughput"]) for run in runs] == [
        (1, 9, 9.0), (2, 10, 10.0), (3, 11, 11.0),
    ]  # fmt: skip
    assert result["actions"][0].endswith("--x, 5 runs)")
    assert "warnings" not in result


def test_a_failing_cell_does_not_stop_the_others(docker: FakeDocker, run_module: Any) -> None:
    def run(cell: Any, _words: Any) -> dict[str, Any] | None:
        return {"b": None, "c": {**RESULT, "completed": 7, "failed": 3}}.get(cell["cell"], RESULT)

    docker.programs["instinct-bench-"] = client(run)
    result, failed = run_module(
        vllm_bench.main, args(docker, instance(), work=job("serve", "a", "b", "c", blocks=2, most=2))
    )
    assert failed
    entries = {entry["cell"]: entry for entry in result["benchmarks"]}
    assert [len(entries[name]["runs"]) for name in "abc"] == [2, 1, 2]
    assert entries["a"]["error"] is None
    assert "wrote no result" in entries["b"]["error"]
    assert entries["c"]["error"].startswith("3 of 10 requests failed.")
    assert entries["c"]["runs"][0]["result"]["completed"] == 7
    assert result["msg"].startswith("2 of 3 serve benchmarks failed. llama-0, b: the client succeeded")


def test_a_stopped_benchmark_goes_on_where_it_was(
    docker: FakeDocker, run_module: Any, tmp_path: Path
) -> None:
    """The next call of the same name has the same runs; none is measured twice, and no seed is used again."""
    seen: list[tuple[str, str]] = []

    def run(cell: Any, words: Any) -> dict[str, Any]:
        seen.append((cell["cell"], words[-1]))
        if len(seen) == 5:
            docker.containers[
                "instinct-bench-llama-0"
            ].stopping.set()  # as by a call that removes what was left
        return RESULT

    docker.programs["instinct-bench-"] = client(run)
    wanted = args(docker, instance(), work=job("serve", "a", "b", blocks=3, most=3, warmups=1))
    result, failed = run_module(vllm_bench.main, wanted)
    assert failed
    first = [run["seed"] for entry in result["benchmarks"] for run in entry["runs"]]
    assert len(first) == 3  # two warm-ups before them
    result, failed = run_module(vllm_bench.main, wanted)
    assert not failed, result["msg"]
    assert [[run["block"] for run in entry["runs"]] for entry in result["benchmarks"]] == [[1, 2, 3]] * 2
    last = [run["seed"] for entry in result["benchmarks"] for run in entry["runs"]]
    assert set(first) < set(last)
    assert len(seen) == 5 + 2 + 3  # warmed up again, and the three runs that were missing
    assert len({seed for _cell, seed in seen}) == len(seen)
    # Another play may have to be run again before the report: nothing is measured once more.
    again, failed = run_module(vllm_bench.main, wanted)
    assert not failed, again["msg"]
    assert again["benchmarks"][0]["runs"] == result["benchmarks"][0]["runs"]
    assert len(seen) == 5 + 2 + 3


@pytest.mark.parametrize("change", ["cells", "instance", "name", "none"])
def test_only_the_same_measurement_goes_on(change: str, docker: FakeDocker, run_module: Any) -> None:
    stopped = args(docker, instance(), work=job(blocks=3, most=3))
    again = {
        "cells": args(docker, instance(), work=job("serve", "other", blocks=3, most=3)),
        "instance": args(docker, instance(spec_hash="other"), work=job(blocks=3, most=3)),
        "name": args(docker, instance(), work=job(blocks=3, most=3), run="r2"),
        "none": args(docker, instance(), work=job(blocks=3, most=3, seed=99)),
    }[change]
    runs: list[int] = []

    def run(_cell: Any, _words: Any) -> dict[str, Any]:
        runs.append(1)
        if len(runs) == 2:
            docker.containers["instinct-bench-llama-0"].stopping.set()
        return RESULT

    docker.programs["instinct-bench-"] = client(run)
    run_module(vllm_bench.main, stopped)
    assert not run_module(vllm_bench.main, again)[1]
    assert len(runs) == 2 + (1 if change == "none" else 3)


def test_kept_runs_are_said(docker: FakeDocker, run_module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = args(docker, instance(), work=job(blocks=2, most=2))
    docker.programs["instinct-bench-"] = client(
        lambda _cell, _words: docker.containers["instinct-bench-llama-0"].stopping.set() or RESULT
    )
    run_module(vllm_bench.main, wanted)
    docker.programs["instinct-bench-"] = client()
    result, _ = run_module(vllm_bench.main, wanted)
    assert (
        "llama-0: 1 finished run of r1 kept from an interrupted call"
        in json.dumps(result) + capsys.readouterr().err
    )


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
        assert parse_target(complete_target(given, store), job()).model == "lab/tiny-llama"
        result, failed = run_module(vllm_bench.main, args(docker, given))
        assert not failed, result["msg"]
        assert result["benchmarks"][0]["runs"][0]["result"] == RESULT
        assert CANARY not in json.dumps(result)
    assert complete_target(instance(), store) == instance()
    result, failed = run_module(vllm_bench.main, args(docker, {**stands_for, "generation": 4}))
    assert failed
    assert "Generation 4 of llama is not kept" in result["msg"]


def test_the_action_plugin_is_needed(docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(vllm_bench.main, args(docker, instance(), program=""))
    assert failed
    assert "called without its action plugin" in result["msg"]
    assert docker.changes() == []


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
    json.dump({"completed": 1, "words": words}, stream)
"""


@pytest.mark.parametrize("release", ["with a command", "with scripts"])
@pytest.mark.parametrize(("first", "code", "seeds"), [(10, 0, ["11", "12", "13"]), (101, 1, ["102", "103"])])
def test_a_job_in_a_container(tmp_path: Path, release: str, first: int, code: int, seeds: list[str]) -> None:
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
    work = job(blocks=3, most=3, warmups=1, seed=first)
    work["cells"][0]["argv"] = [*words, "--result-dir", f"{tmp_path}/out"]
    (tmp_path / "out/job.json").write_text(json.dumps({**work, "seconds": 60}))
    start = START.replace("/instinct/env", f"{tmp_path}/env")
    done = subprocess.run(
        ["bash", "-c", start, "vllm-bench", script("bench_job"), f"{tmp_path}/out"],
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}, cwd=tmp_path / "start",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[0] == f"in8-out8-c2, warm-up, seed {first}"
    found = [json.loads((tmp_path / f"out/0.{block + 1}.json").read_text()) for block in range(len(seeds))]
    assert [str(record["seed"]) for record in found] == seeds
    assert [record["code"] for record in found if record["result"] is None] == ([3] if code else [])
    assert all(record["result"]["words"][-1] == str(record["seed"]) for record in found if record["result"])
    assert found[0]["log"] == "known\n"  # the warm-up imported vLLM


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
    (run,) = entry["runs"]
    assert normalise("throughput", run["result"], run["log"])["output_throughput"] == 200.0


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
    assert result["benchmarks"][0]["runs"][0]["result"]["completed"] == 7
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
    assert "stopped after 1 s" in result["msg"]
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
    ({"jobs": {}}, {}, "jobs[llama-0] is missing"),
    ({"work": job(blocks=0)}, {}, "jobs[llama-0]: blocks 0, most 1"),
    ({"work": job(blocks=4)}, {}, "blocks 4, most 1"),
    ({"work": job(order=[["other"]])}, {}, "order needs all cells once in each of 1 blocks"),
    ({"work": job("serve", "a", "a")}, {}, "each with a name of its own; got a, a"),
    ({"work": {**job(), "seed": None}}, {}, "jobs[llama-0]: seed is missing"),
    ({"work": {**job(), "cells": [{"cell": "a", "kind": "serve"}]}}, {}, "a cell needs cell, kind, argv"),
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
    result, _failed = run_module(vllm_bench.main, {**args(docker, instance()), "run": ""})
    assert "exception" not in result
    measured = [(item["error"], item["runs"], item["log"]) for item in result.get("benchmarks", [])]
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
    assert spec["half_width"]["default"] == PRECISE  # nodes cannot import it


def test_documented_entries_are_the_returned_ones(docker: FakeDocker, run_module: Any) -> None:
    result, _ = run_module(vllm_bench.main, args(docker, instance()))
    contains = yaml.safe_load(vllm_bench.RETURN)["benchmarks"]["contains"]
    (entry,) = result["benchmarks"]
    assert set(entry) == set(contains)
    assert set(entry["runs"][0]) == set(contains["runs"]["contains"])
