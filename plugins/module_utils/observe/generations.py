# SPDX-License-Identifier: Apache-2.0
"""The node's records of each deployment."""

from __future__ import annotations

import json
import os

from .source import Source, listing

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def read_generations(source: Source, state_dir: str) -> list[dict[str, Any]]:
    """Read the node's record of each deployment (generation_store): two small files unless a run was interrupted."""
    found = []
    top = os.path.join(state_dir, "generations")
    for deployment in listing(top):
        kept: list[dict[str, Any]] = []
        state: dict[str, Any] = {}
        broken = None
        directory = os.path.join(top, deployment)
        names = listing(directory)
        numbers = sorted(int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json"))
        try:
            kept = read_store_file(directory, "summary.json")["kept"] if "summary.json" in names else []
            if [item["generation"] for item in kept] != numbers:  # a run was interrupted between two files
                kept = [without_files(read_store_file(directory, f"{number}.json")) for number in numbers]
            state = read_store_file(directory, "state.json") if "state.json" in names else {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            broken = f"{directory}: {type(error).__name__}: {error}"
            source.problem(directory, f"broken record of generations: {type(error).__name__}: {error}")
        found.append({
            "deployment": deployment,
            "held": state.get("held"),
            "trial": state.get("trial"),
            "lifted": state.get("lifted"),
            "ended": state.get("ended"),
            "kept": kept,
            "broken": broken,
        })  # fmt: skip
    return found


def read_store_file(directory: str, name: str) -> dict[str, Any]:
    """Return a file of the store."""
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


def without_files(generation: dict[str, Any]) -> dict[str, Any]:
    """Return a generation in the form of summary.json."""
    heavy = ("server", "described")
    members = [{key: item[key] for key in item if key not in heavy} for item in generation["members"]]
    return {**generation, "members": members}
