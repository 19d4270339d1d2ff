# SPDX-License-Identifier: Apache-2.0
"""The release of the toolkit itself."""

from __future__ import annotations

from .files import CATALOG, read_yaml


def toolkit_release() -> str:
    """Return the release of the toolkit; a clone has galaxy.yml, an installed collection MANIFEST.json."""
    root = CATALOG.parent
    if (root / "galaxy.yml").exists():
        return str(read_yaml(root / "galaxy.yml")["version"])
    return str(read_yaml(root / "MANIFEST.json")["collection_info"]["version"])
