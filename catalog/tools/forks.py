# SPDX-License-Identifier: Apache-2.0
"""What a fork of vLLM has otherwise than the upstream release that is its parent: catalog/vllm/fork_differences.json.

A table maps names to what differs: null for what the fork lacks, else attributes with the fork's values. A name that
the release lacks has all attributes that are not the default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .packing import ENV_DEFAULTS, FIELD_DEFAULTS, FLAG_DEFAULTS, Snapshot, read_json, same, unpack
from .store import Store

COMPARED: Mapping[str, tuple[str, ...]] = {
    "flags": ("kind", "default", "choices", "aliases", "negatives"),
    "env": ("default", "unused"),
    "fields": (),
}
"""Attributes that count for a name on both sides: the others depend on how a release was asked, or on help texts."""
Table = dict[str, Any]


def fork_tables(store: Store, probe: Mapping[str, Any], parent: str) -> dict[str, Any]:
    """Everything that a probe of a fork found otherwise than the catalogue has it for a release."""
    line = store.line()

    def against(kind: str, packed: Any, probed: Snapshot, defaults: Mapping[str, Any]) -> Table:
        return _differing(unpack(line, packed, parent, defaults), probed, defaults, COMPARED[kind])

    read = {name: read_json(store.root / f"{name}.json") for name in ("flags", "env", "configs", "bench")}
    configs = {
        name: found
        for name, item in read["configs"]["classes"].items()
        if (
            found := against(
                "fields", item["fields"], probe["configs"].get(name, {}).get("fields", {}), FIELD_DEFAULTS
            )
        )
    }
    bench = {
        name: found
        for name, item in read["bench"]["commands"].items()
        if name in probe["bench"]
        and (found := against("flags", item["flags"], probe["bench"][name]["flags"], FLAG_DEFAULTS))
    }
    return {
        "parent": parent,
        "flags": against("flags", read["flags"]["flags"], probe["serve"], FLAG_DEFAULTS),
        "env": against("env", read["env"]["variables"], probe["env"], ENV_DEFAULTS),
        "configs": configs,
        "bench": bench,
    }


def _differing(
    shipped: Snapshot, probed: Snapshot, defaults: Mapping[str, Any], compared: tuple[str, ...]
) -> Table:
    found: Table = {}
    for name in sorted({*shipped, *probed}):
        if name not in probed:
            found[name] = None
        elif name not in shipped:
            found[name] = {
                key: value for key, value in probed[name].items() if not same(value, defaults[key])
            }
        else:
            here, there = (
                {key: side[name].get(key, defaults[key]) for key in compared} for side in (shipped, probed)
            )
            changed = {key: there[key] for key in compared if not same(_bare(here[key]), _bare(there[key]))}
            if changed:
                found[name] = changed
    return found


def _bare(value: Any) -> Any:
    """An enumeration's member is its name in one release and its value in another."""
    return value.lower() if isinstance(value, str) else value


def write_forks(path: Path, name: str, tables: Mapping[str, Any]) -> None:
    """Put one fork into fork_differences.json, one difference a line."""
    data = read_json(path)
    forks = {**data["forks"], name: tables}
    parts = [_fork(key, forks[key]) for key in sorted(forks)]
    head = f'{{\n"schema": 1,\n"source": {_text(data["source"])},\n"forks": {{\n'
    path.write_text(head + ",\n".join(parts) + "\n}\n}\n")


def _fork(name: str, tables: Mapping[str, Any]) -> str:
    rows = [f'  "parent": {_text(tables["parent"])}']
    for key in ("flags", "env"):
        rows.append(f'  "{key}": {_rows(tables[key], 3)}')
    for key in ("configs", "bench"):
        inner = ",\n".join(f"   {_text(item)}: {_rows(table, 4)}" for item, table in tables[key].items())
        rows.append(f'  "{key}": {{\n{inner}\n  }}' if inner else f'  "{key}": {{}}')
    body = ",\n".join(rows)
    return f" {_text(name)}: {{\n{body}\n }}"


def _rows(table: Mapping[str, Any], depth: int) -> str:
    if not table:
        return "{}"
    pad = " " * depth
    rows = ",\n".join(f"{pad}{_text(name)}: {_text(item)}" for name, item in table.items())
    return f"{{\n{rows}\n{pad[1:]}}}"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
