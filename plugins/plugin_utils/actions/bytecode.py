# SPDX-License-Identifier: Apache-2.0
"""Let Python cache the bytecode of this collection's modules.

Ansible's collection loader compiles a source file in every process that imports it, and each task on each host is a
process. Importing this module, before others of the collection, lets Python's own finder load the planner's packages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType

_PLUGINS = __name__.rpartition(".plugin_utils.")[0]
PACKAGES = (f"{_PLUGINS}.plugin_utils.", f"{_PLUGINS}.module_utils.")


class BytecodeCache:
    """A finder for sys.meta_path, for modules below PACKAGES only."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where Python itself finds the module; None for modules outside the collection."""
        if not name.startswith(PACKAGES):
            return None
        specs = (_finder(directory).find_spec(name, target) for directory in path or ())
        return next(filter(None, specs), None)


@cache
def _finder(directory: str) -> FileFinder:
    # PathFinder would call Ansible's hook for the directories of collections.
    return FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES))


def _is_ours(finder: object) -> bool:
    return isinstance(finder, type) and finder.__name__ == BytecodeCache.__name__


# Only in processes of Ansible's command line: others, such as ansible-test's, import a file once.
if "ansible.cli" in sys.modules and not any(map(_is_ours, sys.meta_path)):
    sys.meta_path.insert(0, BytecodeCache)
