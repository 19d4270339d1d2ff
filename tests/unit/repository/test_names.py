# SPDX-License-Identifier: Apache-2.0
"""Names of the product: a class name exists once, and identifiers are words of the field.

`python -m tests.unit.repository.test_names` lists classes of one name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import ROOT

# Ansible looks for these by their name.
ANSIBLE = {"ActionModule", "CallbackModule", "ModuleDocFragment"}
# Joined from files that are read themselves.
GENERATED = {"plugins/modules/node_state.py"}

PRIVATE = {
    "told",
    "told_once",
    "Workshop",
    "workshop",
    "Desk",
    "desk",
    "Ledger",
    "ledger",
    "Wishes",
    "wishes",
    "wished",
    "Wish",
    "wish",
    "Terms",
    "Turn",
    "turns_of",
    "Made",
    "Known",
    "Kit",
    "kit",
    "Offer",
    "offers",
    "Offered",
    "comeback",
    "misspelt",
    "drawer",
    "mask_argv",
    "mask_command",
    "mask_variables",
    "mask_data",
    "recognise",
    "learned",
    "waits",
    "left_out",
    "loses",
    "open_ones",
}
"""Words that this project once used for what the field has other names for."""


def sources(root: Path = ROOT) -> Iterator[tuple[str, ast.Module]]:
    """Every file of the product, parsed."""
    for path in sorted((root / "plugins").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name not in GENERATED:
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def doubles(files: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Names that more than one class has, with the files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in ANSIBLE:
                found[node.name].append(path)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What a file names: classes, functions, parameters, variables and attributes, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield node.lineno, name


@pytest.fixture(scope="module")
def product() -> dict[str, ast.Module]:
    return dict(sources())


def test_a_class_name_exists_once(product: dict[str, ast.Module]) -> None:
    assert not doubles(product)


def test_a_double_is_found() -> None:
    one, other = ast.parse("class Plan: ..."), ast.parse("def f():\n    class Plan: ...")
    assert doubles({"a.py": one, "b.py": other}) == {"Plan": ["a.py", "b.py"]}
    assert doubles({"a.py": one}) == {}


def test_identifiers_are_words_of_the_field(product: dict[str, ast.Module]) -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, tree in product.items()
        for line, name in identifiers(tree)
        if name.lstrip("_") in PRIVATE
    ]
    assert not found, "\n".join(found)


def test_a_private_word_is_found() -> None:
    tree = ast.parse("def f(wishes):\n    told = wishes.kit")
    assert {name for _, name in identifiers(tree)} & PRIVATE == {"wishes", "told", "kit"}


if __name__ == "__main__":
    for name, paths in doubles(dict(sources())).items():
        print(name, *paths)
