# SPDX-License-Identifier: Apache-2.0
"""vllm_smoke against servers that answer like vLLM's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench import smoke_run
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.credentials import node_key
from ansible_collections.instinct.fleet.plugins.module_utils.engines.smoke_prompts import PROMPTS
from ansible_collections.instinct.fleet.plugins.modules import vllm_smoke

from tests.helpers.module_docs import documented_by

KEY = "sk-canary-Zq81-secret-of-the-instance"
Respond = Callable[[str, dict[str, Any]], tuple[int, Any]]


@contextmanager
def server(respond: Respond) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """(port, what was asked): each request's body with its path and its key."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None: ...

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
            code, data = respond(self.path, body)
            payload = json.dumps(data).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.daemon_threads = True
    threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield found.server_address[1], asked
    finally:
        found.shutdown()
        found.server_close()


def completions(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    if path != "/v1/completions":
        return 404, {"detail": "Not Found"}
    return 200, {"choices": [{"text": f" {body['prompt'][:3]}"}]}


def chat(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    if path != "/v1/chat/completions":
        return 404, {"detail": "Not Found"}
    return 200, {"choices": [{"message": {"content": body["messages"][0]["content"][:3]}}]}


def neither(_path: str, _body: dict[str, Any]) -> tuple[int, Any]:
    return 400, {"error": {"message": "The model does not support Completions API"}}


def dies(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    return completions(path, body) if body["max_tokens"] == 1 else (500, {"error": "EngineCore died"})


def target(port: int, **more: Any) -> dict[str, Any]:
    return {
        "name": "llama-0", "deployment": "llama", "model": "lab/llama", "commit": "c0ffee", "image": "i", "vllm": "0.1",
        "served_model": "llama", "port": port, "gpus": [0, 1], "server": {"host": "127.0.0.1"}, **more,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An instance's directory with its environment file."""
    directory = tmp_path / "instances/llama-0"
    directory.mkdir(parents=True)
    (directory / "env").write_text(f"VLLM_API_KEY='{KEY}'\n")
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path))
    monkeypatch.setattr(smoke_run, "node_key", lambda: "")
    return directory


def ask(
    run_module: Any, respond: Respond, check: bool = False, **more: Any
) -> tuple[dict[str, Any], bool, Any]:
    with server(respond) as (port, asked):
        args = {"target": target(port), "docker_socket": "/nonexistent", "timeout": 60, **more}
        result, failed = run_module(vllm_smoke.main, args, check=check)
    return result, failed, asked


def test_every_prompt_is_asked_with_the_key_of_the_node(run_module: Any) -> None:
    result, failed, asked = ask(run_module, completions, times=2)
    assert not failed, result["msg"]
    assert (result["endpoint"], result["note"], result["cause"]) == ("completions", "", "")
    assert [[reply["text"] for reply in replies] for replies in result["rounds"]] == [
        [f" {prompt.text[:3]}" for prompt in PROMPTS]
    ] * 2
    assert len(asked) == 1 + 2 * len(PROMPTS)
    assert {item["key"] for item in asked} == {f"Bearer {KEY}"}
    assert [(item["temperature"], item["max_tokens"]) for item in asked[1:]] == [(0, 32)] * 2 * len(PROMPTS)
    assert result["instance"] == {
        "name": "llama-0", "deployment": "llama", "model": "lab/llama", "commit": "c0ffee", "image": "i", "vllm": "0.1",
        "gpus": 2,
    }  # fmt: skip
    assert result["changed"] is False
    assert KEY not in json.dumps(result)


def test_the_nodes_key_serves_instances_without_one(
    run_module: Any, node: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (node / "env").write_text("A=b\n")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / node_key.NAME).write_text(f"VLLM_API_KEY={KEY}\n")
    monkeypatch.setattr(smoke_run, "node_key", lambda: node_key.node_key(str(tmp_path / "keys")))
    _, failed, asked = ask(run_module, completions)
    assert not failed
    assert asked[0]["key"] == f"Bearer {KEY}"


def test_a_model_that_only_chats(run_module: Any) -> None:
    result, failed, _ = ask(run_module, chat)
    assert not failed
    assert result["endpoint"] == "chat"
    assert result["rounds"][0][0]["text"] == "The"


def test_a_model_that_embeds_is_asked_nothing(run_module: Any) -> None:
    result, failed, asked = ask(run_module, neither)
    assert not failed
    assert result["rounds"] == []
    assert result["note"].startswith(
        "llama-0 generates no text, so no prompts are sent (/v1/completions: HTTP 400"
    )
    assert len(asked) == 2


def test_errors_are_answers_too(run_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_smoke, "cause", lambda *_: " The server is exited.")
    result, failed, _ = ask(run_module, dies)
    assert not failed
    assert result["rounds"][0][0]["error"] == 'HTTP 500: {"error": "EngineCore died"}'
    assert result["cause"] == "The server is exited."
    result, failed = run_module(vllm_smoke.main, {"target": target(1), "docker_socket": "/nonexistent"})
    assert not failed
    assert "Connection refused" in result["rounds"][0][0]["error"]


def test_without_docker_nothing_is_known_of_a_server_that_does_not_answer(run_module: Any) -> None:
    result, failed = run_module(vllm_smoke.main, {"target": target(1), "docker_socket": "/nonexistent"})
    assert failed
    assert result["class"] == "docker"
    assert "Docker's socket /nonexistent does not exist" in result["msg"]


def test_check_mode_asks_nothing(run_module: Any) -> None:
    result, failed, asked = ask(run_module, completions, check=True)
    assert not failed
    assert asked == []
    assert result["actions"][0].endswith("/v1/completions (12 prompts, 32 tokens each)")


def test_an_incomplete_target(run_module: Any) -> None:
    result, failed = run_module(vllm_smoke.main, {"target": {"name": "a-0"}})
    assert failed
    assert "target: port, served_model is missing" in result["msg"]


def test_the_documentation_is_the_argument_spec() -> None:
    options = documented_by(vllm_smoke)["options"]
    reported = {
        name: {key: value for key, value in item.items() if key != "description"}
        for name, item in options.items()
    }
    assert reported == vllm_smoke.argument_spec()
