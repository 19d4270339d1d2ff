# SPDX-License-Identifier: Apache-2.0
"""vllm_accuracy against servers that answer like vLLM's: what failed is never an answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench import accuracy, smoke_run
from ansible_collections.instinct.fleet.plugins.module_utils.bench.accuracy import log_likelihoods
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.modules import vllm_accuracy

from tests.unit.bench.test_smoke_run import KEY, Respond, chat, completions, neither, server, target

ITEMS = [{"id": f"i-{number}", "text": f"Q: {number}?\nA:"} for number in range(9)]
PASSAGES = [{"id": "p-0", "text": "a b c"}, {"id": "p-1", "text": "d e"}]
WORK = {"prompts": {"llama-0": ITEMS}, "passages": PASSAGES, "tokens": 40}


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An instance's directory with its environment file."""
    directory = tmp_path / "instances/llama-0"
    directory.mkdir(parents=True)
    (directory / "env").write_text(f"VLLM_API_KEY='{KEY}'\n")
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path))
    monkeypatch.setattr(smoke_run, "node_key", lambda: "")
    monkeypatch.setattr(accuracy, "_PAUSE", 0.0)
    return directory


def answers(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """As vLLM answers, with the log likelihoods of a prompt's words."""
    if "prompt_logprobs" not in body:
        return completions(path, body)
    likelier = {"9": {"logprob": -0.1, "rank": 1}}
    count = len(body["prompt"].split()) - 1
    entries = [{str(number): {"logprob": -1.5, "rank": 3}, **likelier} for number in range(count)]
    return 200, {"choices": [{"text": "x", "prompt_logprobs": [None, *entries]}]}


def ask(
    run_module: Any,
    respond: Respond,
    check: bool = False,
    targets: list[dict[str, Any]] | None = None,
    **more: Any,
) -> tuple[dict[str, Any], bool, Any]:
    with server(respond) as (port, asked):
        found = [{**one, "port": port} for one in targets or [target(0)]]
        args = {"targets": found, "work": WORK, "request_timeout": 60, **more}
        result, failed = run_module(vllm_accuracy.main, args, check=check)
    return result, failed, asked


def test_items_and_passages_are_asked_with_the_key_of_the_node(run_module: Any) -> None:
    result, failed, asked = ask(run_module, answers)
    assert not failed, result["msg"]
    (entry,) = result["instances"]
    assert [(row["id"], row["text"], row["error"]) for row in entry["answers"]] == [
        (item["id"], " Q: ", "") for item in ITEMS
    ]
    assert entry["passages"] == [
        {"id": "p-0", "nll": 3.0, "tokens": 2, "error": ""},
        {"id": "p-1", "nll": 1.5, "tokens": 1, "error": ""},
    ]
    assert (entry["deployment"], entry["commit"], entry["endpoint"], entry["note"]) == (
        "llama",
        "c0ffee",
        "completions",
        "",
    )
    assert {one["key"] for one in asked} == {f"Bearer {KEY}"}
    assert KEY not in json.dumps(result)
    passages = [one for one in asked if "prompt_logprobs" in one]
    assert {(one["max_tokens"], one["temperature"], one["prompt_logprobs"]) for one in passages} == {
        (1, 0, 0)
    }
    assert {one["max_tokens"] for one in asked if "stop" in one} == {40}


def test_a_failed_request_is_sent_again_and_then_is_no_answer(run_module: Any) -> None:
    tries = Counter[str]()

    def respond(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        tries[body["prompt"]] += 1
        if body["prompt"] == ITEMS[3]["text"]:
            return 500, {"error": "EngineCore died"}
        if body["prompt"] == ITEMS[4]["text"] and tries[body["prompt"]] < 3:
            return 503, {}
        if body["prompt"] == ITEMS[5]["text"]:
            return 400, {"error": "too long"}
        return answers(path, body)

    result, failed, _asked = ask(run_module, respond, retries=2)
    assert not failed
    rows = result["instances"][0]["answers"]
    assert [row["id"] for row in rows if row["error"]] == ["i-3", "i-5"]
    assert all(not row["text"] for row in rows if row["error"])
    assert [tries[ITEMS[number]["text"]] for number in (2, 3, 4, 5)] == [1, 3, 3, 1]


def test_an_instance_that_is_gone_has_no_answers_and_the_others_have(run_module: Any) -> None:
    gone = {**target(1), "name": "llama-1"}
    work = {**WORK, "prompts": {"llama-0": ITEMS[:2], "llama-1": ITEMS[2:]}}
    with server(answers) as (port, _asked):
        args = {"targets": [target(port), gone], "work": work, "retries": 0}
        result, failed = run_module(vllm_accuracy.main, args)
    assert not failed
    one, other = result["instances"]
    assert not any(row["error"] for row in one["answers"])
    assert all("Connection refused" in row["error"] for row in other["answers"] + other["passages"])
    assert all(row["nll"] is None for row in other["passages"])


def test_when_the_time_is_over_the_rest_has_failed(run_module: Any) -> None:
    result, failed, asked = ask(run_module, answers, timeout=-1)
    assert not failed
    assert len(asked) == 1  # which endpoint there is
    errors = {row["error"] for row in result["instances"][0]["answers"]}
    assert errors == {"not asked: the time for this instance was used up"}


def test_ranks_that_serve_nothing_are_left_out(run_module: Any) -> None:
    targets = [target(0, rank={"headless": True})]
    result, failed, asked = ask(run_module, answers, targets=targets)
    assert (failed, result["instances"], asked) == (False, [], [])


def test_a_model_that_only_chats_has_no_nll(run_module: Any) -> None:
    result, _failed, _asked = ask(run_module, chat)
    (entry,) = result["instances"]
    assert (entry["endpoint"], entry["passages"]) == ("chat", [])
    assert len(entry["answers"]) == len(ITEMS)
    assert entry["note"] == "it has no /v1/completions, so no NLL was measured"


def test_a_model_that_embeds_is_asked_nothing(run_module: Any) -> None:
    result, failed, asked = ask(run_module, neither)
    assert not failed
    assert result["instances"][0]["note"].startswith("generates no text (/v1/completions: HTTP 400")
    assert len(asked) == 2


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"text": "x"}]},
        {"choices": [{"text": "x", "prompt_logprobs": None}]},
        {"choices": [{"text": "x", "prompt_logprobs": [None]}]},
        {"choices": []},
    ],
)
def test_an_answer_without_log_likelihoods_is_an_error(run_module: Any, body: Any) -> None:
    result, _failed, _asked = ask(
        run_module, lambda path, asked: (200, body) if "prompt_logprobs" in asked else answers(path, asked)
    )
    assert all(row["error"].startswith("no prompt_logprobs") for row in result["instances"][0]["passages"])


def test_what_is_not_finite_is_no_likelihood(run_module: Any) -> None:
    broken = {"choices": [{"prompt_logprobs": [None, {"1": {"logprob": float("nan")}}]}]}
    result, _failed, _asked = ask(
        run_module, lambda path, asked: (200, broken) if "prompt_logprobs" in asked else answers(path, asked)
    )
    (row, _other) = result["instances"][0]["passages"]
    assert (row["nll"], row["error"]) == (None, "a log likelihood is not a finite number")


def test_the_prompts_own_token_comes_first() -> None:
    text = json.dumps(
        {"choices": [{"prompt_logprobs": [None, {"5": {"logprob": -7.0}, "6": {"logprob": -0.1}}]}]}
    )
    assert log_likelihoods(text) == [-7.0]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["vllm", "serve", "m", "--max-model-len", "8"], "of the checkpoint"),
        (["vllm", "serve", "m", "--dtype", "auto", "--kv-cache-dtype", "auto"], "of the checkpoint"),
        (
            ["vllm", "serve", "m", "--quantization", "fp8", "--seed", "1", "--kv-cache-dtype", "fp8"],
            "--quantization fp8 --kv-cache-dtype fp8",
        ),
    ],
)
def test_what_chooses_number_formats_is_named(run_module: Any, argv: list[str], said: str) -> None:
    result, _failed, _asked = ask(run_module, answers, targets=[target(0, argv=argv)])
    assert result["instances"][0]["quantization"] == said


def test_an_instance_of_a_generation_that_is_not_stored(run_module: Any) -> None:
    targets = [{"name": "llama-0", "deployment": "llama", "generation": 7}]
    result, failed = run_module(vllm_accuracy.main, {"targets": targets, "work": WORK})
    assert failed
    assert "Generation 7 of llama is not kept" in result["msg"]


def test_check_mode_asks_nothing(run_module: Any) -> None:
    result, failed, asked = ask(run_module, answers, check=True)
    assert (failed, asked, result["instances"]) == (False, [], [])
    assert result["actions"] == ["POST to llama-0 (9 items, 2 passages)"]


def test_without_its_action_plugin_it_has_nothing_to_ask(run_module: Any) -> None:
    result, failed, _asked = ask(run_module, answers, work=None)
    assert failed
    assert "called without its action plugin" in result["msg"]
