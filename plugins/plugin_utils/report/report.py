# SPDX-License-Identifier: Apache-2.0
"""Render the HTML report of one summary: the page's content as formatted text, and the page.

Control node only: Jinja and matplotlib are imported when a report is rendered. All decisions are made here; the
template (templates/report.html.j2) only places the content.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...module_utils.common.errors import natural
from ..text import plural
from .gpu_findings import GpuFinding, gpu_findings, headline, unjudged
from .hosts import hosts_view, reproduction
from .outliers import NodeSpeed, node_speeds, speeds
from .sections import deployment_section, nodes_section, offline_sections
from .slo_searches import is_probe, search_section, totals
from .tables import count, ms, rate, signed, total_of
from .titles import headline_rows, notes

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
Row = Mapping[str, Any]


def render_report(summary: Mapping[str, Any]) -> str:
    """Return the page for a summary (summary.json): one self-contained HTML document.

    It loads nothing from elsewhere, and every text of the summary is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    view = report_view(summary)
    cells = [cell for part in view["deployments"] for cell in part["cells"]]
    for section in (view["nodes"], *cells):
        for plot in section["plots"] if section else []:
            plot["svg"] = Markup(plot["draw"]())  # escaped by matplotlib's XML writer
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(view)


def report_view(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page's content. Plots are functions ("draw") that return SVG."""
    rows: list[Row] = summary["benchmarks"]
    served = [row for row in rows if row["kind"] == "serve" and not is_probe(row)]
    searches = summary["slo_searches"]
    verdicts = summary["gpu_verdicts"]
    findings = gpu_findings(verdicts)
    pairs = [pair for pair in zip(rows, speeds(rows, verdicts)) if not is_probe(pair[0])]
    best = headline_rows(served)
    nodes = node_speeds(best, verdicts)
    hosts = sorted({row["host"] for row in rows}, key=natural)
    expected = {*hosts, *(failure["host"] for failure in summary["failures"])}
    names = sorted({row["deployment"] for row in served}, key=natural)
    return {
        "run": summary["run"],
        "started": _moment(summary["started"]),
        "finished": _moment(summary["finished"]),
        "subject": _subject(rows),
        "failures": summary["failures"],
        "findings": findings,
        "findings_title": headline(findings),
        "notes": [*notes(rows), *unjudged(verdicts)],
        "cards": [*_search_cards(searches), *_cards(best, nodes, findings, len(hosts), len(expected))],
        "searches": search_section(searches, rows),
        "nodes": nodes_section(nodes),
        "deployments": [deployment_section(name, number, pairs) for number, name in enumerate(names)],
        "offline": offline_sections(pairs),
        "reproduce": [
            reproduction(
                name,
                item,
                [
                    row
                    for row in rows
                    if row["deployment"] == name and (row.get("at_slo") or not is_probe(row))
                ],
            )
            for name, item in sorted(summary["deployments"].items(), key=lambda item: natural(item[0]))
        ],
        "hosts": hosts_view(summary["hosts"]),
    }


def _moment(text: str | None) -> str:
    return text.replace("T", " ").replace("Z", " UTC") if text else "unknown"


def _subject(rows: Sequence[Row]) -> str:
    models = sorted({str(row["model"]) for row in rows if row["model"]})
    releases = sorted({str(row["versions"]["vllm"]) for row in rows if row["versions"]["vllm"]}, key=natural)
    text = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
    return text + (f" with vLLM {', '.join(releases)}" if text and releases else "")


def _cards(
    served: Sequence[Row],
    nodes: Sequence[NodeSpeed],
    findings: Sequence[GpuFinding],
    hosts: int,
    expected: int,
) -> list[dict[str, str]]:
    """Return the headline: every number with its unit and what it counts. `served`: one cell of each deployment."""
    total = f"sum of {plural(len(served), 'instance')}"
    cells = {row["cell"] for row in served}
    total += f", {', '.join(sorted(cells, key=natural)[:2])}" if cells else ""
    failed, asked = total_of(served, "failed"), total_of(served, "num_prompts")
    cards = []
    if served:
        cards += [
            _card("Output tok/s", rate(total_of(served, "output_throughput")), total),
            _card("Requests/s", rate(total_of(served, "request_throughput")), total),
            _card("Failed requests", count(failed), f"of {count(asked)}", "bad" if failed else ""),
        ]
    cards.append(_card("Nodes measured", str(hosts), f"of {expected}", "bad" if hosts < expected else ""))
    compared = [node for node in nodes if node.value is not None]
    if len(compared) > 1:
        cards.append(_slowest(compared, findings))
    for label, key in (("TTFT p50, ms", "p50_ttft_ms"), ("TPOT p50, ms", "p50_tpot_ms")):
        known = [row[key] for row in served if row[key] is not None]
        if known:
            note = "median of the instances" if len(known) > 1 else ""
            cards.append(_card(label, ms(statistics.median(known)), note))
    return cards


def _search_cards(searches: Sequence[Row]) -> list[dict[str, str]]:
    cards = []
    for name, requests, tokens, of in totals(searches):
        cards += [
            _card(f"Output tok/s at SLO {name}", rate(tokens), of),
            _card(f"Requests/s at SLO {name}", rate(requests), of),
        ]
    return cards


def _card(label: str, value: str, note: str, tone: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "tone": tone}


def _slowest(nodes: Sequence[NodeSpeed], findings: Sequence[GpuFinding]) -> dict[str, str]:
    """Return the card of the slowest node: of two against the other, else against the median."""
    slowest, *_between, fastest = sorted(nodes, key=lambda node: node.value or 0.0)
    # The colour says what the findings say: a node is slowest in every fleet, and slow in few.
    tone = "warn" if any(finding.host == slowest.host for finding in findings) else ""
    if len(nodes) == 2:
        value = (slowest.value or 0.0) / (fastest.value or 1.0)
        return _card("Slower node", signed(value), f"{slowest.host}, against {fastest.host}", tone)
    return _card("Slowest node", signed(slowest.value), f"{slowest.host}, against the median", tone)
