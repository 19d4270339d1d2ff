# SPDX-License-Identifier: Apache-2.0
"""What instances answer to the shipped sanity set, and how likely they find the passages."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.scoring import (
    SanityItem,
    parse_items,
)

from tests.worlds.catalogue import knowledge

ITEMS = parse_items(knowledge().accuracy_set("sanity"))
PASSAGES = [json.loads(line) for line in knowledge().accuracy_set("nll").splitlines()]


def right(item: SanityItem) -> str:
    if item.category != "as_json":
        return item.accepted[0]
    return item.accepted[0].replace(r"\{\s*", "{").replace(r"\s*\}", "}").replace(r"\s*:\s*", ":")


def entry(
    items: tuple[SanityItem, ...] = ITEMS,
    *,
    wrong: int = 0,
    failed: int = 0,
    shift: float | None = 0.0,
    failed_passages: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """What an instance returned. wrong, failed: how many of its first items; shift: of NLL, None for no passages."""
    rows = []
    for number, item in enumerate(items):
        bad = number < wrong + failed
        text = "" if number < failed else "no idea" if bad else right(item)
        rows.append({"id": item.id, "text": text, "error": "HTTP 500: x" if number < failed else ""})
    passages = [
        {"id": item["id"], "nll": 50 * (2 + (shift or 0)), "tokens": 50, "error": ""} for item in PASSAGES
    ]
    for row in passages[:failed_passages]:
        row.update(nll=None, tokens=None, error="HTTP 500: x")
    found = {
        "name": "llama-0",
        "deployment": "llama",
        "model": "lab/llama",
        "commit": "c0ffee",
        "image": "i@sha256:old",
    }
    return {**found, "vllm": "0.1", "endpoint": "completions", "note": "", "answers": rows,
            "passages": [] if shift is None else passages, **more}  # fmt: skip
