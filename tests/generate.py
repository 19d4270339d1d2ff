# SPDX-License-Identifier: Apache-2.0
"""Write the files that are made of others: `make generate`. A test holds them equal to what is written here."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import module

from tests import ROOT
from tests.schemas.derive import as_text
from tests.schemas.plan import plan_schema
from tests.schemas.summary import summary_schema


def generated() -> dict[Path, str]:
    """Every such file, with its text."""
    schemas = {"plan": plan_schema(), "summary": summary_schema()}
    return {ROOT / "plugins/modules/node_state.py": module("node_state")} | {
        ROOT / f"catalog/schemas/{name}.schema.json": as_text(schema) + "\n"
        for name, schema in schemas.items()
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
