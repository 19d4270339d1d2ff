# SPDX-License-Identifier: Apache-2.0
"""What messages and pages advise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

PLACES = ("plugins", "playbooks", "roles", "catalog", "docs", "README.md", "lab/README.md", "inventory")
# The engine knows no generations: its prune removes the images to which a rollback goes back.
PRUNE = re.compile(r"(?:docker|podman|nerdctl|image|system|volume|builder|container)s?[\s\"'+]+prune\b")


def texts() -> Iterator[tuple[Path, str]]:
    for place in PLACES:
        top = ROOT / place
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.suffix in (".py", ".yml", ".md", ".j2", ".json", ".sh"):
                yield path, " ".join(path.read_text(encoding="utf-8").split())


def test_nobody_is_advised_to_use_the_engines_own_prune() -> None:
    assert PRUNE.search("remove images (docker image prune -a)")
    assert PRUNE.search('Remove images (docker image " "prune -a)')
    found, read = [], 0
    for path, text in texts():
        read += 1
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in PRUNE.finditer(text)]
    assert found == []
    assert read > 300
