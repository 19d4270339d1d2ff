# SPDX-License-Identifier: Apache-2.0
"""Render the HTML report of one summary: the page's content as formatted text, and the page.

Control node only: Jinja and matplotlib are imported when a report is rendered. All decisions are made here; the
template (templates/report.html.j2) only places the content.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import natural
from ...base.text import plural
from ..measurement.cells import Side
from ..summary.cell_summary import median
from ..summary.gpu_findings import GpuFinding, gpu_findings, headline, undecided_differences
from ..summary.loads import gpu_count, load_figures
from ..summary.overlap import non_overlapping_sums
from ..summary.slo_searches import is_probe, search_section, totals
from ..summary.tables import UNKNOWN, count, ms, rate, share, signed_percent, total_of
from ..summary.titles import headline_rows, notes
from .context_sections import accuracy_section, previous_section, published_section
from .glance import glance
from .hosts import hosts_view, reproduction
from .load_sections import gpus_section, loads_section
from .outliers import NodeSpeed, node_speeds, speeds
from .run_context import RunContext
from .sections import Pairs, deployment_section, nodes_section, offline_sections

TEMPLATES = Path(__file__).resolve().parents[4] / "templates"
Row = Mapping[str, Any]


def render_report(summary: Mapping[str, Any], around: RunContext | None = None) -> str:
    """Return the page for a summary (summary.json): one self-contained HTML document.

    It loads nothing from elsewhere, and every text of the summary is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    view = report_view(summary, around)
    for plot in _plots(view):
        plot["svg"] = Markup(plot["draw"]())  # escaped by matplotlib's XML writer
        plot["phone"] = Markup(plot["narrow"]()) if "narrow" in plot else ""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(view)


def report_view(summary: Mapping[str, Any], around: RunContext | None = None) -> dict[str, Any]:
    """Return the page's content. Plots are functions ("draw") that return SVG."""
    around = around or RunContext()
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
    own = Side(summary["run"], tuple(around.runs or rows), summary["hosts"])
    previous = previous_section(own, around.previous)
    accuracy = accuracy_section(summary["deployments"], around.accuracy)
    return {
        "run": summary["run"],
        "started": _moment(summary["started"]),
        "finished": _moment(summary["finished"]),
        "subject": _subject(rows),
        "plan": around.plan,
        "glance": glance(rows, summary, findings, previous, accuracy),
        "failures": summary["failures"],
        "findings": findings,
        "findings_title": headline(findings),
        "notes": [
            *notes(rows),
            *undecided_differences(verdicts),
            *([around.problem] if around.problem else []),
        ],
        "cards": [
            *_search_cards(searches),
            *_cards(best, served, nodes, findings, len(hosts), len(expected), summary["hosts"]),
        ],
        "searches": search_section(searches, rows),
        "nodes": nodes_section(nodes),
        "deployments": [
            _deployment(name, number, pairs, best, summary, around) for number, name in enumerate(names)
        ],
        "previous": previous,
        "published": published_section(own, around.published),
        "accuracy": accuracy,
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


def _plots(view: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every plot of the page."""
    sections = [view["nodes"], view["previous"]]
    for part in view["deployments"]:
        sections += [part["loads"], part["gpus"], *part["cells"]]
    for section in sections:
        yield from section["plots"] if section else []


def _deployment(
    name: str,
    number: int,
    pairs: Pairs,
    best: Sequence[Row],
    summary: Mapping[str, Any],
    around: RunContext,
) -> dict[str, Any]:
    """Return the section of a deployment: its loads, its GPUs, its instances."""
    rows = [row for row, _speed in pairs if row["deployment"] == name and row["kind"] == "serve"]
    runs = [row for row in around.runs if row["deployment"] == name]
    hosts, slos = summary["hosts"], summary["deployments"][name].get("slos") or ()
    return {
        "loads": loads_section(str(number), load_figures(rows, runs, hosts), slos),
        "gpus": gpus_section(
            str(number), [row for row in best if row["deployment"] == name], hosts, summary["gpu_verdicts"]
        ),
        **deployment_section(name, number, pairs, {row["cell"] for row in best if row["deployment"] == name}),
    }


def _moment(text: str | None) -> str:
    return text.replace("T", " ").replace("Z", " UTC") if text else "unknown"


def _subject(rows: Sequence[Row]) -> str:
    models = sorted({str(row["model"]) for row in rows if row["model"]})
    releases = sorted({str(row["versions"]["vllm"]) for row in rows if row["versions"]["vllm"]}, key=natural)
    text = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
    return text + (f" with vLLM {', '.join(releases)}" if text and releases else "")


def _cards(
    best: Sequence[Row],
    served: Sequence[Row],
    nodes: Sequence[NodeSpeed],
    findings: Sequence[GpuFinding],
    hosts: int,
    expected: int,
    facts: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, str]]:
    """Return the headline: every number with its unit and what it counts. best: one cell of each deployment."""
    total = f"sum of {plural(len(best), 'instance')}"
    cells = {row["cell"] for row in best}
    total += f", {', '.join(sorted(cells, key=natural)[:2])}" if cells else ""
    total += ", not measured at the same time" if non_overlapping_sums(best) else ""
    output, gpus = total_of(best, "output_throughput"), gpu_count(best, facts)
    # Failures are those of all loads, as the list of failures has them.
    failed, asked = total_of(served, "failed"), total_of(served, "num_prompts")
    cards = []
    if served:
        per_gpu = rate(output / gpus) if output and gpus else UNKNOWN
        cards += [
            _card("Output tok/s", rate(output), total),
            _card("Output tok/s per GPU", per_gpu, plural(gpus, "GPU")),
            _card("Failed requests", count(failed), f"of {count(asked)}", "bad" if failed else ""),
        ]
    cards.append(_card("Nodes measured", str(hosts), f"of {expected}", "bad" if hosts < expected else ""))
    compared = [node for node in nodes if node.value is not None]
    if len(compared) > 1:
        cards.append(_slowest(compared, findings))
    for label, key in (("TTFT p50, ms", "p50_ttft_ms"), ("TPOT p50, ms", "p50_tpot_ms")):
        known = [row[key] for row in best if row[key] is not None]
        if known:
            note = "median of the instances" if len(known) > 1 else ""
            cards.append(_card(label, ms(statistics.median(known)), note))
    if (hbm := median([row["hbm_share"] for row in best])) is not None:
        flop = median([row["flop_share"] for row in best])
        cards.append(_card("HBM roofline, decoding", share(hbm), f"FLOP roofline {share(flop)}"))
    if output and best and all(row["power_w"] is not None for row in best):
        watts = total_of(best, "power_w") or 0.0
        cards.append(_card("J per output token", rate(watts / output), f"{rate(watts / gpus)} W per GPU"))
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
    """Return the card of the slowest node: against the other one of two, else against the median."""
    slowest, *_between, fastest = sorted(nodes, key=lambda node: node.value or 0.0)
    # The colour says what the findings say: a node is slowest in every fleet, and slow in few.
    tone = "warn" if any(finding.host == slowest.host for finding in findings) else ""
    if len(nodes) == 2:
        value = (slowest.value or 0.0) / (fastest.value or 1.0)
        return _card("Slower node", signed_percent(value), f"{slowest.host}, against {fastest.host}", tone)
    return _card("Slowest node", signed_percent(slowest.value), f"{slowest.host}, against the median", tone)
