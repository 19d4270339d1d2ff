# SPDX-License-Identifier: Apache-2.0
"""Which replica answers what: the tasks of a run, and how their items are divided among replicas. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any, TypeVar

from ....module_utils.common.errors import natural, suggest
from .pairing import AccuracyError
from .scoring import SanityItem

Item = TypeVar("Item")


def parse_tasks(given: object, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of tasks, and directories of tasks (with a slash), each once, in the order given.

    given: a list, or names separated by commas. Raise AccuracyError if there is none, or an unknown one.
    """
    words = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
    names = list(dict.fromkeys(filter(None, (str(word).strip() for word in words))))
    if not names:
        raise AccuracyError(f"accuracy_tasks names no task. {suggest('', known)}")
    wrong = [name for name in names if "/" not in name and name not in known]
    if wrong:
        hints = " ".join(f"{name}: {suggest(name, known)}" for name in wrong)
        raise AccuracyError(
            f"accuracy_tasks: unknown {'task' if len(wrong) == 1 else 'tasks'} {', '.join(wrong)}. {hints} "
            "A directory of task files is named with a slash, such as ./tasks."
        )
    return tuple(names)


def serving_replicas(hosts: Mapping[str, Any], deployment: str) -> tuple[tuple[str, str], ...]:
    """Return (host, instance) of the instances of a deployment that answer requests; hosts: those of a plan."""
    found = [
        (str(host), str(instance["name"]))
        for host, planned in hosts.items()
        for instance in planned["instances"]
        if instance["deployment"] == deployment and not (instance.get("rank") or {}).get("headless")
    ]
    return tuple(sorted(found, key=lambda pair: (natural(pair[0]), natural(pair[1]))))


def share(items: Sequence[Item], replicas: Sequence[tuple[str, str]], replica: tuple[str, str]) -> list[Item]:
    """Return the items of one replica: together the replicas get each item once. An unknown replica gets all.

    Replicas answer nearly alike, so several answers to an item would count as more evidence than they are.
    """
    if replica not in replicas:
        return list(items)
    return list(items[list(replicas).index(replica) :: len(replicas)])


def interleave_categories(items: Iterable[SanityItem]) -> list[SanityItem]:
    """Return the first item of each category, then the second of each, and so on."""
    categories = [list(group) for _name, group in groupby(items, key=lambda item: item.category)]
    return [item for turn in zip_longest(*categories) for item in turn if item is not None]
