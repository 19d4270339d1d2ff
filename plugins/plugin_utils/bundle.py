# SPDX-License-Identifier: Apache-2.0
"""Programs that run in containers and at boot, as files: what is sent to a node, and the hash that names a version.

A program is a module below module_utils with all that it imports there, by relative imports only, so that the same
files are a package of their own wherever they are put. It is read as text here, and imported by nobody.
"""

from __future__ import annotations

import ast
import base64
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..module_utils.common.hashing import spec_hash

ROOT = Path(__file__).resolve().parents[1] / "module_utils"
_START = """\
# SPDX-License-Identifier: Apache-2.0
import sys

from {package}.{entry} import main

sys.exit(main())
"""
# Programs of several files: where they begin, the package that holds them, and the file that starts them.
PACKAGES = {
    "supervisor": ("programs.supervisor.main", "instinct_supervise", "supervise.py"),
    "partition_boot": ("partition.boot", "instinct", "__main__.py"),
}


@dataclass(frozen=True)
class Bundle:
    """A program's files: their texts by path."""

    files: dict[str, str]

    @property
    def version(self) -> str:
        """Names its content."""
        return spec_hash(self.files)[:12]


@cache
def bundle(name: str) -> Bundle:
    """A program of several files. KeyError for an unknown one."""
    entry, package, start = PACKAGES[name]
    files = {start: _START.format(package=package, entry=entry)}
    for path in closure(_file(entry)):
        place = path.relative_to(ROOT)
        files[f"{package}/{place}"] = path.read_text(encoding="utf-8")
        for parent in place.parents:
            files[f"{package}/{parent / '__init__.py'}"] = ""
    return Bundle(dict(sorted(files.items())))


@cache
def archive(name: str) -> str:
    """A program of several files as the archive that Python runs, in base64; the same for the same sources."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as opened:
        for path, text in bundle(name).files.items():
            opened.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return base64.b64encode(stream.getvalue()).decode()


@cache
def script(name: str) -> str:
    """A program that is sent as one text, by its name below programs/: what it imports of ours stands before it."""
    paths = closure(ROOT / "programs" / f"{name}.py")
    if len(paths) == 1:
        return paths[0].read_text(encoding="utf-8")
    imports: dict[str, None] = {}
    bodies, owners = [], dict[str, Path]()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines, nodes = text.splitlines(), ast.parse(text).body
        for node in nodes[1:] if path != paths[-1] else nodes:
            for defined in _defined(node):
                if owners.setdefault(defined, path) != path:
                    raise ValueError(f"{defined} is in {owners[defined]} and in {path}, which {name} joins")
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if not (isinstance(node, ast.ImportFrom) and (node.level or node.module == "__future__")):
                    imports[ast.unparse(node)] = None
                lines[node.lineno - 1 : node.end_lineno] = [""] * (1 + (node.end_lineno or 0) - node.lineno)
        start = nodes[0].end_lineno or 0  # after the docstring, which only the program keeps
        bodies.append("\n".join(lines[start:]).strip())
    head = "\n".join(paths[-1].read_text(encoding="utf-8").splitlines()[:start])
    future = "from __future__ import annotations\n"
    return "\n\n".join([head, future, "\n".join(sorted(imports)) + "\n", *bodies]) + "\n"


def closure(entry: Path) -> list[Path]:
    """A file of module_utils and all files that it imports, and these import; each after those that it imports."""
    found: list[Path] = []

    def add(path: Path) -> None:
        for other in _imported(path):
            if other not in found:
                add(other)
        if path not in found:
            found.append(path)

    add(entry)
    return found


def _imported(path: Path) -> list[Path]:
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            # from ..common import redact: the names are modules. from ..common.redact import Redactor: they are not.
            modules = [base / alias.name for alias in node.names] if base.is_dir() else [base]
            found += [module.with_suffix(".py") for module in modules]
    return found


def _defined(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [
        *([node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []),
        *(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)),
    ]


def _file(entry: str) -> Path:
    return ROOT.joinpath(*entry.split(".")).with_suffix(".py")
