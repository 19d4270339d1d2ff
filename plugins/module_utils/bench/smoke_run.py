# SPDX-License-Identifier: Apache-2.0
"""Asks an instance the prompts of common/smoke_prompts.py, on its own node."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..common import paths
from ..common.endpoint import listen_address, local_address
from ..common.files import read_text
from ..common.instance_key import node_key
from ..common.redact import env_assignments
from ..common.smoke_prompts import PROMPTS, TOKENS, Prompt, Reply
from ..serving.health import Answer, Endpoint, ask

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
"""Where text is asked for, by endpoint. Not every model has the first one, and models that embed have neither."""

_ABSENT = (400, 404, 405, 501)  # what vLLM answers where a model does not do such a thing


def key_of(instance: Mapping[str, Any]) -> str:
    """The API key that an instance asks for, from the files of root's on its node; "" for none."""
    directory = paths.instance_dir(str(instance.get("name")))
    own = env_assignments(read_text(os.path.join(directory, "env")) or "").get("VLLM_API_KEY", "")
    return own or node_key()


def endpoint_of(instance: Mapping[str, Any], api_key: str) -> Endpoint:
    """Where the node reaches an instance."""
    host = str((instance.get("server") or {}).get("host") or "")
    if not host:
        host = local_address(listen_address(instance.get("argv") or ()))
    return Endpoint(host, int(instance["port"]), str(instance["served_model"]), api_key)


def find(endpoint: Endpoint, timeout: float) -> tuple[str, str]:
    """(name in PATHS, "") of where the instance generates text, or ("", why it does nowhere)."""
    told = []
    for name, path in PATHS.items():
        answer = _post(endpoint, name, Prompt("", "Hello"), 1, timeout)
        if answer.status not in _ABSENT:  # also where it fails: that is for the prompts to show
            return name, ""
        told.append(f"{path}: HTTP {answer.status}: {answer.text[:200]}")
    return "", "; ".join(told)


def ask_all(endpoint: Endpoint, name: str, timeout: float) -> list[Reply]:
    """The replies to all prompts, asked at once. `timeout` in seconds, of one request."""
    with ThreadPoolExecutor(max_workers=len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: reply(_post(endpoint, name, prompt, TOKENS, timeout)), PROMPTS))


def reply(answer: Answer) -> Reply:
    """The text of an answer of either endpoint; a model that reasons may only have come to think."""
    if answer.status != 200:
        return Reply(error=f"HTTP {answer.status}: {answer.text[:300]}" if answer.status else answer.text)
    try:
        choice = json.loads(answer.text)["choices"][0]
        message = choice.get("message")
        if message is None:
            return Reply(str(choice["text"]))
        thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
        return Reply(f"{thoughts}{message.get('content') or ''}")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Reply(error=f"no text in the answer: {answer.text[:200]}")


def _post(endpoint: Endpoint, name: str, prompt: Prompt, tokens: int, timeout: float) -> Answer:
    body: dict[str, Any] = {"model": endpoint.model, "max_tokens": tokens, "temperature": 0, "seed": 0}
    if name == "chat":
        body["messages"] = [{"role": "user", "content": prompt.text}]
    else:
        body["prompt"] = prompt.text
    return ask(endpoint, "POST", PATHS[name], body, timeout)
