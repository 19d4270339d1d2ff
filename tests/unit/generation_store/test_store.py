# SPDX-License-Identifier: Apache-2.0
"""The node's store of generations: what is written when, what is refused, and what the others read of it."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store import store_servers
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store_writer import (
    GenerationWriter,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.generations import read_generations
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import History
from ansible_collections.instinct.fleet.plugins.modules import serving_generation

from tests import ROOT
from tests.worlds.plan_world import deployment, plan, state

SECRET = "sk-canary-Zq81-secret"
HELD = {"generation": 1, "why": "generation 2 is slower"}


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's state directory."""
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path / "etc"))
    return tmp_path / "etc"


def args(**keys: Any) -> dict[str, Any]:
    """What the playbook gives of a host's part of a plan; as if an environment file had a key."""
    wanted = [deployment(instances_per_host=2, **keys)]
    host = copy.deepcopy(plan({"n1": state()}, wanted).to_json()["hosts"]["n1"])
    for item in host["instances"]:
        item["server"]["files"]["env"]["text"] += f"VLLM_API_KEY='{SECRET}'\n"
    return {"record": host["generations"], "instances": host["instances"]}


def numbered(number: int, **keys: Any) -> dict[str, Any]:
    """The same as another generation."""
    found = copy.deepcopy(args(**keys))
    found["record"][0]["generation"] = number
    return found


def observed(top: Path) -> dict[str, Any]:
    """What node_state reads."""
    (found,) = read_generations(Source(), str(top))
    return found


def test_a_generation_is_recorded_once(top: Path, run_module: Any) -> None:
    result, failed = run_module(serving_generation.main, args(), check=True)
    assert not failed, result
    assert (result["changed"], top.exists()) == (True, False)
    reported = result["actions"]
    result, failed = run_module(serving_generation.main, args(), diff=True)
    assert (failed, result["changed"]) == (False, True)
    assert result["actions"] == reported
    assert reported[0] == f"write {top}/generations/llama/1.json (mode 0600)"
    assert '"generation": 1' in result["diff"][0]["after"]
    again, _ = run_module(serving_generation.main, args())
    assert (again["changed"], again["actions"]) == (False, [])
    record = json.loads((top / "generations/llama/1.json").read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["made"])
    assert [item["described"]["port"] for item in record["members"]] == [8000, 8001]
    journal = (top / "journal.log").read_text()
    assert journal == f"{record['made']} llama generation 1 recorded: llama-0, llama-1 (first deployment)\n"


def test_only_root_reads_it_and_nothing_tells_secrets(top: Path, run_module: Any) -> None:
    result, _ = run_module(serving_generation.main, args(), diff=True)
    for path in [top / "journal.log", *(top / "generations").rglob("*")]:
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert SECRET in (top / "generations/llama/1.json").read_text()  # else nothing could come back
    assert SECRET not in json.dumps(result)
    assert SECRET not in (top / "journal.log").read_text()
    assert SECRET not in json.dumps(observed(top))


def test_node_state_reads_the_summary_and_heals_what_a_cut_left(top: Path, run_module: Any) -> None:
    for number in (1, 2):
        run_module(serving_generation.main, numbered(number, port=8000 + 100 * number))
    whole = observed(top)
    history = History.from_json(whole)
    assert [item.generation for item in history.kept] == [1, 2]
    assert [item.port for item in history.kept[1].members] == [8200, 8201]
    directory = top / "generations/llama"
    (directory / "2.json").rename(top / "elsewhere")
    assert [item["generation"] for item in observed(top)["kept"]] == [1]  # not the summary, which has two
    (top / "elsewhere").rename(directory / "2.json")
    (directory / "summary.json").unlink()  # cut off before it was written
    assert observed(top) == whole
    (directory / "2.json").write_text("{")
    broken = observed(top)
    assert broken["broken"].startswith(str(directory))
    assert History.from_json(broken).broken


def test_another_content_under_the_same_number_is_refused(top: Path, run_module: Any) -> None:
    run_module(serving_generation.main, args())
    before = (top / "generations/llama/1.json").read_text()
    result, failed = run_module(serving_generation.main, args(port=9000))
    assert failed
    assert "1.json is already recorded, with other members" in result["msg"]
    assert (top / "generations/llama/1.json").read_text() == before


def test_members_must_be_among_the_instances(top: Path, run_module: Any) -> None:
    given = args()
    given["instances"] = given["instances"][:1]
    result, failed = run_module(serving_generation.main, given)
    assert failed
    assert "llama-1, which is not among the instances" in result["msg"]
    assert not (top / "generations").exists()


@pytest.mark.parametrize(
    ("bindings", "needed", "left"),
    [
        ([], [], [4, 5, 6]),
        ([{"deployment": "llama", "held": HELD}], [], [1, 4, 5, 6]),
        ([{"deployment": "llama", "held": {**HELD, "failed": [2, 3]}}], [], [1, 2, 3, 4, 5, 6]),
        ([{"deployment": "llama", "held": {**HELD, "generation": 0, "failed": [3]}}], [], [3, 4, 5, 6]),
        ([{"deployment": "llama", "trial": {**HELD, "generation": 2}}], [], [2, 4, 5, 6]),
        ([{"deployment": "llama", "trial": {**HELD, "generation": 2, "before": 1}}], [], [1, 2, 4, 5, 6]),
        ([], [3, 1], [1, 3, 4, 5, 6]),
    ],
)
def test_the_oldest_go_but_for_what_something_stands_on(
    bindings: list[Any], needed: list[int], left: list[int], top: Path, run_module: Any
) -> None:
    for number in range(1, 6):
        run_module(serving_generation.main, numbered(number, port=8000 + 100 * number))
    run_module(serving_generation.main, {"bindings": bindings})
    last = numbered(6, port=9000)
    last["record"][0]["needed"] = needed
    predicted, _ = run_module(serving_generation.main, {**last, "keep": 3}, check=True)
    result, failed = run_module(serving_generation.main, {**last, "keep": 3})
    assert not failed, result
    assert predicted["actions"] == result["actions"]
    assert [item["generation"] for item in observed(top)["kept"]] == left
    assert not any("needed" in item for item in observed(top)["kept"])


def test_holds_have_the_time_that_the_control_node_gives(top: Path, run_module: Any) -> None:
    """The planner compares those of all nodes, of which any clock may be wrong."""

    def bind(at: str, **keys: Any) -> tuple[dict[str, Any], bool]:
        return run_module(serving_generation.main, {"bindings": [{"deployment": "llama", **keys}], "at": at})

    run_module(serving_generation.main, args())
    bind("2031-01-01T00:00:00Z", held=HELD, trial=HELD)
    assert [observed(top)[key]["since"] for key in ("held", "trial")] == ["2031-01-01T00:00:00Z"] * 2
    bind("2032-01-01T00:00:00Z", held=None, trial=None)
    assert [observed(top)[key] for key in ("lifted", "ended")] == ["2032-01-01T00:00:00Z"] * 2
    result, failed = bind("yesterday", held=HELD)
    assert failed
    assert "at: 'yesterday' is not a time such as" in result["msg"]


def test_every_playbook_gives_the_time_with_a_binding() -> None:
    for path in [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").rglob("tasks/*.yml")]:
        for task in path.read_text(encoding="utf-8").split("- name:"):
            if "instinct.fleet.serving_generation:" in task and "bindings:" in task:
                assert "at:" in task, path


def test_a_hold_is_set_kept_and_lifted(top: Path, run_module: Any) -> None:
    run_module(serving_generation.main, args())

    def bind(**keys: Any) -> dict[str, Any]:
        result, failed = run_module(serving_generation.main, {"bindings": [{"deployment": "llama", **keys}]})
        assert not failed, result
        return result

    assert bind(held=None)["changed"] is False
    assert bind(held=HELD)["changed"] is True
    held = observed(top)["held"]
    assert (held["generation"], held["why"], bool(held["since"])) == (1, HELD["why"], True)
    assert bind(held=HELD)["changed"] is False
    units = {**HELD, "units": ["n1/llama-0"], "baseline": {"n1": 3.5}}
    assert bind(trial=units)["changed"] is True
    assert observed(top)["held"] == held  # a key that is left out stays
    assert observed(top)["trial"]["baseline"] == {"n1": 3.5}
    assert bind(trial={**units, "units": ["n1/llama-0", "n1/llama-1"]})["changed"] is True
    assert bind(held=None, trial=None)["changed"] is True
    after = observed(top)
    assert (after["held"], after["trial"]) == (None, None)
    assert (
        after["lifted"] >= held["since"]
    )  # a host that was away and still has it does not bind the others again
    lines = [line.split(" ", 1)[1] for line in (top / "journal.log").read_text().splitlines()]
    assert lines[1:] == [
        "llama is held at generation 1 (generation 2 is slower)",
        "llama is on trial with generation 1 (generation 2 is slower)",
        "llama is no longer held at generation 1",
        "llama is no longer on trial with generation 1",
    ]


def test_the_journal_says_what_was_turned_back(top: Path, run_module: Any) -> None:
    run_module(serving_generation.main, args())
    for held in ({**HELD, "failed": [2, 3]}, None, {**HELD, "generation": 0, "failed": [1]}, None):
        run_module(serving_generation.main, {"bindings": [{"deployment": "llama", "held": held}]})
    lines = [line.split(" ", 1)[1] for line in (top / "journal.log").read_text().splitlines()]
    assert lines[1:] == [
        "llama is held at generation 1, 2, 3 turned back (generation 2 is slower)",
        "llama is no longer held at generation 1",
        "llama is held at no generation, 1 turned back (generation 2 is slower)",
        "llama is no longer held at no generation",
    ]


def test_lines_of_the_journal_stay_lines(top: Path, run_module: Any) -> None:
    run_module(serving_generation.main, {"journal": ["llama: two\nlines  of text"]})
    assert (top / "journal.log").read_text().partition(" ")[2] == "llama: two lines of text\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep": 1}, "keep must be at least 2"),
        ({"bindings": [{"deployment": "../x", "held": None}]}, "'../x' is not the name of a deployment"),
        (
            {"bindings": [{"deployment": "x", "held": {"generation": 1}}]},
            "held of x: 'why' is missing or wrong",
        ),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str, top: Path, run_module: Any) -> None:
    result, failed = run_module(serving_generation.main, given)
    assert failed
    assert message in result["msg"]
    assert not top.exists()


def test_a_killed_write_leaves_what_was_there(
    top: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_module(serving_generation.main, args())
    before = observed(top)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        GenerationWriter().put("llama", "2.json", {"schema": 1})
    monkeypatch.undo()
    monkeypatch.setattr(paths, "STATE_DIR", str(top))
    assert observed(top) == before


# ---- what vllm_server takes of it --------------------------------------------------------------------


def test_a_stored_server_is_what_was_planned(top: Path, run_module: Any) -> None:
    given = args()
    run_module(serving_generation.main, given)
    (history,) = [History.from_json(observed(top))]
    record = history.kept[0]
    servers = [record.server(member) for member in record.members]
    plain = {"name": "x-0", "stop_timeout": 3, "generation": None}
    found = store_servers.resolve_servers([*servers, plain])
    assert found == [*(item["server"] for item in given["instances"]), {"name": "x-0", "stop_timeout": 3}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generation": 7}, "Generation 7 of llama is not kept on this node (kept: 1)."),
        ({"name": "llama-5"}, "Generation 1 of llama has no instance llama-5 on this node."),
        ({"spec_hash": "0" * 64}, "another run has changed it"),
        ({"deployment": "../../etc"}, "is not the name of a deployment"),
    ],
)
def test_a_stored_server_that_is_not_there(
    change: dict[str, Any], message: str, top: Path, run_module: Any
) -> None:
    run_module(serving_generation.main, args())
    record = History.from_json(observed(top)).kept[0]
    with pytest.raises(NodeError, match=re.escape(message)):
        store_servers.resolve_servers([{**record.server(record.members[0]), **change}])
