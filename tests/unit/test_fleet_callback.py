# SPDX-License-Identifier: Apache-2.0
"""The closing summary of a run: who failed, at what, what next; and silence otherwise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("fleet_callback", ROOT / "plugins/callback/fleet.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plugin = module.CallbackModule()
    shown: list[str] = []
    plugin._display = SimpleNamespace(display=shown.append)
    plugin.shown = shown
    return plugin


def result(host: str, task: str, action: str = "vllm_image", **data: Any) -> Any:
    return SimpleNamespace(
        host=SimpleNamespace(get_name=lambda: host, vars={"ansible_host": f"192.0.2.{host[1:]}"}),
        task=SimpleNamespace(get_name=lambda: task, action=action),
        result=data,
    )


def stats(failures: dict[str, int] | None = None, dark: dict[str, int] | None = None) -> Any:
    return SimpleNamespace(failures=failures or {}, dark=dark or {})


def test_silent_when_nothing_failed(fleet: Any) -> None:
    fleet.v2_runner_on_failed(result("n1", "try", msg="x"), ignore_errors=True)
    fleet.v2_runner_on_failed(result("n2", "rescued", msg="x"))
    fleet.v2_playbook_on_stats(stats({"n1": 0, "n2": 0}))
    assert fleet.shown == []


def test_hosts_with_one_error_are_together(fleet: Any) -> None:
    for name in ("n10", "n2"):
        fleet.v2_runner_on_failed(result(name, "Bring the image", msg="no space left\nfree some"))
        fleet.v2_runner_on_failed(result(name, "Later", msg="not the first"))
    fleet.v2_runner_on_failed(
        result(
            "n1",
            "Bring the weights",
            results=[{"msg": "fine"}, {"failed": True, "msg": "gone"}],
            msg="All items",
        )
    )
    for number in (3, 4):
        text = f"Task failed: connect to host 192.0.2.{number} port 22: Connection refused"
        fleet.v2_runner_on_unreachable(result(f"n{number}", "Observe the node", msg=text))
    fleet.v2_playbook_on_stats(stats({"n1": 1, "n2": 1, "n10": 1}, {"n3": 1, "n4": 1}))
    assert fleet.shown == [
        "Failed: n1, at: Bring the weights\n"
        "  gone\n"
        "Failed: n2, n10, at: Bring the image\n"
        "  no space left\n"
        "  free some\n"
        "Unreachable: n3, n4, at: Observe the node\n"
        "  connect to host 192.0.2.3 port 22: Connection refused\n"
        "Next: correct the cause, and run the same command again; what is done is not repeated.\n"
        "      Only on these hosts: --limit 'n1,n2,n3,n4,n10'"
    ]


def test_a_failed_plan_says_to_correct_the_input(fleet: Any) -> None:
    fleet.v2_runner_on_failed(result("n1", "Plan", action="fleet_plan", msg="1 problem"))
    fleet.v2_playbook_on_stats(stats({"n1": 1}))
    assert fleet.shown[0].endswith(
        "Next: correct the input that is named above, and run the same command again."
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"censored": "the output has been hidden", "msg": "secret"}, "hidden by no_log"),
        ({}, "no message"),
        ({"msg": "x" * 500}, "x" * 399 + "…"),
        ({"msg": "\n".join("abcdefgh")}, "a\nb\nc\nd\ne\n…"),
    ],
)
def test_messages(fleet: Any, data: dict[str, Any], text: str) -> None:
    fleet.v2_runner_on_failed(result("n1", "Task", **data))
    assert fleet.errors["n1"][:2] == ("Task", text)
