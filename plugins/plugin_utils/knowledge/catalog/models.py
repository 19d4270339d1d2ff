# SPDX-License-Identifier: Apache-2.0
"""Look up what is known of a model by its name: shape, how its weights are stored, and which known name is nearest.

That is for plans made before the hub was asked for the model's config.json. The data is catalog/models.yml; nothing
here reads a file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..rules.repositories import matches_pattern

UNKNOWN: Mapping[str, Any] = {"quant_method": "unknown"}
"""A quantization_config of which nothing is known, not even whether there is one."""
_ALIKE = 0.8
"""Names less alike than this are not offered; difflib's ratio."""


@dataclass(frozen=True)
class NamedModel:
    """What a name shows.

    config: the keys of config.json that decide sizes, with the quantization; None if the shape is unknown.
    quantization: in the form of quantization_config; empty if the weights are known not to be quantized.
    """

    config: Mapping[str, Any] | None
    quantization: Mapping[str, Any]


def named_model(data: Mapping[str, Any], repository: str, method: str = "") -> NamedModel:
    """Return what is known of a model with this name, or of a path that ends in it.

    method: the operator's --quantization; it counts where no publication says otherwise.
    """
    entry = next(
        (item for item in data["models"].values() if matches_pattern(repository, item["repositories"])), None
    )
    if entry is not None and repository.lower() in map(str.lower, entry["published"]):
        return _model(entry, entry["config"].get("quantization_config") or {})
    found = _variant(data, repository)
    own = entry["config"].get("quantization_config") if entry else None
    if own and (found is None or own["quant_method"] == found.get("weights")):
        return _model(entry, own)  # the name says what the model's own publication says
    if found is None:
        found = UNKNOWN
    if found.get("quant_method") == "unknown":
        ways = data["methods"].get(method, {})
        found = {**found, **(ways.get(found.get("weights", "any")) or ways.get("any") or {})}
    return _model(entry, found)


def _model(entry: Mapping[str, Any] | None, quantization: Mapping[str, Any]) -> NamedModel:
    config = {**entry["config"], "quantization_config": quantization} if entry else None
    return NamedModel(config, quantization)


def _variant(data: Mapping[str, Any], repository: str) -> Mapping[str, Any] | None:
    for variant in data["variants"]:
        patterns = variant["repositories"]
        if repository.startswith(
            "/"
        ):  # the publisher is not known, so what one does with all models says nothing
            patterns = [item for item in patterns if item.startswith("*/") or "*" not in item]
        if matches_pattern(repository, patterns):
            found: Mapping[str, Any] = variant["quantization_config"]
            return found
    return None


def nearest_names(data: Mapping[str, Any], repository: str) -> tuple[str, ...]:
    """Return the known names that a name may be meant to be, the nearest first; empty if it needs no correction.

    Somebody else's copy of a known model needs none.
    """
    organisation, _slash, name = repository.lower().partition("/")
    if not organisation:
        return ()
    known = {item.lower(): item for entry in data["models"].values() for item in entry["published"]}
    exact = (item for variant in data["variants"] for item in variant["repositories"] if "*" not in item)
    known.update((item.lower(), item) for item in exact)
    if repository.lower() in known:
        return ()
    publishers = {item.partition("/")[0] for item in known}
    shaped = any(matches_pattern(repository, entry["repositories"]) for entry in data["models"].values())
    copied = not difflib.get_close_matches(organisation, publishers, 1, _ALIKE)
    if shaped and (copied or _variant(data, repository) is not None):
        return ()
    near = difflib.get_close_matches(repository.lower(), known, 2, _ALIKE)
    if not near:  # the organisation may be missing or different
        ends = {item.rpartition("/")[2]: item for item in reversed(known)}
        near = [ends[item] for item in difflib.get_close_matches(name or organisation, ends, 2, _ALIKE)]
    return tuple(known[item] for item in near)
