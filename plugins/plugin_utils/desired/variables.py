# SPDX-License-Identifier: Apache-2.0
"""Variables of hosts as plain data, from inside Ansible. Controller only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from ...module_utils.common.errors import FleetError, Problem, natural
from .endpoint_settings import GROUP as BALANCERS
from .endpoint_settings import VARIABLES as BALANCER_VARIABLES
from .endpoint_settings import BalancerHost, balancer_host
from .fleet import HostInput
from .host_settings import VARIABLES

GROUP = "instinct"
MIN_TOKEN = 8
"""Characters of a hub token."""


class NeedsTemplating(Exception):
    """A raw variable is not yet its value."""


class Reader:
    """Variables of hosts, as plain data.

    Templating a variable costs more than all planning of a host. Raw values without a template in them are
    taken as they are.
    """

    def __init__(self, task_vars: Mapping[str, Any]) -> None:
        self.task_vars = task_vars
        self.hostvars = task_vars["hostvars"]

    def hosts(self, asked: Iterable[str] | None) -> list[str]:
        """Hosts to plan: those asked for, else those of this play (--limit shortens it), else the group."""
        fleet = self.task_vars["groups"].get(GROUP, [])
        if asked is not None:
            return [str(name) for name in asked]
        if not fleet:
            what = f"the inventory has no host in the group {GROUP}."
            raise FleetError([Problem((), what, "Put the GPU servers into it.")])
        here = [name for name in self.task_vars.get("ansible_play_hosts_all", ()) if name in set(fleet)]
        return [str(name) for name in here or fleet]

    def names(self, hosts: Iterable[str]) -> set[str]:
        """Every variable that some host has."""
        return {str(key) for name in hosts for key in self.hostvars.raw_get(name)}

    def groups(self) -> dict[str, list[str]]:
        """Every group of the inventory with its hosts."""
        return {str(name): [str(host) for host in hosts] for name, hosts in self.task_vars["groups"].items()}

    def balancers(self, offline: bool) -> tuple[BalancerHost, ...]:
        """The load balancers' hosts. Raises FleetError."""
        found: list[BalancerHost] = []
        problems: list[Problem] = []
        for name in sorted(self.groups().get(BALANCERS, ()), key=natural):
            given = self.host(name, offline, BALANCER_VARIABLES)
            absent = given.unreachable
            if absent and name not in self.task_vars.get("ansible_play_hosts_all", ()):
                absent = "it is not part of this run (add it to --limit)"
            host, wrong = balancer_host(name, given.variables, given.state, absent)
            found.append(host)
            problems += wrong
        if problems:
            raise FleetError(problems)
        return tuple(found)

    def host(self, name: str, offline: bool, names: Iterable[str] = VARIABLES) -> HostInput:
        """What the planner takes of a host. Raises FleetError for a variable that cannot be evaluated."""
        raw = self.hostvars.raw_get(name)
        variables = {key: self.value(name, key, raw) for key in names if key in raw}
        if offline:
            return HostInput(variables)
        observed = raw.get("node_state_result") or {}
        if "node_state" in observed:
            return HostInput(variables, plain(observed["node_state"], templates=True))
        why = str(observed.get("msg") or "it could not be reached")
        return HostInput(variables, None, why.strip().partition("\n")[0])

    def value(self, name: str, key: str, raw: Mapping[str, Any] | None = None) -> Any:
        """One variable of a host, templated; None when it is not defined."""
        raw = self.hostvars.raw_get(name) if raw is None else raw
        if key not in raw:
            return None
        try:
            return plain(raw[key])
        except NeedsTemplating:
            pass
        try:
            return plain(self.hostvars[name][key], templates=True)
        except AnsibleError as error:
            what = f"cannot be evaluated: {error.message}"
            raise FleetError([Problem((key,), what, "", (name,))]) from error

    def beside_inventory(self, names: Iterable[str]) -> Path:
        """The directory of the inventory in which the hosts are."""
        for name in names:
            place = self.hostvars.raw_get(name).get("inventory_dir")
            if place:
                return Path(str(place))
        return Path.cwd()

    def token(self, name: str) -> str | None:
        """The hub token for a host's models. Raises FleetError, which does not hold it."""
        token = self.value(name, "hf_model_token")
        key = "hf_model_token"
        if not token:
            key = "hf_model_token_file"
            file = self.value(name, key)
            if not file:
                return None
            path = Path(os.path.expanduser(str(file)))
            if not path.is_absolute():
                what = f"{file} is a relative path, but it is unclear to which directory."
                raise FleetError([Problem((key,), what, "Use an absolute path, or one that starts with ~.")])
            try:
                token = path.read_text(encoding="utf-8").strip()
            except OSError as error:
                what = f"{path} cannot be read: {error.strerror}."
                raise FleetError([Problem((key,), what, "The path is on this machine.")]) from None
            except UnicodeDecodeError:
                raise FleetError([Problem((key,), f"{path} does not contain text.")]) from None
        token = str(token).strip()
        if len(token) < MIN_TOKEN or any(char.isspace() or not char.isprintable() for char in token):
            what = f"does not contain a token: it has fewer than {MIN_TOKEN} characters, or contains white space."
            raise FleetError([Problem((key,), what, "Tokens of the hub look like hf_….")])
        return token

    def deployment(self, problem: Problem) -> str:
        """The name of the deployment that a problem is of, where it has one."""
        if problem.path[:1] != ("vllm_deployments",) or len(problem.path) < 2 or not problem.hosts:
            return ""
        try:
            name = self.value(problem.hosts[0], "vllm_deployments")[problem.path[1]]["name"]
        except (FleetError, KeyError, IndexError, TypeError):
            return ""
        return name if isinstance(name, str) else ""

    def origin(self, problem: Problem) -> str:
        """file:line of a problem's key, where Ansible knows it."""
        if not problem.path or not problem.hosts:
            return ""
        # Internal to Ansible, but it saves the operator a search through group_vars; nothing depends on it.
        try:
            from ansible._internal._datatag._tags import Origin
        except ImportError:
            return ""
        try:
            value: Any = self.hostvars.raw_get(problem.hosts[0])
            found = None
            for part in problem.path:
                if isinstance(value, Mapping):
                    key, value = next((key, item) for key, item in value.items() if key == part)
                    # A variable's name keeps the place where it was first set; its value is what counts.
                    places = (value, key) if found is None else (key, value)
                    found = next((tag for tag in map(Origin.get_tag, places) if tag), found)
                else:
                    value = value[part]
                    found = Origin.get_tag(value) or found
        except (KeyError, IndexError, TypeError, StopIteration):
            pass
        return _place(found)


def _place(tag: Any) -> str:
    path, line = getattr(tag, "path", None), getattr(tag, "line_num", None)
    if not path:
        return str(getattr(tag, "description", None) or "")
    shown = os.path.relpath(path)
    shown = path if shown.startswith("..") else shown
    return f"{shown}:{line}" if line else shown


def plain(value: Any, templates: bool = False) -> Any:
    """Ansible's lazy and tagged containers as plain data.

    Raises NeedsTemplating for text with a template in it, and for anything that is not plain data (a vaulted
    value), unless `templates`: then text is what it is.
    """
    if isinstance(value, str):
        if not templates and ("{{" in value or "{%" in value or "{#" in value):
            raise NeedsTemplating
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(item, templates) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, templates) for item in value]
    if templates:
        return str(value)
    raise NeedsTemplating


def _key(key: Any) -> Any:
    return str(key) if isinstance(key, str) else key
