# SPDX-License-Identifier: Apache-2.0
"""Format the fleet's status as a table: trouble first, instances in the same state in one line, 100 columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ....module_utils.common.errors import natural
from ...base.hints import hint
from ...base.text import plural, wrap
from .fleet import DeploymentSummary, FleetStatus
from .rows import DOWN, IN, NONE, NOT_REACHED, OUT, StatusRow

WIDTH = 100
MANY = 4
COLUMNS = (
    "HOST",
    "INSTANCE",
    "STATE",
    "VERSION",
    "GEN",
    "SINCE",
    "KV",
    "RUN",
    "WAIT",
    "TOK/S",
    "RESTARTS",
    "LB",
)
RIGHT = ("GEN", "SINCE", "KV", "RUN", "WAIT", "TOK/S", "RESTARTS")
HOST_WIDTH = 24


@dataclass(frozen=True)
class TableLine:
    """A line of the table, and the notes below it."""

    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()


def text(status: FleetStatus, full: bool = False) -> str:
    """Return the table; `full` gives every instance its own line."""
    lines = [line for held in status.held for line in _paragraph(f"Held: {held}", "", "      ")]
    lines += [*([""] if lines else []), _summary(status)]
    known = {row.host for row in status.rows}
    for host, why in status.unreached.items():
        lines += _paragraph(f"{host}: not reached: {why}", "  ", "    ")
        if host not in known and hint(why):
            lines += _paragraph(f"→ {hint(why)}", "    ", "      ")
    for host, texts in status.problems.items():
        lines += [line for message in texts for line in _paragraph(f"{host}: {message}", "  ", "    ")]
    for host, texts in status.disks.items():
        lines += [line for message in texts for line in _paragraph(f"{host}: {message}", "  ", "    ")]
    groups = {item.name: _lines(status, item, full) for item in status.deployments}
    widths = _widths([line.cells for found in groups.values() for line in found])
    for item in status.deployments:
        lines += ["", *_paragraph(_head(item), "", "  ")]
        lines += [line for note in item.notes for line in _paragraph(note, "  ", "    ")]
        lines += _paragraph(f"→ {item.divided}", "  ", "    ") if item.divided else []
        lines.append(_row(COLUMNS, widths))
        for found in groups[item.name]:
            lines.append(_row(found.cells, widths))
            for message in found.notes:
                lines += _paragraph(message, " " * 6, " " * 8)
    balancers = [
        line
        for host, error in status.balancers.items()
        if error
        for line in _paragraph(_trouble(host, error))
    ]
    return "\n".join([*lines, *([""] if balancers else []), *balancers])


def _trouble(host: str, error: str) -> str:
    return f"Load balancer {host}: {error}"


def _summary(status: FleetStatus) -> str:
    rows = status.rows
    well = sum(row.well for row in rows)
    hosts = len({row.host for row in rows} | set(status.unreached))
    message = f"Status: {plural(len(rows), 'instance')} of {plural(len(status.deployments), 'deployment')}"
    message += f" on {plural(hosts, 'host')}: "
    counts = [f"{well} serve" if well == len(rows) - 1 or well != 1 else "1 serves"]
    for state in dict.fromkeys(row.state for row in sorted(rows, key=lambda row: row.trouble, reverse=True)):
        count = sum(row.state == state for row in rows if not row.well)
        counts += [f"{count} {state}"] if count else []
    if status.unreached:
        counts.append(f"{plural(len(status.unreached), 'host')} not reached")
    return message + ", ".join(counts) + "." if rows or status.unreached else "Status: nothing runs."


def _head(item: DeploymentSummary) -> str:
    parts = [f"{item.serving} of {item.total} serve"]
    if item.balanced:
        parts.append(f"{item.inside} of {item.balanced} in the balancer")
    parts += [f"{item.tokens:,.0f} tokens/s", f"{item.running:,} running", f"{item.waiting:,} waiting"]
    return f"{item.name}: {', '.join(parts)}"


# ---- lines -------------------------------------------------------------------------------------------


def _lines(status: FleetStatus, item: DeploymentSummary, full: bool) -> list[TableLine]:
    rows = [row for row in status.rows if row.deployment == item.name]
    groups: dict[tuple[object, ...], list[StatusRow]] = {}
    for row in rows:
        groups.setdefault(_key(row, full), []).append(row)
    return [_line(group) for group in groups.values()]


def _key(row: StatusRow, full: bool) -> tuple[object, ...]:
    """Return the key that is the same for rows that share a line.

    Instances in trouble get a line each, except those of an unreachable host.
    """
    if full or (row.trouble and row.state != NOT_REACHED):
        return (row.host, row.instance)
    where = row.host if row.state == NOT_REACHED else ""
    return (row.state, row.why, row.version, row.generation, row.balancer, row.rank, where)


def _line(rows: Sequence[StatusRow]) -> TableLine:
    first = rows[0]
    hosts = sorted({row.host for row in rows}, key=natural)
    kv = [row.kv for row in rows if row.kv is not None]
    cells = (
        hosts_text(hosts),
        first.instance if len(rows) == 1 else _count(len(rows), len(hosts)),
        first.state,
        first.version or "-",
        "-" if first.generation is None else str(first.generation),
        ages(row.age for row in rows),
        f"{max(kv) * 100:.0f} %" if kv else "-",
        _total(row.running for row in rows),
        _total(row.waiting for row in rows),
        _total(row.tokens for row in rows),
        str(sum(row.restarts for row in rows)),
        {NONE: "-", IN: "in", OUT: "out", DOWN: "down"}.get(first.balancer, first.balancer),
    )
    lines = [first.why] if first.why else []
    return TableLine(cells, tuple([*lines, f"→ {first.next_step}"] if first.next_step else lines))


def _count(instances: int, hosts: int) -> str:
    if hosts == 1 or instances == hosts or instances % hosts:
        return f"{instances} in all"
    return f"{instances // hosts} each"


def _total(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known):,.0f}" if known else "-"


def ages(values: Iterable[float | None]) -> str:
    """Return the lowest and the highest age: "5m-3d"; only one if both texts are equal."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    low, high = age(known[0]), age(known[-1])
    return low if low == high else f"{low}-{high}"


def age(seconds: float) -> str:
    """Return seconds in the largest unit with a value of at least two, else in the smallest: 90 → "90s"."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def hosts_text(hosts: Sequence[str]) -> str:
    """Return hosts in the shortest form that --limit accepts: "mi300x-[01:64]"; else the first and the number."""
    if len(hosts) == 1:
        return hosts[0]
    short = ",".join(_ranges(hosts))
    return short if len(short) <= HOST_WIDTH else f"{hosts[0]} … ({len(hosts)})"


def _ranges(hosts: Sequence[str]) -> list[str]:
    """Return names that differ only in a consecutive last number as ranges of Ansible's patterns."""
    runs: list[list[str]] = []
    for host in hosts:
        if runs and _follows(runs[-1][-1], host):
            runs[-1].append(host)
        else:
            runs.append([host])
    found = []
    for run in runs:
        if len(run) < 3:
            found += run
            continue
        (head, low, tail), (_unused, high, _unused) = _parts(run[0]), _parts(run[-1])
        found.append(f"{head}[{low}:{high}]{tail}")
    return found


def _parts(host: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"(.*?)(\d+)(\D*)", host)
    return (match[1], match[2], match[3]) if match else (host, "", "")


def _follows(one: str, other: str) -> bool:
    head, low, tail = _parts(one)
    head_2, high, tail_2 = _parts(other)
    # n9 and n10 are consecutive as well; n09 and n10 are, n9 and n010 are not.
    wide = len(low) == len(high) or not (low.startswith("0") or high.startswith("0"))
    return bool(low and high) and (head, tail) == (head_2, tail_2) and int(high) == int(low) + 1 and wide


# ---- layout ------------------------------------------------------------------------------------------


def _widths(rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(COLUMNS, *rows)]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = (
        cell.rjust(width) if name in RIGHT else cell.ljust(width)
        for cell, width, name in zip(cells, widths, COLUMNS)
    )
    between = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "  # long names need the space
    return f"  {between.join(parts)}".rstrip()


def _paragraph(text: str, first: str = "", rest: str = "  ") -> list[str]:
    return wrap(text, WIDTH, first, rest, whole=True)
