# SPDX-License-Identifier: Apache-2.0
"""Write the files that are made of others: `make generate`. A test holds them equal to what is written here."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import module

from tests import ROOT


def generated() -> dict[Path, str]:
    """Every such file, with its text."""
    return {ROOT / "plugins/modules/node_state.py": module("node_state")}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
