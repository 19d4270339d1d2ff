# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-eval: the operator's directory, the catalogue's with the operator's data, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.pairing import AccuracyError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.task_files import (
    planned_tasks,
)

from tests import ROOT
from tests.worlds.catalogue import knowledge

KNOWN: dict[str, Any] = dict(knowledge().accuracy["tasks"])


def write(root: Path, *names: str, text: str = "{}\n{}\n") -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "format_", "names"),
    [
        (("gsm8k/train.jsonl", "gsm8k/test.jsonl"), "json", {"train": "train.jsonl", "test": "test.jsonl"}),
        (
            ("gsm8k/main/train-00000-of-00001.parquet", "gsm8k/main/test-00000-of-00001.parquet",
             "gsm8k/socratic/test-00000-of-00001.parquet"),
            "parquet",
            {"train": "train.parquet", "test": "test.parquet"},
        ),
    ],
)  # fmt: skip
def test_a_task_of_the_catalogue_is_lm_evals_own_with_other_data(
    tmp_path: Path, files: tuple[str, ...], format_: str, names: dict[str, str]
) -> None:
    write(tmp_path, *files)
    (task,) = planned_tasks(["gsm8k"], KNOWN, str(tmp_path))
    found = json.loads(task.yaml.partition("\n")[2])
    assert found["include"] == "../base/gsm8k/gsm8k.yaml"
    assert (found["dataset_path"], found["dataset_kwargs"]) == (format_, {"data_files": names})
    assert found["fewshot_config"] == {"sampler": "first_n"}
    assert (task.title, task.name, task.items, task.filter) == (
        "gsm8k",
        "fleet_gsm8k",
        1319,
        "flexible-extract",
    )
    assert sorted(task.files.values()) == sorted(names.values())
    assert all("socratic" not in path for path in task.files)


def test_data_that_is_not_there_says_where_it_was_looked_for_and_how_to_bring_it(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k/test.jsonl")
    with pytest.raises(AccuracyError) as error:
        planned_tasks(["gsm8k"], KNOWN, str(tmp_path))
    text = str(error.value)
    assert text.startswith("gsm8k: no data for train. Searched for train.jsonl, .json or .parquet")
    assert f"in {tmp_path}/gsm8k." in text
    assert "hf download openai/gsm8k --repo-type dataset --local-dir gsm8k" in text
    with pytest.raises(AccuracyError, match="accuracy_data_dir is not set"):
        planned_tasks(["mmlu_pro_biology"], KNOWN, "")


def test_files_of_different_formats_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k/test.jsonl", "gsm8k/train.parquet")
    with pytest.raises(AccuracyError, match="different formats"):
        planned_tasks(["gsm8k"], KNOWN, str(tmp_path))


def test_the_shipped_items_are_a_task_of_lm_eval_too() -> None:
    (task,) = planned_tasks([f"{ROOT}/catalog/accuracy"], KNOWN, "")
    assert (task.name, task.items, task.metric, task.filter) == (
        "instinct_sanity",
        300,
        "exact_match",
        "first-line",
    )
    assert {"sanity.jsonl", "instinct_sanity.yaml"} <= set(task.files.values())
    assert task.yaml == ""


def test_a_directory_of_the_operator(tmp_path: Path) -> None:
    write(tmp_path, "data/own.jsonl", text="{}\n\n{}\n{}\n")
    data = "dataset_kwargs: {data_files: {test: data/own.jsonl}}\ntest_split: test\n"
    write(tmp_path, "own.yaml", text=f"task: own\n{data}doc_to_text: !function utils.text\n")
    write(tmp_path, "counted.yaml", text="task: counted\nmetadata: {items: 7}\n")
    write(tmp_path, "included.yaml", text="doc_to_target: x\n")
    found = planned_tasks([f"{tmp_path}/"], KNOWN, "")
    assert [(task.name, task.items) for task in found] == [("counted", 7), ("own", 3)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "task: [", "a.yaml is not valid YAML"),
        ("a.yaml", "other: 1", "has no task"),
        ("a.yaml", "task: a\n", "the number of its items is not known"),
        (
            "a.yaml",
            "task: a\ndataset_kwargs: {data_files: {test: no.jsonl}}",
            "the data file no.jsonl is not in",
        ),
    ],
)
def test_what_is_wrong_with_a_directory(tmp_path: Path, name: str, text: str, words: str) -> None:
    write(tmp_path, name, text=text)
    with pytest.raises(AccuracyError, match=words):
        planned_tasks([f"{tmp_path}/"], KNOWN, "")


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AccuracyError, match="there is no directory"):
        planned_tasks([f"{tmp_path}/none"], KNOWN, "")


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, "t.yaml", text="task: same\nmetadata: {items: 1}\n")
    with pytest.raises(AccuracyError, match="same is named more than once"):
        planned_tasks([f"{tmp_path}/a", f"{tmp_path}/b"], KNOWN, "")
