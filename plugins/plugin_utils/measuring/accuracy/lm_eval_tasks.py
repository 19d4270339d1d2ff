# SPDX-License-Identifier: Apache-2.0
"""Read the lm-eval tasks that a run asks for, and what is missing for them. Pure; an action plugin reads the files.

A task of the catalogue is lm-eval's own definition with the operator's data files; a task of a directory is what the
operator wrote. Either way a directory is copied to the nodes, where lm-eval runs in it without a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from .pairing import AccuracyError

FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
"""The data files that lm-eval reads without a network, by their ending."""
PREFIX = "fleet_"  # lm-eval's own tasks have their names already


@dataclass(frozen=True)
class PlannedTask:
    """A task to run on the nodes.

    title: the name in reports; name: lm-eval's. items: how many it has. yaml: the text of its file, "" if the directory
    has it. files: what is copied, from the path on the control node to the name on the node.
    """

    title: str
    name: str
    items: int
    metric: str
    filter: str
    yaml: str
    files: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return what role and module take."""
        return {
            "title": self.title,
            "name": self.name,
            "items": self.items,
            "metric": self.metric,
            "filter": self.filter,
            "yaml": self.yaml,
            "files": [{"src": source, "dest": name} for source, name in self.files.items()],
        }


def data_patterns(known: Mapping[str, Any], split: str) -> tuple[str, ...]:
    """Return the patterns below the data directory by which a split's file is looked for, in this order."""
    data = known["data"]
    return tuple(
        f"{directory}/{split}{rest}{ending}"
        for directory in (data["directory"], *(f"{data['directory']}/{name}" for name in data["below"]))
        for rest in ("", "-*")
        for ending in FORMATS
    )


def catalogue_task(
    title: str, known: Mapping[str, Any], data_dir: str, found: Mapping[str, str]
) -> PlannedTask:
    """Return a task of the catalogue; `found`: the file of each split that is there.

    Raise AccuracyError that says where missing files were searched for, and how to get them.
    """
    data = known["data"]
    missing = [split for split in data["splits"] if split not in found]
    if missing:
        where = f"{data_dir}/{data['directory']}" if data_dir else "nowhere, as accuracy_data_dir is not set"
        raise AccuracyError(
            f"{title}: no data for {' and '.join(missing)}. Searched for {missing[0]}.jsonl, .json or .parquet (also "
            f"with a suffix such as -00000-of-00001) in {where}. On a machine with a network run `hf download "
            f"{data['repository']} --repo-type dataset --local-dir {data['directory']}`, copy the directory here, and "
            "name the directory that contains it with -e accuracy_data_dir=…"
        )
    endings = {split: PurePath(found[split]).suffix for split in data["splits"]}
    kinds = {FORMATS[ending] for ending in endings.values()}
    if len(kinds) > 1:
        raise AccuracyError(
            f"{title}: its data files are of different formats: {', '.join(sorted(found.values()))}."
        )
    names = {split: f"{split}{ending}" for split, ending in endings.items()}
    text = {
        "include": f"../base/{known['base']}",
        "task": f"{PREFIX}{title}",
        "dataset_path": kinds.pop(),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": names},
        # The same examples for every item, whichever replica answers it.
        **({"fewshot_config": {"sampler": "first_n"}} if known["first_examples"] else {}),
    }
    return PlannedTask(
        title,
        f"{PREFIX}{title}",
        known["items"],
        known["metric"],
        known["filter"],
        "# Written by instinct-fleet.\n" + json.dumps(text) + "\n",
        {found[split]: names[split] for split in data["splits"]},
    )


def directory_tasks(
    directory: str, files: Sequence[str], texts: Mapping[str, str], lines: Mapping[str, int]
) -> tuple[PlannedTask, ...]:
    """Return the tasks of an operator's directory.

    files: all paths in it, relative; texts: of its YAML files; lines: of its JSONL files. Raise AccuracyError.
    """
    found = []
    for path, text in sorted(texts.items()):
        try:
            data = yaml.load(text, Loader=_TaskLoader)
        except yaml.YAMLError as error:
            raise AccuracyError(
                f"{directory}/{path} is not valid YAML: {' '.join(str(error).split())}"
            ) from None
        if not isinstance(data, Mapping) or not isinstance(data.get("task"), str):
            continue  # what others include
        found.append(_directory_task(directory, path, data, files, lines))
    if not found:
        raise AccuracyError(
            f"accuracy_tasks: {directory} has no task. Put a YAML file of lm-eval with a key `task` into it, and its "
            "data as JSONL next to it (docs/runbooks/accuracy.md)."
        )
    return tuple(found)


def _directory_task(
    directory: str, path: str, data: Mapping[str, Any], files: Sequence[str], lines: Mapping[str, int]
) -> PlannedTask:
    given = (data.get("dataset_kwargs") or {}).get("data_files") or {}
    named = (
        {split: name for split, name in given.items() if isinstance(name, str)}
        if isinstance(given, Mapping)
        else {}
    )
    missing = sorted(name for name in named.values() if name not in files)
    if missing:
        raise AccuracyError(
            f"{directory}/{path}: the data file {missing[0]} is not in {directory}. Copy it there; paths in data_files "
            "are relative to the directory, and nothing is downloaded."
        )
    items = (data.get("metadata") or {}).get("items") or lines.get(named.get(str(data.get("test_split")), ""))
    if not isinstance(items, int):
        raise AccuracyError(
            f"{directory}/{path}: the number of its items is not known. Name its test_split in "
            "dataset_kwargs.data_files as a JSONL file, or write `metadata: {items: …}`."
        )
    metrics = data.get("metric_list") or [{}]
    filters = data.get("filter_list") or [{}]
    copied = {f"{directory}/{name}": name for name in files}
    return PlannedTask(
        data["task"],
        data["task"],
        items,
        str(metrics[0].get("metric") or ""),
        str(filters[0].get("name") or ""),
        "",
        copied,
    )


class _TaskLoader(yaml.SafeLoader):
    """Reads task files; their tag !function names code, which is not run here."""


_TaskLoader.add_multi_constructor("!", lambda _loader, suffix, _node: f"!{suffix}")
