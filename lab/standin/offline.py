# SPDX-License-Identifier: Apache-2.0
"""`vllm bench latency` and `vllm bench throughput`, without a server; times follow from the engine's speed."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from . import startup
from .knobs import Knobs
from .report import percentile

_PERCENTS = (10, 25, 50, 75, 90, 99)


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"vllm bench {name}", allow_abbrev=False)
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
    parser.add_argument("--revision")
    parser.add_argument("--output-json", type=Path)
    return parser


def _load(model: str, revision: str | None, knobs: Knobs) -> int:
    """Start the engine; return a non-zero exit code if it fails."""
    try:
        found = startup.find_model(model, revision, os.environ)
        startup.fail_if_asked(knobs, "EngineCore", found.max_positions)
    except startup.StartError as error:
        startup.report(error)
        return 1
    time.sleep(knobs.startup_seconds)
    return 0


def latency(arguments: Sequence[str], knobs: Knobs) -> int:
    parser = _parser("latency")
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-iters", type=int, default=30)
    parser.add_argument("--num-iters-warmup", type=int, default=10)
    args, _ = parser.parse_known_args(arguments)
    if code := _load(args.model, args.revision, knobs):
        return code
    print("Warming up...")
    latencies = []
    for _ in range(args.num_iters_warmup + args.num_iters):
        begun = time.perf_counter()
        time.sleep(args.output_len / knobs.tokens_per_second)
        latencies.append(time.perf_counter() - begun)
    del latencies[: args.num_iters_warmup]
    mean = sum(latencies) / len(latencies)
    percentiles = {str(percent): percentile(latencies, percent) for percent in _PERCENTS}
    print(f"Avg latency: {mean} seconds")
    for percent, value in percentiles.items():
        print(f"{percent}% percentile latency: {value} seconds")
    if args.output_json:
        result = {
            "model_id": args.model,
            "avg_latency": mean,
            "latencies": latencies,
            "percentiles": percentiles,
        }
        args.output_json.write_text(json.dumps(result, indent=4))
    return 0


def throughput(arguments: Sequence[str], knobs: Knobs) -> int:
    parser = _parser("throughput")
    parser.add_argument("--random-input-len", "--input-len", type=int, default=1024)
    parser.add_argument("--random-output-len", "--output-len", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    args, _ = parser.parse_known_args(arguments)
    if code := _load(args.model, args.revision, knobs):
        return code
    begun = time.perf_counter()
    for _ in range(-(-args.num_prompts // args.max_num_seqs)):
        time.sleep(args.random_output_len / knobs.tokens_per_second)
    elapsed = time.perf_counter() - begun
    prompt, output = args.num_prompts * args.random_input_len, args.num_prompts * args.random_output_len
    print(
        f"Throughput: {args.num_prompts / elapsed:.2f} requests/s,"
        f" {(prompt + output) / elapsed:.2f} total tokens/s, {output / elapsed:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {prompt}")
    print(f"Total num output tokens:  {output}")
    if args.output_json:
        result = {
            "model_id": args.model,
            "elapsed_time": elapsed,
            "num_requests": args.num_prompts,
            "total_num_tokens": prompt + output,
            "requests_per_second": args.num_prompts / elapsed,
            "tokens_per_second": (prompt + output) / elapsed,
        }
        args.output_json.write_text(json.dumps(result, indent=4))
    return 0
