# SPDX-License-Identifier: Apache-2.0
"""Write the files of one run below the results directory, so that readers never see incomplete files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....module_utils.benchmarks.bench_metrics import METRICS
from ...base.node_answers import file_name
from ..results.run_names import ResultsError
from .summary import MeasuredRuns

Row = Mapping[str, Any]

_IDENTITY = (
    "host",
    "instance",
    "deployment",
    "kind",
    "suite",
    "cell",
    "runs",
    "cv",
    "interval",
    "metric",
    "started",
    "seconds",
    "model",
    "commit",
    "image",
    "digest",
)
_REPRODUCTION = ("gpus", "render_nodes", "port", "spec_hash", "serve_command", "env", "command", "versions")
_HOST = (
    "compute_partition",
    "memory_partition",
    "numa_balancing",
    "rocm",
    "driver",
    "docker",
    "kernel",
    "os",
)


def run_files(measured: MeasuredRuns) -> dict[str, str | bytes]:
    """Return the files of single runs: runs.jsonl, and the JSON of each, also complete and compressed if it has lists.

    raw/<host>__<instance>__<kind>__<cell>__<block>.json is what vLLM wrote without per-request lists; .json.gz next to
    it is the same with these lists.
    """
    files: dict[str, str | bytes] = {
        "runs.jsonl": "".join(
            f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in measured.rows
        )
    }
    for name, run in zip(raw_names(measured.rows), measured.runs, strict=True):
        files[f"raw/{name}"] = json_text(run.raw)
        if run.detail is not None:
            whole = json.dumps({**run.raw, **run.detail}, separators=(",", ":"), allow_nan=False)
            files[f"raw/{name}.gz"] = gzip.compress(whole.encode(), mtime=0)
    return files


def raw_names(rows: Sequence[Row]) -> list[str]:
    """Return unique names <host>__<instance>__<kind>__<cell>__<block>.json, with unsafe characters replaced."""
    names: dict[str, None] = {}
    for row in rows:
        stem = file_name(*(row[key] for key in ("host", "instance", "kind", "cell", "block")))
        name, number = f"{stem}.json", 1
        while name in names:
            number += 1
            name = f"{stem}-{number}.json"
        names[name] = None
    return list(names)


def csv_text(summary: Mapping[str, Any]) -> str:
    """Return one line per cell of an instance: what was measured, every scalar metric, and how to measure it again.

    Unknown values are empty. Further scalars of vLLM follow the known ones under their own names.
    """
    rows: Sequence[Row] = summary["benchmarks"]
    fixed = {*_IDENTITY, *METRICS, *_REPRODUCTION, "other", "gpu_telemetry"}
    extra = sorted({key for row in rows for key in row if key not in fixed})
    other = sorted({key for row in rows for key in row["other"]})
    taken = {*fixed, *extra, *_HOST, "run", "cpu"}
    names = {key: f"vllm_{key}" if key in taken else key for key in other}
    columns = ["run", *_IDENTITY, *METRICS, *extra, *names.values(), *_REPRODUCTION, *_HOST, "cpu"]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        host = summary["hosts"].get(row["host"], {})
        writer.writerow(
            {
                "run": summary["run"],
                **{key: _cell(row[key]) for key in (*_IDENTITY, *METRICS, *_REPRODUCTION)},
                **{key: _cell(row.get(key)) for key in extra},
                **{names[key]: _cell(row["other"].get(key)) for key in other},
                **{key: _cell(host.get(key)) for key in _HOST},
                "cpu": _cell((host.get("cpu") or {}).get("model")),
            }
        )
    return stream.getvalue()


def write_run(results_dir: Path, run: str, files: Mapping[str, str | bytes], newest: bool = True) -> Path:
    """Write `files` (relative path → content) as results_dir/run; with `newest`, link results_dir/latest to it.

    The directory appears complete or not at all. Raise ResultsError, or OSError with the path for other errors.
    """
    latest = results_dir / "latest"
    if latest.exists() and not latest.is_symlink():
        raise ResultsError(
            f"{latest} is not a symbolic link of this toolkit. Move it elsewhere, or choose another results_dir."
        )
    final, draft = results_dir / run, results_dir / f".{run}.{os.getpid()}.tmp"
    try:
        for name, content in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if not newest:
        return final
    link = results_dir / f".latest.{os.getpid()}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(run)
    link.replace(latest)
    return final


def json_text(data: Any) -> str:
    """Return readable JSON: indented, with a newline at the end, without NaN."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _cell(value: Any) -> Any:
    """Return lists and maps as text: "0 1 2", "A=1 B=2"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return value
