# SPDX-License-Identifier: Apache-2.0
"""Parse what an operator requests: the operation, what it applies to, and how much changes at a time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.service.minimum import Count, parse_count
from ..inventory.public_variables import public_variables

DEFAULT_SERIAL: tuple[Count, ...] = (1, "20%")


@dataclass(frozen=True)
class RolloutRequest:
    """What a run should do: the operation, its limits (raw variables), and what it applies to; None: everything.

    offline: leave out engines over several hosts, which an offline benchmark cannot load. hosts: those whose instances
    stop; None: all.
    """

    operation: str
    values: Mapping[str, Any] = field(default_factory=dict)
    deployment: str | None = None
    instance: str | None = None
    canary: bool = True
    absent: tuple[tuple[str, str], ...] = ()  # load balancers that this run cannot inform, and why
    at_once: bool = False  # too few may stay in service
    blind: bool = False  # nothing is known of the fleet's other hosts
    offline: bool = False
    hosts: Collection[str] | None = None


@dataclass(frozen=True)
class RolloutPolicy:
    """The limits of a rollout.

    serial, min_available: None for the defaults. canary: compare the first group with the state before.
    """

    serial: tuple[Count, ...] | None = None
    min_available: Count | None = None
    soak: int = 0
    canary: bool = True


def parse_policy(values: Mapping[str, Any]) -> tuple[RolloutPolicy, tuple[Problem, ...]]:
    """Parse rollout_serial, rollout_min_available and rollout_soak, from -e or the inventory, and return problems.

    None counts as not set.
    """
    serial, found = parse_serial(values.get("rollout_serial"), "rollout_serial")
    problems = [*found]
    keep = None
    if values.get("rollout_min_available") is not None:
        keep = parse_count(values["rollout_min_available"])
        if keep is None:
            what = f"{values['rollout_min_available']!r} is not a number of engines or a percentage of them."
            problems.append(Problem(("rollout_min_available",), what, 'Use, for example, 1 or "75%".'))
    given = values.get("rollout_soak")
    soak = parse_count(public_variables()["rollout_soak"].default if given is None else given)
    if not isinstance(soak, int):
        problems.append(
            Problem(
                ("rollout_soak",),
                f"{given!r} is not a whole number of seconds.",
                "Use, for example, 30 or 0.",
            )
        )
        soak = 0
    return RolloutPolicy(serial, keep, soak), tuple(problems)


def parse_serial(given: Any, name: str) -> tuple[tuple[Count, ...] | None, tuple[Problem, ...]]:
    """Parse how many change at a time, like Ansible's serial, and return problems; None counts as not set."""
    if given is None:
        return None, ()
    parts = given if isinstance(given, (list, tuple)) else str(given).strip("[] ").split(",")
    counts = [parse_count(part.strip("\"' ") if isinstance(part, str) else part) for part in parts]
    if not counts or any(not count or count == "0%" for count in counts):
        what = f"{given!r} is not a number, a percentage, or a list of these."
        return None, (Problem((name,), what, 'Use, for example, 2, "25%" or [1, "25%"].'),)
    return tuple(count for count in counts if count), ()
