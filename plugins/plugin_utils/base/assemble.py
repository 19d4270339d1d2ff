# SPDX-License-Identifier: Apache-2.0
"""Find the files that a file of this collection imports, and join such files into one self-contained text.

Joined files share one namespace. Therefore their imports are merged, they import names from each other (not modules,
and without renaming), and every name has one meaning.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeGuard

PLUGINS = Path(__file__).resolve().parents[2]
_COLLECTION = "ansible_collections.instinct.fleet.plugins"
_TYPES = "TYPE_CHECKING"
# Parsing a file takes ten times as long as searching it for these, and every plan needs the files of a supervisor.
_IMPORT = re.compile(r"^[ \t]*from (\.*)([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_COMMENT = re.compile(r"#.*")


def closure(entry: Path) -> list[Path]:
    """Return a file and all files of the collection that it imports, directly or not; imported files come first."""
    found: list[Path] = []

    def add(path: Path) -> None:
        for other in imported_files(path):
            if other not in found:
                add(other)
        if path not in found:
            found.append(path)

    add(entry)
    return found


def join(paths: Sequence[Path], between: str = "\n\n") -> str:
    """Return the files as one text; the last file is the program: its head, the imports of all, and their bodies.

    `between` separates two bodies. Raise ValueError for files that cannot be joined.
    """
    parts = [_parse(path) for path in paths]
    _check(parts)
    imports = sorted({ast.unparse(node) for part in parts for node in part.imports if _is_foreign(node)})
    types = sorted({ast.unparse(node) for part in parts for node in part.types})
    if types:
        imports += ["", f"{_TYPES} = False", f"if {_TYPES}:", *(f"    {text}" for text in types)]
    bodies = between.join(part.text_below for part in parts)
    return "\n\n\n".join([parts[-1].text_above, "\n".join(imports), bodies]) + "\n"


@dataclass(frozen=True)
class _Part:
    """A file to join: the lines above its imports, the imports, and the lines below."""

    path: Path
    lines: list[str]
    above: list[ast.stmt]
    imports: list[ast.stmt]
    below: list[ast.stmt]

    @property
    def text_above(self) -> str:
        return "\n".join(self.lines[: self.above[-1].end_lineno])

    @property
    def text_below(self) -> str:
        return "\n".join(self.lines[[*self.above, *self.imports][-1].end_lineno :]).strip()

    @property
    def types(self) -> list[ast.stmt]:
        """Return the imports for type checkers only."""
        return [inner for node in self.imports if isinstance(node, ast.If) for inner in node.body]


def _parse(path: Path) -> _Part:
    text = path.read_text(encoding="utf-8")
    nodes = ast.parse(text).body
    imports = [number for number, node in enumerate(nodes) if _is_import(node)]
    above = imports[0] if imports else len(list(takewhile(_is_prologue, nodes)))
    below = imports[-1] + 1 if imports else above
    return _Part(path, text.splitlines(), nodes[:above], nodes[above:below], nodes[below:])


def _is_prologue(node: ast.stmt) -> bool:
    """Return whether it is the docstring, or the import of __future__."""
    return isinstance(node, ast.Expr) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _is_import(node: ast.stmt) -> bool:
    """Return whether it is an import, or one of the two statements that hide imports from all but type checkers."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == _TYPES
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == _TYPES
    return isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_prologue(node)


def _is_foreign(node: ast.stmt) -> TypeGuard[ast.Import | ast.ImportFrom]:
    return isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)


def _check(parts: Sequence[_Part]) -> None:
    """Raise ValueError if joining would change what a file means."""
    meanings: dict[str, str] = {}
    for part in parts:
        if not all(map(_is_import, part.imports)):
            raise ValueError(f"{part.path}: its imports are not in one place")
        if part is not parts[-1] and not all(map(_is_prologue, part.above)):
            raise ValueError(f"{part.path}: only the program may have something above its imports")
        for node in ast.walk(ast.Module([*part.imports, *part.below], [])):
            ours = isinstance(node, ast.ImportFrom) and node.level
            if ours and not (node in part.imports and _takes_names(node)):
                raise ValueError(f"{part.path}: {ast.unparse(node)!r} cannot be joined")
        for node in (*part.above, *part.imports, *part.types, *part.below):
            for name, meaning in _meanings(node, part.path):
                if meanings.setdefault(name, meaning) != meaning:
                    raise ValueError(f"{name} is of {meanings[name]} and of {meaning}, and both are joined")


def _takes_names(node: ast.AST) -> bool:
    """Return whether it is like `from .hashing import spec_hash`, without modules and without `as`."""
    return (
        isinstance(node, ast.ImportFrom)
        and bool(node.module)
        and not any(alias.asname for alias in node.names)
    )


def _meanings(node: ast.stmt, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement of a file defines, each with its origin: the file or a library."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name, str(path)
    elif _is_foreign(node) and not _is_prologue(node):
        source = node.module if isinstance(node, ast.ImportFrom) else ""
        yield from ((alias.asname or alias.name, f"{source} {alias.name}".strip()) for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not _is_import(node):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = (name for target in targets for name in ast.walk(target))
        yield from ((name.id, str(path)) for name in names if isinstance(name, ast.Name))


def imported_files(path: Path) -> Iterator[Path]:
    """Yield the files of the collection that a file imports."""
    for match in _IMPORT.finditer(path.read_text(encoding="utf-8")):
        dots, module = match[1], match[2]
        parts = _COMMENT.sub("", match[3]).strip("() \n").split(",")
        names = [part.split()[0] for part in parts if part.strip()]
        if dots:
            base, words = path.parents[len(dots) - 1], module.split(".")
        elif module.startswith(f"{_COLLECTION}."):
            base, words = PLUGINS, module[len(_COLLECTION) + 1 :].split(".")
        else:
            continue
        target = base.joinpath(*words)
        # from ..common import redact: the names are modules. from ..common.redact import Redactor: they are not.
        modules = [target / name for name in names] if target.is_dir() else [target]
        yield from (module.with_suffix(".py") for module in modules)
