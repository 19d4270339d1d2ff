# SPDX-License-Identifier: Apache-2.0
"""The program around vLLM in an instance's container: its files, and where they are on a node.

The files are modules of this package, sent as they are. The directory's name holds their hash, and containers
mount it: another program is another specification, and a container goes on with the one it was made with.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from types import ModuleType

from . import (
    logs,
    redact,
    supervise_child,
    supervise_gpus,
    supervise_group,
    supervise_link,
    supervise_options,
    supervise_program,
    supervise_ray,
    supervise_state,
)
from .hashing import spec_hash
from .places import LIB_MOUNT, lib_dir

PACKAGE = "instinct_supervise"
_MODULES: tuple[ModuleType, ...] = (
    logs,
    redact,
    supervise_child,
    supervise_gpus,
    supervise_group,
    supervise_link,
    supervise_options,
    supervise_program,
    supervise_ray,
    supervise_state,
)
_START = f"""\
# SPDX-License-Identifier: Apache-2.0
import sys

from {PACKAGE}.supervise_program import main

sys.exit(main(sys.argv[1:]))
"""


@lru_cache(maxsize=1)
def lib_files() -> dict[str, str]:
    """The program: texts by their paths in its directory."""
    found = {"supervise.py": _START, f"{PACKAGE}/__init__.py": ""}
    for module in _MODULES:
        found[f"{PACKAGE}/{module.__name__.rpartition('.')[2]}.py"] = inspect.getsource(module)
    return found


@lru_cache(maxsize=1)
def lib_version() -> str:
    """The hash that names its directory."""
    return spec_hash(lib_files())[:12]


def lib_bind() -> str:
    """The mount of a container, in Docker's form."""
    return f"{lib_dir(lib_version())}:{LIB_MOUNT}:ro"
