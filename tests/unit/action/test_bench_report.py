# SPDX-License-Identifier: Apache-2.0
"""The action plugin: from the variables of a play's hosts to a directory of results, without secrets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.unfinished_runs import (
    read_unfinished,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.inputs import last_plan

from tests.helpers.playbooks import Playbooks
from tests.worlds.bench_samples import entry, small_fleet, variables

MEASURING = "ansible_collections.instinct.fleet.plugins.plugin_utils.measuring"
TOKEN = "t0ken-of-the-inventory"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the plugin in tmp_path on a fleet's variables; its printed lines are in result["printed"]."""
    from ansible_collections.instinct.fleet.plugins.action.bench_report import ActionModule

    monkeypatch.chdir(tmp_path)

    def run(
        fleet: dict[str, Any], check: bool = False, play: list[str] | None = None, **args: Any
    ) -> dict[str, Any]:
        task = SimpleNamespace(args=args, check_mode=check, async_val=0, action="bench_report", diff=False)
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
        plugin = ActionModule(task, connection, SimpleNamespace(), None, None, None)
        printed: list[str] = []
        plugin._display = SimpleNamespace(display=printed.append)
        facts = {
            "hostvars": SimpleNamespace(raw_get=fleet.__getitem__),
            "groups": {"instinct": list(fleet)},
            "ansible_play_hosts_all": play or list(fleet),
        }
        return {**plugin.run(task_vars=facts), "printed": printed}

    return run


def test_writes_every_file_and_says_where(report: Run, tmp_path: Path) -> None:
    result = report(small_fleet(failures=True), run="r1")
    directory = tmp_path / "results/r1"
    assert (result["changed"], result["run"], result["directory"]) == (True, "r1", str(directory))
    assert sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()) == [
        "benchmarks.csv",
        "raw/mi300x-01__llama-0__serve__in1024-out1024-c128__1.json",
        "raw/mi300x-02__llama-0__serve__in1024-out1024-c128__1.json",
        "raw/mi300x-03__llama-0__serve__in1024-out1024-c128__1.json",
        "report.html",
        "runs.jsonl",
        "summary.json",
    ]
    summary = json.loads((tmp_path / "results/latest/summary.json").read_text())
    assert summary["run"] == "r1"
    assert [item["host"] for item in summary["failures"]] == ["mi300x-03", "mi300x-04", "mi300x-05"]
    assert summary["failures"] == result["failures"]
    raw = json.loads((directory / "raw/mi300x-01__llama-0__serve__in1024-out1024-c128__1.json").read_text())
    assert raw == small_fleet()["mi300x-01"]["__benchmark_serve"]["benchmarks"][0]["runs"][0]["result"]
    assert summary["hosts"]["mi300x-01"]["gpus"][0]["model"] == "MI300X"  # named by the catalogue
    assert result["printed"] == [f"\n{result['text']}"]
    assert result["text"].splitlines()[-3:] == [
        str(directory / name) for name in ("report.html", "benchmarks.csv", "summary.json")
    ]


def test_without_report_no_plot_is_drawn(
    report: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith((f"{MEASURING}.report.report", f"{MEASURING}.plots."))
    ]:
        monkeypatch.delitem(sys.modules, name)  # the tests after this one have them as before
    report(small_fleet(), run="r1", report=False)
    assert not (tmp_path / "results/r1/report.html").exists()
    assert (tmp_path / "results/r1/summary.json").exists()
    assert f"{MEASURING}.report.report" not in sys.modules
    assert f"{MEASURING}.plots.plots" not in sys.modules


def test_a_run_is_never_overwritten_and_gets_a_name_of_its_own(report: Run, tmp_path: Path) -> None:
    first = report(small_fleet(), report=False)
    assert len(first["run"]) == len("20260131T101500Z")
    assert [report(small_fleet(), run="r", report=False)["run"] for _ in range(3)] == ["r", "r-2", "r-3"]
    assert (tmp_path / "results/latest").readlink() == Path("r-3")
    assert json.loads((tmp_path / "results/r-2/summary.json").read_text())["run"] == "r-2"


BEGUN = {"name": "r1", "begun": "2026-01-31T11:00:00Z", "request": {"suite": "quick"}, "fingerprints": {}}


def test_a_run_is_unfinished_from_its_beginning_to_its_report(report: Run, tmp_path: Path) -> None:
    results = tmp_path / "results"
    begun = report({}, begin=BEGUN)
    assert (begun["changed"], begun["run"], begun["printed"]) == (False, "r1", [])
    (run,) = read_unfinished(results)
    assert run.to_json() == BEGUN
    result = report(small_fleet(), run="r1", report=False)
    assert (result["run"], result["on_nodes"]) == ("r1", "/var/lib/instinct-fleet/bench/r1")
    assert sorted(path.name for path in results.iterdir()) == ["latest", "r1"]
    assert "on_nodes" not in report(small_fleet(), report=False)


def test_a_run_in_which_nothing_was_measured_is_over_too(report: Run, tmp_path: Path) -> None:
    report({}, begin=BEGUN)
    result = report({"n1": variables("n1", [])}, run="r1")
    assert (result["changed"], result["on_nodes"]) == (False, "/var/lib/instinct-fleet/bench/r1")
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"), [({"name": "../x"}, "cannot name a run"), ({"begun": "today"}, "begin: ")]
)
def test_what_does_not_begin_a_run(report: Run, tmp_path: Path, change: dict[str, str], message: str) -> None:
    result = report({}, begin={**BEGUN, **change})
    assert (result["failed"], message in result["msg"]) == (True, True), result["msg"]
    assert list(tmp_path.iterdir()) == []


def test_check_mode_writes_nothing(report: Run, tmp_path: Path) -> None:
    for args in ({}, {"begin": BEGUN}):
        result = report(small_fleet(), check=True, **args)
        assert (result["changed"], result["skipped"]) == (False, True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_measure_is_no_change(report: Run, tmp_path: Path) -> None:
    result = report({"n1": variables("n1", [])})
    assert (result["changed"], result["printed"]) == (False, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, ["n1", "n2"]),
        ({"hosts": ["n3"]}, ["n3"]),
        ({"play": ["n2"]}, ["n2"]),
        ({"play": ["localhost"]}, ["n1", "n2"]),
    ],
)
def test_hosts_that_were_to_be_measured(report: Run, args: dict[str, Any], expected: list[str]) -> None:
    class Vars(dict[str, Any]):
        def __missing__(self, name: str) -> dict[str, Any]:
            return {}

    fleet = Vars({host: variables(host, [entry(host)]) for host in ("n1", "n2")})
    result = report(fleet, report=False, **args)
    hosts = json.loads(Path(result["directory"], "summary.json").read_text())
    assert sorted({*hosts["hosts"], *(item["host"] for item in hosts["failures"])}) == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"run": "latest"}, "run: 'latest' cannot name a run"),
        ({"run": "../x"}, "run: '../x' cannot name a run"),
        ({"results_dir": "/proc/nowhere"}, "/proc/nowhere"),
    ],
)
def test_what_cannot_be_written_fails(report: Run, args: dict[str, Any], message: str) -> None:
    result = report(small_fleet(), report=False, **args)
    assert result["failed"] is True
    assert message in result["msg"]


def test_unknown_options_fail(report: Run) -> None:
    with pytest.raises(AnsibleError, match="result_dir"):
        report(small_fleet(), result_dir="x")


def test_secrets_of_the_inventory_are_nowhere(report: Run, tmp_path: Path) -> None:
    password, from_file = "pw-of-the-registry", "token-from-a-file-1"
    token_file = tmp_path / "token"
    token_file.write_text(from_file + "\n")
    fleet = small_fleet(failures=True)
    fleet["mi300x-01"] |= {
        "hf_model_token": TOKEN,
        "hf_model_token_file": str(token_file),
        "vllm_image_registries": {"r": {"username": "u", "password": password}},
        "fleet_plan_result": {"plan": {"hosts": {"n": {"note": TOKEN, "env": {"MY_TOKEN": "mine-only"}}}}},
    }
    bad = fleet["mi300x-02"]["__benchmark_serve"]["benchmarks"][0]
    bad["runs"][0]["result"]["label"] = f"{TOKEN} {password}"
    bad["command"] += f" --header X={from_file}"
    fleet["mi300x-04"]["__benchmark_serve"]["benchmarks"][0]["error"] = f"denied: {password}"
    result = report(fleet, run="r1")
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert (tmp_path / "results/r1/plan.json") in written
    texts = [json.dumps(result), *(path.read_text() for path in written)]
    for secret in (TOKEN, password, from_file, "mine-only"):
        assert [text for text in texts if secret in text] == []


def test_in_a_real_play(tmp_path: Path, playbooks: Playbooks) -> None:
    """Lazy, tagged variables of ansible-core; a host that failed; a variable that cannot be rendered."""
    fleet = small_fleet()
    fleet["mi300x-01"]["__benchmark_serve"]["benchmarks"][0]["runs"][0]["result"]["request_goodput"] = float(
        "nan"
    )
    hosts = {host: {"payload": own} for host, own in fleet.items()} | {"mi300x-03": {}}
    inventory = {
        "instinct": {
            "hosts": hosts,
            "vars": {"hf_model_token": "{{ nowhere }}", "ansible_connection": "local"},
        }
    }
    facts = {
        "benchmark_results": "{{ payload.__benchmark_serve.benchmarks }}",
        "node_state_result": "{{ payload.node_state_result }}",
    }
    report_task = {
        "instinct.fleet.bench_report": {"run": "", "results_dir": str(tmp_path / "results")},
        "run_once": True,
    }
    tasks = [{"ansible.builtin.set_fact": facts}, report_task]
    play = [{"hosts": "instinct", "gather_facts": False, "tasks": tasks}]
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    (tmp_path / "play.yml").write_text(json.dumps(play))
    done = playbooks.run("-i", "hosts.json", "play.yml", cwd=tmp_path)
    assert "benchmarks on 2 nodes" in done.stdout, done.stdout + done.stderr
    summary = json.loads((tmp_path / "results/latest/summary.json").read_text())
    assert [row["host"] for row in summary["benchmarks"]] == ["mi300x-01", "mi300x-02"]
    assert [item["host"] for item in summary["failures"]] == ["mi300x-03"]
    assert (tmp_path / "results/latest/report.html").stat().st_size > 10_000


def test_the_last_plan_is_kept() -> None:
    """Hosts that were complete at the first plan keep that one; it lacks what was asked meanwhile."""
    first, last = {"partial": ["r:1"], "hosts": {}}, {"partial": [], "hosts": {"n1": {}}}
    results = [{"plan": first}, None, {"plan": last}, {"plan": first}]
    hosts = [{"fleet_plan_result": result} for result in results]
    assert last_plan(hosts) == last
    assert last_plan([{}]) is None
