# SPDX-License-Identifier: Apache-2.0
"""The OpenAI endpoints: parse payloads, and answer in the form of vLLM 0.32."""

from __future__ import annotations

import json
import os
import time
import zlib
from typing import Any

from .engine import Draining, Engine, EngineDead, Request
from .wire import Connection

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> bytes:
        """Return the error in vLLM's wording."""
        inner = {"message": str(self), "type": _TYPES[self.status], "param": self.param, "code": self.status}
        return dump({"error": inner})


def dump(value: Any) -> bytes:
    """Return JSON without spaces, as FastAPI writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parse(body: bytes, names: list[str], max_model_len: int, *, chat: bool) -> tuple[dict[str, Any], Request]:
    """Return the payload, and the engine's request for it."""
    try:
        payload = json.loads(body)
        if not isinstance(payload, dict):
            raise ValueError("Input should be a valid dictionary")
    except ValueError as error:
        raise ApiError(400, f"1 validation error:\n  JSON decode error: {error}", "body") from error
    model = payload.get("model") or names[0]
    if model not in names:
        known = ", ".join(names)
        raise ApiError(404, f"The model `{model}` does not exist. Valid aliases: {known}.", "model")
    if payload.get("n", 1) != 1:
        raise ApiError(400, "the stand-in answers n=1 only", "n")
    text, prompt_tokens = _chat_prompt(payload) if chat else _prompt(payload)
    wanted = payload.get("max_completion_tokens") if chat else None
    wanted = payload.get("max_tokens") if wanted is None else wanted
    room = max_model_len - prompt_tokens
    if room < 1:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains"
            f" {prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please"
            " reduce the length of the input prompt.",
            "input_tokens",
        )
    if wanted is None:
        wanted = room if chat else 16
    if not isinstance(wanted, int) or wanted < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {wanted}.", "max_tokens")
    if wanted > room:
        raise ApiError(
            400,
            f"max_tokens={wanted} cannot be greater than max_model_len={max_model_len} minus the prompt's"
            f" {prompt_tokens} tokens. Please request fewer output tokens.",
            "max_tokens",
        )
    stop = payload.get("stop") or []
    request = Request(
        seed=zlib.crc32(text.encode()),
        prompt_tokens=prompt_tokens,
        max_tokens=wanted,
        min_tokens=int(payload.get("min_tokens") or 0),
        ignore_eos=bool(payload.get("ignore_eos")),
        stop=tuple([stop] if isinstance(stop, str) else stop),
    )
    return payload, request


def _prompt(payload: dict[str, Any]) -> tuple[str, int]:
    prompt = payload.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, max(1, len(prompt.split()))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return ",".join(map(str, prompt)), len(prompt)
    raise ApiError(400, "prompt: one text or one list of token ids is needed", "prompt")


def _chat_prompt(payload: dict[str, Any]) -> tuple[str, int]:
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages: a list of messages is needed", "messages")
    text = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)
    return text, len(text.split()) + 3 * len(messages)


class Answer:
    """Receives a request's tokens and writes them to its client, as a stream or at the end."""

    def __init__(
        self,
        connection: Connection,
        engine: Engine,
        request: Request,
        payload: dict[str, Any],
        *,
        chat: bool,
        prompt_logprobs: list[dict[str, Any] | None] | None = None,
    ) -> None:
        self.connection = connection
        self.engine = engine
        self.request = request
        self.chat = chat
        self.prompt_logprobs = prompt_logprobs
        self.stream = bool(payload.get("stream"))
        self.with_usage = bool((payload.get("stream_options") or {}).get("include_usage"))
        self.text = ""
        self.started = False
        self.model = payload.get("model")
        self.id = ("chatcmpl-" if chat else "cmpl-") + os.urandom(8).hex()
        self.created = int(time.time())
        self.fingerprint = f"vllm-{engine.knobs.version}-standin"
        kind = "chat.completion" if chat else "text_completion"
        if chat and self.stream:
            kind += ".chunk"
        self.base = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        # The constant part of a stream's chunks, everything but the text, is built once.
        start = dump({**self.base, "choices": [{"index": 0}]})[:-3].decode()
        if chat:
            self.before = f'data: {start},"delta":{{"content":'
            self.after = '},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        else:
            self.before = f'data: {start},"text":'
            self.after = (
                ',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
                '"token_ids":null}]}\n\n'
            )
        request.sink = self

    def submit(self) -> None:
        """Hand the request to the engine. Raise ApiError if the engine refuses it."""
        try:
            self.engine.submit(self.request)
        except (EngineDead, Draining) as error:
            raise ApiError(500, str(error)) from error
        self.connection.gone = lambda: self.engine.abort(self.request)

    def token(self, text: str, finish_reason: str | None, stop_reason: str | None) -> None:
        """Process one token from the engine."""
        if not self.stream:
            self.text += text
            if finish_reason:
                self._whole(finish_reason, stop_reason)
            return
        limit = self.engine.knobs.truncate_after
        if limit and self.request.generated > limit:
            self.engine.abort(self.request)
            self.connection.cut()
            return
        if not self.started:
            self._start()
        if finish_reason is None:
            if text:
                self.connection.chunk(f"{self.before}{json.dumps(text)}{self.after}".encode())
            return
        self._event(self._last(text, finish_reason, stop_reason))
        if self.with_usage:
            usage = {"usage": self._usage(), "system_fingerprint": self.fingerprint}
            self._event({**self.base, "choices": [], **usage})
        self.connection.chunk(b"data: [DONE]\n\n")
        self.connection.end()

    def failed(self, message: str) -> None:
        """Report that the engine died."""
        error = ApiError(500, message)
        if not self.started:
            self.connection.respond(500, error.body())
            return
        self.connection.chunk(b"data: " + error.body() + b"\n\ndata: [DONE]\n\n")
        self.connection.end()

    def _start(self) -> None:
        self.started = True
        self.connection.start("text/event-stream; charset=utf-8")
        if self.chat:
            first = {"role": "assistant", "content": ""}
            choice = {"index": 0, "delta": first, "logprobs": None, "finish_reason": None}
            self._event({**self.base, "choices": [choice], "prompt_token_ids": None, "prompt_text": None})

    def _event(self, data: dict[str, Any]) -> None:
        self.connection.chunk(b"data: " + dump(data) + b"\n\n")

    def _last(self, text: str, finish_reason: str, stop_reason: str | None) -> dict[str, Any]:
        if self.chat:
            choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": None}
        else:
            choice = {"index": 0, "text": text, "logprobs": None}
        choice |= {"finish_reason": finish_reason, "stop_reason": stop_reason, "token_ids": None}
        last = {**self.base, "choices": [choice]}
        return last if self.with_usage else {**last, "system_fingerprint": self.fingerprint}

    def _usage(self) -> dict[str, int]:
        prompt, generated = self.request.prompt_tokens, self.request.generated
        return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}

    def _whole(self, finish_reason: str, stop_reason: str | None) -> None:
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["message"] = {
                "role": "assistant",
                "content": self.text,
                "refusal": None,
                "reasoning": None,
            }
        else:
            choice["text"] = self.text
            choice["prompt_logprobs"] = self.prompt_logprobs
        choice |= {"logprobs": None, "finish_reason": finish_reason, "stop_reason": stop_reason}
        rest = {"service_tier": None, "system_fingerprint": self.fingerprint, "usage": self._usage()}
        self.connection.respond(200, dump({**self.base, "choices": [choice], **rest}))
