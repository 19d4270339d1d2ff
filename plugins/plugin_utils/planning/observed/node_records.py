# SPDX-License-Identifier: Apache-2.0
"""Read a host's records of generations as strictly as the inventory, because other hosts act on them too. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from ....module_utils.service.generations import Generation, GenerationMember, History, Hold

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
"""Of deployments and instances; they are parts of paths, of container names and of a load balancer's configuration."""
_HOST = re.compile(r"[\w.:-]{1,255}", re.ASCII)
_DIGITS = re.compile(r"[0-9a-zA-Z]{0,128}")
_RENDER_NODE = re.compile(r"renderD[0-9]{1,5}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?", re.ASCII)
_GENERATIONS = 10**6
_SECONDS = 10**6


def read_history(item: Any) -> History:
    """Read a deployment's entry of node_state; one that is damaged is returned as `broken`.

    Raise ValueError if not even the deployment's name can be read.
    """
    name = item.get("deployment") if isinstance(item, Mapping) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("a record of generations names no deployment")
    if item.get("broken"):
        return History(name, broken=str(item["broken"]))
    try:
        history = History.from_json(item)
        _check(history)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = str(error) if isinstance(error, ValueError) else repr(error)
        return History(name, broken=f"/etc/instinct-fleet/generations/{name}: {why}")
    return history


def _check(history: History) -> None:
    """Raise ValueError for a record that generation_store/store.py has not written."""
    for made in history.kept:
        _check_generation(made, history.deployment)
    numbers = [made.generation for made in history.kept]
    _require(len(set(numbers)) == len(numbers), "generation", numbers)
    if history.held:
        _check_hold(history.held)
    if history.trial:
        _require(0 < history.trial.generation <= _GENERATIONS, "generation", history.trial.generation)
        _require(0 <= (history.trial.before or 0) <= _GENERATIONS, "before", history.trial.before)
        for name, number in history.trial.together.items():
            _matches(NAME, "together", name)
            _require(0 <= number <= _GENERATIONS, "together", number)
    for bound in (history.held, history.trial):
        if bound:
            _matches(_TIME, "since", bound.since)
            _printable("why", bound.why)
    _matches(_TIME, "lifted", history.lifted)
    _matches(_TIME, "ended", history.ended)


def _check_hold(held: Hold) -> None:
    _require(0 <= held.generation <= _GENERATIONS, "generation", held.generation)
    for number in held.failed:
        _require(held.generation < number <= _GENERATIONS, "failed", number)
    _require(held.generation > 0 or bool(held.failed), "generation", held.generation)
    for name in held.together:
        _matches(NAME, "together", name)


def _check_generation(made: Generation, deployment: str) -> None:
    _require(made.deployment == deployment, "deployment", made.deployment)
    _require(0 < made.generation <= _GENERATIONS, "generation", made.generation)
    _require(0 <= made.stop_timeout <= _SECONDS, "stop_timeout", made.stop_timeout)
    _require(made.listen == "" or is_listen(made.listen), "listen", made.listen)
    _require(is_command(made.command), "command", made.command)
    texts = {
        "made": made.recorded_at, "why": made.why, "image": made.image, "image_ref": made.image_ref, "vllm": made.vllm,
        "model": made.model, "commit": made.commit, "modes": made.modes, "env": made.env,
    }  # fmt: skip
    for key, text in texts.items():
        _printable(key, text)
    for pair in made.weights:
        for text in pair:
            _printable("weights", text)
    for text in made.models:
        _printable("models", text)
        _require(bool(text.strip()), "models", text)
    for member in made.members:
        _check_member(member, deployment)
    names = [member.name for member in made.members]
    _require(len(set(names)) == len(names), "name", names)


def _check_member(member: GenerationMember, deployment: str) -> None:
    _matches(NAME, "name", member.name)
    owner, _unused, number = member.name.rpartition("-")
    _require(owner == deployment and number.isdecimal(), "name", member.name)
    _matches(_DIGITS, "spec_hash", member.spec_hash)
    for port in (member.port, *member.ports):
        _require(_is_number(port) and 0 < port < 65536, "port", port)
    for node in member.render_nodes:
        _matches(_RENDER_NODE, "render_nodes", node)
    _require(isinstance(member.share, (int, float)) and 0 < member.share <= 1, "share", member.share)
    for host in member.hosts:
        _matches(_HOST, "hosts", host)
    _require(isinstance(member.headless, bool), "headless", member.headless)
    _require(_is_number(member.limit) and 0 <= member.limit <= _SECONDS, "limit", member.limit)


@lru_cache(maxsize=4096)
def is_listen(text: str) -> bool:
    """Return whether a text is an address, or the name of one."""
    try:
        ip_address(text)
    except ValueError:
        return bool(_HOST.fullmatch(text)) and ":" not in text
    return True


@lru_cache(maxsize=4096)
def is_command(text: str) -> bool:
    """Return whether a text is a command in shell syntax."""
    try:
        shlex.split(text)
    except ValueError:
        return False
    return text.isprintable() or "\n" in text


def _printable(key: str, text: Any) -> None:
    _require(isinstance(text, str) and (text.isprintable() or key in ("why", "env")), key, text)


def _matches(pattern: re.Pattern[str], key: str, text: Any) -> None:
    _require(isinstance(text, str) and pattern.fullmatch(text) is not None, key, text)


def _is_number(value: object) -> bool:
    """Return whether a value is an integer; a boolean does not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def _require(right: bool, key: str, value: Any) -> None:
    if not right:
        shown = repr(value)
        raise ValueError(f"{key} is {shown if len(shown) <= 60 else shown[:60] + '…'}")
