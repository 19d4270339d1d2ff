# SPDX-License-Identifier: Apache-2.0
"""`vllm bench` of the stand-in: what it sends, measures and writes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.standin.bench import delays
from lab.standin.report import percentile
from tests import ROOT
from tests.helpers.eventually import eventually
from tests.helpers.ports import free_port

FAST = {"STANDIN_TOKENS_PER_SECOND": "1000"}
VLLM = str(ROOT / "lab/standin/vllm")

# From vllm/benchmarks/serve.py of 0.32, without --save-detailed, with --metadata host=n1.
KEYS = """
date endpoint_type backend label model_id tokenizer_id num_prompts host request_rate burstiness
max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput
request_goodput output_throughput total_token_throughput latencies queue_times max_output_tokens_per_s
max_concurrent_requests rtfx mean_ttft_ms median_ttft_ms std_ttft_ms p50_ttft_ms p99.9_ttft_ms
mean_e2el_ms median_e2el_ms std_e2el_ms p50_e2el_ms p99.9_e2el_ms
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    port = str(free_port())
    command = [VLLM, "serve", "some/model", "--host", "127.0.0.1", "--port", port]
    env = {"PATH": os.environ["PATH"], "STANDIN_TOKENS_PER_SECOND": "500", "VLLM_API_KEY": "key"}
    process = subprocess.Popen([*command, "--max-model-len", "4096"], env=env, stdout=subprocess.DEVNULL)

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
            return True
        return False

    eventually("the server", listens)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def bench(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    command = [VLLM, "bench", *arguments]
    base = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "key"}
    out = subprocess.run(command, check=False, env={**base, **(env or {})}, capture_output=True, text=True)
    assert out.returncode == code, out.stdout + out.stderr
    return out.stdout + out.stderr


def serve(
    server: str, where: Path, *arguments: str, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    options = ["--random-input-len", "20", "--random-output-len", "10", "--num-prompts", "30"]
    save = ["--save-result", "--result-dir", str(where), "--result-filename", "r.json"]
    out = bench("serve", "--base-url", server, *options, *save, *arguments, env=env)
    return json.loads((where / "r.json").read_text()), out


class TestServe:
    def test_result(self, server: str, tmp_path: Path) -> None:
        metrics = ["--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99.9"]
        limit = ["--max-concurrency", "10", "--some-new-flag"]
        result, out = serve(server, tmp_path, *limit, "--metadata", "host=n1", *metrics)
        assert list(result) == KEYS.split()
        assert (result["completed"], result["failed"], result["host"]) == (30, 0, "n1")
        assert (result["total_input_tokens"], result["total_output_tokens"]) == (600, 300)
        assert result["request_rate"] == "inf"
        assert result["model_id"] == "some/model"
        # Three rounds of ten, each of ten tokens at 500 a second.
        assert result["duration"] > 0.06
        assert result["output_throughput"] == pytest.approx(300 / result["duration"])
        assert 2 <= result["mean_ttft_ms"] <= result["mean_e2el_ms"]
        assert result["max_concurrent_requests"] >= 10
        assert "Successful requests:                     30" in out
        assert "Total token throughput (tok/s):" in out
        assert "P99.9 E2EL (ms):" in out

    def test_chat_detailed_goodput_and_append(self, server: str, tmp_path: Path) -> None:
        chat = ["--endpoint", "/v1/chat/completions", "--backend", "openai-chat"]
        arguments = ["--save-detailed", "--goodput", "e2el:0.001", *chat]
        result, _ = serve(server, tmp_path, *arguments)
        assert result["request_goodput"] == 0
        assert [len(gaps) for gaps in result["itls"]] == [9] * 30
        assert all(len(text.split()) == 10 for text in result["generated_texts"])
        append = ["--append-result", "--result-dir", str(tmp_path), "--result-filename", "r.json"]
        bench("serve", "--base-url", server, "--num-prompts", "2", "--random-output-len", "2", *append)
        lines = (tmp_path / "r.json").read_text().split("\n")
        assert [json.loads(line)["completed"] for line in lines] == [30, 2]

    def test_the_same_seed_sends_the_same_prompts(self, server: str, tmp_path: Path) -> None:
        texts = [
            serve(server, tmp_path, "--save-detailed", "--seed", seed)[0]["generated_texts"]
            for seed in ("1", "1", "2")
        ]
        assert texts[0] == texts[1] != texts[2]

    def test_rate(self, server: str, tmp_path: Path) -> None:
        result, out = serve(server, tmp_path, "--request-rate", "60")
        assert result["request_rate"] == 60
        assert result["duration"] >= 0.5
        assert "Request rate configured (RPS):           60.00" in out

    def test_failures_are_counted_and_said(self, server: str, tmp_path: Path) -> None:
        result, out = serve(server, tmp_path, "--model", "other/model")
        assert (result["completed"], result["failed"], result["mean_ttft_ms"]) == (0, 30, 0)
        assert "The model `other/model` does not exist" in out
        result, out = serve(server, tmp_path, "--model", "some/model", env={"OPENAI_API_KEY": ""})
        assert (result["completed"], result["failed"]) == (0, 30)
        assert "HTTP 401" in out

    def test_nobody_there(self, tmp_path: Path) -> None:
        assert "RuntimeError" in bench("serve", "--base-url", "http://127.0.0.1:1", code=1)
        result, _ = serve("http://127.0.0.1:1", tmp_path, "--model", "m")
        assert result["failed"] == 30

    def test_default_file_name(self, server: str, tmp_path: Path) -> None:
        arguments = [
            "--num-prompts",
            "1",
            "--random-output-len",
            "1",
            "--save-result",
            "--max-concurrency",
            "3",
        ]
        bench("serve", "--base-url", server, *arguments, "--save-result", "--result-dir", str(tmp_path))
        (file,) = tmp_path.iterdir()
        assert file.name.startswith("openai-infqps-concurrency3-model-")


class TestOffline:
    def test_latency(self, tmp_path: Path) -> None:
        arguments = ["--model", "m", "--output-len", "10", "--num-iters", "3", "--num-iters-warmup", "1"]
        path = tmp_path / "l.json"
        out = bench("latency", *arguments, "--output-json", str(path), env=FAST)
        result = json.loads(path.read_text())
        assert list(result) == ["model_id", "avg_latency", "latencies", "percentiles"]
        assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
        assert (len(result["latencies"]), result["avg_latency"] >= 0.01) == (3, True)
        assert "99% percentile latency:" in out

    def test_throughput(self, tmp_path: Path) -> None:
        arguments = ["--model", "m", "--input-len", "30", "--output-len", "10", "--num-prompts", "300"]
        path = tmp_path / "t.json"
        out = bench("throughput", *arguments, "--output-json", str(path), env=FAST)
        result = json.loads(path.read_text())
        assert (result["num_requests"], result["total_num_tokens"]) == (300, 12000)
        assert result["tokens_per_second"] == pytest.approx(12000 / result["elapsed_time"])
        assert result["elapsed_time"] >= 0.02  # 300 prompts, 256 at a time
        assert "total tokens/s" in out

    @pytest.mark.parametrize("kind", ["latency", "throughput"])
    def test_fails_to_start(self, kind: str) -> None:
        assert "HIP out of memory" in bench(kind, "--model", "m", code=1, env={"STANDIN_FAIL": "oom"})
        assert "config.json" in bench(kind, "--model", "/no/such/place", code=1)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, 0.0),
        ([3.0], 99, 3.0),
        ([1.0, 2.0], 50, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 90, 3.7),
        ([1.0, 2.0], 100, 2.0),
    ],
)
def test_percentile_is_numpys(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


def test_delays() -> None:
    assert delays(3, math.inf, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]
    times = delays(100, 50.0, 1.0, random.Random(0))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(2.0)
