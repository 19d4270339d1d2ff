# SPDX-License-Identifier: Apache-2.0
"""Recognize copies and backups, by their names, among the files that Ansible reads of an inventory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePath

from ansible.inventory.manager import IGNORED

from ....module_utils.common.errors import Problem
from .inventory_files import path_text

SURE, MAYBE = "sure", "maybe"
_SUFFIX = r"(\.(ya?ml|json|ini|toml))"
_SURE = re.compile(
    rf"#.*#|(copy|backup) (\(\d+\) )?of .*"  # Emacs; Windows
    rf"|.*[ ._-](copy|bak|orig|rej|save|swp)([ ._-]?\(?\d+\)?)?{_SUFFIX}?"  # macOS, patch, nano
    rf"|.* \(\d+\){_SUFFIX}?"  # a browser
    rf"|.*_(backup|base|local|remote)_\d+{_SUFFIX}?"  # git mergetool
    rf"|.*{_SUFFIX}\.(?!(ya?ml|json)$)[^.]+",  # whatever is behind a file's own suffix: hosts.yml.old
    re.IGNORECASE,
)
_MAYBE = re.compile(
    rf"(.*[ ._-])?(old|backup|previous|unused|disabled)([ ._-]?\d+)?{_SUFFIX}?", re.IGNORECASE
)


def leftover_likelihood(path: PurePath) -> str:
    """Return whether a file looks left behind, by its name or a directory's: SURE, MAYBE, or "".

    MAYBE: it may be a name with another meaning, such as backup.yml.
    """
    if any(_SURE.fullmatch(part) for part in path.parts):
        return SURE
    return MAYBE if any(_MAYBE.fullmatch(part) for part in path.parts) else ""


def leftover_problems(
    sources: Iterable[str], defined: Callable[[str], Collection[str]], known: Collection[str]
) -> Iterator[Problem]:
    """Yield the files of an inventory's directories that look left behind and that Ansible reads.

    defined: the groups and hosts that a source defines. known: if a file may have its name for another reason, it is
    reported only if it defines one of these.
    """
    for source in dict.fromkeys(sources):
        for path in _read_files(source) if os.path.isdir(source) else ():
            sure = leftover_likelihood(path.relative_to(source))
            names = sorted(defined(str(path))) if sure else []
            if names and (sure == SURE or not set(names).isdisjoint(known)):
                what = f"{path_text(path)}: looks left behind, but Ansible reads it. It defines {', '.join(names[:8])}"
                what += f" and {len(names) - 8} more." if len(names) > 8 else "."
                yield Problem((), what, "Remove it, or move it out of the inventory's directory.")


def _read_files(directory: str) -> Iterator[Path]:
    """Yield the files that Ansible reads of an inventory's directory: all but those that it ignores by name."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        if not IGNORED.search(os.fsencode(name)):
            path = Path(directory, name)
            if path.is_dir():
                yield from _read_files(str(path))
            else:
                yield path
