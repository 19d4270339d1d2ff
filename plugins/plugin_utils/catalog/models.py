# SPDX-License-Identifier: Apache-2.0
"""The config.json of well-known models as far as the catalogue has it, for plans made before a hub was asked.

The data is catalog/models.yml; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .recipes import named


def known_config(data: Mapping[str, Any], repository: str) -> Mapping[str, Any] | None:
    """What decides the size of a model of this name (or a path that ends in it); None for one that is not known."""
    for entry in data["models"].values():
        if named(repository, entry["repositories"]):
            found: Mapping[str, Any] = entry["config"]
            for variant in data["variants"]:
                if named(repository, variant["repositories"]):
                    return {**found, "quantization_config": variant["quantization_config"]}
            return found
    return None
