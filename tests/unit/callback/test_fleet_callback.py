# SPDX-License-Identifier: Apache-2.0
"""What a run says of errors where they happen, and in the end: who failed, at what, what next."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("fleet_callback", ROOT / "plugins/callback/fleet.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plugin = module.CallbackModule()
    shown: list[str] = []
    plugin._display = SimpleNamespace(display=lambda text, **_: shown.append(text), verbosity=0)
    plugin._plugin_options = {"display_failed_stderr": False}
    monkeypatch.setattr(module.Default, "_print_task_banner", lambda self, task: None)
    monkeypatch.setattr(module.Default, "v2_playbook_on_stats", lambda self, stats: shown.append("recap"))
    plugin.shown = shown
    return plugin


def result(host: str, task: str, action: str = "vllm_image", **data: Any) -> Any:
    return SimpleNamespace(
        host=SimpleNamespace(get_name=lambda: host, vars={"ansible_host": f"192.0.2.{host[1:]}"}),
        task=SimpleNamespace(
            get_name=lambda: task, action=action, _uuid=task, loop=None, delegate_to=None,
            ignore_errors=False, ignore_unreachable=False, run_once=False,
        ),
        result=data,
    )  # fmt: skip


def stats(failures: dict[str, int] | None = None, dark: dict[str, int] | None = None) -> Any:
    return SimpleNamespace(failures=failures or {}, dark=dark or {})


def ended(fleet: Any, *counts: dict[str, int]) -> list[str]:
    """What the end of the run shows below the recap."""
    fleet.shown.clear()
    fleet.v2_playbook_on_stats(stats(*counts))
    recap, *shown = fleet.shown
    assert recap == "recap"
    return shown


def test_silent_when_nothing_failed(fleet: Any) -> None:
    fleet.v2_runner_on_failed(result("n2", "rescued", msg="x"))
    assert ended(fleet, {"n1": 0, "n2": 0}) == []


def test_an_error_is_told_where_it_happens(fleet: Any) -> None:
    fleet.v2_runner_on_failed(result("n1", "Pull", msg="Task failed: Action failed: no space left"))
    fleet.v2_runner_on_failed(result("n2", "Run", msg="non-zero return code", stderr="a\nb\n"))
    fleet.v2_runner_item_on_failed(result("n3", "Loop", item="x", msg="gone"))
    fleet.v2_runner_on_unreachable(result("n4", "Audit the hosts", msg="Connection refused"))
    fleet.v2_runner_on_failed(
        result("n5", "Plan", action="instinct.fleet.fleet_plan", msg="2 problems\n* one\n* two")
    )
    assert fleet.shown == [
        "failed: [n1]: no space left",
        "failed: [n2]:\n  non-zero return code\n  a\n  b",
        "failed: [n3] (item=x): gone",
        "unreachable: [n4]: Connection refused",
        "failed: [n5]: 2 problems",
    ]


def test_hosts_with_one_error_are_together(fleet: Any) -> None:
    for name in ("n10", "n2"):
        fleet.v2_runner_on_failed(result(name, "Pull or build the image", msg="no space left\nfree some"))
        fleet.v2_runner_on_failed(result(name, "Later", msg="not the first"))
    fleet.v2_runner_on_failed(
        result(
            "n1",
            "Download the weights",
            results=[{"msg": "fine"}, {"failed": True, "msg": "gone"}],
            msg="All items",
        )
    )
    for number in (3, 4):
        text = f"Task failed: connect to host 192.0.2.{number} port 22: Connection refused"
        fleet.v2_runner_on_unreachable(result(f"n{number}", "Observe the node", msg=text))
    assert ended(fleet, {"n1": 1, "n2": 1, "n10": 1}, {"n3": 1, "n4": 1}) == [
        "Failed: n1, at: Download the weights\n"
        "  gone\n"
        "Failed: n2, n10, at: Pull or build the image\n"
        "  no space left\n"
        "  free some\n"
        "Unreachable: n3, n4, at: Observe the node\n"
        "  connect to host 192.0.2.3 port 22: Connection refused\n"
        "Next: correct the cause, and run the same command again; completed steps are not repeated.\n"
        "      Only on these hosts: --limit 'n1,n2,n3,n4,n10'"
    ]


def test_the_limit_names_the_load_balancers_too(fleet: Any) -> None:
    """Without them, a run that changes what serves is refused."""
    fleet.balancers = ["lb-01", "lb-02"]
    fleet.v2_runner_on_failed(result("n2", "Pull", msg="no space left"))
    assert ended(fleet, {"n2": 1})[0].endswith("--limit 'n2,lb-01,lb-02'")
    fleet.v2_runner_on_unreachable(result("lb-01", "Update", msg="gone"))
    assert ended(fleet, {"n2": 1}, {"lb-01": 1})[0].endswith("--limit 'n2,lb-01,lb-02'")


@pytest.mark.parametrize("action", ["rollout_verdict", "accuracy_report", "burnin_report"])
def test_a_verdict_on_all_hosts_names_no_host_that_only_printed_it(fleet: Any, action: str) -> None:
    fleet.balancers = ["lb"]
    report = "Upgrade: 1 group of 4 done.\nbatch 2 of 4: n2: Docker does not answer"
    task = "Print what was done"
    fleet.v2_runner_on_failed(result("n1", "Change instances", msg="rescued"))
    for name in ("n1", "n3"):
        fleet.v2_runner_on_failed(result(name, task, action=f"instinct.fleet.{action}", msg=report))
    assert ended(fleet, {"n1": 1, "n3": 1}) == [
        f"Failed, at: {task}\n"
        "  Upgrade: 1 group of 4 done.\n"
        "  batch 2 of 4: n2: Docker does not answer\n"
        "Next: correct the cause, and run the same command again; completed steps are not repeated."
    ]


def test_a_finding_says_itself_what_to_do(fleet: Any) -> None:
    """status.yml and compare.yml fail on the first host, which has nothing to do with it."""
    found = result(
        "n1", "Fail when a cell is worse", action="ansible.builtin.fail", msg="n2 is worse. Repeat it."
    )
    found.task.run_once = True
    fleet.v2_runner_on_failed(found)
    assert ended(fleet, {"n1": 1}) == ["Failed, at: Fail when a cell is worse\n  n2 is worse. Repeat it."]
    fleet.v2_runner_on_failed(result("n3", "Leave the host out", action="ansible.builtin.fail", msg="no GPU"))
    assert ended(fleet, {"n1": 1, "n3": 1})[0].endswith("--limit 'n1,n3'")


def test_what_is_ignored_and_told_elsewhere_is_not_told_here(fleet: Any) -> None:
    """The table of status.yml has a line for the host."""
    for action, data, shown in (
        ("instinct.fleet.instance_status", {"msg": "No route"}, 0),
        ("balancer_server", {"msg": "All items completed", "results": [{"unreachable": True}]}, 0),
        ("ansible.builtin.ping", {"msg": "No route"}, 1),
    ):
        seen = result("n1", f"Do {action}", action=action, **data)
        seen.task.ignore_unreachable = True
        fleet.shown.clear()
        fleet.v2_runner_on_unreachable(seen)
        assert len(fleet.shown) == shown
    assert fleet.errors == {}


@pytest.mark.parametrize("module", ["fleet_plan", "bench_plan"])
def test_a_failed_plan_says_all_of_it_in_the_end(fleet: Any, module: str) -> None:
    problems = "\n".join(f"* {number} {'x' * 500}" for number in range(30))
    fleet.v2_runner_on_failed(
        result("n1", "Plan", action=f"instinct.fleet.{module}", msg=f"30 problems\n{problems}")
    )
    assert ended(fleet, {"n1": 1}) == [
        "Failed: n1, at: Plan\n  30 problems\n  "
        + problems.replace("\n", "\n  ")
        + "\nNext: correct the input named above, and run the same command again."
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"censored": "the output has been hidden", "msg": "secret"}, "hidden by no_log"),
        ({}, "no message"),
        ({"msg": "x" * 500}, "x" * 399 + "…"),
        ({"msg": "\n".join("abcdefgh")}, "a\nb\nc\nd\ne\n…"),
        ({"msg": "MODULE FAILURE", "module_stderr": "no python\n"}, "MODULE FAILURE\nno python"),
        ({"msg": "git said: no", "stderr": "no"}, "git said: no"),
        ({"msg": "no", "results": ["Nothing to do"]}, "no"),  # as dnf has them
        ({"msg": "no", "results": {"a": 1}}, "no"),
        ({"msg": "all", "results": ["x", {"failed": True, "msg": "this one"}]}, "this one"),
        (
            {
                "msg": "Premature end of stream waiting for become success.",
                "module_stderr": "sudo: not found",
            },
            "Premature end of stream waiting for become success.\nsudo: not found\n"
            "Ansible becomes root there by sudo: install it, or set ansible_user to root.",
        ),
        (
            {"msg": "Missing sudo password"},
            "Missing sudo password\nAnsible becomes root there by sudo: add -K to be asked for its password, or allow "
            "the user sudo without one (NOPASSWD).",
        ),
        ({"msg": "ValueError: \x1b]52;c;Y3Vy\x07\tx"}, "ValueError: \ufffd]52;c;Y3Vy\ufffd\tx"),
    ],
)
def test_messages(fleet: Any, data: dict[str, Any], text: str) -> None:
    fleet.v2_runner_on_failed(result("n1", "Task", **data))
    assert fleet.errors["n1"][:2] == ("Task", text)


@pytest.mark.parametrize(
    ("text", "next_step"),
    [
        (
            "ssh: root@n1: Permission denied (publickey,password).",
            "The host answers, but refuses this user's key: ",
        ),
        (
            "Module result deserialization failed: No start of json char found",
            "The host did not return the module's answer",
        ),
    ],
)
def test_errors_of_ansible_that_name_no_next_step_get_one(fleet: Any, text: str, next_step: str) -> None:
    fleet.v2_runner_on_failed(result("n1", "Task", msg=text))
    first, second = fleet.errors["n1"].text.splitlines()
    assert first == text
    assert second.startswith(next_step)


def test_the_answer_of_one_of_several_is_told_once(fleet: Any) -> None:
    """Load balancers are asked in a loop, and another task judges all answers."""
    item = result("n1", "Set servers", item="lb1", msg="HAProxy does not answer")
    whole = result("n1", "Set servers", msg="One or more items failed", results=[{"failed": True}])
    for seen in (item, whole):
        seen.task.ignore_errors = True
    fleet.v2_runner_item_on_failed(item)
    fleet.v2_runner_on_failed(whole, ignore_errors=True)
    assert fleet.shown == ["failed: [n1] (item=lb1) (ignored): HAProxy does not answer"]


class Answer(SimpleNamespace):
    """The result of a task that went well, whose content must not be looked at."""

    def __init__(self, action: str = "instinct.fleet.node_state", **seen: Any) -> None:
        super().__init__(**vars(result("n1", "Task", action)))
        del self.result
        self.seen = seen

    def is_changed(self) -> bool:
        return bool(self.seen.get("changed"))

    def __getattr__(self, name: str) -> Any:
        if name in ("warnings", "deprecations", "exception"):
            return self.seen.get(name)
        raise AttributeError(name)


def test_what_a_node_answered_is_not_converted_to_print_that_it_did(fleet: Any) -> None:
    fleet._plugin_options["display_ok_hosts"] = True
    fleet.v2_runner_on_ok(Answer())
    assert fleet.shown == ["ok: [n1]"]
    fleet._plugin_options["display_ok_hosts"] = False
    fleet.v2_runner_on_ok(Answer())
    assert fleet.shown == ["ok: [n1]"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(changed=True),
        Answer(warnings=["w"]),
        Answer(deprecations=["d"]),
        Answer(exception="e"),
        Answer("ansible.builtin.debug"),
    ],
)
def test_what_else_is_printed_is_ansibles(
    fleet: Any, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(
        type(fleet).__bases__[0], "v2_runner_on_ok", lambda self, result: printed.append(result)
    )
    fleet.v2_runner_on_ok(answer)
    assert printed == [answer]


def begin(fleet: Any, monkeypatch: pytest.MonkeyPatch, *blocks: list[Any]) -> None:
    """Begin a play with these blocks of tasks."""
    monkeypatch.setattr(type(fleet).__bases__[0], "v2_playbook_on_play_start", lambda self, play: None)
    manager = SimpleNamespace(_inventory=SimpleNamespace(get_groups_dict=dict))
    play = SimpleNamespace(get_variable_manager=lambda: manager, get_tasks=lambda: blocks)
    fleet.v2_playbook_on_play_start(play)


def test_filters_and_tests_are_loaded_before_workers_are_forked(
    fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible.plugins import loader

    for plugins in (loader.filter_loader, loader.test_loader):
        monkeypatch.setattr(plugins, "_cached_non_collection_wrappers", {})
    begin(fleet, monkeypatch)
    assert loader.filter_loader._cached_non_collection_wrappers
    assert loader.test_loader._cached_non_collection_wrappers


def test_actions_are_imported_once_when_the_first_host_has_answered(
    fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible.plugins import loader

    imported: list[str] = []
    monkeypatch.setattr(loader.action_loader, "get", lambda name, **_: imported.append(name))
    monkeypatch.setattr("gc.freeze", lambda: imported.append("frozen"))
    fleet._plugin_options["display_ok_hosts"] = False
    nested = SimpleNamespace(block=[])
    others = SimpleNamespace(action="ansible.builtin.add_host")
    ours = [SimpleNamespace(action=f"instinct.fleet.{name}") for name in ("node_state", "fleet_plan")]
    begin(fleet, monkeypatch, [nested, others], ours)
    assert imported == ["ansible.legacy.normal", "frozen"]  # which workers need
    for _ in range(2):
        fleet.v2_runner_on_ok(Answer())
    assert imported[2:] == ["instinct.fleet.node_state", "instinct.fleet.fleet_plan", "frozen"]


def test_the_action_of_a_task_is_imported_before_its_workers_are_forked(
    fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible does so for those that have their module's name, and not for those that meta/runtime.yml names."""
    from ansible.plugins import loader
    from ansible.plugins.callback.default import CallbackModule as Default

    monkeypatch.setattr(Default, "v2_playbook_on_task_start", lambda self, task, is_conditional: None)
    imported: list[str] = []
    routes = {"instinct.fleet.vllm_watch": "instinct.fleet.leased"}
    monkeypatch.setattr(
        loader.module_loader,
        "find_plugin_with_context",
        lambda name: SimpleNamespace(action_plugin=routes.get(name)),
    )
    monkeypatch.setattr(loader.action_loader, "get", lambda name, **_: imported.append(name))
    for name in ("instinct.fleet.vllm_watch", "instinct.fleet.fleet_plan", "ansible.builtin.fail"):
        fleet.v2_playbook_on_task_start(SimpleNamespace(action=name), is_conditional=False)
    assert imported == ["instinct.fleet.leased", "instinct.fleet.fleet_plan"]
