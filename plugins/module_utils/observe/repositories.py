# SPDX-License-Identifier: Apache-2.0
"""Models that were made on the fleet, compared with their manifests by the hashes that were found before."""

from __future__ import annotations

import json
import os

from .hashes import sha256
from .source import listing

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
BESIDE_MODEL = ("manifest.json", "model.sig")
WRONG_NAMED = 3  # wrong files that are named
HEX_DIGITS = frozenset("0123456789abcdef")


def read_repositories(data_dir: str) -> list[dict[str, Any]]:
    """Return the local repositories, models/NAME/COMMIT. Nothing is hashed: that costs minutes, and was done once."""
    top = os.path.join(data_dir, "models")
    found = []
    for name in listing(top):
        for commit in listing(os.path.join(top, name)) if name[:1] != "." else ():
            if len(commit) == 40 and HEX_DIGITS.issuperset(commit):
                found.append(read_repository(os.path.join(top, name, commit), data_dir))
    return found


def read_repository(path: str, data_dir: str) -> dict[str, Any]:
    """Return one; `commit` is that of its manifest, "" without one. model_manifest.py has the rules of hashes."""
    states = file_states(path)
    manifest, signature = (small_text(os.path.join(path, name)) for name in BESIDE_MODEL)
    found: dict[str, Any] = {
        "path": path,
        "commit": "",
        "signature": sha256(signature.encode())[:12] if signature else "",
        "bytes": sum(state[0] for state in states.values()),
        "wrong": [],
        "verified": False,
    }
    if not manifest:
        return found
    try:
        resources = json.loads(manifest)["predicate"]["resources"]
        listed = {str(item["name"]): str(item["digest"]) for item in resources}
    except (ValueError, KeyError, TypeError):
        return {**found, "wrong": [BESIDE_MODEL[0]]}
    text = json.dumps(listed, sort_keys=True, separators=(",", ":"))
    mark = sha256((path + manifest).encode())[:16]
    known = known_hashes(os.path.join(data_dir, "quantize", "hashes", f"{mark}.json"), states)
    wrong = [
        name
        for name in sorted({*listed, *states})
        if name not in listed or name not in states or known.get(name, listed[name]) != listed[name]
    ]
    return {
        **found,
        "commit": sha256(text.encode())[:40],
        "wrong": wrong[:WRONG_NAMED],
        "verified": not wrong and known.keys() >= listed.keys(),
    }


def file_states(directory: str) -> dict[str, list[int]]:
    """Return size, time and inode of every file of a model, by which it counts as unchanged since it was hashed."""
    states = {}
    for top, _unused, names in os.walk(directory):
        for name in names:
            path = os.path.join(top, name)
            try:
                found = os.stat(path)
            except FileNotFoundError:
                continue
            states[os.path.relpath(path, directory)] = [found.st_size, found.st_mtime_ns, found.st_ino]
    return {name: state for name, state in states.items() if name not in BESIDE_MODEL}


def known_hashes(path: str, states: dict[str, list[int]]) -> dict[str, str]:
    """Return the remembered hashes of files that are unchanged since."""
    try:
        record = json.loads(small_text(path) or "{}")
        return {name: str(entry[-1]) for name, entry in record.items() if entry[:-1] == states.get(name)}
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        return {}


def small_text(path: str) -> str | None:
    """Return a file's text with its line ends; None if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
