# SPDX-License-Identifier: Apache-2.0
"""Keep bundles of instances' caches on the control node: a record for each key, and the bundle by its SHA-256.

They are code that nodes will run, so only the operator can read or write them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..base.node_answers import AnswerError, sha256_in, size_in

KEPT = 32
"""Keys whose bundle is kept; the oldest are removed first. A key without a bundle means a cold start."""


def default_directory() -> Path:
    """Return where bundles are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "instinct-fleet" / "bundles"


def parse_record(answer: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return what a host says of a bundle that it packed. limit: its maximum size in bytes. Raise AnswerError."""
    counts = {key: size_in(answer, key) for key in ("content", "files")}
    return {"sha256": sha256_in(answer), "bytes": size_in(answer, "bytes", limit), **counts}


class CacheRecords:
    """The recorded bundles. Every method that writes raises OSError."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the record of a key; None if there is none, or its bundle is gone."""
        try:
            found = dict(json.loads((self.directory / f"{key}.json").read_text(encoding="utf-8")))
            whole = not found["files"] or self.bundle(sha256_in(found)).stat().st_size == found["bytes"]
        except (AnswerError, OSError, ValueError, KeyError, TypeError):
            return None
        return found if whole else None

    def bundle(self, sha256: str) -> Path:
        """Return the path of a bundle."""
        return self.directory / f"{sha256}.tar.gz"

    @contextlib.contextmanager
    def claimed(self, key: str) -> Iterator[bool]:
        """Yield whether this process should pack a key: it is not packed yet, and no other process packs it now."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        with open(self.directory / f"{key}.lock", "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield self.get(key) is None

    def incoming(self, sha256: str) -> Path:
        """Return where to receive a bundle, before add()."""
        return self.directory / f".{sha256}.{os.getpid()}"

    def add(self, key: str, record: Mapping[str, Any], received: Path | None) -> None:
        """Record a bundle that was received and verified; without one, record that its instance has nothing to keep."""
        if received is not None:
            received.chmod(0o600)
            received.replace(self.bundle(str(record["sha256"])))
        temporary = self.directory / f".{key}.{os.getpid()}"
        temporary.write_text(json.dumps(dict(record), indent=1) + "\n", encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(self.directory / f"{key}.json")
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        records = sorted(self.directory.glob("*.json"), key=lambda path: (-path.stat().st_mtime, path.name))
        for path in records[KEPT:]:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
        used = {str((self.get(path.stem) or {}).get("sha256")) for path in records[:KEPT]}
        for path in self.directory.glob("*.tar.gz"):
            if path.name[: -len(".tar.gz")] not in used:
                path.unlink(missing_ok=True)
