# SPDX-License-Identifier: Apache-2.0
"""Names of what is moved between nodes.

The planner and the nodes form them in the same way, and the store keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..common.hashing import canonical, text_hash

CONTROL_FILES = "files of the control node"
"""The name of those that a bundle contains; a store has one such manifest."""


def image_name(digest: str) -> str:
    """Return the name of an image; digest: sha256:… of what is pulled."""
    return f"image {digest}"


def build_name(tag: str) -> str:
    """Return the name of an image that a node has built; tag: the image's, which ends in a hash of what is built."""
    return f"build {tag}"


def caches_name(key: str) -> str:
    """Return the name of a bundle of caches; key: of what they depend on."""
    return f"caches {key}"


def model_name(repo: str, commit: str, files: Mapping[str, int]) -> str:
    """Return the name of a model's files; files: the sizes of those that are wanted, by path."""
    return f"model {repo}@{commit} {text_hash(canonical(dict(files)))[:12]}"


def repository_name(path: str, signature: str) -> str:
    """Return the name of a local repository. path: .../NAME/COMMIT; signature: its hash, "" if it is not signed."""
    top, _unused, commit = path.rpartition("/")
    return f"model {top}@{commit} {signature or 'unsigned'}"
