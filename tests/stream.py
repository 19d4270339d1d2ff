# SPDX-License-Identifier: Apache-2.0
"""What a whole streamed answer of the OpenAI API is, and in which way one is not whole.

It is judged by what its server says of it, not by its pieces: vLLM merges tokens that come together into one event, and
has events without text. Whole is: events of the expected form; one finish reason, "length", after which no more comes
but usage; as many tokens by usage as were asked for; [DONE], and nothing after it; all of one answer, and of the model
that was asked.
"""

from __future__ import annotations

import json
from typing import Any

FIELDS = ("data", "event", "id", "retry", "")  # of server-sent events; "" is a comment


class NotWhole(Exception):
    """In which way an answer is not whole: a kind, which is counted, and what a reader wants to know beyond it."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind, detail)
        self.kind, self.detail = kind, detail[:300]


class Stream:
    """The server-sent events of one answer, taken line by line; NotWhole at the first that is not right.

    model: which must have answered. id: of the answer, as its events say.
    """

    def __init__(self, model: str, *, chat: bool = False) -> None:
        self.model, self.id = model, ""
        self.piece = "delta" if chat else "text"
        self.form: type = dict if chat else str
        self.events = 0
        self.usage: int | None = None  # tokens of the answer
        self.reasons: list[str] = []
        self.done = False
        self._data: list[str] = []

    def line(self, line: bytes) -> bool:
        """Take a line; whether an event ended with it."""
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text:
            field, _, value = text.partition(":")
            if field not in FIELDS:
                raise NotWhole("line that is no event", text)
            if field == "event" and value.strip() == "error":
                raise NotWhole("error in the stream", text)
            if field == "data":
                if self.done:
                    raise NotWhole("data after the end", text)
                self._data.append(value.removeprefix(" "))
            return False
        if not self._data:
            return False
        self._event("\n".join(self._data))
        self._data.clear()
        self.events += 1
        return True

    def _event(self, text: str) -> None:
        if text == "[DONE]":
            self.done = True
            return
        try:
            data = json.loads(text)
        except ValueError:
            raise NotWhole("event that is not JSON", text) from None
        if isinstance(data, dict) and "error" in data:
            raise NotWhole("error in the stream", text)
        try:
            self._read(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise NotWhole("event of another form", f"{error!r}: {text}") from error

    def _read(self, data: dict[str, Any]) -> None:
        if data["model"] != self.model:
            raise NotWhole("answer of another model", str(data["model"]))
        if self.id not in ("", data["id"]):
            raise NotWhole("events of another answer", f"{data['id']} in {self.id}")
        self.id = _of(str, data["id"])
        for choice in data["choices"]:
            if choice["index"] != 0:
                raise NotWhole("a choice that nobody asked for", json.dumps(data))
            if self.reasons:
                raise NotWhole("more after the finish reason", json.dumps(data))
            _of(self.form, choice[self.piece])
            if choice.get("finish_reason"):
                self.reasons.append(choice["finish_reason"])
        if data.get("usage"):
            self.usage = _of(int, data["usage"]["completion_tokens"])

    def judge(self, tokens: int) -> None:
        """Hold the ended stream against the number of tokens that was asked for; NotWhole."""
        if not self.done:
            raise NotWhole("no end", f"after {self.events} events")
        if not self.reasons:
            raise NotWhole("no finish reason")
        if self.reasons != ["length"]:
            raise NotWhole(f"finish reason {self.reasons[0]}")
        if self.usage is None:
            raise NotWhole("no usage")
        if self.usage != tokens:
            raise NotWhole("wrong number of tokens", f"{self.usage} of {tokens}")


def _of(form: type, value: Any) -> Any:
    if not isinstance(value, form):
        raise TypeError(f"{value!r} is no {form.__name__}")
    return value
