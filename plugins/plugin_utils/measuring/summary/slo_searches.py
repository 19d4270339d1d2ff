# SPDX-License-Identifier: Apache-2.0
"""Show the throughput at SLOs that searches found: for the terminal, the page and slo.csv. Pure.

A search is an entry of `slo_searches` in summary.json. Its probes are rows like others, but each has its own load:
they are shown with their search, and instances are not compared by them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import natural
from ...base.text import plural
from .tables import EN_DASH, UNKNOWN, rate, table

Search = Mapping[str, Any]
Row = Mapping[str, Any]
HEADS = ("host", "instance", "cells", "SLO", "load", "95%", "requests/s", "tok/s", "tok/s/GPU", "probes")
METRICS = ("request_throughput", "output_throughput", "output_throughput_per_gpu")
_LIMITS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2EL"}
_UNITS = {"rate": "requests/s", "concurrency": "at once"}


def is_probe(row: Row) -> bool:
    """Return whether a row is of a search; those of earlier releases are not."""
    return row.get("probe") is not None


def host_searches(host: str, results: Sequence[Search]) -> list[dict[str, Any]]:
    """Return the searches of a host as summary.json has them."""
    return [{"host": host, **result} for result in results]


def sort_searches(searches: Sequence[Search]) -> list[Search]:
    """Return searches by host and instance, each instance's in the order in which they were made."""
    return sorted(searches, key=lambda item: (natural(str(item["host"])), natural(str(item["instance"]))))


def limits_of(search: Search) -> str:
    """Return an SLO: "99% within TTFT 2000 ms, TPOT 200 ms"."""
    slo = search["slo"]
    limits = ", ".join(f"{name} {slo[key]:g} ms" for key, name in _LIMITS.items() if slo.get(key) is not None)
    return f"{search['share'] * 100:g}% within {limits}"


def totals(searches: Sequence[Search]) -> list[tuple[str, float, float, str]]:
    """Return each SLO with the sums of requests/s and output tok/s at it, and how many instances of what they cover."""
    found = []
    # Shapes do not add up.
    for search, name in dict.fromkeys((item["search"], item["slo"]["name"]) for item in searches):
        own = [item for item in searches if (item["search"], item["slo"]["name"]) == (search, name)]
        kept = [item for item in own if item["value"] is not None]
        requests, tokens = (sum(item[key]["value"] or 0.0 for item in kept) for key in METRICS[:2])
        found.append((name, requests, tokens, f"{search}, {len(kept)} of {plural(len(own), 'instance')}"))
    return found


def text_cells(search: Search) -> list[str]:
    """Return the cells of HEADS."""
    value, unit = search["value"], _UNITS[search["load"]]
    return [
        search["host"],
        search["instance"],
        search["search"],
        search["slo"]["name"],
        "none" if value is None else f"{value:g} {unit}",
        _ends(search["low"], search["high"]),
        *(rate(search[key]["value"]) for key in METRICS),
        str(search["probes"]),
    ]


def reason(search: Search) -> str:
    """Return where a search ended and why: what it says of the next higher load, or that there is no result."""
    return f"{search['host']} {search['instance']}, {search['slo']['name']} ({limits_of(search)}): {search['why']}."


def _ends(low: float | None, high: float | None) -> str:
    if low is None:
        return UNKNOWN if high is None else f"< {high:g}"
    return f"≥ {low:g}" if high is None else f"{low:g}{EN_DASH}{high:g}"


def search_section(searches: Sequence[Search], rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the page's section: what was found, and all probes; None without searches."""
    if not searches:
        return None
    columns = [
        "Node", "Instance", "Cells", "SLO", "Kept by", "Load", "95%", ("Requests/s", "rate"), ("Output tok/s", "rate"),
        ("tok/s per GPU", "rate"), "95% of tok/s", "Probes", "Ended",
    ]  # fmt: skip
    found = [
        {
            "slow": False,
            "cells": [
                *text_cells(item)[:4],
                limits_of(item),
                *text_cells(item)[4:6],
                *(item[key]["value"] for key in METRICS),
                _tokens(item["output_throughput"]),
                item["probes"],
                item["why"],
            ],
        }
        for item in searches
    ]
    return {"tables": [table("Highest load that keeps the SLO", columns, found), _probes(rows)]}


def _tokens(interval: Mapping[str, float | None]) -> str:
    low, high = interval["low"], interval["high"]
    if low is None:
        return UNKNOWN if high is None else f"< {rate(high)}"
    return f"≥ {rate(low)}" if high is None else f"{rate(low)}{EN_DASH}{rate(high)}"


def _probes(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the table of all probes, folded."""
    probes = [row for row in rows if is_probe(row)]
    names = list(dict.fromkeys(name for row in probes for name in row["slo_attainment"]))
    columns = [
        "Node", "Instance", "Cell", *((f"keep {name}", "spread") for name in names),
        ("p50", "ms", "TTFT, ms"), ("p99", "ms", "TTFT, ms"), ("p50", "ms", "TPOT, ms"), ("p99", "ms", "TPOT, ms"),
        ("Requests/s", "rate"), ("Output tok/s", "rate"), "Completed", "Failed",
    ]  # fmt: skip
    keys = (
        "p50_ttft_ms",
        "p99_ttft_ms",
        "p50_tpot_ms",
        "p99_tpot_ms",
        "request_throughput",
        "output_throughput",
    )
    cells = [
        {
            "slow": False,
            "cells": [
                row["host"],
                row["instance"],
                row["cell"],
                *(row["slo_attainment"].get(name) for name in names),
                *(row[key] for key in (*keys, "completed", "failed")),
            ],
        }
        for row in probes
    ]
    return table("Probes", columns, cells, closed=True)


def slo_csv(summary: Mapping[str, Any]) -> str:
    """Return one line per search. Unknown values are empty."""
    limits, ends = tuple(_LIMITS), ("value", "low", "high")
    spans = [f"{key}{'' if end == 'value' else f'_{end}'}" for key in METRICS for end in ends]
    plain = (
        "host",
        "instance",
        "deployment",
        "suite",
        "search",
        "share",
        "load",
        "value",
        "low",
        "high",
        "cell",
        "probes",
    )
    columns = ("run", *plain, "slo", *limits, *spans, "why")
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for item in summary["slo_searches"]:
        values = [item[key][end] for key in METRICS for end in ends]
        slo = [item["slo"].get(key) for key in ("name", *limits)]
        writer.writerow([summary["run"], *(item[key] for key in plain), *slo, *values, item["why"]])
    return stream.getvalue()
