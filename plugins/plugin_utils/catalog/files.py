# SPDX-License-Identifier: Apache-2.0
"""Read the files of the catalogue, and others of the toolkit that are written like them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CATALOG = Path(__file__).resolve().parents[3] / "catalog"


def read_yaml(path: Path) -> Any:
    """Read a YAML file, with the fast parser if PyYAML was built with it."""
    import yaml  # imported on use: importing this module does not require PyYAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path.open("rb") as stream:
        return yaml.load(stream, Loader=loader)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
