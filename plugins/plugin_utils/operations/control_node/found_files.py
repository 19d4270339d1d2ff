# SPDX-License-Identifier: Apache-2.0
"""Find the files of the control node that an inventory names, and refuse those that may not travel, such as secrets."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from .named_files import NamedFile, Places, named_files, names_in_bundle, secret_paths

Wrong = tuple[str, str]
"""What is wrong with a file, and what to do."""
_SECRET = re.compile(rb"\A\$ANSIBLE_VAULT;|-----BEGIN [A-Z ]*PRIVATE KEY-----")
_HEAD = 1 << 16  # bytes of a file that are searched for a secret


@dataclass(frozen=True)
class ControlFile:
    """A file to include. path: VARIABLE/NAME, or VARIABLE/NAME/… inside a directory; source: on this machine."""

    path: str
    source: str


def find_files(variables: Mapping[str, Mapping[str, Any]], places: Places) -> tuple[ControlFile, ...]:
    """Return all files that the variables name; variables: the evaluated ones of FILES and SECRET_FILES, by host.

    Raise FleetError with every path that is missing, cannot be read, or is a secret.
    """
    secrets = {os.path.realpath(path) for path in secret_paths(variables, places)}
    found: dict[tuple[str, str], NamedFile] = {}
    problems: list[Problem] = []
    for item in named_files(variables, places):
        path = next((path for path in item.paths if os.path.exists(path)), None)
        if path is None:
            what = f"{' and '.join(item.paths)} is not on the control node, so no bundle can have it."
            problems.append(item.problem(what, "Copy it there, or remove it from the inventory."))
        else:
            found.setdefault((item.variable, path), item)
    files: list[ControlFile] = []
    for (variable, path), name in names_in_bundle(found).items():
        for inside, source, wrong in _walk(path, secrets):
            if wrong:
                problems.append(found[variable, path].problem(f"{source} {wrong[0]}.", wrong[1]))
            else:
                files.append(ControlFile(os.path.normpath(f"{variable}/{name}/{inside}"), source))
    if problems:
        raise FleetError(problems)
    return tuple(sorted(files, key=lambda item: item.path))


def _walk(path: str, secrets: set[str]) -> Iterator[tuple[str, str, Wrong | None]]:
    """Yield each file with its path inside `path`, and, if something is wrong with it, what is wrong and what to do."""
    if not os.path.isdir(path):
        yield "", path, _unfit(path, secrets)
        return
    count = 0
    errors: list[OSError] = []
    for top, directories, names in os.walk(path, onerror=errors.append):
        directories.sort()
        linked = [name for name in directories if os.path.islink(os.path.join(top, name))]
        for name in sorted([*names, *linked]):
            count += 1
            source = os.path.join(top, name)
            yield os.path.relpath(source, path), source, _unfit(source, secrets)
    for error in errors:
        yield "", str(error.filename), (f"cannot be read: {error.strerror}", "Make it readable.")
    if not count:
        yield "", path, ("is an empty directory", "Fill it, or remove it from the inventory.")


def _unfit(path: str, secrets: set[str]) -> Wrong | None:
    """Return what is wrong with a file and what to do; None for one that may travel."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return "is a link to a directory", "Put a copy there: the link may lead anywhere."
        if not stat.S_ISREG(mode):
            return "is not a file", "Take it out of the directory."
        if os.path.realpath(path) in secrets or ".secrets" in Path(path).parts:
            return "is a secret, and a bundle is read by others", "Take it out of the directory."
        with open(path, "rb") as file:
            if _SECRET.search(file.read(_HEAD)):
                return "has a private key or vaulted text, and a bundle is read by others", "Take it out."
    except OSError as error:
        return f"cannot be read: {error.strerror}", "Make it readable, or remove it from the directory."
    return None
