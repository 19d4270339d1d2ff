# SPDX-License-Identifier: Apache-2.0
"""List the tags of the toolkit's playbooks and roles, the only places that define them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...knowledge.catalog.files import read_yaml

COLLECTION = Path(__file__).resolve().parents[4]
NAMESPACE = "instinct.fleet."


def own_playbooks(paths: Iterable[str]) -> bool:
    """Return whether a run has the toolkit's own playbooks only; others have tags of their own."""
    home = COLLECTION / "playbooks"
    return all(path.startswith(NAMESPACE) or Path(path).resolve().parent == home for path in paths)


def toolkit_tags() -> Iterator[str]:
    """Yield the tags of plays, roles and tasks. A file is read when its tags are asked for."""
    for pattern in ("playbooks/**/*.yml", "roles/*/tasks/**/*.yml"):
        for path in sorted(COLLECTION.glob(pattern)):
            yield from _tags(read_yaml(path))


def _tags(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        given = data.get("tags")
        yield from map(str, given if isinstance(given, list) else [given] if given else [])
        for item in data.values():
            yield from _tags(item)
    elif isinstance(data, list):
        for item in data:
            yield from _tags(item)
