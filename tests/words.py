# SPDX-License-Identifier: Apache-2.0
"""Report words that stay out of texts, and names that say nothing. CONTRIBUTING.md has the table.

python -m tests.words (`make lint`)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

PARTICIPLES = {
    "shown",
    "found",
    "missing",
    "made",
    "seen",
    "known",
    "given",
    "kept",
    "held",
    "gone",
    "lost",
    "chosen",
    "put",
}
NAMELESS = {"item", "what", "news", "lean"}
TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "lab/**/*.md",
    "roles/**/*.yml",
    "playbooks/**/*.yml",
    "catalog/**/*.yml",
)


def patterns() -> list[tuple[re.Pattern[str], str]]:
    """The table: what stays out, and what to write."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S.*)` \| (\*.+) \|$", text, re.MULTILINE)
    return [(re.compile(wrong.replace(r"\|", "|"), re.IGNORECASE), right) for wrong, right in rows]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file, each with its line: all of a document, the strings of a program."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(re.sub(r"(?m)^\| `.*$", "", content).splitlines(), 1)
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, " ".join(node.value.split())


def names(path: Path) -> Iterator[tuple[int, str]]:
    """The public functions and classes at the top of a file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.lineno, node.name


def problems(root: Path = ROOT) -> Iterator[str]:
    """Every text and name that is not as CONTRIBUTING.md wants it."""
    table = patterns()
    programs = sorted((root / "plugins").rglob("*.py"))
    for path in [*programs, *sorted(file for glob in TEXTS for file in root.glob(glob))]:
        where = path.relative_to(root)
        for line, text in texts(path):
            for pattern, right in table:
                if match := pattern.search(text):
                    around = text[max(0, match.start() - 30) : match.end() + 30]
                    yield f"{where}:{line}: {match[0].strip()!r} in {around!r}; write: {right}"
    for path in programs:
        for line, name in names(path):
            one_word = re.fullmatch(r"[A-Z]?[a-z]+", name) is not None
            bare = one_word and (name.endswith("ed") or name in PARTICIPLES)
            if bare or name.lower() in NAMELESS:
                yield f"{path.relative_to(root)}:{line}: {name} does not say what it returns or does"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found))
    sys.exit(bool(found))
