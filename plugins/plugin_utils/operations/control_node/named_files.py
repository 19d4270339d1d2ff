# SPDX-License-Identifier: Apache-2.0
"""Which files of the control node an inventory names: data sets, packages, models' configurations.

FILES lists the variables; what they name is included in a bundle. Nothing is read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ...measuring.suites.datasets import DATASET_PATHS

Keys = tuple[Any, ...]
Find = Callable[[Any], Iterator[tuple[Keys, str]]]
"""Yields the paths in a variable's value, each with its place there."""
START, INVENTORY = "start", "inventory"
SECRET_FILES = ("hf_model_token_file", "load_balancer_certificate_file", "quantize_signing_key_file")
"""Variables that name a secret: its file is not included under another name either."""


@dataclass(frozen=True)
class Places:
    """What relative paths are relative to. start: where ansible-playbook was started; root: of the collection."""

    start: Path
    inventory: Path
    root: Path


@dataclass(frozen=True)
class NamedFile:
    """What a variable names. keys: its place in the value; paths: where it may be; the first that exists counts."""

    variable: str
    keys: Keys
    host: str
    paths: tuple[str, ...]

    def problem(self, what: str, fix: str) -> Problem:
        """Return what is wrong with it, and where."""
        return Problem((self.variable, *self.keys), what, fix, (self.host,))


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
"""Variables that name files: how to find the paths, and what they are relative to (a role: as in its tasks)."""


def named_files(variables: Mapping[str, Mapping[str, Any]], places: Places) -> Iterator[NamedFile]:
    """Yield what the variables name, host by host; variables: the evaluated ones of FILES, by host."""
    for host, given in variables.items():
        for name in FILES.keys() & given.keys():
            find, relative = FILES[name]
            bases = _bases(relative, places)
            for keys, text in find(given[name]):
                yield NamedFile(name, keys, host, tuple(dict.fromkeys(_joined(base, text) for base in bases)))


def secret_paths(variables: Mapping[str, Mapping[str, Any]], places: Places) -> set[str]:
    """Return where secrets may be; variables: the evaluated ones of SECRET_FILES, by host."""
    return {
        _joined(base, str(given[name]))
        for given in variables.values()
        for name in SECRET_FILES
        if given.get(name)
        for base in (places.start, places.inventory)
    }


def names_in_bundle(found: Mapping[tuple[str, str], NamedFile]) -> dict[tuple[str, str], str]:
    """Return the name of each path below its variable: its last part, after its directory's where two are alike.

    found: by variable and path. Raise FleetError where two would have the same name.
    """
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
            raise FleetError(
                [found[variable, path].problem(what, "Put one of them into a directory with another name.")]
            )
    return names


def inventory_lines(paths: list[str], directory: str) -> list[str]:
    """Return what to write into an inventory to name files placed in a directory; paths: those of ControlFile."""
    lines: dict[str, None] = {}
    keys: dict[Find, str] = {_dataset: "dataset_path: ", _model_configs: "model_config: "}
    for path in paths:
        variable, _unused, rest = path.partition("/")
        key = keys.get(FILES.get(variable, (_text, START))[0], "")
        lines[f"{variable}: {key}{directory}/{variable}/{rest.partition('/')[0]}"] = None
    return sorted(lines)


def _bases(relative: str, places: Places) -> tuple[Path, ...]:
    """Return the directories that a path may be relative to: those in which the task that copies it searches."""
    if relative in (START, INVENTORY):
        return (places.start if relative == START else places.inventory,)
    role, playbooks = places.root / "roles" / relative, places.root / "playbooks"
    return role / "files", role, playbooks / "files", playbooks


def _joined(base: Path, text: str) -> str:
    return os.path.normpath(base / os.path.expanduser(text))
