# SPDX-License-Identifier: Apache-2.0
"""Files joined into one text: what it holds, and what is refused since it would mean something else there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.assemble import (
    PLUGINS,
    closure,
    imported_files,
    join,
)

from tests.generate import generated

OURS = "ansible_collections.instinct.fleet.plugins."
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
        (LOW, f"{PROGRAM}\nimport os\n", "are not in one place"),
        (LOW.replace("import json", "FIRST = 1\n\nimport json"), PROGRAM, "only the program"),
    ],
)
def test_what_would_mean_something_else_is_refused(low: str, program: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        joined(tmp_path, low=low, program=program)


@pytest.mark.parametrize("path", generated(), ids=lambda path: str(path.name))
def test_the_generated_file_is_made_of_its_sources(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generated()[path], "make generate writes it anew"


def parsed(path: Path) -> set[Path]:
    """The files of the collection that a file imports, by Python's own parser."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if node.level:
            target = path.parents[node.level - 1].joinpath(*filter(None, module.split(".")))
        elif module.startswith(OURS):
            target = PLUGINS.joinpath(*module.removeprefix(OURS).split("."))
        else:
            continue
        names = [target / alias.name for alias in node.names] if target.is_dir() else [target]
        found |= {name.with_suffix(".py") for name in names}
    return found


@pytest.mark.deep
def test_imports_are_found_as_python_finds_them() -> None:
    files = sorted(PLUGINS.rglob("*.py"))
    assert len(files) > 500
    assert [path for path in files if set(imported_files(path)) != parsed(path)] == []


def test_imports_over_lines_with_other_names_and_comments(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        "from .parts import (\n    one,  # noqa: F401\n    two as three,\n)\n"
        "def work():\n    from . import late  # here\n    from .parts.one import last as first, other\n"
    )
    expected = ["parts/one.py", "parts/two.py", "late.py", "parts/one.py"]
    assert [str(path.relative_to(tmp_path)) for path in imported_files(program)] == expected
    assert set(imported_files(program)) == parsed(program)
