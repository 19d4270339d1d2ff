# SPDX-License-Identifier: Apache-2.0
"""What action plugins share: files of JSON, and what is taken of hosts' variables."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from ansible.errors import AnsibleError, AnsibleValueOmittedError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible.template import Templar, trust_as_template
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import (
    ControllerAction,
    write_json,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import (
    LONGEST,
    InventoryReader,
    node_data,
    why_unreached,
)

from tests import ROOT


def test_json_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("older, and longer than what follows")
    write_json(path, {"b": 1, "a": [2]})
    assert path.read_text() == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "why"), [("missing/plan.json", "No such file or directory"), (".", "Is a directory")]
)
def test_json_that_cannot_be_written(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(FleetError) as caught:
        write_json(tmp_path / name, {})
    assert str(caught.value) == (
        f"{tmp_path / name} cannot be written: {why}. Create its directory, or choose another path."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    link = tmp_path / "stdout"
    link.symlink_to("/dev/null")
    write_json(link, {"a": 1})
    assert (link.is_symlink(), link.is_char_device()) == (True, True)


def test_a_call_leaves_the_defaults_as_they_are() -> None:
    """Ansible fills in the suboptions of a default in the very dictionary that is the default."""

    class Terms(ControllerAction):
        options: ClassVar[Any] = {
            "terms": {"type": "dict", "default": {}, "options": {"runs": {"type": "int", "default": 5}}}
        }

        def work(self, options: Any, _facts: Any) -> dict[str, Any]:
            return {"given": options}

    task = SimpleNamespace(
        action="terms", args={}, async_val=0, check_mode=False, diff=False, no_log=False, environment=[]
    )
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
    action = Terms(task, connection, SimpleNamespace(), DataLoader(), None, None)
    assert action.run(task_vars={})["given"] == {"terms": {"runs": 5}}
    assert Terms.options["terms"]["default"] == {}


def finalized(action: type[ActionBase], value: Any, variables: dict[str, Any]) -> Any:
    """What an action gets for an argument of its task; None if it is left out."""
    engine = Templar(loader=DataLoader(), variables=variables)._engine
    try:
        return action.finalize_task_arg("argument", value, engine, None)
    except AnsibleValueOmittedError:
        return None


GIVEN: dict[str, Any] = {
    "nothing": {},
    "all": {
        "explain": True,
        "canary": False,
        "canary_runs": 3,
        "deployment": "llama",
        "again": "{{ explain }}",
    },
    "what is undefined": {"explain": "{{ nowhere }}", "canary_runs": "{{ nowhere }}"},
    "nothing, in other words": {"explain": None, "deployment": ""},
}


@pytest.mark.parametrize("variables", GIVEN.values(), ids=GIVEN)
def test_arguments_are_those_that_ansible_finds(variables: dict[str, Any]) -> None:
    """Those that nobody gave are left out without a template, by which no argument of any playbook becomes another."""
    variables = {name: trusted(value) for name, value in variables.items()}
    arguments = [
        value
        for path in sorted((ROOT / "playbooks").rglob("*.yml"))
        for play in DataLoader().load_from_file(str(path), trusted_as_template=True)
        for task in play.get("tasks", ())
        for value in task.get("instinct.fleet.fleet_plan", {}).values()
    ]
    assert len(arguments) > 30
    for value in arguments:
        try:
            wanted = finalized(ActionBase, value, variables)
        except AnsibleError as error:
            with pytest.raises(type(error)):
                finalized(ControllerAction, value, variables)
        else:
            assert finalized(ControllerAction, value, variables) == wanted, value


def trusted(value: Any) -> Any:
    return trust_as_template(value) if isinstance(value, str) else value


class HostVars(dict[str, dict[str, Any]]):
    """Variables of hosts as Ansible has them; one with a template in it cannot be evaluated here."""

    def raw_get(self, name: str) -> dict[str, Any]:
        return super().__getitem__(name)

    def __getitem__(self, name: str) -> Any:
        raise AnsibleError("'nowhere' is undefined")


READER = InventoryReader({
    "hostvars": HostVars(
        n1={"a": 1, "empty": None, "bad": "{{ nowhere }}", "result": {"text": "{{ kept }}", "rows": (1, 2)}}
    )
})  # fmt: skip


def test_variables_that_are_set() -> None:
    assert READER.values("n1", ["a", "empty", "absent"]) == {"a": 1}
    assert READER.values("n1", ["a", "bad"], lenient=True) == {"a": 1}
    with pytest.raises(FleetError, match=r"^bad \(host n1\): cannot be evaluated: 'nowhere' is undefined$"):
        READER.values("n1", ["a", "bad"])


def test_ansible_puts_together_the_variables_of_a_host_once() -> None:
    asked: list[str] = []

    class Counted(HostVars):
        def raw_get(self, name: str) -> dict[str, Any]:
            asked.append(name)
            return super().raw_get(name)

    reader = InventoryReader({"hostvars": Counted(n1={"ansible_host": "192.0.2.1"}, n2={})})
    for name in ("n1", "n2"):
        reader.host(name, offline=False)
        reader.lease(name)
        reader.value(name, "hf_model_token")
    assert not [*reader.same_machine(["n1", "n2"]), *reader.clear_text_tokens(["n1", "n2"])]
    assert asked == ["n1", "n2"]


def test_registered_results_are_plain_and_not_templated() -> None:
    found = READER.registered("n1", "result")
    assert json.dumps(found) == '{"text": "{{ kept }}", "rows": [1, 2]}'
    assert READER.registered("n1", "absent") == {}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("a\nb\tc ü", "a\nb\tc ü"),
        ("\x1b]52;c;Y3Vy\x07\x9b2J\u202e", "\ufffd]52;c;Y3Vy\ufffd\ufffd2J\ufffd"),
        ("9" * (LONGEST + 1), "9" * LONGEST),
        ({"k\x1b": ["\x00"]}, {"k\ufffd": ["\ufffd"]}),
    ],
)
def test_what_a_host_says_moves_no_terminal(said: Any, read: Any) -> None:
    assert node_data(said) == read


def test_an_answer_that_is_too_deep_is_no_answer() -> None:
    deep: Any = []
    for _unused in range(3000):
        deep = [deep]
    reader = InventoryReader({"hostvars": HostVars(n1={"node_state_result": {"node_state": deep}})})
    assert reader.host("n1", offline=False).state == {}


def test_no_action_prints_what_a_terminal_obeys() -> None:
    """Through show() of their base, or what it does."""
    base = ROOT / "plugins/plugin_utils/actions/action_base.py"
    assert "_display.display(" in base.read_text(encoding="utf-8")
    for path in (base, *(ROOT / "plugins/action").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert text.count("_display.display(") == text.count("_display.display(printable("), path


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({}, "it could not be reached"),
        ({"msg": " Connection refused\nmore"}, "Connection refused"),
        ({"msg": "Task failed: Timed out", "timedout": {"period": 120}}, "it did not answer within 120 s"),
    ],
)
def test_why_a_host_was_not_reached(result: dict[str, Any], why: str) -> None:
    assert why_unreached(result).partition(",")[0] == why
