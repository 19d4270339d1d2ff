# SPDX-License-Identifier: Apache-2.0
"""The manifest of a model's directory: the SHA-256 of every file, as the statement that model-signing signs.

The format is that of https://github.com/sigstore/model-transparency, predicate v1.0: an in-toto statement, whose root
digest is the SHA-256 over the digests of all files in order of their names. `model_signing verify` reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.files import read_text, write_atomic
from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError
from ..common.paths import DATA_DIR

MODELS = DATA_DIR + "/models"
"""Where models that were made here are, NAME/COMMIT."""
REPOSITORY = re.compile(rf"{re.escape(MODELS)}/([^/\s.@][^/\s@]*)/([0-9a-f]{{40}})")
"""The path of such a model."""
MODEL_HASHES = DATA_DIR + "/quantize/hashes"
"""By path and manifest, what their files were when they were hashed."""
MANIFEST, SIGNATURE = "manifest.json", "model.sig"
BESIDE = (MANIFEST, SIGNATURE)
"""Files that lie next to those of the model, and are in no manifest."""
REPAIR = (
    "Run again together with a host that has it as it was made, which passes it on. If none has it any more, remove "
    "the directory and make it again (playbooks/quantize.yml)."
)
"""What to do about a model that differs from its manifest."""
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"

_THREADS = 8
_CHUNK = 4 * 2**20
_POLL_SECONDS = 1.0


class BadManifest(Exception):
    """A text that is not a manifest of this format, or contradicts itself."""


@dataclass(frozen=True)
class ManifestDifference:
    """How files differ from their manifest; all empty if they do not."""

    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [("changed", self.changed), ("missing", self.missing), ("not in the manifest", self.added)]
        return "; ".join(f"{_some(names)} {word}" for word, names in parts if names)

    def __bool__(self) -> bool:
        return bool(self.changed or self.missing or self.added)


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    verb = "are" if len(names) > 1 else "is"
    return f"{', '.join(names[:3])}{more} {verb}"


def statement(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the statement about a model's files: their SHA-256, in hex digits, by their paths."""
    digests = b"".join(bytes.fromhex(files[path]) for path in sorted(files))
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(digests).hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": sorted(BESIDE),
            },
            "resources": [
                {"name": path, "algorithm": "sha256", "digest": files[path]} for path in sorted(files)
            ],
        },
    }


def statement_text(found: Mapping[str, Any]) -> str:
    """Return the text of a statement: what is stored, and what is signed, byte for byte."""
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def parse_statement(text: str) -> dict[str, str]:
    """Return the SHA-256 of each file. Raise BadManifest."""
    try:
        found = json.loads(text)
        resources = found["predicate"]["resources"]
        files = {str(item["name"]): str(item["digest"]) for item in resources}
        root = found["subject"][0]["digest"]["sha256"]
        kinds = {item["algorithm"] for item in resources}
        types = (found["_type"], found["predicateType"])
        expected = statement("", files)["subject"][0]["digest"]["sha256"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BadManifest("it is not a statement of model-signing") from error
    if types != (STATEMENT_TYPE, PREDICATE_TYPE) or kinds != {"sha256"}:
        raise BadManifest(f"it is of another kind: {', '.join(map(str, [*types, *sorted(kinds)]))}")
    if len(files) != len(resources) or root != expected:
        raise BadManifest("its root digest is not that of its files")
    if any(path.startswith("/") or ".." in path.split("/") for path in files):
        raise BadManifest("it names a file outside the model's directory")
    return files


def commit_of(files: Mapping[str, str]) -> str:
    """Return the commit of a local repository: 40 digits of the hash of its file list."""
    return text_hash(canonical(dict(files)))[:40]


def difference(files: Mapping[str, str], found: Mapping[str, str]) -> ManifestDifference:
    """Compare what the manifest has with what was found."""
    return ManifestDifference(
        tuple(sorted(path for path in files if path in found and found[path] != files[path])),
        tuple(sorted(path for path in files if path not in found)),
        tuple(sorted(path for path in found if path not in files)),
    )


def hash_directory(directory: str, cache: str = "", links: bool = True) -> dict[str, str]:
    """Return the SHA-256 of every file below a directory, by path.

    cache: a file that remembers them by size, time and inode, so that unchanged files are read once; "" reads all.
    links: follow those to files, of an operator's own directory. Raise NodeError for others, and for what cannot be
    read.
    """
    paths = dict(_files(directory, links))
    known: dict[str, Any] = _cached(cache)
    states = {name: _state(path) for name, path in paths.items()}
    fresh = [name for name in paths if known.get(name, [None])[:-1] != states[name]]
    stop = threading.Event()
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            futures = {name: pool.submit(_hash, paths[name], stop) for name in fresh}
            while futures and wait(futures.values(), _POLL_SECONDS).not_done:
                leave_if_abandoned()
            hashed = {name: future.result() for name, future in futures.items()}
        finally:
            stop.set()
    found = {name: hashed.get(name) or str(known[name][-1]) for name in paths}
    if cache and fresh:
        _write_hashes(cache, states, found)
    return found


def hashes_file(directory: str, manifest: str, top: str = MODEL_HASHES) -> str:
    """Return the file that remembers the hashes of a model with this manifest; observe/repositories.py reads it."""
    return os.path.join(top, f"{text_hash(directory + manifest)[:16]}.json")


def remember_hashes(cache: str, directory: str, hashes: Mapping[str, str]) -> None:
    """Remember hashes of a directory's files that were found just now, as hash_directory() does."""
    _write_hashes(cache, {name: _state(path) for name, path in _files(directory, False)}, hashes)


def forget_hashes(cache: str) -> None:
    """Let the next hash_directory() read every file."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(cache)


def _write_hashes(cache: str, states: Mapping[str, list[int]], hashes: Mapping[str, str]) -> None:
    os.makedirs(os.path.dirname(cache), mode=0o755, exist_ok=True)
    write_atomic(cache, json.dumps({name: [*states[name], hashes[name]] for name in states}), 0o644)


def _files(directory: str, links: bool) -> list[tuple[str, str]]:
    found = []
    for top, names, files in os.walk(directory):
        for name in [*names, *files]:
            path = os.path.join(top, name)
            if os.path.islink(path) and (not links or os.path.isdir(path)):
                raise NodeError(
                    f"{path} is a link{' to a directory' if links else ''}: a model's files must be in its own "
                    "directory. Put what it leads to in its place, or remove it."
                )
        found += [
            (os.path.relpath(os.path.join(top, name), directory), os.path.join(top, name)) for name in files
        ]
    return sorted(item for item in found if item[0] not in BESIDE)


def _state(path: str) -> list[int]:
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        raise NodeError(
            f"{path} leads nowhere, or was removed meanwhile. Remove the link or put its file there, and run again."
        ) from error
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _cached(cache: str) -> dict[str, Any]:
    try:
        found = json.loads((cache and read_text(cache)) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _hash(path: str, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as stream:
            buffer = memoryview(bytearray(_CHUNK))
            while not stop.is_set():
                count = stream.readinto(buffer)
                if not count:
                    break
                digest.update(buffer[:count])
    except OSError as error:
        raise NodeError(
            f"{path} cannot be read: {error.strerror}. Check the disk (dmesg), and run again."
        ) from error
    return digest.hexdigest()
