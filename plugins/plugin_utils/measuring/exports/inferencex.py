# SPDX-License-Identifier: Apache-2.0
"""Write rows as InferenceX's process_result.py does, labelled unofficial, and the frontier of each hardware. Pure.

InferenceX (Apache-2.0) asks that results from elsewhere say so. Its rows are seconds without a suffix, interactivity is
1/TPOT, and GPUs are tp x pp x pcp: snapshot of 2026-08-21, utils/process_result.py and utils/aggregate_power.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ....module_utils.benchmarks.bench_metrics import LATENCIES
from ..measurement.rows import load_of, shape_of
from .export import Export, csv_table, json_text, known_values, omission_text, ratio
from .run_results import Row, RunResults
from .setup import EngineSetup, engine_options, engine_setup, integer

LABEL = "Unofficial: measured by instinct-fleet, not by SemiAnalysisAI/InferenceX."
POWER_METRIC_SCHEMA_VERSION = 2
FRONTIER = (
    "label",
    "hw",
    "framework",
    "model",
    "precision",
    "spec_decoding",
    "isl",
    "osl",
    "tp",
    "conc",
    "median_intvty",
    "tput_per_gpu",
    "on_frontier",
)
_CURVE = ("hw", "framework", "model", "precision", "spec_decoding", "isl", "osl")
"""What the points of one curve have in common."""
_PLACE = {"host", "port", "api_key", "uds", "root_path"}
_PLACE_ENV = {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "VLLM_HOST_IP"}
"""What distinguishes the instances of one recipe, and is not part of it."""


def export(results: RunResults) -> Export:
    """Return unofficial_agg_bmk.json, a list of rows, and unofficial_frontier.csv."""
    served = [row for row in results.cells if row.get("kind") == "serve"]
    reasons: dict[str, list[Row]] = {}
    for row in results.cells:
        reasons.setdefault(_unfit(results, row), []).append(row)
    found = [agg_row(results, row) for row in served if not _unfit(results, row)]
    files = {
        "unofficial_agg_bmk.json": json_text(found),
        "unofficial_frontier.csv": csv_table(FRONTIER, frontier(found)),
    }
    out = [sentence for why, rows in reasons.items() if why for sentence in omission_text(rows, why)]
    return Export(files, tuple(out))


def _unfit(results: RunResults, row: Row) -> str:
    """Return why InferenceX has no such row; "" if it has one."""
    if row.get("kind") != "serve":
        return "InferenceX has rows of serving benchmarks only"
    if load_of(row).kind != "concurrency":
        return "InferenceX has rows at a concurrency only"
    mode = results.hosts.get(str(row.get("host")), {}).get("compute_partition")
    if mode not in (None, "SPX"):
        return f"InferenceX counts whole GPUs, and these are partitioned ({mode})"
    return ""


def agg_row(results: RunResults, row: Row) -> dict[str, Any]:
    """Return a row; identifying keys are always there (null if unknown), metrics only if they were measured."""
    setup, (given, wanted) = engine_setup(row), shape_of(row)
    hardware = results.gpu(row, "model")
    # In InferenceX, tp counts the GPUs over which attention's data parallelism is spread, too.
    sharded = setup.tensor_parallel and setup.tensor_parallel * (setup.data_parallel or 1)
    total, output = row.get("total_token_throughput"), row.get("output_throughput")
    prompts = total - output if total is not None and output is not None else None
    return {
        "unofficial": True,
        "label": LABEL,
        "hw": hardware.lower() if hardware else None,
        "conc": integer(load_of(row).value),
        "image": row.get("image"),
        "model": row.get("model"),
        "infmax_model_prefix": None,  # a name of InferenceX's own configurations, which this is not
        "framework": "vllm",
        "precision": setup.precision,
        "spec_decoding": setup.speculative,
        "disagg": False,
        "isl": given,
        "osl": wanted,
        "is_multinode": _multinode(row, setup),
        "tp": sharded,
        "pp": setup.pipeline_parallel,
        "dcp_size": setup.decode_context_parallel,
        "pcp_size": setup.prefill_context_parallel,
        "ep": sharded if setup.expert_parallel or sharded is None else 1,
        "dp_attention": None if setup.data_parallel is None else str(setup.data_parallel > 1).lower(),
        "recipe_fingerprint": fingerprint(row),
        **known_values(
            {
                "tput_per_gpu": ratio(total, setup.gpus),
                "output_tput_per_gpu": ratio(output, setup.gpus),
                "input_tput_per_gpu": ratio(prompts, setup.gpus),
            }
        ),
        **_latencies(row),
        **_power(row, setup),
    }


def fingerprint(row: Row) -> str:
    """Return a hash of what was run: image, weights, the engine's options and variables, not where."""
    options = {key: value for key, value in engine_options(row).items() if key not in _PLACE}
    env = {key: value for key, value in (row.get("env") or {}).items() if key not in _PLACE_ENV}
    recipe = [row.get("digest") or row.get("image"), row.get("model"), row.get("commit"), options, env]
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def frontier(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of each curve by interactivity (tok/s/user), and which are on its frontier of tok/s/GPU."""
    found = []
    curves: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("median_intvty") is not None and row.get("tput_per_gpu") is not None:
            curves.setdefault(tuple(row[key] for key in _CURVE), []).append(row)
    for points in curves.values():
        best = float("-inf")
        ordered = sorted(points, key=lambda row: (-row["median_intvty"], -row["tput_per_gpu"]))
        for point in ordered:
            better = point["tput_per_gpu"] > best
            best = max(best, point["tput_per_gpu"])
            found.append({**point, "on_frontier": "true" if better else "false"})
    return found


def _latencies(row: Row) -> dict[str, float]:
    """Return latencies in seconds, and 1/TPOT of every TPOT key, as InferenceX does even for its deviation."""
    found: dict[str, float] = {}
    for key, value in row.items():
        name = key.removesuffix("_ms")
        if value is None or name == key or name.rpartition("_")[2] not in LATENCIES:
            continue
        found[name] = value / 1000
        if name.endswith("_tpot") and value:
            found[name.replace("tpot", "intvty")] = 1000 / value
    return found


def _power(row: Row, setup: EngineSetup) -> dict[str, Any]:
    """Return power and energy if they are valid by InferenceX's rules, all derived from the energy of all GPUs."""
    if row.get("power_valid") is None:
        return {}
    stamp = {
        "power_valid": int(bool(row["power_valid"])),
        "power_metric_schema_version": POWER_METRIC_SCHEMA_VERSION,
    }
    each, tokens = row.get("joules_per_output_token"), row.get("total_output_tokens")
    if not row["power_valid"] or each is None or tokens is None:
        return stamp
    energy, prompts = each * tokens, row.get("total_input_tokens")
    total_power = ratio(energy, row.get("duration_s"))
    return stamp | known_values(
        {
            "avg_power_w": ratio(total_power, setup.gpus),
            "avg_total_gpu_power_w": total_power,
            "total_gpu_energy_j": energy,
            "joules_per_successful_query": ratio(energy, row.get("completed")),
            "joules_per_input_token": ratio(energy, prompts),
            "joules_per_output_token": each,
            "joules_per_total_token": ratio(energy, tokens + prompts if prompts is not None else None),
        }
    )


def _multinode(row: Row, setup: EngineSetup) -> bool:
    return bool(setup.gpus and row.get("gpus") and setup.gpus > len(row["gpus"]))
