# SPDX-License-Identifier: Apache-2.0
"""Files joined into one text: what it holds, and what is refused since it would mean something else there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.assemble import closure, join

from tests.generate import generated

LOW = '''\
"""Low."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOWEST = json.loads("1")


def low(text: Any) -> int:
    return len(text) + LOWEST
'''
PROGRAM = '''\
"""The program."""

from __future__ import annotations

DOCUMENTATION = "of it"

import sys

from .low import low

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

print(DOCUMENTATION, low(sys.argv[1]))
'''
JOINED = '''\
"""The program."""

from __future__ import annotations

DOCUMENTATION = "of it"


import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


LOWEST = json.loads("1")


def low(text: Any) -> int:
    return len(text) + LOWEST

print(DOCUMENTATION, low(sys.argv[1]))
'''


def joined(directory: Path, **files: str) -> str:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text, encoding="utf-8")
    return join(closure(directory / "program.py"))


def test_files_become_one_text_that_runs_by_itself(tmp_path: Path) -> None:
    text = joined(tmp_path, low=LOW, program=PROGRAM)
    assert text == JOINED
    done = subprocess.run([sys.executable, "-c", text, "abc"], capture_output=True, text=True, check=True)
    assert done.stdout == "of it 4\n"


def test_files_may_import_the_same(tmp_path: Path) -> None:
    """Also a file without imports may be joined, and what stands below a constant is its docstring."""
    low = '"""Low."""\n\nfrom __future__ import annotations\n\nlow = len\n"""A function."""\n'
    program = PROGRAM.replace("import sys", "from os import path, sep\nimport sys")
    assert '\nlow = len\n"""A function."""\n\nprint(' in joined(tmp_path, low=low, program=program)
    other = LOW.replace("import json", "import json\nfrom os import sep")
    assert "from os import sep\n" in joined(tmp_path, low=other, program=program)


@pytest.mark.parametrize(
    ("low", "program", "says"),
    [
        (LOW, PROGRAM.replace("low import low", "low import low as other"), "cannot be joined"),
        (LOW, PROGRAM.replace("from .low import low", "from . import low"), "cannot be joined"),
        (LOW, f"{PROGRAM}\ndef later():\n    from .low import LOWEST\n", "cannot be joined"),
        (LOW, f"{PROGRAM}\nLOWEST = 2\n", "LOWEST is of"),
        (LOW, f"{PROGRAM}\ndef json(): ...\n", "json is of"),
        (LOW, PROGRAM.replace("import sys", "import sys as json"), "json is of"),
        (LOW, f"{PROGRAM}\nimport os\n", "do not stand together"),
        (LOW.replace("import json", "FIRST = 1\n\nimport json"), PROGRAM, "only the program"),
    ],
)
def test_what_would_mean_something_else_is_refused(low: str, program: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        joined(tmp_path, low=low, program=program)


@pytest.mark.parametrize("path", generated(), ids=lambda path: str(path.name))
def test_the_generated_file_is_made_of_its_sources(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generated()[path], "make generate writes it anew"
