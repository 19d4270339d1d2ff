# SPDX-License-Identifier: Apache-2.0
"""Find the local repositories of a node, and read them again."""

from __future__ import annotations

import os

from ..common.files import read_text
from ..content.model_manifest import MANIFEST, ManifestDifference, difference, forget_hashes, hash_directory
from ..observe.source import listing
from .repository import LocalRepository, listed_files


def local_repositories(models: str) -> list[str]:
    """Return the directories of local repositories that have a manifest."""
    names = [name for name in listing(models) if not name.startswith(".")]
    found = [os.path.join(models, name, commit) for name in names for commit in listing(f"{models}/{name}")]
    return [path for path in found if os.path.exists(os.path.join(path, MANIFEST))]


def reread(repository: LocalRepository) -> ManifestDifference:
    """Read every file again, and return how they differ from the manifest. Raise NodeError."""
    text = read_text(os.path.join(repository.path, MANIFEST)) or ""
    files, cache = listed_files(text, repository), repository.hashes(text)
    forget_hashes(cache)
    return difference(files, hash_directory(repository.path, cache, links=False))
