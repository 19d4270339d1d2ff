# SPDX-License-Identifier: Apache-2.0
"""Format an audit as text: hosts in the same state together, the worst first, 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.common.errors import natural
from ...base.text import MANY, join_names, plural, wrap
from .items import ADVISORY, ELSEWHERE, OK, RECOMMENDED, REQUIRED, SKIPPED, WRONG, AuditFinding
from .judge import (
    FAILS,
    FINE,
    IMPROVABLE,
    RESULTS,
    UNREACHED,
    findings_with_status,
    fixed_by_prepare,
    host_work,
    result,
    unknown_findings,
)

WIDTH = 100
COLUMNS = (("LEVEL", 11), ("ITEM", 33), ("FOUND", 30), ("FIX", 20))


@dataclass(frozen=True)
class HostReport:
    """A host's findings and description ("8 MI300X, Debian 12"); `why` is set if the host was not reached."""

    name: str
    what: str = ""
    findings: tuple[AuditFinding, ...] = ()
    why: str = ""

    @property
    def result(self) -> str:
        """Return the result, one of RESULTS."""
        return UNREACHED if self.why else result(self.findings)


@dataclass(frozen=True)
class Report:
    """The whole fleet; differences as from audit.differences, bios as in catalog/host_items.yml."""

    hosts: tuple[HostReport, ...]
    differences: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    bios: Sequence[Mapping[str, str]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content for -e audit_file."""
        return {
            "schema": 1,
            "results": {name: [host.name for host in self.hosts if host.result == name] for name in RESULTS},
            "hosts": {
                host.name: {
                    "result": host.result,
                    "is": host.what,
                    "why": host.why or None,
                    "todo": host_work(host.findings).to_json(),
                    "findings": [finding.to_json() for finding in host.findings],
                }
                for host in self.hosts
            },
            "differences": {
                key: {v: list(n) for v, n in found.items()} for key, found in self.differences.items()
            },
        }


def text(report: Report, full: bool = False) -> str:
    """Return the report; `full` lists every item with its reason and source, and the BIOS settings."""
    hosts = sorted(report.hosts, key=lambda host: (RESULTS.index(host.result), natural(host.name)))
    lines = [_summary(hosts)]
    for group in _alike(hosts):
        lines += ["", *_group(group, full)]
    lines += _differences(report)
    lines += _notes(hosts, report, full)
    return "\n".join(lines)


def _summary(hosts: Sequence[HostReport]) -> str:
    words = {
        FAILS: "with required items wrong",
        IMPROVABLE: "with recommended items wrong",
        FINE: "fine",
        UNREACHED: "not reached",
    }
    counts = {name: sum(host.result == name for host in hosts) for name in RESULTS}
    parts = [f"{count} {words[name]}" for name, count in counts.items() if count]
    return f"Audit: {plural(len(hosts), 'host')}: {', '.join(parts)}."


def verdict_text(hosts: Sequence[HostReport]) -> str:
    """Return which required items are wrong, in one line; "" if none is."""
    failing = {
        host.name: [item.item.id for item in findings_with_status(host.findings, REQUIRED)] for host in hosts
    }
    failing = {name: ids for name, ids in failing.items() if ids}
    if len(failing) > 1:
        return (
            f"Required items are wrong on {len(failing)} of {len(hosts)} hosts: {join_names(list(failing))}."
        )
    return "".join(f"Wrong on {name}: {', '.join(ids)}." for name, ids in failing.items())


def _alike(hosts: Iterable[HostReport]) -> list[list[HostReport]]:
    """Return the groups of hosts of the same kind in the same state."""
    groups: dict[tuple[Any, ...], list[HostReport]] = {}
    for host in hosts:
        shown = tuple((finding.item.id, finding.verdict) for finding in _listed_findings(host.findings))
        key = (host.result, host.what, host.why, repr(shown))
        groups.setdefault(key, []).append(host)
    return list(groups.values())


def _listed_findings(findings: Iterable[AuditFinding]) -> list[AuditFinding]:
    """Return the findings that get a line in the table, the worst first."""
    findings = tuple(findings)
    return (
        findings_with_status(findings, REQUIRED)
        + findings_with_status(findings, RECOMMENDED)
        + unknown_findings(findings)
    )


def _group(group: Sequence[HostReport], full: bool) -> list[str]:
    host = group[0]
    lines = wrap(f"{join_names([item.name for item in group])}: {host.why or host.what}", WIDTH, rest="  ")
    if host.why:
        return [f"{lines[0]}", *lines[1:]]
    parts = _listed_findings(host.findings)
    if parts:
        lines.append(_row([title for title, _unused in COLUMNS])[0])
    else:
        judged = sum(finding.status == OK for finding in host.findings)
        lines.append(f"  All {judged} checked items are correct.")
    for finding in parts:
        lines += _finding(finding)
    if full:
        lines += _explained(host.findings)
    return lines


def _finding(finding: AuditFinding) -> list[str]:
    wrong = finding.status == WRONG
    level = finding.item.level if wrong else "unknown"
    rows = _row([level, finding.item.title, finding.verdict.found, fix_word(finding) if wrong else ""])
    notes = [finding.verdict.note] if finding.verdict.note else []
    if wrong and not fixed_by_prepare(finding):
        notes.append(f"→ {next(iter(finding.fix.values()))}")
    for note in notes:
        rows += wrap(note, WIDTH, " " * 14, " " * 16)
    return rows


def fix_word(finding: AuditFinding) -> str:
    """Return the fix of a finding in two words."""
    how = next(iter(finding.fix))
    if finding.verdict.pending:
        return "reboot"
    if how in ("hand", "site"):
        return "by hand" if how == "hand" else "site.yml"
    return (
        "prepare.yml, reboot" if finding.item.reboot and finding.verdict.found == "missing" else "prepare.yml"
    )


def _row(cells: Sequence[str]) -> list[str]:
    """Return a row of the table; long cells continue on the next lines."""
    wrapped = [wrap(cell, width) or [""] for cell, (_unused, width) in zip(cells, COLUMNS)]
    rows = []
    for index in range(max(len(cell) for cell in wrapped)):
        parts = (cell[index] if index < len(cell) else "" for cell in wrapped)
        line = " ".join(part.ljust(width) for part, (_unused, width) in zip(parts, COLUMNS))
        rows.append(f"  {line}".rstrip())
    return rows


def _explained(findings: Iterable[AuditFinding]) -> list[str]:
    lines = ["  Every item:"]
    for finding in findings:
        head = f"{finding.item.title} ({finding.item.id}, {finding.item.level}): {finding.status}"
        head += f", {finding.verdict.found}" if finding.verdict.found and finding.status != SKIPPED else ""
        lines += wrap(head, WIDTH, "    ", "      ")
        if finding.status in (ELSEWHERE, SKIPPED):
            continue
        kept = f"; kept by {finding.item.kept}" if finding.item.kept else ""
        said = f"{finding.item.why}{kept}; see: {finding.item.see}; source: {finding.item.source}"
        lines += wrap(said, WIDTH, "      ", "      ")
    return lines


def _differences(report: Report) -> list[str]:
    lines = []
    for what, versions in report.differences.items():
        shown = {
            value: join_names(names) if len(names) <= MANY else f"{len(names)} hosts"
            for value, names in versions.items()
        }
        message = "; ".join(f"{value} ({names})" for value, names in shown.items())
        lines += wrap(f"{what}: {message}", WIDTH, "  ", "    ")
    return ["", "Different between hosts", *lines] if lines else []


def _notes(hosts: Sequence[HostReport], report: Report, full: bool) -> list[str]:
    """Return the notes: what was excluded, what could not be judged, and what to do next."""
    lines: list[str] = []
    reached = [host for host in hosts if not host.why]
    choices = _ids(
        finding
        for host in reached
        for finding in findings_with_status(host.findings, ADVISORY)
        if fixed_by_prepare(finding)
    )
    if choices:
        lines += wrap(
            f"Advisory and not set; to set them, name them in host_prep_also: {', '.join(choices)}.",
            WIDTH,
            rest="  ",
        )
    skipped = _ids(finding for host in reached for finding in host.findings if finding.status == SKIPPED)
    if skipped:
        lines += wrap(
            f"Not checked, because host_prep_skip names them: {', '.join(skipped)}.", WIDTH, rest="  "
        )
    if full:
        lines += ["", "Settings to check in the BIOS, which Linux does not show"]
        for item in report.bios:
            message = f"{item['setting']}: {item['value']} (see: {item['see']})"
            lines += wrap(message, WIDTH, "  ", "    ")
    elif report.bios and reached:
        message = f"{len(report.bios)} BIOS settings are not visible from Linux; -e explain=true lists them"
        lines += wrap(f"{message}, and the reason and source of every item.", WIDTH, rest="  ")
    lines += _next(reached)
    return ["", *lines] if lines else []


def _next(hosts: Sequence[HostReport]) -> list[str]:
    work = {host.name: host_work(host.findings) for host in hosts}
    change = [name for name, what in work.items() if what.anything]
    boot = [name for name, what in work.items() if what.reboot]
    if not change and not boot:
        return []
    limit = (
        ""
        if len(change or boot) == len(hosts)
        else f" --limit '{','.join(sorted({*change, *boot}, key=natural))}'"
    )
    if len(limit) > 60:
        limit = ""  # prepare.yml skips hosts without work
    lines = [f"Next: prepare.yml{limit}" + ("" if change else " -e reboot=true")]
    if boot and change:
        message = f"with -e reboot=true it also reboots, a few at a time: {join_names(boot)}"
        lines += wrap(message, WIDTH, "      ", "      ")
    return lines


def _ids(findings: Iterable[AuditFinding]) -> list[str]:
    return list(dict.fromkeys(finding.item.id for finding in findings))
