# SPDX-License-Identifier: Apache-2.0
"""Find the files of lm-eval's tasks on the control node. Reads files; lm_eval_tasks.py decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .lm_eval_tasks import PlannedTask, catalogue_task, data_patterns, directory_tasks
from .pairing import AccuracyError


def planned_tasks(names: Iterable[str], known: Mapping[str, Any], data_dir: str) -> tuple[PlannedTask, ...]:
    """Return the tasks with these names from the catalogue, and those of these directories (with a slash).

    Raise AccuracyError for what is missing, and OSError for what cannot be read.
    """
    found: list[PlannedTask] = []
    root = Path(data_dir).expanduser().absolute() if data_dir else None
    for name in names:
        if "/" in name:
            found += _of_directory(Path(name).expanduser().absolute())
        else:
            files = _data_files(root, known[name]) if root else {}
            found.append(catalogue_task(name, known[name], str(root or ""), files))
    titles = [task.title for task in found]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise AccuracyError(
            f"accuracy_tasks: {', '.join(twice)} is named more than once. Give each task its own name."
        )
    return tuple(found)


def _data_files(root: Path, known: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for split in known["data"]["splits"]:
        paths = (path for pattern in data_patterns(known, split) for path in sorted(root.glob(pattern)))
        first = next(paths, None)
        if first is not None:
            found[split] = str(first)
    return found


def _of_directory(directory: Path) -> tuple[PlannedTask, ...]:
    if not directory.is_dir():
        raise AccuracyError(f"accuracy_tasks: there is no directory {directory}.")
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    names = {path.relative_to(directory).as_posix(): path for path in paths}
    texts = {
        name: path.read_text(encoding="utf-8")
        for name, path in names.items()
        if path.suffix in (".yaml", ".yml")
    }
    lines = {
        name: sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())
        for name, path in names.items()
        if path.suffix == ".jsonl"
    }
    return directory_tasks(str(directory), list(names), texts, lines)
