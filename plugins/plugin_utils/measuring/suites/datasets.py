# SPDX-License-Identifier: Apache-2.0
"""Find the files of data sets. They are on the control node; the clients of nodes get copies of them.

What a plan finds wrong is reported before an instance is drained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.common.paths import DATA_DIR
from ....module_utils.service.generations import BENCHMARK, UPGRADE
from ...base.file_hash import file_hash
from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.flag_values import Value
from .dataset_format import FORMATS, wrong_format
from .overrides import parse_overrides
from .parse import read_suite

NODE_DIRECTORY, CLIENT_DIRECTORY = f"{DATA_DIR}/dataset", "/dataset"
SUITE, SUITE_ARGS = "benchmark_suite", "benchmark_suite_args"
OF_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    BENCHMARK: (SUITE, SUITE_ARGS, "benchmark_serve_args", "benchmark_throughput_args"),
    UPGRADE: ("canary_args",),
}
"""Variables that say which data sets an operation reads."""
DATASET_PATHS = ("dataset_path", "dataset-path", "--dataset-path")


@dataclass(frozen=True)
class DatasetFile:
    """A file of the control node. Nodes have it in a directory that is named after its content."""

    path: Path

    @cached_property
    def version(self) -> str:
        """Return the start of its SHA-256 in hexadecimal. Raise OSError if it cannot be read."""
        return file_hash(self.path)[:12]

    @property
    def directory(self) -> str:
        """Return the directory of its copy on a node."""
        return f"{NODE_DIRECTORY}/{self.version}"

    @property
    def in_client(self) -> str:
        """Return where the client sees it."""
        return f"{CLIENT_DIRECTORY}/{self.version}/{self.path.name}"

    @property
    def bind(self) -> str:
        """Return the mount of the client's container."""
        return f"{self.directory}:{CLIENT_DIRECTORY}/{self.version}:ro"


def dataset_path(arguments: Mapping[str, Value]) -> str:
    """Return the path among a client's arguments; "" if there is none."""
    return str(next((arguments[name] for name in DATASET_PATHS if arguments.get(name)), ""))


def with_dataset(arguments: Mapping[str, Value], where: str) -> tuple[dict[str, Value], DatasetFile | None]:
    """Return a client's arguments with the path in its container, and the file; None if they name none.

    `where` names the arguments. Raise FleetError for a file that is not there.
    """
    path = dataset_path(arguments)
    if not path:
        return dict(arguments), None
    file = _found(path, (where, "dataset_path"), "")
    others = {name: value for name, value in arguments.items() if name not in DATASET_PATHS}
    return {**others, "dataset_path": file.in_client}, file


def wrong_datasets(
    knowledge: Knowledge, operation: str, variables: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield what is wrong with the data sets that an operation reads, and with the overrides of its suite.

    variables: the evaluated ones of OF_OPERATIONS, by host. wrong_suites reports a wrong suite.
    """
    alike: dict[str, list[str]] = {}
    for host, given in variables.items():
        alike.setdefault(json.dumps(given, sort_keys=True, default=str), []).append(host)
    for hosts in alike.values():
        try:
            for variable, dataset, path in _wanted(knowledge, operation, variables[hosts[0]]):
                _check(knowledge, variable, dataset, path)
        except FleetError as error:
            for problem in error.problems:
                yield Problem(problem.path, problem.what, problem.fix, tuple(hosts))


def missing_file_problem(knowledge: Knowledge, dataset: str) -> tuple[str, str]:
    """Return that a data set's file was not named, and how to provide it."""
    source = knowledge.bench_book["datasets"].get(dataset, {}).get("file", "")
    return f"the data set {dataset} is a file, but none is given.", _fix(source)


def _wanted(knowledge: Knowledge, operation: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (variable, data set, path) of a host; path "" if a file is needed but none is named.

    Raise FleetError for what a suite does not leave open.
    """
    known = knowledge.bench_book["datasets"]
    if operation == BENCHMARK and given.get(SUITE):
        arguments = given.get(SUITE_ARGS) or {}
        if not isinstance(arguments, Mapping):
            fix = """Write -e '{"benchmark_suite_args": {"dataset_path": "chats.json"}}'."""
            raise FleetError([Problem((SUITE_ARGS,), "must be a map.", fix)])
        try:
            suite = read_suite(knowledge, str(given[SUITE]))
        except FleetError:
            return
        parse_overrides(knowledge, suite, arguments)
        path = dataset_path(arguments)
        names = {group.dataset for group in suite.groups if known.get(group.dataset, {}).get("file")}
        for name in sorted(names) or ([""] if path else ()):
            yield SUITE_ARGS, name, path
        return
    for variable in OF_OPERATIONS[operation]:
        arguments = given.get(variable)
        if isinstance(arguments, Mapping):
            name, path = _dataset_name(arguments), dataset_path(arguments)
            if path or known.get(name, {}).get("file"):
                yield variable, name, path


def _dataset_name(arguments: Mapping[str, Any]) -> str:
    names = (arguments.get(name) for name in ("dataset_name", "dataset-name", "--dataset-name"))
    return str(next(filter(None, names), ""))


def _check(knowledge: Knowledge, variable: str, dataset: str, path: str) -> None:
    """Raise FleetError if a file does not exist, or does not have the form of its data set."""
    where = (variable, "dataset_path")
    if not path:
        raise FleetError([Problem(where, *missing_file_problem(knowledge, dataset))])
    source = knowledge.bench_book["datasets"].get(dataset, {}).get("file", "")
    file = _found(path, where, source)
    if dataset not in FORMATS:
        return
    try:
        wrong = wrong_format(dataset, file.path.name, file.path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        wrong = f"not UTF-8 at byte {error.start}"
    if wrong:
        what = f"{file.path} does not have the form of the data set {dataset}: {wrong}."
        raise FleetError([Problem(where, what, "docs/suites.md#data-sets shows the form.")])


def _found(path: str, where: tuple[str, ...], source: str) -> DatasetFile:
    """Return a file of the control node. Raise FleetError if it cannot be read."""
    file = DatasetFile(Path(path).expanduser().absolute())
    try:
        file.path.open("rb").close()
    except OSError as error:
        what = f"{file.path} cannot be read on the control node: {error.strerror}."
        raise FleetError([Problem(where, what, _fix(source))]) from None
    return file


def _fix(source: str) -> str:
    """Return how to provide a data set whose file is at `source`."""
    get = f"Download it to this machine ({source}), and give" if source else "Give"
    return f"{get} its path here as dataset_path; the run copies it to the nodes."
