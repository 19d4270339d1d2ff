# SPDX-License-Identifier: Apache-2.0
"""The stand-in as a process: its API, its log, how it starts, fails and ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.serving.attention import proven_backends
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.attention_backends import Backends

from lab import models
from lab.standin.knobs import Knobs
from tests.helpers.eventually import GENEROUS
from tests.helpers.ports import free_port
from tests.worlds.catalogue import knowledge
from tests.worlds.standin_server import VLLM, Standin

Start = Callable[..., "Standin"]


def choices(found: list[dict[str, Any] | str]) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in found if isinstance(event, dict) and event["choices"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's model in a hub cache."""
    commit = tmp_path_factory.mktemp("hf") / "hub" / "models--lab--tiny-llama" / "snapshots" / ("c" * 40)
    models.write(commit)
    return commit


@pytest.fixture(scope="module")
def offline(model: Path) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(model.parents[2])}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Standin] = []

    def begin(*arguments: str, env: dict[str, str] | None = None, ready: bool = True) -> Standin:
        running.append(Standin(tmp_path / f"{len(running)}.log", *arguments, env=env))
        if ready:
            running[-1].wait()
        return running[-1]

    yield begin
    for standin in running:
        standin.process.kill()
        standin.process.wait()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    """One server for what does not end it."""
    log = tmp_path_factory.mktemp("shared") / "log"
    arguments = ["--served-model-name", "m", "alias", "--max-model-len", "1k", "--api-key", "k1", "k2"]
    standin = Standin(log, "some/model", *arguments, env={"STANDIN_TOKENS_PER_SECOND": "1000"})
    standin.wait()
    original = standin.call

    def call(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        return original(method, path, body, **{"Authorization": "Bearer k2", **headers})

    standin.call = call  # type: ignore[method-assign]
    yield standin
    standin.process.kill()
    standin.process.wait()


class TestApi:
    def test_open_endpoints(self, shared: Standin) -> None:
        for path in ("/health", "/ping"):
            assert shared.call("GET", path, Authorization="") == (200, "")
        assert json.loads(shared.call("GET", "/version", Authorization="")[1]) == {"version": "0.32.0"}
        assert shared.call("POST", "/ping")[0] == 200

    @pytest.mark.parametrize(
        ("header", "status"),
        [("", 401), ("Bearer wrong", 401), ("k1", 401), ("Bearer k1", 200), ("bearer k2", 200)],
    )
    def test_key(self, shared: Standin, header: str, status: int) -> None:
        got, text = shared.call("GET", "/v1/models", Authorization=header)
        assert got == status
        assert status == 200 or json.loads(text) == {"error": "Unauthorized"}

    def test_models(self, shared: Standin) -> None:
        data = json.loads(shared.call("GET", "/v1/models")[1])["data"]
        assert [(m["id"], m["root"], m["max_model_len"]) for m in data] == [
            ("m", "some/model", 1000),
            ("alias", "some/model", 1000),
        ]

    def test_completion(self, shared: Standin) -> None:
        answer = shared.complete(max_tokens=5)
        assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}
        assert answer["choices"][0]["finish_reason"] == "length"
        assert len(answer["choices"][0]["text"].split()) == 5

    def test_stream_says_what_the_whole_answer_says(self, shared: Standin) -> None:
        found = shared.stream(max_tokens=5, stream_options={"include_usage": True})
        assert found[-1] == "[DONE]"
        assert isinstance(found[-2], dict)
        assert found[-2]["usage"]["completion_tokens"] == 5
        parts = choices(found)
        assert "".join(c["text"] for c in parts) == shared.complete(max_tokens=5)["choices"][0]["text"]
        assert [c["finish_reason"] for c in parts] == [None] * 4 + ["length"]

    def test_no_usage_unless_asked_for(self, shared: Standin) -> None:
        assert not any("usage" in event for event in shared.stream(max_tokens=2))

    def test_chat(self, shared: Standin) -> None:
        messages = [{"role": "user", "content": "hello"}]
        status, text = shared.call("POST", "/v1/chat/completions", {"messages": messages})
        choice = json.loads(text)["choices"][0]
        assert (status, choice["finish_reason"], choice["message"]["role"]) == (200, "stop", "assistant")
        parts = choices(shared.stream("/v1/chat/completions", messages=messages))
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"]["content"] for part in parts) == choice["message"]["content"]
        assert parts[-1]["finish_reason"] == "stop"

    def test_stop_strings_and_token_ids(self, shared: Standin) -> None:
        whole = shared.complete(max_tokens=8)["choices"][0]["text"]
        stop = whole.split()[4]
        choice = shared.complete(max_tokens=8, stop=stop)["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        assert choice["text"] == whole[: whole.index(stop)]
        assert shared.complete(prompt=[1, 9999, 3], max_tokens=1)["usage"]["prompt_tokens"] == 3

    @pytest.mark.parametrize(
        ("payload", "status", "message"),
        [
            ({"model": "nope", "prompt": "x"}, 404, "The model `nope` does not exist"),
            ({"model": "m", "prompt": "x", "max_tokens": 0}, 400, "max_tokens must be at least 1"),
            ({"model": "m", "prompt": "x", "max_tokens": 5000}, 400, "max_model_len=1000"),
            ({"model": "m", "prompt": [1] * 1000}, 400, "maximum context length is 1000"),
            ({"model": "m", "prompt": {}}, 400, "prompt"),
            ({"model": "m", "prompt": "x", "n": 2}, 400, "n=1"),
            ('{"model": "m",', 400, "JSON decode error"),
            ("[]", 400, "valid dictionary"),
        ],
    )
    def test_errors(self, shared: Standin, payload: Any, status: int, message: str) -> None:
        got, text = shared.call("POST", "/v1/completions", payload)
        error = json.loads(text)["error"]
        assert (got, error["code"]) == (status, status)
        assert message in error["message"]

    def test_unknown_paths_and_methods(self, shared: Standin) -> None:
        assert shared.call("GET", "/nope")[0] == 404
        assert shared.call("GET", "/v1/completions")[0] == 405

    def test_metrics_count(self, shared: Standin) -> None:
        def value(name: str) -> float:
            found = re.search(
                rf"^vllm:{name}\{{.*\}} (\S+)$", shared.call("GET", "/metrics")[1], re.MULTILINE
            )
            assert found, name
            return float(found[1])

        before = value("generation_tokens_total"), value("prompt_tokens_total")
        shared.complete(max_tokens=7)
        assert value("generation_tokens_total") - before[0] == 7
        assert value("prompt_tokens_total") - before[1] == 3
        assert value("num_requests_running") == 0

    def test_many_streams_at_once(self, shared: Standin) -> None:
        results: list[int] = []

        def ask() -> None:
            results.append(len(choices(shared.stream(max_tokens=20, ignore_eos=True))))

        threads = [
            threading.Thread(
                target=lambda: results.append(len(choices(shared.stream(max_tokens=20, ignore_eos=True))))
            )
            for _ in range(100)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [20] * 100


class TestWire:
    def exchange(self, standin: Standin, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", standin.port), timeout=GENEROUS) as connection:
            connection.sendall(data)
            out = b""
            while more := connection.recv(65536):
                out += more
            return out

    def test_http_1_0_gets_no_chunks_and_a_closed_connection(self, shared: Standin) -> None:
        body = b'{"model":"m","prompt":"x","max_tokens":2,"stream":true}'
        head = (
            b"POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer k1\r\nContent-Length: %d\r\n\r\n"
            % len(body)
        )
        answer = self.exchange(shared, head + body)
        assert b"transfer-encoding" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")

    def test_requests_behind_one_another(self, shared: Standin) -> None:
        one = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = self.exchange(shared, one + one + one.replace(b"Host: x", b"Connection: close"))
        assert answer.count(b"HTTP/1.1 200 OK") == 3
        assert answer.count(b"connection: close") == 1

    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (b"nonsense\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
            (b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
            (b"GET /" + b"x" * 70_000, 431),
        ],
    )
    def test_what_cannot_be_read_is_refused(self, shared: Standin, data: bytes, status: int) -> None:
        assert self.exchange(shared, data).startswith(b"HTTP/1.1 %d " % status)

    def test_a_client_that_leaves_is_counted_as_aborted(self, start: Start) -> None:
        standin = start("some/model")
        body = b'{"prompt":"x","max_tokens":5000,"ignore_eos":true}'
        with socket.create_connection(("127.0.0.1", standin.port)) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            standin.wait(lambda: self.gauge(standin, "num_requests_running") == 1)
        standin.wait(lambda: self.gauge(standin, "num_requests_running") == 0)
        assert 'finished_reason="abort",model_name="some/model"} 1.0' in standin.call("GET", "/metrics")[1]

    def gauge(self, standin: Standin, name: str) -> float:
        return float(re.findall(rf"vllm:{name}\{{.*\}} (\S+)", standin.call("GET", "/metrics")[1])[0])


class TestStart:
    def test_log(self, start: Start, model: Path) -> None:
        args = ("--max_model_len=2048", "--some-new-flag", "7", "--api-key", "secret-key")
        standin = start(str(model), *args, env={"STANDIN_KV_TOKENS": "524288"})
        lines = [
            r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[api_utils.py:347\] .*version 0.32.0",
            r"Initializing a V1 LLM engine \(v0.32.0\) with config: model=",
            r"Loading weights took [\d.]+ seconds",
            r"Model loading took [\d.]+ GiB memory and [\d.]+ seconds",
            r"Available KV cache memory: 64.00 GiB",
            r"GPU KV cache size: 524,288 tokens, Maximum concurrency for 2,048 tokens per request: 256.00x",
            r"init engine \(profile, create kv cache, warmup model\) took [\d.]+ s",
            r"Application startup complete\.",
        ]
        assert re.search("[^$]*".join(lines), standin.log), standin.log
        assert "secret-key" not in standin.log

    def test_a_cache_that_nobody_sized_is_not_logged(self, start: Start, model: Path) -> None:
        assert "KV cache" not in start(str(model)).log

    @pytest.mark.parametrize(
        ("arguments", "env", "backend"),
        [
            ([], {}, "rocm_attn"),
            (["--attention-backend", "auto"], {}, "rocm_attn"),
            (["--attention-backend", "ROCM_AITER_FA"], {}, "aiter_fa"),
            (["--attention-backend", "ROCM_AITER_FA"], {"STANDIN_ATTENTION": "TRITON_ATTN"}, "triton"),
        ],
    )
    def test_the_log_proves_an_attention_backend(
        self, start: Start, arguments: list[str], env: dict[str, str], backend: str
    ) -> None:
        """In the words that the catalogue has for the release that it imitates."""
        known = knowledge()
        backends = Backends(known.release(Knobs.version), known.line, known.backends)
        lines = {name: backends.log_lines(name) for name in known.backends["backends"]}
        standin = start("some/model", *arguments, env=env)
        assert list(proven_backends(lines, standin.log.splitlines())) == [backend]

    def test_nothing_listens_before_it_is_ready(self, start: Start) -> None:
        begun = time.monotonic()
        standin = start("some/model", env={"STANDIN_STARTUP_SECONDS": "3"}, ready=False)

        def listens() -> bool:
            with socket.create_connection(("127.0.0.1", standin.port)):
                return True

        standin.wait(listens)  # it is tried all the time, so a port that were open earlier would be found
        assert time.monotonic() - begun > 3
        standin.wait()

    @pytest.mark.parametrize(
        ("failure", "code", "decisive"),
        [
            ("oom", 1, "torch.OutOfMemoryError: HIP out of memory"),
            ("kv_cache", 1, "ValueError: To serve at least one request with the model's max seq len"),
            ("unrecognized_argument", 2, "vllm: error: unrecognized arguments: "),
            ("missing_weights", 1, "RuntimeError: Cannot find any model weights with"),
            ("port_in_use", 1, "OSError: [Errno 98] Address already in use"),
            ("gpu_fault", 1, "Memory access fault by GPU node-"),
            ("rccl", 1, "torch.distributed.DistBackendError: NCCL error in"),
        ],
    )
    def test_failures(self, start: Start, failure: str, code: int, decisive: str) -> None:
        standin = start(
            "some/model", "-tp", "2" if failure == "oom" else "1", env={"STANDIN_FAIL": failure}, ready=False
        )
        assert standin.finish() == code
        assert decisive in standin.log
        engine = "Engine core initialization failed. See root cause above" in standin.log
        assert engine is (failure not in ("unrecognized_argument", "port_in_use"))
        assert not engine or standin.log.index(decisive) < standin.log.index(
            "Engine core initialization failed"
        )

    def test_hang(self, start: Start) -> None:
        standin = start("some/model", env={"STANDIN_FAIL": "hang"}, ready=False)
        standin.wait(lambda: "Initializing a V1 LLM engine" in standin.log)
        time.sleep(0.1)  # it starts in less, were it not to hang
        assert standin.process.poll() is None
        with pytest.raises(ConnectionRefusedError):
            standin.call("GET", "/health")
        standin.process.terminate()
        assert standin.finish() == -signal.SIGTERM

    def test_a_port_that_is_really_in_use(self, start: Start, shared: Standin) -> None:
        standin = start("some/model", "--port", str(shared.port), ready=False)
        assert standin.finish() == 1
        assert "Address already in use" in standin.log

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["m", "--max-model-len", "many"],
                "argument --max-model-len: invalid human_readable_int_or_auto value",
            ),
            (["m", "--max-num-seqs", "x"], "argument --max-num-seqs: invalid int value"),
            ([], "model_tag"),
        ],
    )
    def test_wrong_values(self, start: Start, arguments: list[str], message: str) -> None:
        standin = start(*arguments, ready=False)
        assert standin.finish() == 2
        assert message in standin.log

    def test_unknown_knob(self, start: Start) -> None:
        standin = start("m", env={"STANDIN_GARBAG": "1"}, ready=False)
        assert standin.finish() == 2
        assert "did you mean STANDIN_GARBAGE" in standin.log

    @pytest.mark.parametrize(
        ("env", "message"),
        [
            ({"STANDIN_ANSWERS": "/nonesuch"}, "STANDIN_ANSWERS='/nonesuch' cannot be read"),
            ({"STANDIN_WRONG_RATE": "1.5"}, "STANDIN_WRONG_RATE must be from 0 to 1"),
            ({"STANDIN_FAIL_RATE": "-1"}, "STANDIN_FAIL_RATE must be from 0 to 1"),
        ],
    )
    def test_knobs_of_no_use(self, start: Start, env: dict[str, str], message: str) -> None:
        standin = start("m", env=env, ready=False)
        assert standin.finish() == 2
        assert message in standin.log


class TestExam:
    def test_log_likelihoods_are_of_the_prompt_and_shifted_by_the_knob(self, start: Start) -> None:
        found = []
        for shift in ("0", "0.25"):
            answer = start("m", env={"STANDIN_NLL_SHIFT": shift}).complete(prompt_logprobs=0, max_tokens=1)
            (none, *rest) = answer["choices"][0]["prompt_logprobs"]
            assert none is None
            found.append([next(iter(entry.values()))["logprob"] for entry in rest])
        one, other = found
        assert len(one) == 2
        assert all(value < 0 for value in one)
        assert other == pytest.approx([value - 0.25 for value in one])

    def test_an_answer_has_them_only_if_they_were_asked_for(self, start: Start) -> None:
        assert start("m").complete(max_tokens=1)["choices"][0]["prompt_logprobs"] is None

    def test_known_prompts_are_answered_and_some_wrongly(self, start: Start, tmp_path: Path) -> None:
        rows = [{"prompt": f"question {number}", "accepted": [f"answer {number}"]} for number in range(40)]
        file = tmp_path / "answers.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        env = {"STANDIN_ANSWERS": str(file), "STANDIN_TOKENS_PER_SECOND": "2000", "STANDIN_WRONG_RATE": "0.3"}
        standin = start("m", env=env)
        texts = [standin.complete(prompt=row["prompt"])["choices"][0]["text"] for row in rows]
        wrong = [number for number, text in enumerate(texts) if text != f" answer {number}"]
        assert 4 <= len(wrong) <= 20
        again = [standin.complete(prompt=row["prompt"])["choices"][0]["text"] for row in rows]
        assert again == texts

    def test_some_requests_fail(self, start: Start) -> None:
        standin = start("m", env={"STANDIN_FAIL_RATE": "0.5", "STANDIN_TOKENS_PER_SECOND": "2000"})
        body = {"model": "m", "prompt": "a", "max_tokens": 1}
        found = [standin.call("POST", "/v1/completions", body)[0] for _request in range(30)]
        assert set(found) == {200, 500}


class TestWeights:
    def test_found_in_the_cache_by_commit_and_by_ref(
        self, start: Start, model: Path, offline: dict[str, str]
    ) -> None:
        standin = start("lab/tiny-llama", "--revision", "c" * 40, env=offline)
        assert '"max_model_len":4096' in standin.call("GET", "/v1/models")[1]
        (model.parents[1] / "refs").mkdir(exist_ok=True)
        (model.parents[1] / "refs" / "main").write_text("c" * 40)
        start("lab/tiny-llama", env=offline)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["lab/other"], "LocalEntryNotFoundError"),
            (["lab/tiny-llama", "--revision", "d" * 40], "LocalEntryNotFoundError"),
            (["/no/such/place"], "does not appear to have a file named config.json"),
        ],
    )
    def test_not_there(
        self, start: Start, offline: dict[str, str], arguments: list[str], message: str
    ) -> None:
        standin = start(*arguments, env=offline, ready=False)
        assert standin.finish() == 1
        assert message in standin.log

    def test_a_shard_is_missing(self, start: Start, tmp_path: Path) -> None:
        models.write(tmp_path / "model")
        (tmp_path / "model" / "model-00002-of-00002.safetensors").unlink()
        standin = start(str(tmp_path / "model"), ready=False)
        assert standin.finish() == 1
        assert f"Cannot find any model weights with `{tmp_path}/model`" in standin.log

    def test_longer_than_the_model(self, start: Start, model: Path) -> None:
        standin = start(str(model), "--max-model-len", "5000", ready=False)
        assert standin.finish() == 1
        assert "User-specified max_model_len (5000) is greater than the derived max_model_len" in standin.log


class TestEnd:
    def in_flight(
        self, standin: Standin, tokens: int = 5000
    ) -> tuple[threading.Thread, list[str], Callable[[], None]]:
        """A stream that has begun, what has come of it, and how to hang up."""
        got: list[str] = []
        connection = http.client.HTTPConnection("127.0.0.1", standin.port, timeout=2 * GENEROUS)
        connection.connect()
        sock = connection.sock

        def read() -> None:
            body = {"model": "m", "prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            try:
                while line := answer.readline():
                    got.append(line.decode())
            except (OSError, http.client.HTTPException) as error:
                got.append(f"{type(error).__name__}")
            connection.close()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        standin.wait(lambda: len(got) > 2)
        return thread, got, lambda: sock.shutdown(socket.SHUT_RDWR)

    def test_idle(self, start: Start) -> None:
        standin = start("some/model")
        keep = http.client.HTTPConnection("127.0.0.1", standin.port)
        keep.request("GET", "/health")
        keep.getresponse().read()
        standin.process.terminate()
        assert standin.finish() == 0
        assert "Application shutdown complete." in standin.log

    def test_drain(self, start: Start) -> None:
        standin = start("some/model", "--served-model-name", "m", "--shutdown-timeout", "100")
        thread, got, _ = self.in_flight(standin, tokens=500)  # it goes on while the server is asked
        standin.process.terminate()
        standin.wait(lambda: "draining in-flight requests count=1" in standin.log)
        status, text = standin.call("POST", "/v1/completions", {"model": "m", "prompt": "x"})
        assert (status, standin.call("GET", "/health")[0]) == (500, 200)
        assert "cannot schedule new futures after shutdown" in text
        thread.join()
        assert got[-2] == "data: [DONE]\n"
        assert sum('"text"' in line for line in got) == 500
        assert standin.finish() == 0

    @pytest.mark.parametrize("timeout", ["0", "0.2"])
    def test_streams_are_left_without_an_end(self, start: Start, timeout: str) -> None:
        """As with the real one: only the client's patience, or SIGKILL, ends it."""
        standin = start("some/model", "--served-model-name", "m", "--shutdown-timeout", timeout)
        thread, got, hang_up = self.in_flight(standin)
        standin.process.terminate()
        standin.wait(lambda: "Waiting for connections to close." in standin.log)
        thread.join(1)  # a second for an end that does not come
        assert thread.is_alive()
        assert standin.process.poll() is None
        hang_up()
        thread.join()
        assert "data: [DONE]\n" not in got
        assert standin.finish() == 0

    @pytest.mark.parametrize(
        "env", [{"STANDIN_FAIL": "first_request"}, {"STANDIN_CRASH_AFTER": "1"}], ids=str
    )
    def test_the_engine_dies(self, start: Start, env: dict[str, str]) -> None:
        standin = start("some/model", "--served-model-name", "m", env=env)
        thread, got, _ = self.in_flight(standin) if "STANDIN_CRASH_AFTER" in env else (None, [], None)
        status, text = standin.call("POST", "/v1/completions", {"model": "m", "prompt": "x"})
        assert status == 500
        assert "EngineCore encountered an issue" in text
        assert standin.call("GET", "/health")[0] == 503
        if thread:
            thread.join()
            assert "EngineCore encountered an issue" in got[-4]
            assert got[-2] == "data: [DONE]\n"
        assert standin.finish() == 0
        assert "EngineDeadError" in standin.log

    def test_truncated_streams(self, start: Start) -> None:
        standin = start("some/model", "--served-model-name", "m", env={"STANDIN_TRUNCATE_AFTER": "4"})
        thread, got, _ = self.in_flight(standin)
        thread.join()
        assert sum('"text"' in line for line in got) == 4
        assert not any("[DONE]" in line for line in got)
        assert standin.complete(max_tokens=6)["usage"]["completion_tokens"] == 6

    def test_garbage(self, start: Start) -> None:
        standin = start("some/model", "--served-model-name", "m", env={"STANDIN_GARBAGE": "1"})
        assert standin.complete(max_tokens=6)["choices"][0]["text"] == "!!!!!!"


def test_version_and_linked_command(tmp_path: Path) -> None:
    (tmp_path / "vllm").symlink_to(VLLM)
    for env, version in (({}, "0.32.0"), ({"STANDIN_VERSION": "0.33.0"}, "0.33.0")):
        out = subprocess.check_output(
            [tmp_path / "vllm", "--version"], env={"PATH": os.environ["PATH"], **env}, text=True
        )
        assert out.strip() == version


class TestOverHosts:
    def test_ranks_meet_and_a_lost_one_makes_the_head_hang(self, start: Start) -> None:
        port = str(free_port())
        place = [
            "--served-model-name",
            "m",
            "--nnodes",
            "2",
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
        ]
        head = start("some/model", *place, "--node-rank", "0", ready=False)
        head.wait(lambda: "world_size=2 rank=0" in head.log)
        with pytest.raises(OSError, match="refused"):
            head.call("GET", "/health")
        other = start("some/model", *place, "--node-rank", "1", "--headless", ready=False)
        head.wait()
        assert head.complete(max_tokens=5)["usage"]["completion_tokens"] == 5
        other.process.kill()
        other.process.wait()
        time.sleep(
            0.2
        )  # the kernel has told the head by now: it lets the connection be, as the real one does
        assert head.call("GET", "/health")[0] == 200
        with socket.create_connection(("127.0.0.1", head.port), timeout=1) as client:
            body = b'{"prompt": "a", "max_tokens": 2}'
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            with pytest.raises(TimeoutError):
                client.recv(100)
