# SPDX-License-Identifier: Apache-2.0
"""The action plugin: verdicts of all hosts in one file; a bad GPU or an untested host is a failure."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.burnin.test_verdict import result


def report(fleet: dict[str, Any], check: bool = False, **args: Any) -> dict[str, Any]:
    from ansible_collections.instinct.fleet.plugins.action.burnin_report import ActionModule

    task = SimpleNamespace(args=args, check_mode=check, async_val=0, action="burnin_report", diff=False)
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
    plugin = ActionModule(task, connection, SimpleNamespace(), None, None, None)
    printed: list[str] = []
    plugin._display = SimpleNamespace(display=printed.append)
    facts = {
        "hostvars": SimpleNamespace(raw_get=fleet.__getitem__),
        "groups": {"instinct": list(fleet)},
        "ansible_play_hosts_all": list(fleet),
    }
    done = {**plugin.run(task_vars=facts), "printed": printed}
    json.dumps(done)
    return done


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def outcome(**more: Any) -> dict[str, Any]:
    return {"__burnin_result": {"changed": False, "burnin": result(**more)}}


def test_healthy_hosts_are_a_success_with_a_file(tmp_path: Path) -> None:
    done = report({"n1": outcome(), "n2": outcome()}, run="r1")
    assert not done.get("failed")
    data = json.loads((tmp_path / "results/r1/burnin.json").read_text())
    assert data["verdicts"] == done["verdicts"]
    assert (len(data["verdicts"]), data["failed"], sorted(data["hosts"])) == (16, {}, ["n1", "n2"])
    assert done["path"] == str(tmp_path / "results/r1/burnin.json")
    assert done["printed"][0].startswith("\nBurn-in r1: 16 GPUs on 2 nodes: 16 ok")
    # The newest results stay those of the last measurement.
    assert not (tmp_path / "results/latest").exists()


def test_a_bad_gpu_fails_and_a_slow_one_does_not() -> None:
    fleet = {"n1": outcome(), "n2": outcome()}
    fleet["n2"]["__burnin_result"]["burnin"]["gpus"][1]["copy_gbps"] = 3000.0
    assert not report(fleet).get("failed")
    fleet["n1"]["__burnin_result"]["burnin"]["gpus"][0]["gemm"]["fp16"]["wrong_elements"] = 1
    done = report(fleet)
    assert done["failed"]
    assert done["msg"].startswith("1 GPU bad: see above")


def test_hosts_that_were_not_tested_have_their_reason(tmp_path: Path) -> None:
    fleet = {"n1": outcome(), "n2": {"__burnin_result": {"failed": True, "msg": "GPU 3 is in use"}}, "n3": {}}
    done = report(fleet, run="r1")
    assert done["failed"]
    assert "2 hosts not tested" in done["msg"]
    failed = json.loads((tmp_path / "results/r1/burnin.json").read_text())["failed"]
    assert failed["n2"] == "GPU 3 is in use"
    assert "failed earlier in this run" in failed["n3"]


def test_a_test_between_gpus_that_failed_is_no_success(tmp_path: Path) -> None:
    crashed = outcome()
    crashed["__burnin_result"]["burnin"]["reduce"][3] = {"gpu": 3, "error": "ended with exit code -11"}
    done = report({"n1": crashed, "n2": outcome(peers_error="not done in time")}, run="r1")
    assert done["failed"]
    assert done["msg"].startswith("2 hosts not tested as a whole")
    failed = json.loads((tmp_path / "results/r1/burnin.json").read_text())["failed"]
    assert failed == {
        "n1": "test between GPUs: ended with exit code -11",
        "n2": "test between GPUs: not done in time",
    }


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    assert report({"n1": {}}, check=True)["skipped"]
    assert list(tmp_path.iterdir()) == []
