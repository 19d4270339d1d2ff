# SPDX-License-Identifier: Apache-2.0
"""Write llm-d's benchmark report 0.2.1, one for each run of a serving or throughput benchmark. Pure.

The structure is that of llm-d-benchmark (Apache-2.0), snapshot 8bc9f1d: keys that it does not know are refused there,
statistics need a mean and a unit, and what is unknown is left out. A report is JSON, which its YAML readers take too.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ...base.node_answers import file_name
from ..measurement.rows import cell_name, load_of, shape_of
from .export import Export, json_text, known_values, omission_text, ratio, unique_name
from .run_results import Row, RunResults
from .setup import engine_options, engine_setup, options_of

VERSION = "0.2.1"
COMPONENT_SCHEMA = "0.0.1"
TOOL = "vllm-benchmark"
_PERCENTILES = {"p0.1": "p0p1", "p99.9": "p99p9"}
_TIMES = {
    "ttft": ("time_to_first_token", "ms"),
    "tpot": ("time_per_output_token", "ms/token"),
    "itl": ("inter_token_latency", "ms/token"),
    "e2el": ("request_latency", "ms"),
}
_STATISTICS = ("p0.1", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9")
_SOURCES = {"random": "random", "random-mm": "random", "prefix_repetition": "random"}


def export(results: RunResults) -> Export:
    """Return a report HOST__INSTANCE__CELL__run=N.json for each run."""
    files: dict[str, str] = {}
    for row in results.cells:
        if row.get("kind") not in ("serve", "throughput"):
            continue
        for number, run in enumerate(results.runs_of(row), 1):
            name = file_name(row.get("host"), row.get("instance"), cell_name(row), f"run={number}")
            files[unique_name(name, (path.removesuffix(".json") for path in files)) + ".json"] = json_text(
                report(results, run, number)
            )
    batches = [row for row in results.cells if row.get("kind") == "latency"]
    return Export(files, omission_text(batches, "llm-d's report has no latency of a batch"))


def report(results: RunResults, row: Row, number: int) -> dict[str, Any]:
    """Return the report of one run; `number` counts the runs of its cell from 1."""
    identity = [results.run, *(row.get(key) for key in ("host", "instance", "kind")), cell_name(row), number]
    scenario = known_values({"stack": [_engine(results, row)], "load": _load(row)})
    aggregate = known_values(
        {"requests": _requests(row), "latency": _latency(row), "throughput": _throughput(row)}
    )
    performance = {"request_performance": {"aggregate": aggregate}} if aggregate else {}
    return {
        "version": VERSION,
        "run": known_values(
            {
                "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(identity))),
                "eid": results.run,
                "time": _time(row),
                "description": f"{row.get('kind')} benchmark {cell_name(row)} of {_label(row)}",
            }
        ),
        "scenario": scenario,
        "results": {**performance, **_observability(row)},
    }


def _time(row: Row) -> Mapping[str, str] | None:
    started, seconds = row.get("started"), row.get("seconds")
    if not started:
        return None
    if seconds is None:
        return {"start": started}
    end = datetime.fromisoformat(str(started).replace("Z", "+00:00")) + timedelta(seconds=seconds)
    return {
        "start": started,
        "end": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "duration": f"PT{seconds:g}S",
    }


def _engine(results: RunResults, row: Row) -> dict[str, Any]:
    """Return the component of the stack: the engine, which is one replica."""
    setup, options, env = engine_setup(row), dict(engine_options(row)), dict(row.get("env") or {})
    parallelism = {
        "tp": setup.tensor_parallel,
        "pp": setup.pipeline_parallel,
        "dp": setup.data_parallel,
        "ep": (setup.tensor_parallel or 1) * (setup.data_parallel or 1) if setup.expert_parallel else None,
    }
    return {
        "metadata": {
            "schema_version": COMPONENT_SCHEMA,
            "label": _label(row),
            "cfg_id": str(row.get("spec_hash") or _hash([options, env, row.get("image")])),
        },
        "standardized": {
            "kind": "inference_engine",
            "tool": "vllm",
            "tool_version": _tool_version(row),
            "role": "replica",
            "replicas": 1,
            "model": {"name": str(row.get("model") or "unknown")},
            "accelerator": {
                "model": results.gpu(row, "model") or results.gpu(row, "gfx") or "unknown",
                "count": setup.gpus or 0,
                "parallelism": known_values(parallelism),
            },
        },
        "native": {
            "args": {f"--{name.replace('_', '-')}": value for name, value in options.items()},
            "envars": env,
        },
    }


def _load(row: Row) -> dict[str, Any] | None:
    """Return the workload; None if not even the mean length of the prompts is known, which the format needs."""
    given, wanted = shape_of(row)
    prompt = _length(given, row.get("total_input_tokens"), row.get("completed"))
    if prompt is None:
        return None
    load, options = load_of(row), options_of(row.get("command"))
    standardized = {
        "tool": TOOL,
        "tool_version": _tool_version(row),
        "source": _SOURCES.get(
            options.get("dataset_name", ""), "sampled" if options.get("dataset_path") else "unknown"
        ),
        "input_seq_len": prompt,
        "output_seq_len": _length(wanted) if options.get("ignore_eos") == "true" else None,
        "rate_qps": load.value if load.kind == "rate" else None,
        "concurrency": int(load.value) if load.kind == "concurrency" and load.value else None,
    }
    return {
        "metadata": {"schema_version": COMPONENT_SCHEMA, "cfg_id": _hash(options)},
        "standardized": known_values(standardized),
        "native": {"args": {f"--{name.replace('_', '-')}": value for name, value in options.items()}},
    }


def _length(fixed: int | None, tokens: Any = None, completed: Any = None) -> dict[str, Any] | None:
    """Return a length: the one that was requested, or else the mean of an unknown distribution."""
    if fixed is not None:
        return {"distribution": "fixed", "value": fixed}
    mean = ratio(tokens, completed)
    return None if mean is None else {"distribution": "other", "value": mean}


def _requests(row: Row) -> dict[str, Any] | None:
    completed, failed = row.get("completed"), row.get("failed")
    total = row.get("num_prompts")
    if total is None and completed is not None:
        total = completed + (failed or 0)
    if total is None:
        return None
    lengths = {
        "input_length": ratio(row.get("total_input_tokens"), completed),
        "output_length": ratio(row.get("total_output_tokens"), completed),
    }
    statistics = {
        name: {"units": "count", "mean": mean} for name, mean in lengths.items() if mean is not None
    }
    return known_values({"total": total, "failures": failed, **statistics})


def _latency(row: Row) -> dict[str, Any] | None:
    found = {name: _statistics(row, metric, unit) for metric, (name, unit) in _TIMES.items()}
    return known_values(found) or None


def _statistics(row: Row, metric: str, unit: str) -> dict[str, Any] | None:
    mean = row.get(f"mean_{metric}_ms")
    if mean is None:
        return None
    others = {_PERCENTILES.get(name, name): row.get(f"{name}_{metric}_ms") for name in _STATISTICS}
    return {"units": unit, "mean": mean, **known_values({"stddev": row.get(f"std_{metric}_ms"), **others})}


def _throughput(row: Row) -> dict[str, Any] | None:
    total, output = row.get("total_token_throughput"), row.get("output_throughput")
    rates = {
        "input_token_rate": (
            total - output if total is not None and output is not None else None,
            "tokens/s",
        ),
        "output_token_rate": (output, "tokens/s"),
        "total_token_rate": (total, "tokens/s"),
        "request_rate": (row.get("request_throughput"), "queries/s"),
    }
    return {
        name: {"units": unit, "mean": rate} for name, (rate, unit) in rates.items() if rate is not None
    } or None


def _observability(row: Row) -> dict[str, Any]:
    """Return the engine's prefix cache hit rate, the only one of its metrics whose mean is known."""
    rate = row.get("prefix_hit_rate")
    if rate is None:
        return {}
    component = {
        "component_label": _label(row),
        "aggregate": {"cache_hit_rate": {"units": "fraction", "mean": rate}},
    }
    return {"observability": {"components": [component]}}


def _label(row: Row) -> str:
    return f"{row.get('host')}/{row.get('instance')}"


def _tool_version(row: Row) -> str:
    versions = row.get("versions") or {}
    return str(versions.get("vllm") or row.get("image") or "unknown")


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
