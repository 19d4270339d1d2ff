# SPDX-License-Identifier: Apache-2.0
"""Compute which share of the HBM and FLOP roofline a serving run of one engine reached. Pure.

The HBM share of decoding is what one GPU must read in a decode step, divided by what its HBM can deliver in that time:

    (weights + touched experts + state and KV cache of the sequences that decode) / (step time x peak bandwidth)

The step time is the median TPOT. Sequences that decode at the same time are, by Little's law and at any load, request
throughput x (mean E2EL - mean TTFT), which leaves out requests that wait or are in prefill. On average each has its
prompt and half of its answer in the cache.
Of E experts, k for each token, a step of n tokens touches E x (1 - (1 - k/E)^n) if the router spreads them evenly.

The FLOP share (model FLOPs utilization) is the time that the matrix cores need at their peak for the products of all
tokens, divided by the time that passed; each product counts at the peak of its own data type:

    sum over types of 2 x active parameters x tokens/s / (GPUs x peak FLOPS)

Left out: FLOPs of attention, writes, activations, embedding lookups, communication, rejected drafts, and what draft
models read and compute. So the true use is higher, except where experts are used unevenly or sequences share
prefixes. A share is None if a fact is not known, and a reason is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....module_utils.benchmarks.bench_results import number
from ..measurement.commands import options

KEYS = ("hbm_share", "flop_share")
NO_STEP = (
    "the plan does not say what a decode step takes: the model's layers are unknown, several servers share the engine, "
    "an older release of this collection deployed it, or it does not run on the GPU"
)
NO_PEAK = "the catalogue has no peak rates of the GPU"
LIVE = "the instance also served other requests"
FAILED = "requests failed"
PIPELINE = "it is not known how many batches are in a pipeline at once"
NO_LATENCY = "TPOT, TTFT or E2EL was not measured"
DRAFTS = "the number of drafted or accepted tokens of speculative decoding is not known"
PREFIX = "the number of prompt tokens from the prefix cache was not measured"
NO_TOKENS = "the number of tokens was not measured"

Row = Mapping[str, Any]
_EMULATED = {"mxfp4": "bf16"}
"""Without matrix cores for it, vLLM converts the format before it multiplies."""


class Unknown(Exception):
    """A fact that a share needs is not known; the text says which."""


def roofline(row: Row, step: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the shares of a run of `vllm bench serve`, and `roofline_note`: why one is None.

    row: with its metrics and command lines. step: INSTANCE.decode_step of the plan.
    """
    found: dict[str, Any] = {**dict.fromkeys(KEYS), "roofline_note": None}
    if row["kind"] != "serve":
        return found
    notes: dict[str, None] = {}
    for key, compute in zip(KEYS, (_hbm_share, _flop_share), strict=True):
        try:
            found[key] = compute(row, _known_step(row, step))
        except Unknown as why:
            notes[str(why)] = None
    return {**found, "roofline_note": "; ".join(notes) or None}


def _known_step(row: Row, step: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not step:
        raise Unknown(NO_STEP)
    if not step["peak"]:
        raise Unknown(NO_PEAK)
    if row["live"]:
        raise Unknown(LIVE)
    if row["failed"]:
        raise Unknown(FAILED)
    return step


def _hbm_share(row: Row, step: Mapping[str, Any]) -> float:
    reads = step["reads"]
    if reads is None:
        raise Unknown(PIPELINE)
    tpot, ttft, e2el, rate = _numbers(
        row, NO_LATENCY, "median_tpot_ms", "mean_ttft_ms", "mean_e2el_ms", "request_throughput"
    )
    completed, inputs, outputs = _numbers(
        row, NO_TOKENS, "completed", "total_input_tokens", "total_output_tokens"
    )
    drafts, accepted = _speculation(row)
    # A decode step has at least one sequence, however long the pauses between requests are.
    sequences = max(1.0, rate * (e2el - ttft) / 1000)
    context = (inputs + outputs / 2) / completed
    of_rank = max(1.0, sequences / reads["data_parallel_ranks"])
    size = reads["weights_bytes"] + of_rank * (reads["state_bytes"] + kv_bytes(reads["kv"], context))
    if reads["experts_bytes"]:
        active = reads["experts_per_token"] / reads["experts"]
        size += reads["experts_bytes"] * (1 - (1 - active) ** (sequences * (1 + drafts)))
    return float(size / (tpot / 1000 * accepted * step["peak"]["hbm_bytes_per_second"]))


def kv_bytes(kinds: Any, context: float) -> float:
    """Return the bytes of KV cache that one GPU reads for a token after `context` others."""
    total = 0.0
    for kind in kinds:
        tokens = context
        if kind["chunk"] and context > kind["chunk"]:
            tokens = kind["chunk"] / 2  # a token sees those of its own chunk before it
        if kind["window"]:
            tokens = min(tokens, kind["window"])
        total += tokens * kind["bytes_per_token"]
    return total


def _flop_share(row: Row, step: Mapping[str, Any]) -> float:
    seconds, inputs, outputs = _numbers(
        row, NO_TOKENS, "duration_s", "total_input_tokens", "total_output_tokens"
    )
    computed = inputs * (1 - _hit_rate(row)) + outputs
    busy = computed * _peak_seconds(step["parameters"], step) + outputs * _peak_seconds(
        step["sampled_parameters"], step
    )
    return busy / (seconds * float(step["gpus"]))


def _peak_seconds(parameters: Mapping[str, int], step: Mapping[str, Any]) -> float:
    """Return the seconds that one GPU at its peak needs to multiply a token with these weights."""
    flops = step["peak"]["flops"]
    total = 0.0
    for name, count in parameters.items():
        peak = flops.get(name) or flops.get(_EMULATED.get(name, ""))
        if not peak:
            raise Unknown(f"the catalogue has no peak FLOPS of the GPU for {name}")
        total += 2 * count / peak
    return total


def _speculation(row: Row) -> tuple[int, float]:
    """Return the drafted tokens of a step for each sequence, and the tokens that a step yields."""
    given = options(row["serve_command"])
    if not any("speculative" in name for name in given):
        return 0, 1.0
    try:
        config = given.get("--speculative-config")
        drafts = int(
            json.loads(config)["num_speculative_tokens"] if config else given["--num-speculative-tokens"]
        )
    except (KeyError, TypeError, ValueError):
        raise Unknown(DRAFTS) from None
    if not row["acceptance_length"]:
        raise Unknown(DRAFTS)
    return drafts, float(row["acceptance_length"])


def _hit_rate(row: Row) -> float:
    """Return the share of prompt tokens that the prefix cache had; 0 where prompts are random or there is no cache."""
    if row["prefix_hit_rate"] is not None:
        return float(row["prefix_hit_rate"])
    client = options(row["command"])
    random = client.get("--dataset-name") == "random" and client.get("--random-prefix-len", "0") == "0"
    if random or "--no-enable-prefix-caching" in options(row["serve_command"]):
        return 0.0
    raise Unknown(PREFIX)


def _numbers(row: Row, why: str, *names: str) -> list[float]:
    """Return the values of these columns. Raise Unknown with the reason if one is not known, or 0."""
    found = [number(row.get(name)) for name in names]
    known = [value for value in found if value]
    if len(known) < len(names):
        raise Unknown(why)
    return known
