# SPDX-License-Identifier: Apache-2.0
"""Read variables of hosts as plain data, from inside Ansible. Control node only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.constants import INTERNAL_STATIC_VARS
from ansible.errors import AnsibleError

from ....module_utils.common.errors import FleetError, Problem, natural
from ...base.hints import cause
from ...base.text import printable
from ..inventory.groups import BALANCERS, CONNECTION, FLEET
from ..inventory.origins import origin_tag, place_of
from ..inventory.public_variables import typed_value
from ..inventory.unknown_variables import FORMER, unknown_connection_variables, unknown_variables
from ..inventory.vaulted import mark_vaulted, vaulted_texts
from .endpoint_settings import NOT_IN_RUN, BalancerHost, balancer_host
from .endpoint_settings import VARIABLES as BALANCER_VARIABLES
from .fleet import HostInput
from .host_settings import VARIABLES

TOKENS = ("hf_model_token", "hf_model_token_file")
MIN_TOKEN = 8
"""Minimum length of a hub token, in characters."""
LONGEST = 1 << 16
"""How many characters of a host's text are read."""


class NeedsTemplating(Exception):
    """Raised for a raw variable that must be templated to get its value."""


class InventoryReader:
    """Reads variables of hosts as plain data.

    Templating a variable costs more time than planning a whole host, so raw values without a template are used
    directly.
    """

    def __init__(self, task_vars: Mapping[str, Any]) -> None:
        self.task_vars = task_vars
        self.hostvars = task_vars["hostvars"]
        self._raw: dict[str, Mapping[str, Any]] = {}

    def raw(self, name: str) -> Mapping[str, Any]:
        """Return all variables of a host, not templated. They are kept, as Ansible merges them at every request."""
        if name not in self._raw:
            self._raw[name] = self.hostvars.raw_get(name)
        return self._raw[name]

    def hosts(self, asked: Iterable[str] | None) -> list[str]:
        """Return the hosts to plan: the requested ones, else those of this play (after --limit), else the group."""
        fleet = self.task_vars["groups"].get(FLEET, [])
        if asked is not None:
            return [str(name) for name in asked]
        if not fleet:
            what = f"the inventory has no host in the group {FLEET}."
            raise FleetError([Problem((), what, "Put the GPU servers in it.")])
        here = [name for name in self.task_vars.get("ansible_play_hosts_all", ()) if name in set(fleet)]
        return [str(name) for name in here or fleet]

    def misspelled(self, hosts: Iterable[str], known: Collection[str]) -> Iterator[Problem]:
        """Yield the variables that have former names, or resemble known names and are used in no template."""
        variables = {name: self.raw(name) for name in hosts}
        # Without those that Ansible sets on every host: comparing a name with all of ours takes a while.
        names = {str(key) for raw in variables.values() for key in raw} - INTERNAL_STATIC_VARS
        suspects = {**unknown_variables(names, known), **unknown_connection_variables(names, CONNECTION)}
        for key, near in suspects.items():
            having = tuple(name for name, raw in variables.items() if key in raw)
            if key in FORMER:
                yield Problem((key,), f"is now called {near}.", "Rename it.", having)
            elif not any(_uses(variables[name], key) for name in having):
                fix = f"Did you mean {near}? If it is your own variable, rename it."
                yield Problem((key,), "unknown variable.", fix, having)

    def same_machine(self, hosts: Iterable[str]) -> Iterator[Problem]:
        """Yield a problem for hosts with different names but one connection: two plans would change one machine."""
        found: dict[tuple[str, ...], list[str]] = {}
        for name in hosts:
            raw = self.raw(name)
            way = tuple(str(raw.get(key, "")) for key in CONNECTION)
            if raw.get("ansible_host") and not any("{{" in part for part in way):
                found.setdefault(way, []).append(name)
        for names in found.values():
            if len(names) > 1:
                what = "have the same address, so they are one machine."
                yield Problem(("ansible_host",), what, "Correct it, or remove one of them.", tuple(names))

    def groups(self) -> dict[str, list[str]]:
        """Return every group of the inventory with its hosts."""
        return {str(name): [str(host) for host in hosts] for name, hosts in self.task_vars["groups"].items()}

    def balancers(self, offline: bool) -> tuple[BalancerHost, ...]:
        """Return the load balancers' hosts. Raise FleetError if their variables or states have problems."""
        found: list[BalancerHost] = []
        problems: list[Problem] = []
        for name in sorted(self.groups().get(BALANCERS, ()), key=natural):
            given = self.host(name, offline, BALANCER_VARIABLES)
            absent = given.unreachable
            if absent and name not in self.task_vars.get("ansible_play_hosts_all", ()):
                absent = NOT_IN_RUN
            host, wrong = balancer_host(name, given.variables, given.state, absent)
            found.append(host)
            problems += wrong
        if problems:
            raise FleetError(problems)
        return tuple(found)

    def host(self, name: str, offline: bool, names: Iterable[str] = VARIABLES) -> HostInput:
        """Return the planner's input for a host. Raise FleetError for a variable that cannot be evaluated."""
        raw = self.raw(name)
        variables = {key: self.value(name, key, raw) for key in names if key in raw}
        if offline:
            return HostInput(variables)
        observed = raw.get("node_state_result") or {}
        if "node_state" in observed:
            try:
                return HostInput(variables, node_data(observed["node_state"]))
            except RecursionError:  # no node_state of ours is nested that deeply: the host is left out
                return HostInput(variables, {})
        return HostInput(variables, None, why_unreached(observed))

    def lease(self, name: str) -> object:
        """Return the lease of a run that was seen on a host, as the host reported it; None without one."""
        observed = (self.raw(name).get("node_state_result") or {}).get("node_state") or {}
        return observed.get("lease")

    def registered(self, name: str, key: str) -> dict[str, Any]:
        """Return what a task registered for a host; {} if no task did."""
        found: dict[str, Any] = node_data(self.raw(name).get(key) or {})
        return found

    def values(self, name: str, keys: Iterable[str], lenient: bool = False) -> dict[str, Any]:
        """Return a host's variables that are set.

        Raise FleetError for one that cannot be evaluated; with `lenient`, it counts as not set.
        """
        raw = self.raw(name)
        found = {}
        for key in keys:
            if raw.get(key) is not None:
                try:
                    found[key] = self.value(name, key, raw)
                except FleetError:
                    if not lenient:
                        raise
        return found

    def value(self, name: str, key: str, raw: Mapping[str, Any] | None = None) -> Any:
        """Return one variable of a host, templated and of its declared type; None if it is not defined."""
        raw = self.raw(name) if raw is None else raw
        if key not in raw:
            return None
        try:
            return typed_value(key, to_plain_data(raw[key]))
        except NeedsTemplating:
            pass
        try:
            found = to_plain_data(self.hostvars[name][key], str)
            return typed_value(key, mark_vaulted(found, vaulted_texts(raw, key)))
        except AnsibleError as error:
            what = f"cannot be evaluated: {error.message}"
            raise FleetError([Problem((key,), what, "", (name,))]) from error

    def inventory_directory(self, names: Iterable[str]) -> Path:
        """Return the directory of the inventory that contains the hosts."""
        for name in names:
            place = self.raw(name).get("inventory_dir")
            if place:
                return Path(str(place))
        return Path.cwd()

    def token(self, name: str) -> str | None:
        """Return the hub token for a host's models, or None. Raise FleetError, without the token, if it is unusable."""
        token = self.value(name, "hf_model_token")
        key = "hf_model_token"
        if not token:
            key = "hf_model_token_file"
            file = self.value(name, key)
            if not file:
                return None
            path = Path(os.path.expanduser(str(file)))
            if not path.is_absolute():
                what = f"{file} is a relative path, and it is not clear relative to which directory."
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

    def clear_text_tokens(self, hosts: Iterable[str]) -> Iterator[Problem]:
        """Yield a problem for hosts that would send a token to a mirror without TLS, other than one on themselves."""
        found: dict[str, list[str]] = {}
        for name in hosts:
            given = self.values(name, ("hf_model_endpoint", *TOKENS, "hf_model_insecure"), lenient=True)
            endpoint = str(given.get("hf_model_endpoint") or "")
            secret = any(given.get(key) for key in TOKENS) and not given.get("hf_model_insecure")
            if secret and re.match(r"http://(?!(127\.[\d.]+|localhost|\[::1\])([:/]|$))", endpoint):
                found.setdefault(endpoint, []).append(name)
        for endpoint, names in found.items():
            what = f"{endpoint} has no TLS: anybody on the way there could read the hub's token."
            fix = (
                "Use an https:// mirror, leave the token out for these hosts, or set hf_model_insecure: true."
            )
            yield Problem(("hf_model_endpoint",), what, fix, tuple(names))

    def token_problems(self, hosts: Iterable[str]) -> Iterator[Problem]:
        """Yield what is wrong with the files of hub tokens; each file is read once."""
        read = set()
        for name in hosts:
            file = self.value(name, "hf_model_token_file")
            if file and file not in read:
                read.add(file)
                try:
                    self.token(name)
                except FleetError as error:
                    yield from (replace(problem, hosts=(name,)) for problem in error.problems)

    def deployment(self, problem: Problem) -> str:
        """Return the name of the deployment that a problem is about, or ""."""
        if problem.path[:1] != ("vllm_deployments",) or len(problem.path) < 2 or not problem.hosts:
            return ""
        try:
            name = self.value(problem.hosts[0], "vllm_deployments")[problem.path[1]]["name"]
        except (FleetError, KeyError, IndexError, TypeError):
            return ""
        return name if isinstance(name, str) else ""

    def origin(self, problem: Problem) -> str:
        """Return file:line of a problem's key, if Ansible knows it."""
        if not problem.path or not problem.hosts:
            return ""
        found = None
        try:
            value: Any = self.raw(problem.hosts[0])
            for part in problem.path:
                if isinstance(value, Mapping):
                    key, value = next((key, item) for key, item in value.items() if key == part)
                    # A variable's name keeps the location where it was first set; the value has the location that
                    # applies.
                    places = (value, key) if found is None else (key, value)
                    found = origin_tag(*places) or found
                else:
                    value = value[part]
                    found = origin_tag(value) or found
        except (KeyError, IndexError, TypeError, StopIteration):
            pass
        return place_of(found)


def _uses(value: Any, name: str) -> bool:
    """Return whether a template somewhere in raw variables names a variable."""
    if isinstance(value, str):
        return ("{{" in value or "{%" in value) and re.search(rf"\b{re.escape(name)}\b", value) is not None
    if isinstance(value, Mapping):
        return any(_uses(item, name) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_uses(item, name) for item in value)


def why_unreached(registered: Mapping[str, Any]) -> str:
    """Return why a host's task ended without an answer: its time-out, or the first line of its message."""
    late = registered.get("timedout")
    if isinstance(late, Mapping):
        return (
            f"it did not answer within {late.get('period')} s, so something on it may hang, such as the GPU driver or "
            "a file system: look at its dmesg, and for processes in state D"
        )
    text = str(registered.get("msg") or "it could not be reached").strip().partition("\n")[0]
    return cause(registered) or printable(text)


def node_data(value: Any) -> Any:
    """Return a host's answer as plain data: control characters are removed, and long texts are shortened."""
    return to_plain_data(value, _node_text)


def _node_text(text: str) -> str:
    return printable(text[:LONGEST])


def to_plain_data(value: Any, read: Callable[[str], str] | None = None) -> Any:
    """Return Ansible's lazy and tagged containers as plain data.

    Raise NeedsTemplating for text with a template, and for anything that is not plain data (a vaulted value). With
    `read`, which converts each text, a template is ordinary text.
    """
    if isinstance(value, str):
        if read is None and ("{{" in value or "{%" in value or "{#" in value):
            raise NeedsTemplating
        return str(value) if read is None else read(str(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key, read): to_plain_data(item, read) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_data(item, read) for item in value]
    if read:
        return read(str(value))
    raise NeedsTemplating


def _key(key: Any, read: Callable[[str], str] | None) -> Any:
    if not isinstance(key, str):
        return key
    return read(str(key)) if read else str(key)
