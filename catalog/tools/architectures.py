# SPDX-License-Identifier: Apache-2.0
"""Read which model architectures a release has out of its sources. Only the standard library is needed."""

from __future__ import annotations

import ast

from catalog.tools.sources import Sources


def architectures(sources: Sources) -> dict[str, dict[str, object]]:
    """The names that config.json may give as its architectures: the keys of the registry's tables."""
    registry = sources.module("vllm.model_executor.models.registry")
    found: set[str] = set()
    for name, table in registry.values.items() if registry else ():
        if name.endswith("_MODELS") and isinstance(table, ast.Dict):
            found |= {
                str(key.value)
                for key, value in zip(table.keys, table.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)
            }
    return {name: {} for name in sorted(found)}
