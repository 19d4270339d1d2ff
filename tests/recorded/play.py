# SPDX-License-Identifier: Apache-2.0
"""Play a recorded case: run the actions of a plan as ansible-playbook does, with the same clock, secrets and programs.

It knows the action's options and its result, and nothing of what is between them.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import json
import os
import re
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ansible._internal._datatag._tags import Origin
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible_collections.instinct.fleet.plugins.action import bench_plan, fleet_plan

from tests import ROOT

Case = Mapping[str, Any]
"""id; hosts: their variables; observed: what node_state returned of them; groups; options; files beside the inventory;
check: in check mode; limit: the hosts of the play."""
NOW = datetime.datetime(2027, 1, 15, 12, 0, tzinfo=datetime.UTC)
LOCK = "fleet.lock.json"
RENAMED = {
    "upgrade_serial": "rollout_serial",
    "upgrade_min_in": "rollout_min_available",
    "upgrade_soak": "rollout_soak",
    "load_balancer_min_in": "load_balancer_min_available",
    "min_in": "min_available",
    "why": "reason",
}
"""Variables and options that had other names when cases were recorded."""
STANDINS: dict[str, Callable[..., Any]] = {
    "bundle": lambda _name: SimpleNamespace(version="3ddf29f19d05"),
    "script": lambda name: f"{ {'haproxy_agent': 'agent', 'keepalived_check': 'check'}.get(name, name) }\n",
    "toolkit_release": lambda: "",
}
"""By the names of functions, where they are imported: what stands in for the programs that plans bring to nodes, and
for the release, which change without a change of planning."""
_datetime = datetime.datetime
PLUGINS = "ansible_collections.instinct.fleet.plugins."


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)


class FixedTime(_datetime, metaclass=_Kind):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> FixedTime:
        moment = NOW.astimezone(tz) if tz else NOW.replace(tzinfo=None)
        return cls.fromtimestamp(moment.timestamp(), tz)


class HostVars(dict[str, dict[str, Any]]):
    """Ansible's hostvars, of values without templates."""

    def raw_get(self, name: str) -> dict[str, Any]:
        return self[name]


def play(case: Case) -> dict[str, Any]:
    """Return what the action returns and prints for a case, and what it writes; with neutral paths."""
    with tempfile.TemporaryDirectory(prefix="recorded-") as directory, _standing_still(Path(directory)):
        place = Path(directory)
        for name, text in case["files"].items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")
        printed: list[str] = []
        facts = _facts(case, place)
        try:
            result = _run(fleet_plan, _options(case, {}), case, facts, printed)
            if result.get("measures"):  # as playbooks/plan.yml goes on
                measured = _run(bench_plan, _options(case, result), case, facts, printed)
                result = measured if measured.get("failed") else {**result, "run": measured["run"]}
        except AnsibleActionFail as error:  # an option of another type: Ansible reports it
            result = {"failed": True, "msg": str(error)}
        written = place / LOCK
        lock = written.read_text(encoding="utf-8") if written.exists() else None
        found = {**result, "printed": "".join(f"{text}\n" for text in printed)}
        found["lock"] = json.loads(lock) if lock is not None and lock != case["files"].get(LOCK) else None
        found["files"] = sorted(
            str(path.relative_to(place))
            for path in place.rglob("*")
            if path.is_file() and str(path.relative_to(place)) not in case["files"]
        )
        text = json.dumps(found, sort_keys=True, ensure_ascii=False)
        plain: dict[str, Any] = json.loads(text.replace(directory, "/inventory").replace(str(ROOT), "/tree"))
        return plain


def _options(case: Case, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fleet_plan; those of bench_plan, with the result of fleet_plan."""
    known = {RENAMED.get(name, name): value for name, value in case["options"].items()}
    measuring, planning = bench_plan.ActionModule.options, fleet_plan.ActionModule.options
    if planned:
        given = {key: planned[key] for key in ("todo", "kinds")}
        return {**{name: value for name, value in known.items() if name in measuring}, **given}
    return {name: value for name, value in known.items() if name in planning or name not in measuring}


def _run(
    module: Any, options: Mapping[str, Any], case: Case, facts: Mapping[str, Any], printed: list[str]
) -> dict[str, Any]:
    """Run an action as ansible-playbook does."""
    task = SimpleNamespace(
        args=_tagged(options), check_mode=case.get("check", False), async_val=0, action="", diff=False
    )
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
    action = module.ActionModule(task, connection, SimpleNamespace(), DataLoader(), None, None)
    action._display = SimpleNamespace(
        display=printed.append, warning=lambda text: printed.append(f"[WARNING]: {text}")
    )
    found: dict[str, Any] = action.run(task_vars=dict(facts))
    return found


def _tagged(value: Any) -> Any:
    """Return data whose texts are of Ansible's own class, as those of tasks are."""
    if isinstance(value, Mapping):
        return {key: _tagged(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    return Origin(description="recorded").tag(value) if isinstance(value, str) else value


def _facts(case: Case, place: Path) -> dict[str, Any]:
    case = copy.deepcopy(dict(case))
    hostvars = HostVars()
    for name, variables in case["hosts"].items():
        named = {RENAMED.get(key, key): value for key, value in variables.items()}
        hostvars[name] = {"inventory_dir": str(place), **named}
        if name in case["observed"]:
            hostvars[name]["node_state_result"] = case["observed"][name]
    return {"hostvars": hostvars, "groups": case["groups"], "ansible_play_hosts_all": case["limit"]}


@contextlib.contextmanager
def _standing_still(place: Path) -> Iterator[None]:
    """Without the time, the network, the directory, the user and new secrets of this run, and with STANDINS."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(place))
        stack.enter_context(mock.patch.dict(os.environ, {"HOME": str(place)}))
        stack.enter_context(mock.patch.object(time, "time", NOW.timestamp))
        stack.enter_context(mock.patch.object(time, "sleep"))
        stack.enter_context(mock.patch.object(secrets, "token_urlsafe", mock.Mock(return_value="k" * 43)))
        stack.enter_context(mock.patch.object(socket, "getaddrinfo", _no_network))
        stack.enter_context(mock.patch.object(datetime, "datetime", FixedTime))
        replaced: list[tuple[Any, Any]] = []
        for module, name, value in _names():
            standin = FixedTime if value is _datetime else _standin(module, name, value)
            if standin:
                replaced.append((standin, value))
                setattr(module, name, standin)
        try:
            yield
        finally:  # also in modules that were imported meanwhile
            for module, name, value in _names():
                for standin, original in replaced:
                    if value is standin:
                        setattr(module, name, original)


def _names() -> Iterator[tuple[Any, str, Any]]:
    for path, module in list(sys.modules.items()):
        if path.startswith(PLUGINS):
            for name, value in list(vars(module).items()):
                if callable(value):
                    yield module, name, value


def _standin(module: Any, name: str, value: Any) -> Any:
    home = str(getattr(value, "__module__", ""))
    if not home.startswith(PLUGINS) or home == module.__name__:
        return None
    return _catalogue(value) if name == "Knowledge" else STANDINS.get(name)


@functools.cache
def _catalogue(kind: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A catalogue that is loaded once for all cases: nothing changes it."""
    return functools.cache(kind)


def _no_network(*_args: Any, **_keys: Any) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


# ---- what a plan does, and what it says ----------------------------------------------------------------

PROSE = (
    *("after", "before", "change", "fact", "ignored", "msg", "notes", "printed"),
    *("reason", "say", "scan", "text", "unsure", "warnings", "why"),
)
"""Keys of a result whose values are for people. Values of others are what nodes get, or what playbooks decide by."""
PROSE_BY_NAME = ("unreachable", "excluded")
"""Keys with a text for each name."""
_HEAD = re.compile(r"\* ([\w.\[\]-]+)(?: \((?:([\w.-]+), )?hosts? ([^)/]*?)\))?: ", re.MULTILINE)
_Texts = dict[str, Any]


def split(result: Mapping[str, Any]) -> tuple[dict[str, Any], _Texts]:
    """Return what a result does, and its texts by their places."""
    texts: _Texts = {}
    todo = result.get("todo", [])  # by hosts, in the order in which playbooks get them
    result = {**result, "order": [one["name"] for one in todo], "todo": {one["name"]: one for one in todo}}
    behaviour = _without_texts(result, "", texts)
    # Which keys of which hosts are wrong: texts say it in their first words.
    behaviour["problems"] = sorted(
        {"|".join(map(str, one)) for one in _HEAD.findall(result.get("msg") or "")}
    )
    return behaviour, texts


def _without_texts(value: Any, path: str, texts: _Texts) -> Any:
    if isinstance(value, list):
        return [_without_texts(item, f"{path}[{index}]", texts) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for key, item in value.items():
        here = f"{path}.{key}" if path else key
        is_text = isinstance(item, str) or (
            isinstance(item, list) and all(isinstance(one, str) for one in item)
        )
        if key in PROSE and is_text:
            if item:
                texts[here] = item
            # A list of texts has as many as before.
            kept[key] = len(item) if isinstance(item, list) else bool(item)
        elif key in PROSE_BY_NAME and isinstance(item, dict):
            texts.update({f"{here}.{name}": text for name, text in item.items()})
            kept[key] = sorted(item)
        else:
            kept[key] = _without_texts(item, here, texts)
    return kept
