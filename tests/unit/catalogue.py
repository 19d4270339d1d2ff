# SPDX-License-Identifier: Apache-2.0
"""The catalogue of this tree, loaded once for the tests."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.load import Knowledge

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "catalog"
DATA = ROOT / "tests" / "data" / "vllm"


@functools.cache
def knowledge() -> Knowledge:
    """One loaded catalogue for all tests: nothing changes it."""
    return Knowledge(CATALOG)


@functools.cache
def matrix() -> dict[str, Any]:
    """Verdicts of the releases' own `vllm serve` parsers."""
    found: dict[str, Any] = json.loads((DATA / "parse_matrix.json").read_text())["cases"]
    return found
