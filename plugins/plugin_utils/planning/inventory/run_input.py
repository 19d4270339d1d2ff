# SPDX-License-Identifier: Apache-2.0
"""Find what a run would silently ignore: in its inventory's groups and files, and in --limit, --tags and -e. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ....module_utils.common.errors import Problem, natural, suggest
from .groups import BALANCERS
from .public_variables import PublicVariable
from .text_forms import convert_value

MIN_SIMILARITY = 0.75
"""Minimum ratio of equal letters in similar names of groups and hosts; a judgement: loadbalancers, instincts."""
SPECIAL_TAGS = {"all", "always", "never", "tagged", "untagged"}
FORMS = {"bool": "true or false", "int": "a whole number", "float": "a number"}


def group_problems(
    required: Iterable[str], known: Iterable[str], groups: Mapping[str, Collection[str]]
) -> list[Problem]:
    """Return the problems of the inventory's groups.

    required: groups, one of which needs a host. known: all groups that have a meaning; if one of them is missing and
    another has almost its name, the name is misspelled.
    """
    problems = []
    own = sorted(set(groups) - set(known) - {"all", "ungrouped"})
    for name in known:
        near = nearest_name(name, own) if name not in groups else None
        if near:
            what = f"the inventory has a group {near}, which means nothing here, and no group {name}."
            fix = f"Rename {near} to {name}; if it is your own group, give it a name that is less similar."
            problems.append(Problem((), what, fix))
    names = list(required)
    if not problems and not any(groups.get(name) for name in names):
        there = ", ".join(f"{name} ({len(groups[name])})" for name in own) or "none"
        fix = f"Put the hosts into it, or the group that contains them (below children:). Groups with hosts: {there}."
        if names == [BALANCERS]:
            fix = "docs/runbooks/endpoint.md shows how to add a load balancer."
        problems.append(Problem((), f"the inventory has no host in the group {names[0]}.", fix))
    return problems


def file_problems(kind: str, files: Mapping[str, str], names: Collection[str]) -> list[Problem]:
    """Return the files of group_vars or host_vars that belong to none of the names, but almost to one.

    kind: "group" or "host". files: their paths by the name that each is for.
    """
    found = ((path, name, nearest_name(name, names)) for name, path in files.items() if name not in names)
    return [
        Problem((), f"{path}: the inventory has no {kind} {name}.", f"Did you mean {near}?")
        for path, name, near in found
        if near
    ]


def nearest_name(name: str, valid: Iterable[str]) -> str | None:
    """Return the most similar valid name whose numbers are the same, as mi300x-02 is not a typo of mi300x-03."""
    same = [item for item in valid if _numbers(item) == _numbers(name)]
    found = difflib.get_close_matches(_letters(name), [_letters(item) for item in same], 1, MIN_SIMILARITY)
    return next((item for item in same if found and _letters(item) == found[0]), None)


def _numbers(name: str) -> list[int]:
    return [int(part) for part in re.findall("[0-9]+", name)]


def _letters(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())


def unlimited_problem() -> Problem:
    """Return the problem of a run without --limit that takes hosts apart."""
    what = "this playbook takes hosts apart, and needs --limit to say which."
    fix = "Name the hosts that leave, with the load balancers, which drain them: --limit mi300x-01,lb-01."
    return Problem(("--limit",), what, fix)


def leaving_problems(hosts: Iterable[str], balancers: Collection[str]) -> Iterator[Problem]:
    """Yield why none of the hosts of a run can be taken apart: those of the group load_balancer serve the others."""
    here = sorted(hosts, key=natural)
    if set(here) - set(balancers):
        return
    verb = "is" if len(here) == 1 else "are"
    what = f"--limit leaves no host to take apart: {', '.join(here)} {verb} in the group {BALANCERS}."
    fix = (
        f"Name a host that is not. To take a load balancer apart too: remove it from the group {BALANCERS}, but not "
        "from the inventory, run site.yml -e remove_load_balancer=true, and run this again."
    )
    yield Problem((), what, fix)


def limit_problems(unmatched: Iterable[str], names: Collection[str]) -> list[Problem]:
    """Return a problem for each pattern of --limit that matches no host."""
    known = set(names) - {"all", "ungrouped"}
    what = "no host or group of the inventory has this name."
    return [Problem((), f"--limit {text}: {what}", suggest(text.lstrip("!&"), known)) for text in unmatched]


def tag_problems(given: Iterable[str], known: Iterable[str]) -> list[Problem]:
    """Return a problem for each tag of --tags or --skip-tags that no task has; `known` is read as far as needed."""
    unknown, seen, rest = set(given) - SPECIAL_TAGS, set(), iter(known)
    while unknown and (name := next(rest, None)) is not None:
        seen.add(name)
        unknown.discard(name)
    return [Problem((), f"tag {name}: no task has it.", suggest(name, seen)) for name in sorted(unknown)]


def start_problems(task: str | None) -> list[Problem]:
    """Return the problem of --start-at-task, with which a run would act on hosts that it has not observed."""
    if not task:
        return []
    what = "a run begins by observing the hosts and planning; the later tasks act on that plan."
    fix = "Leave it out: completed steps are not repeated. --tags and --limit make a run smaller."
    return [Problem((), f"--start-at-task {task}: {what}", fix)]


def value_problems(given: Mapping[str, Any], known: Mapping[str, PublicVariable]) -> list[Problem]:
    """Return the problems of values given with -e, which are texts; those with a template are not known yet."""
    problems = []
    for name in sorted(set(given) & set(known)):
        wrong = _wrong_value(given[name], known[name])
        if wrong:
            problems.append(Problem((), f"-e {name}={given[name]}: {wrong}"))
    return problems


def _wrong_value(value: Any, variable: PublicVariable) -> str:
    if not isinstance(value, str) or "{{" in value:
        return ""
    if variable.type in FORMS:
        heard = not isinstance(convert_value(value, variable.type), str)
        return "" if heard else f"must be {FORMS[variable.type]}."
    if variable.type == "dict" or variable.elements == "dict":
        what = "a map" if variable.type == "dict" else "a list of maps"
        return f"must be {what}. Write it as JSON with its name: -e '{{\"{variable.name}\": …}}'."
    if variable.type == "list" and value.lstrip().startswith("["):
        return (
            f'must be a list. Write a,b or, as JSON with its name: -e \'{{"{variable.name}": ["a", "b"]}}\'.'
        )
    if variable.choices:
        parts = value.split(",") if variable.type == "list" else [value]
        for part in parts:
            if part.strip() not in variable.choices:
                return f"{part.strip()!r} is not valid. {suggest(part, variable.choices)}"
    return ""
