# SPDX-License-Identifier: Apache-2.0
"""Read the files of the catalogue, and others of the toolkit that are written like them."""

from __future__ import annotations

import contextlib
import json
import marshal
import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from ....module_utils.common.files import write_atomic

CATALOG = Path(__file__).resolve().parents[4] / "catalog"


def read_yaml(path: Path) -> Any:
    """Read a YAML file of the toolkit.

    Its data is cached as Python caches bytecode: next to it in __pycache__, for this version of Python, until its time
    or size changes; not at all where that directory cannot be written. Parsing takes a third of a plan's time.
    """
    status = path.stat()
    stamp, kept = (status.st_mtime_ns, status.st_size), Path(cache_from_source(f"{path}.py"))
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
        was, data = marshal.loads(kept.read_bytes())  # as trusted as the bytecode next to it
        if was == stamp:
            return data
    data = _parsed(path)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(
            OSError, ValueError
        ):  # ValueError: data that marshal cannot write, such as a date
            content = marshal.dumps((stamp, data))
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(str(kept), content, status.st_mode & 0o666)
    return data


def _parsed(path: Path) -> Any:
    import yaml  # imported on use: importing this module does not require PyYAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path.open("rb") as stream:
        return yaml.load(stream, Loader=loader)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
