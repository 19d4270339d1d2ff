# SPDX-License-Identifier: Apache-2.0
"""Provide the config.json of well-known models, as far as the catalogue has it, for plans without access to a hub.

The data is catalog/models.yml; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .recipes import named


def known_config(data: Mapping[str, Any], repository: str) -> Mapping[str, Any] | None:
    """Return the keys that decide the size of a model with this name (or a path that ends in it); None if unknown."""
    for entry in data["models"].values():
        if named(repository, entry["repositories"]):
            found: Mapping[str, Any] = entry["config"]
            for variant in data["variants"]:
                if named(repository, variant["repositories"]):
                    return {**found, "quantization_config": variant["quantization_config"]}
            return found
    return None
