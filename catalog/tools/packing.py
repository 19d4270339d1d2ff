# SPDX-License-Identifier: Apache-2.0
"""From "what each release has" to histories and back.

A snapshot is what one release has: `{name: {attribute: value}}`. Packed, all releases share one entry per
name: `{"present": [[since, until], …], attribute: [[since, value], …]}`. An attribute that is always at its
default is left out, so that a new release changes only the lines of what changed in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.engines.versions import Timeline

Snapshot = Mapping[str, Mapping[str, Any]]

FLAG_DEFAULTS: dict[str, Any] = {
    "kind": "value",
    "type": "str",
    "default": None,
    "choices": None,
    "aliases": [],
    "negatives": [],
    "engine": False,
    "required": False,
    "deprecated": False,
}
ENV_DEFAULTS: dict[str, Any] = {"type": "text", "default": None, "choices": None, "unused": False}
FIELD_DEFAULTS: dict[str, Any] = {"type": "", "limits": {}, "before": False}
REGISTRY_DEFAULTS: dict[str, Any] = {}
CHECK_DEFAULTS: dict[str, Any] = {"at": ""}
QUANTIZATION_DEFAULTS: dict[str, Any] = {
    "rocm": False,
    "deprecated": False,
    "dtypes": ["bfloat16", "float16"],
    "files": [],
    "unquantized": False,
}
CHECKPOINT_DEFAULTS: dict[str, Any] = {"runs": {}}


def pack(
    line: Timeline, snapshots: Mapping[str, Snapshot], defaults: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Histories of all names of all releases; a release without a snapshot has nothing."""
    names = sorted({name for snapshot in snapshots.values() for name in snapshot})
    return {
        name: _pack_one(line, {r: s[name] for r, s in snapshots.items() if name in s}, defaults)
        for name in names
    }


def _pack_one(
    line: Timeline, entries: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    unknown = {key for entry in entries.values() for key in entry} - set(defaults)
    if unknown:
        raise ValueError(f"unknown attributes {sorted(unknown)}; known: {sorted(defaults)}")
    present: list[list[Any]] = []
    for release in line.releases:
        if release in entries and (not present or present[-1][1] is not None):
            present.append([release, None])
        elif release not in entries and present and present[-1][1] is None:
            present[-1][1] = release
    packed: dict[str, Any] = {"present": present}
    for key, default in defaults.items():
        history: list[list[Any]] = []
        for release in line.releases:
            if release in entries:
                value = entries[release].get(key, default)
                if not history or not same(history[-1][1], value):
                    history.append([release, value])
        if any(not same(value, default) for _, value in history):
            packed[key] = history
    return packed


def same(a: object, b: object) -> bool:
    """Equal also in type, as JSON has it: 1 is not true, 0.0 is not 0."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def unpack(
    line: Timeline, packed: Mapping[str, Mapping[str, Any]], release: str, defaults: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What one known release has, every attribute spelled out."""
    index = line.order[release]
    return {
        name: {key: line.value(entry.get(key, ()), index, default) for key, default in defaults.items()}
        for name, entry in packed.items()
        if line.within(entry["present"], index)
    }


def replace(
    line: Timeline,
    packed: Mapping[str, Mapping[str, Any]],
    release: str,
    snapshot: Snapshot,
    defaults: Mapping[str, Any],
    before: Timeline,
) -> dict[str, dict[str, Any]]:
    """Histories with one release's snapshot put in; `before` is the timeline of `packed`."""
    snapshots: dict[str, Snapshot] = {r: unpack(before, packed, r, defaults) for r in before.releases}
    snapshots[release] = snapshot
    return pack(line, snapshots, defaults)


def write_table(path: Path, data: Mapping[str, Any], body: str, inner: str = "") -> None:
    """Write a generated file: one entry of `body` per line, so that one changed flag is one changed line.

    With `inner`, the entries of `body` hold a table each under that key, and those get the lines.
    """
    heads = [f"{_text(name)}: {_text(value)}," for name, value in data.items() if name != body]
    rows = [f" {_text(name)}: {_entry(item, inner)}" for name, item in data[body].items()]
    path.write_text("\n".join(["{", *heads, f"{_text(body)}: {{", ",\n".join(rows), "}", "}", ""]))


def _entry(item: Any, inner: str) -> str:
    if not inner:
        return _text(item)
    rest = [f"  {_text(key)}: {_text(value)}," for key, value in item.items() if key != inner]
    rows = ",\n".join(f"   {_text(key)}: {_text(value)}" for key, value in item[inner].items())
    return "\n".join(["{", *rest, f"  {_text(inner)}: {{", rows, "  }", " }"])


def write_versions(path: Path, source: str, versions: Sequence[Mapping[str, Any]]) -> None:
    """Write versions.json: one release per line, the oldest first."""
    rows = ",\n".join(f" {_text(item)}" for item in versions)
    path.write_text(f'{{\n"schema": 1,\n"source": {_text(source)},\n"versions": [\n{rows}\n]\n}}\n')


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_json(path: Path) -> Any:
    """A JSON file. ValueError that names the file and the place when it is none."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON at line {error.lineno}: {error.msg}") from error


def releases_of(path: Path) -> Sequence[str]:
    """The releases that versions.json lists."""
    return [item["version"] for item in read_json(path)["versions"]]
