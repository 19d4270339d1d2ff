# SPDX-License-Identifier: Apache-2.0
"""`vllm bench serve`: sends requests to a server, measures them, and reports as vLLM 0.32 does.

Random prompts, and conversations in ShareGPT's form, of which a word is a token. The measurements follow
vllm/benchmarks/serve.py: the clock of a request starts when it has its place among --max-concurrency, TPOT excludes the
first token, ITL is every gap.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .report import Output, summarize

_DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")
_TEXT = "node tokens serve weights flow over many small lanes until each prompt has had its answer"
_VOCABULARY = _TEXT.split()


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    out.add_argument("--backend", default="openai", choices=["openai", "vllm", "openai-chat"])
    out.add_argument("--base-url")
    out.add_argument("--host", default="127.0.0.1")
    out.add_argument("--port", type=int, default=8000)
    out.add_argument("--endpoint", default="/v1/completions")
    out.add_argument("--model")
    out.add_argument("--served-model-name")
    out.add_argument("--tokenizer")
    out.add_argument("--header", nargs="*", default=[])
    out.add_argument("--dataset-name", default="random", choices=["random", "sharegpt"])
    out.add_argument("--dataset-path", type=Path)
    out.add_argument("--num-prompts", type=int, default=1000)
    out.add_argument("--random-input-len", "--input-len", type=int, default=1024)
    out.add_argument("--random-output-len", "--output-len", type=int, default=128)
    out.add_argument("--max-concurrency", type=int)
    out.add_argument("--request-rate", type=float, default=math.inf)
    out.add_argument("--burstiness", type=float, default=1.0)
    out.add_argument("--num-warmups", type=int, default=0)
    out.add_argument("--ready-check-timeout-sec", type=float, default=0)
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--ignore-eos", action="store_true")
    out.add_argument("--temperature", type=float)
    out.add_argument("--percentile-metrics", default="ttft,tpot,itl")
    out.add_argument("--metric-percentiles", default="99")
    out.add_argument("--goodput", nargs="+", default=[])
    out.add_argument("--save-result", action="store_true")
    out.add_argument("--save-detailed", action="store_true")
    out.add_argument("--append-result", action="store_true")
    out.add_argument("--result-dir")
    out.add_argument("--result-filename")
    out.add_argument("--metadata", nargs="*", default=[])
    out.add_argument("--label")
    return out


class Client:
    """Connections to one server, kept open between requests."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        # As vLLM's client, which trusts what SSL_CERT_FILE names.
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or (443 if self.tls else 80)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    @contextlib.asynccontextmanager
    async def call(self, method: str, path: str, body: bytes = b"") -> Any:
        """Send a request; yield (status, headers, reader). The connection is kept if all went well."""
        reader, writer = self._kept() or await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        try:
            writer.write(
                f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n{self._head}"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines if line)}
            yield int(first.split(" ")[1]), headers, reader
        except BaseException:
            writer.close()
            raise
        if headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return a connection that the server has not closed, as a load balancer does after a while."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.call("GET", path) as (status, headers, reader):
            return status, json.loads(await reader.readexactly(int(headers["content-length"])) or b"null")


async def _body(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield a chunked body in pieces as they arrive. Raise EOFError if it is incomplete."""
    buffer = b""
    while True:
        out = b""
        while (head := buffer.find(b"\r\n")) >= 0:
            size = int(buffer[:head], 16)
            if len(buffer) < head + 4 + size:
                break
            if size == 0:
                if out:
                    yield out
                return
            out += buffer[head + 2 : head + 2 + size]
            buffer = buffer[head + 4 + size :]
        if out:
            yield out
        more = await reader.read(65536)
        if not more:
            raise EOFError("the connection was closed in the middle of the answer")
        buffer += more


async def measure(client: Client, path: str, payload: dict[str, Any], output: Output) -> None:
    """Send one request and record the outcome."""
    begun = last = time.perf_counter()
    output.start = begun
    first = True
    try:
        async with client.call("POST", path, json.dumps(payload).encode()) as (status, headers, reader):
            if status != 200:
                body = await reader.readexactly(int(headers["content-length"]))
                output.error = f"HTTP {status}: {body.decode(errors='replace')[:300]}"
                return
            done = False
            rest = b""
            async for data in _body(reader):
                *events, rest = (rest + data).split(b"\n\n")
                now = time.perf_counter()
                for event in events:
                    if event == b"data: [DONE]":
                        done = True
                        continue
                    message = json.loads(event.removeprefix(b"data: "))
                    if "error" in message:
                        output.error = str(message["error"].get("message"))
                    elif choices := message.get("choices"):
                        delta = choices[0].get("delta")
                        if delta is not None and "role" in delta:
                            continue
                        output.text += (delta or {}).get("content", "") or choices[0].get("text", "")
                        if first:
                            first = False
                            output.ttft = now - begun
                        else:
                            output.itl.append(now - last)
                        last = now
                    elif usage := message.get("usage"):
                        output.tokens = usage["completion_tokens"]
                        output.prompt_len = usage["prompt_tokens"]
            if first and not output.error:
                output.error = "Never received a valid chunk to calculate TTFT."
            elif not done and not output.error:
                output.error = "The stream ended without [DONE]."
    except (OSError, EOFError, ValueError) as error:
        output.error = f"{type(error).__name__}: {error}"
    output.latency = last - begun
    output.tokens = output.tokens or len(output.itl) + 1


def delays(count: int, rate: float, burstiness: float, generator: random.Random) -> list[float]:
    """Return when to send each request, in seconds from the start: Poisson at `rate`, stretched to count/rate."""
    if math.isinf(rate):
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        now += generator.gammavariate(burstiness, 1.0 / (rate * burstiness))
        times.append(now)
    return [at * count / rate / now for at in times]


def conversations(path: Path, generator: random.Random) -> Iterator[tuple[str, int]]:
    """Yield the prompt and the number of tokens to answer of each conversation of two turns, again and again."""
    talks = [entry["conversations"] for entry in json.loads(path.read_text(encoding="utf-8"))]
    talks = [talk for talk in talks if len(talk) > 1]
    generator.shuffle(talks)
    return cycle((talk[0]["value"], len(talk[1]["value"].split())) for talk in talks)


async def run(args: argparse.Namespace) -> tuple[str, list[Output], float]:
    """Send all requests; return the model's id, the outcomes, and the total time in seconds."""
    headers = {name: value for name, _, value in (item.partition("=") for item in args.header)}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    client = Client(args.base_url or f"http://{args.host}:{args.port}", headers)
    model, name = args.model, args.served_model_name or args.model
    if model is None:
        print("Model not specified, fetching first model from server...")
        _, about = await client.get("/v1/models")
        model, name = about["data"][0]["root"], about["data"][0]["id"]
        print(f"First model name: {name}, first model id: {model}")
    generator = random.Random(args.seed)
    chat = args.endpoint.endswith("/chat/completions")
    talks = conversations(args.dataset_path, generator) if args.dataset_name == "sharegpt" else None

    def payload() -> dict[str, Any]:
        if talks:
            words, length = next(talks)
        else:
            words = " ".join(generator.choices(_VOCABULARY, k=args.random_input_len))
            length = args.random_output_len
        prompt = {"messages": [{"role": "user", "content": words}]} if chat else {"prompt": words}
        options = {} if args.temperature is None else {"temperature": args.temperature}
        tokens = {"max_tokens": length, "ignore_eos": True, **options}
        return {"model": name, **prompt, **tokens, "stream": True, "stream_options": {"include_usage": True}}

    if args.ready_check_timeout_sec:
        await _wait_until_ready(client, args, payload())
    else:
        print("Skipping endpoint ready check.")
    for _ in range(args.num_warmups):
        await measure(client, args.endpoint, payload(), Output(0))
    print("Starting main benchmark run...")
    print(f"Traffic request rate: {args.request_rate}")
    print(f"Burstiness factor: {args.burstiness} (Poisson process)")
    print(f"Maximum request concurrency: {args.max_concurrency}")
    outputs = [Output(args.random_input_len) for _ in range(args.num_prompts)]
    payloads = [payload() for _ in outputs]
    places = asyncio.Semaphore(args.max_concurrency or args.num_prompts)

    async def one(output: Output, body: dict[str, Any]) -> None:
        waiting = time.perf_counter()
        async with places:
            output.queued = time.perf_counter() - waiting
            await measure(client, args.endpoint, body, output)

    begun = time.perf_counter()
    tasks = []
    for at, output, body in zip(
        delays(args.num_prompts, args.request_rate, args.burstiness, generator),
        outputs,
        payloads,
        strict=True,
    ):
        if (pause := begun + at - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        tasks.append(asyncio.create_task(one(output, body)))
    await asyncio.gather(*tasks)
    return model, outputs, time.perf_counter() - begun


async def _wait_until_ready(client: Client, args: argparse.Namespace, body: dict[str, Any]) -> None:
    end = time.monotonic() + args.ready_check_timeout_sec
    while True:
        probe = Output(0)
        await measure(client, args.endpoint, body, probe)
        if probe.success:
            return
        if time.monotonic() > end:
            sys.exit(
                f"Initial test run failed - Please make sure benchmark arguments are correct. {probe.error}"
            )
        await asyncio.sleep(1)


def main(arguments: Sequence[str]) -> int:
    args, _ = parser().parse_known_args(arguments)
    try:
        model, outputs, duration = asyncio.run(run(args))
    except OSError as problem:
        print(f"RuntimeError: Failed to fetch models from server: {problem}", file=sys.stderr)
        return 1
    errors = [output.error for output in outputs if output.error]
    if errors:
        print("Failed requests during benchmark run detected (capping to 10):")
        for index, error in enumerate(errors[:10]):
            print(f"Error {index}: {error}")
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    result = {
        "date": now,
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": model,
        "tokenizer_id": args.tokenizer or model,
        "num_prompts": args.num_prompts,
        **{name.strip(): value.strip() for name, _, value in (item.partition("=") for item in args.metadata)},
        "request_rate": "inf" if math.isinf(args.request_rate) else args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **summarize(args, outputs, duration),
    }
    if not args.save_detailed:
        for key in _DETAILS:
            del result[key]
    if args.save_result or args.append_result:
        _save(args, result, model.split("/")[-1], now)
    return 0


def _save(args: argparse.Namespace, result: dict[str, Any], model: str, now: str) -> None:
    concurrency = "" if args.max_concurrency is None else f"-concurrency{args.max_concurrency}"
    default = f"{args.label or args.backend}-{args.request_rate}qps{concurrency}-{model}-{now}.json"
    path = Path(args.result_dir or ".", args.result_filename or default)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+" if args.append_result else "w", encoding="utf-8") as file:
        if args.append_result and file.tell():
            file.write("\n")
        json.dump(result, file)
