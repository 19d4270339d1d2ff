# SPDX-License-Identifier: Apache-2.0
"""An audit as text for people: hosts in equal state together, the worst first, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.common.errors import natural
from .items import ADVISORY, ELSEWHERE, OK, RECOMMENDED, REQUIRED, SKIPPED, WRONG, Finding
from .judge import FAILS, FINE, IMPROVABLE, RESULTS, UNREACHED, by_prepare, counted, result, todo, unknown

WIDTH = 100
COLUMNS = (("LEVEL", 11), ("ITEM", 33), ("FOUND", 30), ("FIX", 20))
MANY = 6


@dataclass(frozen=True)
class Audited:
    """A host's findings and what it is ("8 MI300X, Debian 12"); `why` is set for one that was not reached."""

    name: str
    what: str = ""
    findings: tuple[Finding, ...] = ()
    why: str = ""

    @property
    def result(self) -> str:
        """One of RESULTS."""
        return UNREACHED if self.why else result(self.findings)


@dataclass(frozen=True)
class Report:
    """The whole fleet; differences as audit.differences has them, bios as catalog/host_items.yml."""

    hosts: tuple[Audited, ...]
    differences: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    bios: Sequence[Mapping[str, str]] = ()

    def to_json(self) -> dict[str, Any]:
        """For -e audit_file."""
        return {
            "schema": 1,
            "results": {name: [host.name for host in self.hosts if host.result == name] for name in RESULTS},
            "hosts": {
                host.name: {
                    "result": host.result,
                    "is": host.what,
                    "why": host.why or None,
                    "todo": todo(host.findings).to_json(),
                    "findings": [finding.to_json() for finding in host.findings],
                }
                for host in self.hosts
            },
            "differences": {
                key: {v: list(n) for v, n in found.items()} for key, found in self.differences.items()
            },
        }


def text(report: Report, full: bool = False) -> str:
    """The report; `full` lists every item with its reason and source, and the BIOS settings."""
    hosts = sorted(report.hosts, key=lambda host: (RESULTS.index(host.result), natural(host.name)))
    lines = [_summary(hosts)]
    for group in _alike(hosts):
        lines += ["", *_group(group, full)]
    lines += _differences(report)
    lines += _notes(hosts, report, full)
    return "\n".join(lines)


def _summary(hosts: Sequence[Audited]) -> str:
    words = {
        FAILS: "with required items wrong",
        IMPROVABLE: "with recommended items wrong",
        FINE: "fine",
        UNREACHED: "not reached",
    }
    counts = {name: sum(host.result == name for host in hosts) for name in RESULTS}
    parts = [f"{count} {words[name]}" for name, count in counts.items() if count]
    return f"Audit: {_many(len(hosts), 'host')}: {', '.join(parts)}."


def _alike(hosts: Iterable[Audited]) -> list[list[Audited]]:
    """Hosts of the same kind in the same state."""
    groups: dict[tuple[Any, ...], list[Audited]] = {}
    for host in hosts:
        told = tuple((finding.item.id, finding.verdict) for finding in _told(host.findings))
        key = (host.result, host.what, host.why, repr(told))
        groups.setdefault(key, []).append(host)
    return list(groups.values())


def _told(findings: Iterable[Finding]) -> list[Finding]:
    """What gets a line in the table, the worst first."""
    findings = tuple(findings)
    return counted(findings, REQUIRED) + counted(findings, RECOMMENDED) + unknown(findings)


def _group(group: Sequence[Audited], full: bool) -> list[str]:
    host = group[0]
    lines = _wrapped(f"{listed([item.name for item in group])}: {host.why or host.what}")
    if host.why:
        return [f"{lines[0]}", *lines[1:]]
    told = _told(host.findings)
    if told:
        lines.append(_row([title for title, _ in COLUMNS])[0])
    else:
        judged = sum(finding.status == OK for finding in host.findings)
        lines.append(f"  All {judged} checked items are correct.")
    for finding in told:
        lines += _finding(finding)
    if full:
        lines += _explained(host.findings)
    return lines


def _finding(finding: Finding) -> list[str]:
    wrong = finding.status == WRONG
    level = finding.item.level if wrong else "unknown"
    rows = _row([level, finding.item.title, finding.verdict.found, fix_word(finding) if wrong else ""])
    notes = [finding.verdict.note] if finding.verdict.note else []
    if wrong and not by_prepare(finding):
        notes.append(f"→ {next(iter(finding.fix.values()))}")
    for note in notes:
        rows += _wrap(note, WIDTH, " " * 14, " " * 16)
    return rows


def fix_word(finding: Finding) -> str:
    """What puts a finding right, in two words."""
    how = next(iter(finding.fix))
    if finding.verdict.pending:
        return "reboot"
    if how in ("hand", "site"):
        return "by hand" if how == "hand" else "site.yml"
    return (
        "prepare.yml, reboot" if finding.item.reboot and finding.verdict.found == "missing" else "prepare.yml"
    )


def _row(cells: Sequence[str]) -> list[str]:
    """A row of the table; a cell that is too long goes on below."""
    wrapped = [_wrap(cell, width) or [""] for cell, (_, width) in zip(cells, COLUMNS)]
    rows = []
    for index in range(max(len(cell) for cell in wrapped)):
        parts = (cell[index] if index < len(cell) else "" for cell in wrapped)
        line = " ".join(part.ljust(width) for part, (_, width) in zip(parts, COLUMNS))
        rows.append(f"  {line}".rstrip())
    return rows


def _explained(findings: Iterable[Finding]) -> list[str]:
    lines = ["  Every item:"]
    for finding in findings:
        head = f"{finding.item.title} ({finding.item.id}, {finding.item.level}): {finding.status}"
        head += f", {finding.verdict.found}" if finding.verdict.found and finding.status != SKIPPED else ""
        lines += _wrap(head, WIDTH, "    ", "      ")
        if finding.status in (ELSEWHERE, SKIPPED):
            continue
        kept = f"; kept by {finding.item.kept}" if finding.item.kept else ""
        said = f"{finding.item.why}{kept}; see: {finding.item.see}; source: {finding.item.source}"
        lines += _wrap(said, WIDTH, "      ", "      ")
    return lines


def _differences(report: Report) -> list[str]:
    lines = []
    for what, versions in report.differences.items():
        shown = {
            value: listed(names) if len(names) <= MANY else f"{len(names)} hosts"
            for value, names in versions.items()
        }
        told = "; ".join(f"{value} ({names})" for value, names in shown.items())
        lines += _wrap(f"{what}: {told}", WIDTH, "  ", "    ")
    return ["", "Different between hosts", *lines] if lines else []


def _notes(hosts: Sequence[Audited], report: Report, full: bool) -> list[str]:
    """What is left to say: choices, what was not judged, and what to do next."""
    lines: list[str] = []
    reached = [host for host in hosts if not host.why]
    choices = _ids(
        finding for host in reached for finding in counted(host.findings, ADVISORY) if by_prepare(finding)
    )
    if choices:
        lines += _wrapped(
            f"Advisory and off; to set them, name them in host_prep_also: {', '.join(choices)}."
        )
    skipped = _ids(finding for host in reached for finding in host.findings if finding.status == SKIPPED)
    if skipped:
        lines += _wrapped(f"Not checked, because host_prep_skip names them: {', '.join(skipped)}.")
    if full:
        lines += ["", "Settings to check in the BIOS, which Linux does not show"]
        for item in report.bios:
            told = f"{item['setting']}: {item['value']} (see: {item['see']})"
            lines += _wrap(told, WIDTH, "  ", "    ")
    elif report.bios and reached:
        told = f"{len(report.bios)} BIOS settings are not visible from Linux; -e explain=true lists them"
        lines += _wrapped(f"{told}, and the reason and source of every item.")
    lines += _next(reached)
    return ["", *lines] if lines else []


def _next(hosts: Sequence[Audited]) -> list[str]:
    work = {host.name: todo(host.findings) for host in hosts}
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
        limit = ""  # prepare.yml leaves hosts with nothing to do alone
    lines = [f"Next: ansible-playbook playbooks/prepare.yml{limit}" + ("" if change else " -e reboot=true")]
    if boot and change:
        told = f"with -e reboot=true it also reboots, a few at a time: {listed(boot)}"
        lines += _wrap(told, WIDTH, "      ", "      ")
    return lines


def _ids(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.item.id for finding in findings))


def _wrapped(line: str) -> list[str]:
    return _wrap(line, WIDTH, "", "  ")


def _wrap(line: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width`; names with hyphens stay whole."""
    return textwrap.wrap(line, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def listed(names: Sequence[str]) -> str:
    """ "n1, n2, n3"; beyond MANY the first ones and how many there are."""
    if len(names) <= MANY:
        return ", ".join(names)
    return f"{', '.join(names[:MANY])}, … ({len(names)} hosts)"
