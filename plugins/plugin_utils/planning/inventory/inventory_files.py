# SPDX-License-Identifier: Apache-2.0
"""Check the inventory's files before Ansible loads them: it reports errors in them without a line, or continues."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from ....module_utils.common.errors import Problem, suggest

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SUFFIXES = ("", ".yml", ".yaml", ".json")
"""Files of group_vars and host_vars that Ansible loads."""
VAULT = b"$ANSIBLE_VAULT"
SYSTEM = "/etc/ansible/hosts"
"""Ansible's inventory where none is given."""
ADVICE = 'Write -i and your inventory\'s directory: -i inventory/mine (README.md, "A real fleet").'


def source_problems(sources: Iterable[str], refused: Iterable[str]) -> list[Problem]:
    """Return the inventory sources that are missing or unreadable.

    refused: paths that no inventory plugin could parse.
    """
    problems = []
    for source in sources:
        path = Path(source)
        if "," in source or path.exists():
            continue
        if source == SYSTEM:
            problems.append(Problem((), "no inventory was given.", ADVICE))
        else:
            beside = [item.name for item in _entries(path.parent)]
            near = suggest(path.name, beside) if beside else ADVICE
            problems.append(Problem((), f"-i {path_text(path)}: does not exist.", near))
    for source in refused:
        if os.path.isfile(source):
            fix = "Ansible's warnings above say why; hosts of this file are missing from the run."
            problems.append(Problem((), f"{path_text(Path(source))}: cannot be read as an inventory.", fix))
    return problems


def yaml_problems(sources: Sequence[str], playbook_dir: str) -> list[Problem]:
    """Return the YAML errors of the inventory's files, and of the variables next to them and next to the playbook."""
    paths = {path: None for source in sources for path in _yaml_files(Path(source))}
    paths |= {path: None for place in _places(sources, playbook_dir) for path in _variable_files(place)}
    return [problem for path in paths for problem in _yaml_error(path)]


def variable_files(sources: Sequence[str], playbook_dir: str, kind: str) -> dict[str, str]:
    """Return the files and directories of group_vars or host_vars, by the name of the group or host."""
    found = {}
    for directory in _places(sources, playbook_dir):
        for path in _entries(directory / kind):
            if path.suffix in SUFFIXES[1:] or path.is_dir() or not path.suffix:
                found[path.name.removesuffix(path.suffix) if path.is_file() else path.name] = path_text(path)
    return found


def path_text(path: Path) -> str:
    """Return a path as an operator would write it in the current directory."""
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near


def _yaml_files(source: Path) -> Iterator[Path]:
    inside = [source] if source.is_file() else _entries(source)
    yield from (path for path in inside if path.is_file() and path.suffix in (".yml", ".yaml"))


def _places(sources: Sequence[str], playbook_dir: str) -> dict[Path, None]:
    """Return the directories in which Ansible looks for group_vars and host_vars."""
    return dict.fromkeys([*(directory_of(Path(source)) for source in sources), Path(playbook_dir)])


def _variable_files(place: Path) -> Iterator[Path]:
    for kind in ("group_vars", "host_vars"):
        for top, directories, names in os.walk(place / kind):
            directories[:] = [name for name in directories if not name.startswith(".")]
            for name in sorted(names):
                hidden = name.startswith((".", "~")) or name.endswith("~")
                if not hidden and os.path.splitext(name)[1] in SUFFIXES:
                    yield Path(top, name)


def _yaml_error(path: Path) -> Iterator[Problem]:
    try:
        data = path.read_bytes()
        if not data.startswith(VAULT):
            for document in yaml.compose_all(data, Loader=LOADER):
                yield from _duplicates(path, document)
    except OSError as error:
        yield Problem((), f"{path_text(path)}: cannot be read: {error.strerror}.")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path_text(path)}:{mark.line + 1}:{mark.column + 1}" if mark else path_text(path)
        reason = str(getattr(error, "problem", "") or error)
        fix = "Look at the indentation, colons and quotes of this line and of the one above."
        if r"'\t'" in reason or _begins_with_tab(data, mark):
            fix = "Indent with spaces instead of a tab."
        yield Problem((), f"{place}: is not valid YAML: {reason}.", fix)


def _duplicates(path: Path, node: yaml.Node | None) -> Iterator[Problem]:
    """Yield the keys that a map has twice: only the last one would count."""
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and first.setdefault(key.value, line) != line:
                what = f"{path_text(path)}:{line}: {key.value} is also set in line {first[key.value]}."
                yield Problem((), what, "Keep one of them; only the last one would count.")
            yield from _duplicates(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _duplicates(path, item)


def _begins_with_tab(data: bytes, mark: yaml.Mark | None) -> bool:
    lines = data.splitlines()
    return mark is not None and mark.line < len(lines) and b"\t" in lines[mark.line][: mark.column + 1]


def directory_of(source: Path) -> Path:
    """Return the directory whose group_vars and host_vars belong to an inventory source."""
    return source if source.is_dir() else source.parent


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
