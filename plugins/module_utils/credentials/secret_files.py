# SPDX-License-Identifier: Apache-2.0
"""The secret variables of deployments on a node: a file for each set of values, named by its fingerprint.

Only root can read the directory. An instance's container mounts its own deployment's part, and its environment file
reads the set that it was made with. Sets of generations that are kept stay, so that a rollback finds its own.
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterable, Mapping

from ..common import paths
from ..common.files import make_private, read_text, sync_directory, write_atomic

MOUNT = "/instinct-secrets"
NAMES = "INSTINCT_SECRETS"
"""The variable with the names of the others: the supervisor masks their values in what the engine prints."""
Sets = Mapping[str, Mapping[str, str]]
"""Texts by fingerprint, by deployment."""


def secrets_dir(deployment: str) -> str:
    """Return the directory of a deployment's sets on the node."""
    return f"{paths.STATE_DIR}/secrets/{deployment}"


def values_of(text: str) -> list[str]:
    """Return the values in the file of a set."""
    words = (word.partition("=") for word in shlex.split(text))
    return [value for name, _equals, value in words if name != NAMES]


def node_secrets() -> list[str]:
    """Return all values on this node, which no message may repeat."""
    files = glob.glob(f"{secrets_dir('*')}/*")
    return [value for path in files for value in values_of(read_text(path) or "")]


def missing_files(deployment: str, marks: Iterable[str], given: Sets) -> list[str]:
    """Return the paths of a deployment's sets that must be written: those that were given and are not there."""
    found = []
    for mark in marks:
        path = os.path.join(secrets_dir(deployment), mark)
        text = given.get(deployment, {}).get(mark)
        if text is not None and read_text(path) != text:
            found.append(path)
    return found


def write(paths_of_sets: Iterable[str], given: Sets) -> None:
    """Write sets. Raise OSError."""
    for path in paths_of_sets:
        directory, mark = os.path.split(path)
        make_private(directory)
        write_atomic(path, given[os.path.basename(directory)][mark], 0o600)
        sync_directory(directory)


def unused_files(wanted: Iterable[str]) -> list[str]:
    """Return the paths of the sets that no instance's files and no generation of this node name.

    wanted: the fingerprints that instances are about to be given.
    """
    left = {path for path in glob.glob(f"{secrets_dir('*')}/*") if os.path.basename(path) not in set(wanted)}
    top = paths.STATE_DIR
    for path in (
        [*glob.glob(f"{top}/instances/*/env"), *glob.glob(f"{top}/generations/*/*.json")] if left else ()
    ):
        text = read_text(path) or ""
        left = {item for item in left if os.path.basename(item) not in text}
    return sorted(left)
