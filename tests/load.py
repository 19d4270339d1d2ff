# SPDX-License-Identifier: Apache-2.0
"""A streaming load on an endpoint: so many requests per second, each held against what a whole answer is.

    python -m tests.load https://lb:8443 MODEL --key-file .secrets/api-keys.yml --ca ca.crt --rate 50 --seconds 30

Open loop: requests begin at their time whatever the earlier ones do. Connections are kept and used again, as the
clients of OpenAI's API do it. Nothing is retried: what fails is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Outcome:
    """One request; problem "": all tokens came, and the end of the stream. begun: seconds since the load began."""

    begun: float
    seconds: float
    status: int
    tokens: int
    problem: str


@dataclass(frozen=True)
class Target:
    """What is asked; tokens per answer. ca: file with the certificate that the endpoint must have; key "": none."""

    url: str
    model: str
    key: str = ""
    ca: str = ""
    tokens: int = 20
    prompt: str = "Tell me about load"


class Load:
    """Requests at a rate, in a thread of its own, until stop()."""

    def __init__(self, target: Target, rate: float) -> None:
        self.target, self.rate = target, rate
        self.outcomes: list[Outcome] = []
        self._stopping = threading.Event()
        self._idle: list[Link] = []
        place = urlsplit(target.url)
        self._host, self._port = place.hostname or "", place.port or 443
        self._tls = ssl.create_default_context(cafile=target.ca or None) if place.scheme == "https" else None
        self._begun = 0.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[Outcome]:
        """Begin no more requests, wait for those that run, and return what became of all."""
        self._stopping.set()
        self._thread.join()
        return self.outcomes

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._begun

    def problems(self) -> dict[str, int]:
        """How many requests failed, by how."""
        return dict(collections.Counter(item.problem for item in self.outcomes if item.problem))

    async def _run(self) -> None:
        self._begun = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        number = 0
        while not self._stopping.is_set():
            task = asyncio.create_task(self._request())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(max(0.0, self._begun + number / self.rate - time.monotonic()))
        if tasks:
            await asyncio.wait(tasks)
        for _, writer in self._idle:
            writer.close()

    async def _request(self) -> None:
        begun = self.now
        answer = _Answer()
        try:
            async with asyncio.timeout(120):
                await self._exchange(answer)
            problem = answer.problem(self.target.tokens)
        except (OSError, EOFError, ValueError) as error:
            problem = f"{type(error).__name__} after {answer.tokens} tokens"
        self.outcomes.append(Outcome(begun, self.now - begun, answer.status, answer.tokens, problem))

    async def _exchange(self, answer: _Answer) -> None:
        reader, writer = await self._link()
        target = self.target
        body = json.dumps({
            "model": target.model, "prompt": target.prompt, "max_tokens": target.tokens, "ignore_eos": True,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }).encode()  # fmt: skip
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {target.key}\r\n" if target.key else ""
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if await answer.read(reader):
                self._idle.append((reader, writer))
                return
        except BaseException:
            writer.close()
            raise
        writer.close()

    async def _link(self) -> Link:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)


class _Answer:
    """A streamed answer as far as it came."""

    def __init__(self) -> None:
        self.status, self.tokens, self.usage = 0, 0, -1
        self.done, self.text = False, ""

    async def read(self, reader: asyncio.StreamReader) -> bool:
        """Read it to its end; whether the connection may be used again."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        self.status = int(lines[0].split()[1])
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        if "content-length" in headers:
            self.text = (await reader.readexactly(int(headers["content-length"]))).decode("utf-8", "replace")
        else:
            await self._chunks(reader)
        return headers.get("connection") != "close"

    async def _chunks(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while True:
            size = int((await reader.readuntil(b"\r\n")).strip(), 16)
            part = await reader.readexactly(size + 2)
            if not size:
                return
            *events, rest = (rest + part[:-2]).split(b"\n\n")
            for event in events:
                self._event(event.removeprefix(b"data: ").decode())

    def _event(self, text: str) -> None:
        if text == "[DONE]":
            self.done = True
            return
        data = json.loads(text)
        if "error" in data:
            self.text = text
        self.tokens += sum(bool(choice["text"]) for choice in data.get("choices", ()))
        if data.get("usage"):
            self.usage = int(data["usage"]["completion_tokens"])

    def problem(self, tokens: int) -> str:
        """What is wrong with the whole answer."""
        if self.status != 200:
            return f"HTTP {self.status}"
        if self.text:
            return "error in the stream"
        if not self.done or self.tokens != tokens or self.usage != tokens:
            return f"truncated at {self.tokens} tokens"
        return ""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Streaming load on an endpoint")
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--key-file", type=Path, help="YAML, name: key; the first one is used")
    parser.add_argument("--ca", default="")
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tokens", type=int, default=20)
    given = parser.parse_args()
    key = first_key(given.key_file) if given.key_file else ""
    with Load(Target(given.url, given.model, key, given.ca, given.tokens), given.rate) as load:
        time.sleep(given.seconds)
    seconds = sorted(item.seconds for item in load.outcomes)
    print(
        f"{len(seconds)} requests, {sum(load.problems().values())} failed {load.problems() or ''}, "
        f"median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s"
    )


def first_key(path: Path) -> str:
    """The first API key of a file such as .secrets/api-keys.yml."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(line.partition(": ")[2] for line in lines if not line.startswith("#"))


if __name__ == "__main__":
    main()
