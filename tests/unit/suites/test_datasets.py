# SPDX-License-Identifier: Apache-2.0
"""Files of data sets: where they are looked for, in which form, and where clients see them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import BENCHMARK, UPGRADE
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.dataset_format import (
    wrong_format,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.datasets import (
    with_dataset,
    wrong_datasets,
)

from tests.worlds.catalogue import knowledge

TURN = {"from": "human", "value": "Hello"}
TALK = {"id": "a", "conversations": [TURN, {"from": "gpt", "value": "Hi"}]}


def wrong(operation: str = BENCHMARK, **variables: Any) -> list[str]:
    """What a plan says about one host."""
    return [problem.text() for problem in wrong_datasets(knowledge(), operation, {"n1": variables})]


@pytest.mark.parametrize(
    ("dataset", "name", "text", "said"),
    [
        ("sharegpt", "a.json", json.dumps([TALK, {"conversations": []}, {"id": "b"}]), ""),
        ("sharegpt", "a.json", '[{"conversations": [', "not JSON: Expecting value: line 1 column 21 (char 20)"),
        ("sharegpt", "a.json", json.dumps({"data": [TALK]}), "not a list of conversations"),
        ("sharegpt", "a.json", json.dumps([TALK, "b"]), 'entry 2 is not a map with "conversations", a list of turns'),
        ("sharegpt", "a.json", json.dumps([TALK, {"conversations": "b"}]), 'entry 2 is not a map with "conversations"'),
        (
            "sharegpt",
            "a.json",
            json.dumps([TALK, {"conversations": [TURN, {"from": "gpt", "text": "Hi"}]}]),
            'entry 2, turn 2: it has no text "value"',
        ),
        ("sharegpt", "a.json", json.dumps([{"conversations": [TURN]}]), "none of its 1 entries has a conversation of"),
        ("sharegpt", "a.json", "[]", "none of its 0 entries"),
        ("custom", "a.jsonl", '{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "\u2028"}\n', ""),
        ("custom", "a.json", '{"prompt": "a"}\n', "its name must end in .jsonl"),
        ("custom", "a.jsonl", '{"prompt": "a"}\n{"promt": "b"}\n', 'line 2 is not a map with "prompt", a text'),
        ("custom", "a.jsonl", '{"prompt": "a"}\n{"prompt\n', "line 2 is not a map"),
        ("custom", "a.jsonl", "\n", "line 1 is not a map"),
        ("spec_bench", "question.jsonl", '{"turns": ["a", "b"]}\n', ""),
        ("spec_bench", "question.jsonl", '{"turns": []}\n', 'line 1 is not a map with "turns", a list of texts'),
    ],
)  # fmt: skip
def test_the_form_of_a_file(dataset: str, name: str, text: str, said: str) -> None:
    found = wrong_format(dataset, name, text)
    assert found.startswith(said) if said else found == ""


def test_a_suite_without_its_file_is_an_error_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (said,) = wrong(benchmark_suite="sharegpt")
    assert said.startswith(
        "benchmark_suite_args.dataset_path (host n1): the data set sharegpt is a file, but none"
    )
    assert "https://huggingface.co/datasets/" in said
    (said,) = wrong(benchmark_suite="speculation", benchmark_suite_args={"dataset_path": "a.json"})
    assert f"{tmp_path}/a.json cannot be read on the control node: No such file or directory." in said
    assert "give its path here as dataset_path; the run copies it to the nodes." in said
    (tmp_path / "a.json").write_text(json.dumps([TALK]))
    assert wrong(benchmark_suite="sharegpt", benchmark_suite_args={"dataset_path": "a.json"}) == []
    (tmp_path / "a.json").write_bytes(b"[\xff]")
    (said,) = wrong(benchmark_suite="sharegpt", benchmark_suite_args={"dataset_path": "a.json"})
    assert f"{tmp_path}/a.json does not have the form of the data set sharegpt: not UTF-8 at byte 1." in said


@pytest.mark.parametrize(
    ("operation", "variables", "said"),
    [
        (BENCHMARK, {"benchmark_suite": "serving"}, ()),
        (
            BENCHMARK,
            {"benchmark_suite": "quick", "benchmark_suite_args": {"dataset_path": "/no/a"}},
            ("/no/a cannot",),
        ),
        (BENCHMARK, {"benchmark_serve_args": {"dataset_name": "burstgpt", "dataset_path": "/bin/true"}}, ()),
        (BENCHMARK, {"benchmark_suite": "nope"}, ()),  # wrong_suites says so
        (
            BENCHMARK,
            {"benchmark_suite": "quick", "benchmark_suite_args": {"blcoks": 1}},
            ("Did you mean blocks?",),
        ),
        (
            BENCHMARK,
            {"benchmark_suite": "quick", "benchmark_suite_args": "blocks=1"},
            ("must be a map. Write -e",),
        ),
        (BENCHMARK, {"benchmark_serve_args": {"dataset_name": "custom"}}, ("the data set custom is a file",)),
        (BENCHMARK, {"benchmark_serve_args": {"dataset_name": "custom"}, "benchmark_suite": "quick"}, ()),
        (BENCHMARK, {"benchmark_throughput_args": {"dataset-path": "/no/a"}}, ("/no/a cannot be read",)),
        (BENCHMARK, {"canary_args": {"dataset_path": "/no/a"}}, ()),
        (UPGRADE, {"canary_args": {"dataset_path": "/no/a"}}, ("/no/a cannot be read",)),
    ],
)
def test_what_an_operation_reads(operation: str, variables: dict[str, Any], said: tuple[str, ...]) -> None:
    found = wrong(operation, **variables)
    assert len(found) == len(said), found
    for text, part in zip(found, said, strict=True):
        assert part in text


def test_a_file_is_checked_once_for_all_hosts(tmp_path: Path) -> None:
    given = {"benchmark_suite": "sharegpt", "benchmark_suite_args": {"dataset_path": str(tmp_path / "a")}}
    (problem,) = wrong_datasets(knowledge(), BENCHMARK, {f"n{number}": given for number in range(3)})
    assert problem.hosts == ("n0", "n1", "n2")


def test_where_a_client_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "my chats.json"
    path.write_text("[]")
    version = hashlib.sha256(b"[]").hexdigest()[:12]
    arguments, file = with_dataset({"dataset-path": str(path), "seed": 1}, "args")
    assert arguments == {"dataset_path": f"/dataset/{version}/my chats.json", "seed": 1}
    assert file is not None
    assert file.bind == f"/var/lib/instinct-fleet/dataset/{version}:/dataset/{version}:ro"
    assert with_dataset({"seed": 1}, "args") == ({"seed": 1}, None)
    with pytest.raises(FleetError, match=r"args\.dataset_path: /no/a cannot be read on the control node"):
        with_dataset({"dataset_path": "/no/a"}, "args")
