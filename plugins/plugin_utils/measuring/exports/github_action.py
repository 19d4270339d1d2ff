# SPDX-License-Identifier: Apache-2.0
"""Write the input of github-action-benchmark: a file where bigger is better, and one where smaller is. Pure."""

from __future__ import annotations

from typing import Any

from ..measurement.rows import cell_name
from .export import Export, json_text, known_values
from .run_results import Row, RunResults

_BIGGER = (("output_throughput", "output tok/s"), ("total_token_throughput", "total tok/s"))
_SMALLER = (
    ("p50_ttft_ms", "ms"),
    ("p99_ttft_ms", "ms"),
    ("p50_tpot_ms", "ms"),
    ("mean_batch_latency_ms", "ms"),
)
_MAIN = {
    "serve": "output_throughput",
    "throughput": "total_token_throughput",
    "latency": "mean_batch_latency_ms",
}
"""The metric to which the interval of a cell belongs, where the cell does not say it."""


def export(results: RunResults) -> Export:
    """Return bigger_is_better.json and smaller_is_better.json; a name stays the same from run to run."""
    files = {"bigger_is_better.json": _BIGGER, "smaller_is_better.json": _SMALLER}
    return Export(
        {
            name: json_text([item for row in results.cells for item in _items(results, row, metrics)])
            for name, metrics in files.items()
        }
    )


def _items(results: RunResults, row: Row, metrics: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    return [
        known_values(
            {
                "name": f"{row.get('host')}/{row.get('instance')} {row.get('kind')} {cell_name(row)} {key}",
                "unit": unit,
                "value": row[key],
                "range": _range(row, key),
                "extra": _about(results, row),
            }
        )
        for key, unit in metrics
        if row.get(key) is not None
    ]


def _range(row: Row, key: str) -> str | None:
    interval = row.get("interval")
    if not interval or (row.get("metric") or _MAIN.get(str(row.get("kind")))) != key:
        return None
    return f"{interval[0]:g} to {interval[1]:g} (95 % of the median)"


def _about(results: RunResults, row: Row) -> str:
    versions = row.get("versions") or {}
    facts = {
        "run": results.run,
        "model": row.get("model"),
        "commit": row.get("commit"),
        "image": row.get("image"),
        "digest": row.get("digest"),
        "vllm": versions.get("vllm"),
        "GPU": results.gpu(row, "model"),
        "runs": row.get("runs"),
        "cv": row.get("cv"),
    }
    return "\n".join(f"{name}: {value}" for name, value in known_values(facts).items())
