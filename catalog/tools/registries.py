# SPDX-License-Identifier: Apache-2.0
"""Read the names that a vLLM release registers, out of its Python sources: connectors and parsers of answers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PLACES = {
    "kv_connector": ("distributed/kv_transfer/kv_connector/factory.py",),
    "ec_connector": ("distributed/ec_transfer/ec_connector/factory.py",),
    "reasoning_parser": ("reasoning", "entrypoints/openai/reasoning_parsers"),
    "tool_parser": ("tool_parsers", "entrypoints/openai/tool_parsers"),
}
"""The files and directories of each kind; releases have one of them."""
_CALLS = ("register_connector", "register_module", "register_lazy_module")
_TABLES = "_TO_REGISTER"
ENTRY: dict[str, object] = {}


def registries(package: Path) -> dict[str, dict[str, object]]:
    """Each name as "kind.name"."""
    found = {
        f"{kind}.{name}"
        for kind, places in PLACES.items()
        for place in places
        for path in _files(package / place)
        for name in registered(path.read_text())
    }
    return {name: dict(ENTRY) for name in sorted(found)}


def _files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []


def registered(text: str) -> Iterator[str]:
    """Names in calls and decorators that register something, and in tables of what is registered."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _CALLS:
            named = [*node.args[:1], *(item.value for item in node.keywords if item.arg == "name")]
            for item in named:
                yield from _texts(item)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(target).endswith(_TABLES) for target in targets):
                for key in node.value.keys:
                    yield from _texts(key)


def _texts(node: ast.expr | None) -> list[str]:
    items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
