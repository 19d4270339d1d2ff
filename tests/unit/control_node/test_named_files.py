# SPDX-License-Identifier: Apache-2.0
"""Files of the control node that an inventory names: each variable finds its own, and nothing else travels."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.control_node.found_files import (
    find_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.control_node.named_files import (
    FILES,
    SECRET_FILES,
    Places,
    inventory_lines,
)

from tests import ROOT

Json = dict[str, Any]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Directories in which each path of the tables below is a file with its own name as content."""
    found = Places(tmp_path / "start", tmp_path / "inventory", tmp_path / "root")
    for path in (
        "start/chats.json", "start/data/gsm8k/test.jsonl", "start/data/.hidden", "start/tasks/own/own.yaml",
        "start/mine.yml", "start/debs/one.deb", "start/other/data/x", "inventory/made/config.json",
        "root/roles/quantize/files/calibration.txt", "root/playbooks/wheels/a.whl",
        "root/roles/load_balancer/files/mine.txt", "start/packages/b.whl",
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path, encoding="utf-8")
    return found


@pytest.mark.parametrize(
    ("variable", "value", "paths"),
    [
        ("accuracy_data_dir", "data", ["data/.hidden", "data/gsm8k/test.jsonl"]),
        ("accuracy_lm_eval_packages", "{start}/packages", ["packages/b.whl"]),
        ("accuracy_tasks", ["sanity", "tasks/own"], ["own/own.yaml"]),
        ("accuracy_tasks", "nll, tasks/own", ["own/own.yaml"]),
        ("accuracy_tasks", ["sanity", "nll"], []),
        ("benchmark_serve_args", {"dataset_name": "random"}, []),
        ("benchmark_serve_args", {"dataset_path": "chats.json"}, ["chats.json"]),
        ("benchmark_suite", "chat", []),
        ("benchmark_suite", "mine.yml", ["mine.yml"]),
        ("benchmark_suite_args", {"--dataset-path": "{start}/chats.json"}, ["chats.json"]),
        ("benchmark_throughput_args", {"dataset-path": "chats.json"}, ["chats.json"]),
        ("bundle_files", ["debs", "chats.json"], ["chats.json", "debs/one.deb"]),
        ("bundle_files", ["data", "other/data"],
         ["other-data/x", "start-data/.hidden", "start-data/gsm8k/test.jsonl"]),
        ("canary_args", {"dataset_path": "chats.json"}, ["chats.json"]),
        ("load_balancer_router_requirements", "mine.txt", ["mine.txt"]),
        ("load_balancer_router_wheels", "wheels", ["wheels/a.whl"]),
        ("quantize_calibration_file", "calibration.txt", ["calibration.txt"]),
        ("quantize_packages", "wheels/", ["wheels/a.whl"]),
        ("quantize_packages", "", []),
        ("vllm_deployments", [{"name": "a"}, {"model_config": "made"}], ["made/config.json"]),
        ("benchmark_serve_args", "no map", []),
        ("vllm_deployments", "no list", []),
    ],
)  # fmt: skip
def test_each_variable_finds_its_files(places: Places, variable: str, value: Any, paths: list[str]) -> None:
    given = _filled(value, places)
    found = find_files({"n1": {variable: given}, "n2": {variable: given}}, places)
    assert [item.path for item in found] == [f"{variable}/{path}" for path in paths]
    assert all(Path(item.source).is_file() for item in found)


def _filled(value: Any, places: Places) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, places) for key, item in value.items()}
    return value.replace("{start}", str(places.start)) if isinstance(value, str) else value


def test_every_variable_of_the_table_is_one_of_the_collection() -> None:
    text = (ROOT / "docs/variables.md").read_text(encoding="utf-8")
    assert [name for name in FILES if f"| `{name}` |" not in text and name != "vllm_deployments"] == []


def test_every_documented_file_of_the_control_node_travels_or_is_known_not_to() -> None:
    text = (ROOT / "docs/variables.md").read_text(encoding="utf-8")
    named = {
        name
        for name, rest in re.findall(r"^\| `(\w+)` \|(.*)$", text, re.MULTILINE)
        if re.search(r"(file|director\w+|same)\b[^.;]* (of|on) the control node", rest, re.IGNORECASE)
    }
    results = {name for name in named if name.endswith("results_dir")}
    not_carried = {*SECRET_FILES, "quantize_public_key_file", "bundle_files_dir"}
    assert len(named) > 10
    assert named - results - not_carried - FILES.keys() == set()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"canary_args": {"dataset_path": "none.json"}}, "canary_args.dataset_path .*start/none.json is not on"),
        ({"vllm_deployments": [{"model_config": "none"}]}, "model_config .*inventory/none is not on the control"),
        ({"quantize_packages": "none"}, "roles/quantize/files/none and .*playbooks/none is not on the control"),
        ({"bundle_files": ["empty"]}, "start/empty is an empty directory"),
        ({"bundle_files": ["linked"]}, "linked/away is a link to a directory"),
        ({"bundle_files": ["piped"]}, "piped/pipe is not a file"),
        ({"bundle_files": ["dangling"]}, "dangling/gone cannot be read"),
        ({"bundle_files": ["vaulted"]}, "vaulted/all.yml has a private key or vaulted text"),
        ({"bundle_files": ["key"]}, "key/models.pem has a private key or vaulted text"),
        ({"bundle_files": ["kept"]}, "kept/.secrets/token is a secret"),
        ({"bundle_files": ["token"], "hf_model_token_file": "token/hf"}, "token/hf is a secret"),
        ({"bundle_files": ["/"]}, "bundle_files.0. .*: is /"),
        ({"bundle_files": ["a/x/data", "b/x/data"]}, "would have the same name"),
    ],
)  # fmt: skip
def test_what_cannot_travel_is_said_with_variable_and_host(
    places: Places, variables: Json, said: str
) -> None:
    start = places.start
    for path, text in {
        "vaulted/all.yml": "$ANSIBLE_VAULT;1.1;AES256\n61",
        "key/models.pem": "Bag\n-----BEGIN EC PRIVATE KEY-----\n",
        "kept/.secrets/token": "x",
        "token/hf": "hf_secret",
        "a/x/data/1": "",
        "b/x/data/1": "",
    }.items():
        (start / path).parent.mkdir(parents=True, exist_ok=True)
        (start / path).write_text(text, encoding="utf-8")
    for name in ("empty", "linked", "piped", "dangling"):
        (start / name).mkdir()
    (start / "linked/away").symlink_to(start / "data")
    (start / "dangling/gone").symlink_to(start / "nowhere")
    os.mkfifo(start / "piped/pipe")
    with pytest.raises(FleetError) as error:
        find_files({"n1": variables, "n2": variables}, places)
    (problem,) = error.value.problems
    text = problem.text()
    assert re.search(said, text), text
    assert problem.path[0] in variables
    assert problem.hosts[0] == "n1"


def test_a_link_to_a_file_travels_as_the_file(places: Places) -> None:
    (places.start / "debs/link.deb").symlink_to(places.start / "chats.json")
    found = find_files({"n1": {"bundle_files": ["debs"]}}, places)
    assert [item.path for item in found] == ["bundle_files/debs/link.deb", "bundle_files/debs/one.deb"]


def test_what_to_write_into_the_inventory() -> None:
    paths = [
        "accuracy_data_dir/data/gsm8k/a", "accuracy_data_dir/data/gsm8k/b", "canary_args/chats.json",
        "vllm_deployments/made/config.json",
    ]  # fmt: skip
    assert inventory_lines(paths, "/i/.bundle_files") == [
        "accuracy_data_dir: /i/.bundle_files/accuracy_data_dir/data",
        "canary_args: dataset_path: /i/.bundle_files/canary_args/chats.json",
        "vllm_deployments: model_config: /i/.bundle_files/vllm_deployments/made",
    ]
