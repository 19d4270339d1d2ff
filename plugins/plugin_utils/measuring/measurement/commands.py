# SPDX-License-Identifier: Apache-2.0
"""Read the options of a recorded command line. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache

OWN = frozenset({"--port", "--host", "--uds", "--served-model-name", "--revision", "--tokenizer-revision"})
"""Options that say where an engine listens and what it is called; the rest decides how fast it is."""

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
}
_NAME = re.compile(r"--?[A-Za-z]")


@cache
def options(command: str | None) -> Mapping[str, str]:
    """Return the options of a command line by name with dashes; those without a value are "true".

    A list of values is joined by spaces; if an option is given twice, the last one counts.
    """
    try:
        words = shlex.split(command or "")
    except ValueError:
        return {}
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if _NAME.match(word):
            name, given, value = word.partition("=")
            name = _SHORT.get(name, name.replace("_", "-"))
            found[name] = value if given else ""
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return {key: value or "true" for key, value in found.items()}
