# SPDX-License-Identifier: Apache-2.0
"""Find the files of the control node that an inventory names: data sets, packages, models' configurations.

FILES is the list of variables that are looked at; what they name travels in a bundle. Secrets are never among them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...module_utils.common.errors import FleetError, Problem
from ..suites.datasets import DATASET_PATHS

Keys = tuple[Any, ...]
Find = Callable[[Any], Iterator[tuple[Keys, str]]]
"""Yields the paths in a variable's value, each with its place there."""
Wrong = tuple[str, str]
"""What is wrong with a file, and what to do."""
START, INVENTORY = "start", "inventory"
SECRET_FILES = ("hf_model_token_file", "load_balancer_certificate_file", "quantize_signing_key_file")
"""Variables that name a secret: its file travels under no other name either."""
_SECRET = re.compile(rb"\A\$ANSIBLE_VAULT;|-----BEGIN [A-Z ]*PRIVATE KEY-----")
_HEAD = 1 << 16  # bytes of a file that are searched for a secret


@dataclass(frozen=True)
class Places:
    """What relative paths are relative to. start: where ansible-playbook was started; root: of the collection."""

    start: Path
    inventory: Path
    root: Path


@dataclass(frozen=True)
class ControlFile:
    """A file that travels. path: VARIABLE/NAME, or VARIABLE/NAME/… within a directory; source: on this machine."""

    path: str
    source: str


def _text(value: Any) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str) and value:
        yield (), value


def _list(value: Any) -> Iterator[tuple[Keys, str]]:
    items = re.split(r"\s*,\s*", value.strip()) if isinstance(value, str) else value
    for at, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, str) and item:
            yield (() if isinstance(value, str) else (at,)), item


def _directories(value: Any) -> Iterator[tuple[Keys, str]]:
    return ((keys, text) for keys, text in _list(value) if "/" in text)


def _suite(value: Any) -> Iterator[tuple[Keys, str]]:
    return ((keys, text) for keys, text in _text(value) if "/" in text or text.endswith((".yml", ".yaml")))


def _dataset(value: Any) -> Iterator[tuple[Keys, str]]:
    for key in DATASET_PATHS if isinstance(value, Mapping) else ():
        for _unused, text in _text(value.get(key)):
            yield (key,), text


def _model_configs(value: Any) -> Iterator[tuple[Keys, str]]:
    for at, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, Mapping):
            for _unused, text in _text(item.get("model_config")):
                yield (at, "model_config"), text


FILES: Mapping[str, tuple[Find, str]] = {
    "accuracy_data_dir": (_text, START),
    "accuracy_lm_eval_packages": (_text, "accuracy"),
    "accuracy_tasks": (_directories, START),
    "benchmark_serve_args": (_dataset, START),
    "benchmark_suite": (_suite, START),
    "benchmark_suite_args": (_dataset, START),
    "benchmark_throughput_args": (_dataset, START),
    "bundle_files": (_list, START),
    "canary_args": (_dataset, START),
    "load_balancer_router_requirements": (_text, "load_balancer"),
    "load_balancer_router_wheels": (_text, "load_balancer"),
    "quantize_calibration_file": (_text, "quantize"),
    "quantize_packages": (_text, "quantize"),
    "vllm_deployments": (_model_configs, INVENTORY),
}
"""Variables that name files: how to find the paths, and what those are relative to (a role: as in its tasks)."""


def find_files(variables: Mapping[str, Mapping[str, Any]], places: Places) -> tuple[ControlFile, ...]:
    """Return all files that the variables name; variables: the evaluated ones of FILES and SECRET_FILES, by host.

    Raise FleetError with every path that is missing, cannot be read, or is a secret.
    """
    secrets = {
        os.path.realpath(os.path.join(base, os.path.expanduser(str(given[name]))))
        for given in variables.values()
        for name in SECRET_FILES
        if given.get(name)
        for base in (places.start, places.inventory)
    }
    found: dict[tuple[str, str], Problem] = {}
    problems: list[Problem] = []
    for host, given in variables.items():
        for name in FILES.keys() & given.keys():
            find, relative = FILES[name]
            for keys, text in find(given[name]):
                where = Problem((name, *keys), "", "", (host,))
                path = _existing(text, _bases(relative, places))
                if path is None:
                    problems.append(_missing(where, text, _bases(relative, places)))
                else:
                    found.setdefault((name, path), where)
    files: list[ControlFile] = []
    for (variable, path), name in _named(found).items():
        where = found[variable, path]
        for inside, source, wrong in _walk(path, secrets):
            if wrong:
                problems.append(_wrong(where, f"{source} {wrong[0]}.", wrong[1]))
            else:
                files.append(ControlFile(os.path.normpath(f"{variable}/{name}/{inside}"), source))
    if problems:
        raise FleetError(problems)
    return tuple(sorted(files, key=lambda item: item.path))


def inventory_lines(paths: list[str], directory: str) -> list[str]:
    """Return what an inventory writes to name files that were placed in a directory; paths: as ControlFile has them."""
    lines: dict[str, None] = {}
    keys: dict[Find, str] = {_dataset: "dataset_path: ", _model_configs: "model_config: "}
    for path in paths:
        variable, _unused, rest = path.partition("/")
        key = keys.get(FILES.get(variable, (_text, START))[0], "")
        lines[f"{variable}: {key}{directory}/{variable}/{rest.partition('/')[0]}"] = None
    return sorted(lines)


def _bases(relative: str, places: Places) -> tuple[Path, ...]:
    """Return the directories that a path may be relative to, as the task looks for it that copies it."""
    if relative in (START, INVENTORY):
        return (places.start if relative == START else places.inventory,)
    role, playbooks = places.root / "roles" / relative, places.root / "playbooks"
    return role / "files", role, playbooks / "files", playbooks


def _existing(text: str, bases: tuple[Path, ...]) -> str | None:
    paths = (os.path.normpath(base / os.path.expanduser(text)) for base in bases)
    return next((path for path in paths if os.path.exists(path)), None)


def _missing(where: Problem, text: str, bases: tuple[Path, ...]) -> Problem:
    looked = dict.fromkeys(os.path.normpath(base / os.path.expanduser(text)) for base in bases)
    what = f"{' and '.join(looked)} is not on the control node, so no bundle can have it."
    return _wrong(where, what, "Bring it there, or take it out of the inventory.")


def _wrong(where: Problem, what: str, fix: str) -> Problem:
    return Problem(where.path, what, fix, where.hosts)


def _named(found: Mapping[tuple[str, str], Problem]) -> dict[tuple[str, str], str]:
    """Return the name of each path below its variable: its last part, after its directory's where two are alike."""
    names: dict[tuple[str, str], str] = {}
    for variable, path in sorted(found):
        name = os.path.basename(path)
        alike = [other for key, other in found if key == variable and os.path.basename(other) == name]
        names[variable, path] = (
            name if len(alike) == 1 else f"{os.path.basename(os.path.dirname(path))}-{name}"
        )
    twice: dict[tuple[str, str], str] = {}
    for (variable, path), name in names.items():
        other = twice.setdefault((variable, name), path)
        if other != path or not name:
            what = f"{path} and {other} would have the same name in the bundle." if name else f"is {path}."
            raise FleetError([_wrong(found[variable, path], what, "Give it a directory with another name.")])
    return names


def _walk(path: str, secrets: set[str]) -> Iterator[tuple[str, str, Wrong | None]]:
    """Yield each file with its path within `path`, and what is wrong with it and what to do, if anything is."""
    if not os.path.isdir(path):
        yield "", path, _unfit(path, secrets)
        return
    count = 0
    errors: list[OSError] = []
    for top, directories, names in os.walk(path, onerror=errors.append):
        directories.sort()
        linked = [name for name in directories if os.path.islink(os.path.join(top, name))]
        for name in sorted([*names, *linked]):
            count += 1
            source = os.path.join(top, name)
            yield os.path.relpath(source, path), source, _unfit(source, secrets)
    for error in errors:
        yield "", str(error.filename), (f"cannot be read: {error.strerror}", "Let it be read.")
    if not count:
        yield "", path, ("is an empty directory", "Fill it, or take it out of the inventory.")


def _unfit(path: str, secrets: set[str]) -> Wrong | None:
    """Return what is wrong with a file and what to do; None for one that may travel."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return "is a link to a directory", "Put a copy there: what it leads to may be anything."
        if not stat.S_ISREG(mode):
            return "is not a file", "Take it out of the directory."
        if os.path.realpath(path) in secrets or ".secrets" in Path(path).parts:
            return "is a secret, and a bundle is read by others", "Take it out of the directory."
        with open(path, "rb") as file:
            if _SECRET.search(file.read(_HEAD)):
                return "has a private key or vaulted text, and a bundle is read by others", "Take it out."
    except OSError as error:
        return f"cannot be read: {error.strerror}", "Let it be read, or take it out of the directory."
    return None
