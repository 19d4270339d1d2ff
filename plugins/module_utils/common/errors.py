# SPDX-License-Identifier: Apache-2.0
"""Problems of an input: collected and reported together, each with its key and its fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Union

Path = tuple[Union[str, int], ...]
"""A position in the inventory's data: ("vllm_deployments", 0, "port")."""

MANY = 20


@dataclass(frozen=True)
class Problem:
    """One problem: where (a key path, may be empty), on which hosts, what is wrong, and how to fix it."""

    path: Path
    what: str
    fix: str = ""
    hosts: tuple[str, ...] = ()

    def text(self, origin: str = "", name: str = "") -> str:
        """Return one readable line; if known, `origin` is "file:line" of the key and `name` the deployment's."""
        where = dotted_path(self.path)
        context = ", ".join(part for part in (name, host_names(self.hosts), origin) if part)
        if context:
            where = f"{where} ({context})" if where else context
        text = f"{where}: {self.what}" if where else self.what
        return f"{text} {self.fix}" if self.fix else text


class FleetError(Exception):
    """The input cannot be planned; carries every problem found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = merge(problems)
        super().__init__("\n".join(problem.text() for problem in self.problems))


def merge(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Join equal problems of several hosts into one, keeping the order of first appearance."""
    hosts: dict[tuple[Path, str, str], dict[str, None]] = {}
    for problem in problems:
        hosts.setdefault((problem.path, problem.what, problem.fix), {}).update(dict.fromkeys(problem.hosts))
    return tuple(
        Problem(path, what, fix, tuple(sorted(names, key=natural)))
        for (path, what, fix), names in hosts.items()
    )


def dotted_path(path: Path) -> str:
    """Return ("vllm_deployments", 0, "port") as "vllm_deployments[0].port"."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(name: object, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to `name`, or None if none is similar."""
    text = str(name).lower().replace("-", "_")
    known = {item.lower().replace("-", "_"): item for item in sorted(valid)}
    found = difflib.get_close_matches(text, list(known), n=1, cutoff=0.6)
    # The ratio of equal letters misses that "shm" stands for "shm_size".
    found = found or [item for item in known if len(text) > 2 and item.startswith(text)]
    return known[found[0]] if found else None


def suggest(name: object, valid: Iterable[str]) -> str:
    """Return a sentence that names the nearest valid name, or all of them."""
    names = sorted(valid)
    near = nearest(name, names)
    if near is not None:
        return f"Did you mean {near}?"
    shown = names if len(names) <= MANY else [*names[:MANY], f"… ({len(names)} in all)"]
    return f"Valid: {', '.join(shown)}." if names else ""


@lru_cache(maxsize=1 << 16)  # sorting asks for the name of a host with each of its instances
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts n2 before n10."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    return tuple((0, int(part), part) if part.isdigit() else (1, 0, part) for part in parts)


def host_names(hosts: Sequence[str], limit: int = 8) -> str:
    """Return "host n1", "hosts n1, n2" or, above the limit, "hosts n1, n2, … (64 in all)"."""
    if not hosts:
        return ""
    if len(hosts) == 1:
        return f"host {hosts[0]}"
    if len(hosts) <= limit:
        return f"hosts {', '.join(hosts)}"
    return f"hosts {', '.join(hosts[:limit])}, … ({len(hosts)} in all)"
