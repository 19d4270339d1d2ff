# SPDX-License-Identifier: Apache-2.0
"""The versions of the supervisor on a node: a directory for each, kept while anything may start with it.

A container mounts the version with which it was created. Stored generations of a deployment name theirs, so that a
rollback is possible; these versions are kept too.

Each directory also contains a file of failure signatures, which is not part of the version: the supervisor reads it
when vLLM has ended. An outdated file is rewritten, which needs no restart.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from ..common import paths
from ..common.files import read_text, write_atomic
from ..common.hashing import spec_hash
from ..docker.client import DockerClient
from ..docker.containers import containers_labelled
from ..engines.failure_signatures import SIGNATURES
from ..engines.failures import SIGNATURES_FILE, to_text

_VERSION = re.compile(r"[0-9a-f]{12}")
Program = Mapping[str, str]
"""The present version: texts by their paths in its directory."""


def version_of(program: Program) -> str:
    """Return the name of the version's directory; plugin_utils/base/bundle.py uses the same name in the plan."""
    return spec_hash(program)[:12]


def lib_of(body: Mapping[str, Any]) -> str:
    """Return the version that a container mounts, from its create body or its inspection; "" for none."""
    for bind in (body.get("HostConfig") or {}).get("Binds") or ():
        directory, version = os.path.split(str(bind).partition(":")[0])
        if directory == paths.lib_dir():
            return version
    return ""


def write_actions(program: Program, versions: Iterable[str]) -> list[str]:
    """Return the actions of write(), for versions that containers will mount."""
    return [
        *(
            f"write {paths.lib_dir(version)} ({len(program)} files)"
            for version in _lacking(program, versions)
        ),
        *(f"write {path}" for path in _outdated(program, versions)),
    ]


def is_missing(program: Program, version: str) -> bool:
    """Return whether a version is neither on the node nor the one that can be written."""
    return version not in ("", version_of(program)) and not os.path.isdir(paths.lib_dir(version))


def write(program: Program, versions: Iterable[str]) -> None:
    """Write the present version, if it is among these, and read it back; write the signatures of all. Raise OSError."""
    for version in _lacking(program, versions):
        directory = paths.lib_dir(version)
        os.makedirs(paths.STATE_DIR, mode=0o700, exist_ok=True)
        os.makedirs(directory, mode=0o755, exist_ok=True)
        for name, text in program.items():
            _put(os.path.join(directory, name), text)
        if _lacking(program, [version]):
            raise OSError(5, "is not what was written", directory)
    for path in _outdated(program, versions):
        _put(path, to_text(SIGNATURES))


def _put(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    write_atomic(path, text, 0o644)


def unused_versions(
    program: Program, client: DockerClient, versions: Iterable[str], gone: Iterable[str]
) -> list[str]:
    """Return the versions on the node that no container except those in `gone`, and no generation, starts with.

    `versions`: those of the desired containers.
    """
    try:
        there = {name for name in os.listdir(paths.lib_dir()) if _VERSION.fullmatch(name)}
    except FileNotFoundError:
        return []
    left = there - {*versions, version_of(program)}
    if left:
        removed = set(gone)
        for entry in containers_labelled(client, "instinct-fleet.instance"):
            names = {name.lstrip("/") for name in entry.get("Names") or ()}
            container = None if names & removed else client.container(str(entry["Id"]))
            left.discard(lib_of(container or {}))
    for path in glob.glob(f"{paths.STATE_DIR}/generations/*/*.json") if left else ():
        text = read_text(path) or ""
        left = {version for version in left if version not in text}
    return sorted(left)


def remove(versions: Iterable[str]) -> None:
    """Remove versions. The next run retries those that cannot be removed now."""
    for version in versions:
        with contextlib.suppress(OSError):
            shutil.rmtree(paths.lib_dir(version))


def _lacking(program: Program, versions: Iterable[str]) -> list[str]:
    version = version_of(program)
    if version not in versions:
        return []
    directory = paths.lib_dir(version)
    same = all(read_text(os.path.join(directory, name)) == text for name, text in program.items())
    return [] if same else [version]


def _outdated(program: Program, versions: Iterable[str]) -> list[str]:
    """Return the outdated signature files of versions that are, or will be, on the node."""
    there = {version for version in versions if version and not is_missing(program, version)}
    files = [os.path.join(paths.lib_dir(version), SIGNATURES_FILE) for version in sorted(there)]
    return [path for path in files if read_text(path) != to_text(SIGNATURES)]
