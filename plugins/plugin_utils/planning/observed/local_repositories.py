# SPDX-License-Identifier: Apache-2.0
"""Models that were made on the fleet, as a host has them; its report is parsed strictly. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.content.model_manifest import REPOSITORY

_MARK = re.compile(r"([0-9a-f]{12})?")
_COMMIT = re.compile(r"([0-9a-f]{40})?")


@dataclass(frozen=True)
class ObservedRepository:
    """A local repository of a host.

    commit: of the files that its manifest lists, "" if it has none. signature: a mark of it, "" if it is not signed.
    wrong: files that differ from the manifest. verified: all were hashed since they changed, and none differs.
    """

    path: str
    commit: str
    signature: str
    bytes: int
    wrong: tuple[str, ...]
    verified: bool

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ObservedRepository:
        """Return an entry of node_state. Raise ValueError, KeyError or TypeError if it is malformed."""
        found = cls(
            str(data["path"]),
            str(data["commit"]),
            str(data["signature"]),
            int(data["bytes"]),
            tuple(map(str, data["wrong"])),
            data["verified"] is True,
        )
        texts = ((_MARK, found.signature), (_COMMIT, found.commit))
        if found.bytes < 0 or not all(pattern.fullmatch(text) for pattern, text in texts):
            raise ValueError(f"the local repository {found.path[:200]!r} has impossible values")
        if not all(name.isprintable() for name in (found.path, *found.wrong)):
            raise ValueError("a local repository has names that cannot be printed")
        return found

    @property
    def own_commit(self) -> str:
        """Return the commit that its path says."""
        return self.path.rpartition("/")[2]

    @property
    def usable(self) -> bool:
        """Return whether it may be what its path says, as far as that is known without reading it."""
        return self.commit == self.own_commit and not self.wrong


def is_local_repository(model: str) -> bool:
    """Return whether a model is a local repository; other paths are the operator's, such as a network file system."""
    return REPOSITORY.fullmatch(model.rstrip("/")) is not None


def display_name(path: str) -> str:
    """Return the name of a local repository for messages: NAME at its commit."""
    found = REPOSITORY.fullmatch(path)
    return f"{found[1]}@{found[2][:12]}" if found else path
