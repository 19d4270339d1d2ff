# SPDX-License-Identifier: Apache-2.0
"""Send the prompts of engines/smoke_prompts.py to an instance, from its own node."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..common import paths
from ..common.files import read_text
from ..credentials.env_files import env_assignments
from ..credentials.node_key import node_key
from ..engines.smoke_prompts import PROMPTS, TOKENS, Reply
from ..service.endpoint import listen_address, local_address
from ..serving.health import ProbeAnswer, ServerAddress, ask

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
"""Endpoints that generate text. Some models do not support the first; embedding models support neither."""

_ABSENT = (400, 404, 405, 501)  # vLLM's answers for an endpoint that the model does not support


def key_of(instance: Mapping[str, Any]) -> str:
    """Return an instance's API key, from files that only root can read on its node; "" for none."""
    directory = paths.instance_dir(str(instance.get("name")))
    own = env_assignments(read_text(os.path.join(directory, "env")) or "").get("VLLM_API_KEY", "")
    return own or node_key()


def endpoint_of(instance: Mapping[str, Any], api_key: str) -> ServerAddress:
    """Return the address at which the node reaches an instance."""
    host = str((instance.get("server") or {}).get("host") or "")
    if not host:
        host = local_address(listen_address(instance.get("argv") or ()))
    return ServerAddress(host, int(instance["port"]), str(instance["served_model"]), api_key)


def find(endpoint: ServerAddress, timeout: float) -> tuple[str, str]:
    """Return (name in PATHS, "") of the instance's endpoint for text, or ("", why it has none)."""
    lines = []
    for name, path in PATHS.items():
        answer = post(endpoint, name, "Hello", 1, timeout)
        if answer.status not in _ABSENT:  # any other failure is left for the prompts to show
            return name, ""
        lines.append(f"{path}: HTTP {answer.status}: {answer.text[:200]}")
    return "", "; ".join(lines)


def ask_all(endpoint: ServerAddress, name: str, timeout: float) -> list[Reply]:
    """Return the replies to all prompts, sent at the same time. `timeout`: seconds per request."""
    with ThreadPoolExecutor(max_workers=len(PROMPTS)) as pool:
        return list(
            pool.map(lambda prompt: reply(post(endpoint, name, prompt.text, TOKENS, timeout)), PROMPTS)
        )


def reply(answer: ProbeAnswer) -> Reply:
    """Return the text of either endpoint's answer; a reasoning model may have produced only its reasoning."""
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


def post(
    endpoint: ServerAddress, name: str, text: str, tokens: int, timeout: float, **more: Any
) -> ProbeAnswer:
    """Send a prompt at temperature 0 to the endpoint `name` of PATHS; `more` are further keys of the request."""
    body = {"model": endpoint.model, "max_tokens": tokens, "temperature": 0, "seed": 0, **more}
    if name == "chat":
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = text
    return ask(endpoint, "POST", PATHS[name], body, timeout)
