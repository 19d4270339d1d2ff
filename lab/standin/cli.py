# SPDX-License-Identifier: Apache-2.0
"""The command line: `vllm serve`, `vllm bench serve|latency|throughput`, `vllm --version`.

Flags that matter here are parsed as in vLLM (a wrong value exits with 2); any other flag is accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence

from . import bench, offline, ranks, server, startup
from .knobs import KnobError, Knobs

USAGE = "usage: vllm [-h] [-v]\n            {serve,bench}\n            ...\n"
_UNITS = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def human_int(text: str) -> int | None:
    """Parse 4096, 4k or 4K; `auto` and -1 (None) leave the choice to the server."""
    if text in ("auto", "-1"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"invalid human_readable_int_or_auto value: {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllm serve", usage="vllm serve [model_tag] [options]", allow_abbrev=False
    )
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--revision")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--api-key", nargs="+")
    parser.add_argument("--max-model-len", type=human_int)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    parser.add_argument("--attention-backend")
    parser.add_argument("--middleware", action="append", default=[])
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--nnodes", "-n", type=int, default=1)
    parser.add_argument("--node-rank", "-r", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    return parser


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with --max_model_len as --max-model-len: vLLM accepts both."""
    out = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        out.append((name.replace("_", "-") if name.startswith("--") else name) + equals + value)
    return out


def serve(arguments: Sequence[str], knobs: Knobs) -> int:
    if knobs.fail == "unrecognized_argument":
        print(f"{USAGE}vllm: error: unrecognized arguments: --not-a-flag", file=sys.stderr)
        return 2
    parser = serve_parser()
    known, unknown = parser.parse_known_args(with_dashes(arguments))
    model = known.model_tag or known.model
    if model is None:
        parser.error("the following arguments are required: model_tag")
    place = ranks.Place(known.nnodes, known.node_rank, known.master_addr, known.master_port)
    if known.headless:
        startup.log(
            "APIServer", "serve.py:180", f"Launching vLLM (v{knobs.version}) headless multiproc executor"
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        return _headless(place, knobs)
    keys = known.api_key or ([os.environ["VLLM_API_KEY"]] if os.environ.get("VLLM_API_KEY") else [])
    shown = {name: value for name, value in vars(known).items() if value != parser.get_default(name)}
    if "api_key" in shown:
        shown["api_key"] = "***"
    if unknown:
        shown["others"] = unknown
    wanted = startup.Server(
        model=model,
        revision=known.revision,
        host=known.host,
        port=known.port,
        max_model_len=known.max_model_len,
        tensor_parallel_size=known.tensor_parallel_size,
        attention_backend=known.attention_backend,
        others=shown,
    )
    try:
        others = ranks.meet(place) if place.nnodes > 1 else []
        found, max_len, listener = startup.start(wanted, knobs, os.environ)
    except startup.StartError as error:
        startup.report(error)
        return 1
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65535, hard) if hard > 0 else 65535, hard))
    settings = server.Settings(
        names=known.served_model_name or [model],
        model=found,
        max_model_len=max_len,
        api_keys=keys,
        shutdown_timeout=known.shutdown_timeout,
        log_access=not known.disable_uvicorn_access_log,
        middleware=known.middleware,
    )

    async def run() -> None:
        await server.Server(settings, knobs, known.max_num_seqs).run(listener, others)

    asyncio.run(run())
    return 0


def _headless(place: ranks.Place, knobs: Knobs) -> int:
    """Run a rank that works for another server: it has no port, and prints nothing if that server is lost."""
    try:
        kept = ranks.meet(place) if place.nnodes > 1 else []
        time.sleep(knobs.startup_seconds)
        startup.fail_if_asked(knobs, "Worker", 4096)
    except startup.StartError as error:
        startup.report(error)
        return 1
    while kept is not None:  # the connection shows the head that this rank exists
        time.sleep(3600)
    return 0


def main() -> int:
    try:
        return command(sys.argv[1:], Knobs.from_environ(os.environ))
    except KnobError as error:
        print(f"vllm (stand-in): {error}", file=sys.stderr)
        return 2


def command(arguments: list[str], knobs: Knobs) -> int:
    match arguments:
        case ["--version" | "-v"]:
            print(knobs.version)
            return 0
        case ["serve", *rest]:
            return serve(rest, knobs)
        case ["bench", "serve", *rest]:
            return bench.main(with_dashes(rest))
        case ["bench", "latency", *rest]:
            return offline.latency(with_dashes(rest), knobs)
        case ["bench", "throughput", *rest]:
            return offline.throughput(with_dashes(rest), knobs)
        case [] | ["--help" | "-h"]:
            print(USAGE)
            return 0
        case [name, *_]:
            print(f"{USAGE}vllm: error: argument subparser: invalid choice: {name!r}", file=sys.stderr)
            return 2
    return 2
