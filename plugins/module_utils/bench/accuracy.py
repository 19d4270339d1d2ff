# SPDX-License-Identifier: Apache-2.0
"""Ask an instance prompts and passages, from its own node. A request that fails has an error and no answer.

What an answer is worth is decided on the control node (plugin_utils/measuring/accuracy).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable

from ..serving.health import ProbeAnswer, ServerAddress
from .smoke_run import find, post, reply

Row = dict[str, Any]

_FORMATS = ("--quantization", "-q", "--dtype", "--kv-cache-dtype")
_STOP = ["\nQ:"]  # of the items' prompts: what follows is the model's own next question
_PAUSE = 1.0  # seconds before a request is sent again


@dataclass(frozen=True)
class RequestLimits:
    """How requests are sent: how many at the same time, seconds for one, and how often a failed one is sent again.

    deadline: of time.monotonic(); what was not answered by then is not sent.
    """

    concurrency: int
    timeout: float
    retries: int
    deadline: float


def measure(
    endpoint: ServerAddress,
    prompts: Sequence[Mapping[str, str]],
    passages: Sequence[Mapping[str, str]],
    tokens: int,
    limits: RequestLimits,
) -> Row:
    """Return the answers to `prompts` and the log likelihoods of `passages`; each of them has id and text."""
    name, why = find(endpoint, limits.timeout)
    if why:
        return {"endpoint": "", "answers": [], "passages": [], "note": f"generates no text ({why})"}
    note = (
        "" if name == "completions" or not passages else "it has no /v1/completions, so no NLL was measured"
    )
    return {
        "endpoint": name,
        # One at a time, so that replicas do not differ by what else is in a batch.
        "passages": [_passage(endpoint, item, limits) for item in passages] if name == "completions" else [],
        "answers": _answers(endpoint, name, prompts, tokens, limits),
        "note": note,
    }


def quantization_of(argv: Sequence[str]) -> str:
    """Return the options of a `vllm serve` command line that choose number formats; "of the checkpoint" without any."""
    pairs = zip(argv, argv[1:])
    return " ".join(f"{name} {value}" for name, value in pairs if name in _FORMATS and value != "auto") or (
        "of the checkpoint"
    )


def _answers(
    endpoint: ServerAddress,
    name: str,
    prompts: Sequence[Mapping[str, str]],
    tokens: int,
    limits: RequestLimits,
) -> list[Row]:
    def answer(item: Mapping[str, str]) -> Row:
        got = reply(
            _sent(lambda: post(endpoint, name, item["text"], tokens, limits.timeout, stop=_STOP), limits)
        )
        return {"id": item["id"], "text": got.text, "error": got.error}

    with ThreadPoolExecutor(max_workers=limits.concurrency) as pool:
        return list(pool.map(answer, prompts))


def _passage(endpoint: ServerAddress, item: Mapping[str, str], limits: RequestLimits) -> Row:
    row: Row = {"id": item["id"], "nll": None, "tokens": None, "error": ""}
    answer = _sent(
        lambda: post(endpoint, "completions", item["text"], 1, limits.timeout, prompt_logprobs=0), limits
    )
    if answer.status != 200:
        row["error"] = f"HTTP {answer.status}: {answer.text[:300]}" if answer.status else answer.text
        return row
    try:
        values = log_likelihoods(answer.text)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        row["error"] = f"no prompt_logprobs in the answer: {answer.text[:200]}"
        return row
    if not all(math.isfinite(value) for value in values):
        row["error"] = "a log likelihood is not a finite number"
        return row
    return {**row, "nll": -math.fsum(values), "tokens": len(values)}


def log_likelihoods(text: str) -> list[float]:
    """Return the log likelihood of each token of the prompt but the first, which follows nothing.

    vLLM lists the prompt's own token first, before likelier ones. Raise ValueError, KeyError or TypeError without any.
    """
    found = [
        float(next(iter(position.values()))["logprob"])
        for position in json.loads(text)["choices"][0]["prompt_logprobs"]
        if position
    ]
    if not found:
        raise ValueError("no log likelihood")
    return found


def _sent(send: Callable[[], ProbeAnswer], limits: RequestLimits) -> ProbeAnswer:
    """Send until there is an answer that another try would not change, or the tries or the time are used up."""
    answer = ProbeAnswer(text="not asked: the time for this instance was used up")
    for attempt in range(limits.retries + 1):
        if attempt:
            time.sleep(_PAUSE)
        if time.monotonic() > limits.deadline:
            break
        answer = send()
        if answer.status == 200 or answer.refused:
            break
    return answer
