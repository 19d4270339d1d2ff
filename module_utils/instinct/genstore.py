# SPDX-License-Identifier: Apache-2.0
"""The generations that a node keeps: files of root's, each whole on disk before anything that it describes changes.

generations/<deployment>/<number>.json   a generation with every member's server and description (may hold an API key)
generations/<deployment>/summary.json    all that are kept, without these two: what node_state reads
generations/<deployment>/state.json      whether the deployment is held, or on trial
journal.log                              a line for every event
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import places
from .engine import Json
from .files import make_private, read_text, write_atomic
from .generations import SCHEMA, History, Hold, Trial
from .hashing import canonical
from .nodemodule import NodeError

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
NUMBERED = re.compile(r"([1-9][0-9]*)\.json")
SUMMARY, STATE = "summary.json", "state.json"
HEAVY = ("server", "described")
KEEP = 5


class Store:
    """A node's generations. Every method that reads raises NodeError for a damaged file."""

    def __init__(self, state_dir: str = "") -> None:
        top = state_dir or places.STATE_DIR
        self.root = f"{top}/generations"
        self.journal = f"{top}/journal.log"

    # ---- reading -------------------------------------------------------------------------------------

    def path(self, deployment: str, name: str) -> str:
        """A file of a deployment."""
        return os.path.join(self.root, deployment, name)

    def numbers(self, deployment: str) -> list[int]:
        """The numbers that are kept, rising."""
        try:
            names = os.listdir(os.path.join(self.root, deployment))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(match[1]) for match in map(NUMBERED.fullmatch, names) if match)

    def generation(self, deployment: str, number: int) -> Json:
        """A whole generation."""
        found = self._load(self.path(deployment, f"{number}.json"))
        if found is None:
            kept = ", ".join(map(str, self.numbers(deployment))) or "none"
            raise NodeError(
                f"Generation {number} of {deployment} is not kept on this node (kept: {kept}). "
                "Plan again: another run has changed the node's store since this one looked."
            )
        return found

    def state(self, deployment: str) -> Json:
        """Whether the deployment is held, or on trial."""
        found = self._load(self.path(deployment, STATE)) or {}
        keys = ("held", "trial", "lifted", "ended")
        return {"schema": SCHEMA, **{key: found.get(key) for key in keys}}

    def history(self, deployment: str) -> History:
        """What is kept of a deployment, without files."""
        kept = [light(self.generation(deployment, number)) for number in self.numbers(deployment)]
        return History.from_json({"deployment": deployment, "kept": kept, **self.state(deployment)})

    def member(self, data: Mapping[str, Any]) -> Json:
        """The stored member that {"name", "deployment", "generation", "spec_hash"} stands for."""
        name, deployment, number = data.get("name"), str(data.get("deployment") or ""), data["generation"]
        if not NAME.fullmatch(deployment):
            raise NodeError(f"servers[{name}]: {deployment!r} is not the name of a deployment.")
        found = self.generation(deployment, int(number))
        member = next((item for item in found["members"] if item["name"] == name), None)
        if member is None:
            raise NodeError(f"Generation {number} of {deployment} has no instance {name} on this node.")
        if data.get("spec_hash") not in (None, "", member["spec_hash"]):
            raise NodeError(
                f"Instance {name} of generation {number} is {member['spec_hash'][:12]} in the node's store, and "
                f"{str(data['spec_hash'])[:12]} in the plan: another run has changed it. Run again."
            )
        return dict(member)

    def server(self, data: Mapping[str, Any]) -> Json:
        """SERVER of a stored member, as the plan had it when the generation was recorded."""
        return dict(self.member(data)["server"])

    def instance(self, data: Mapping[str, Any]) -> Json:
        """INSTANCE of a stored member, as the plan had it."""
        member = self.member(data)
        return {**member["described"], "server": member["server"], "generation": int(data["generation"])}

    def _load(self, path: str) -> Json | None:
        text = read_text(path)
        if text is None:
            return None
        try:
            found = json.loads(text)
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']}")
            return dict(found)
        except (ValueError, KeyError, TypeError) as error:
            raise NodeError(
                f"{path} cannot be read ({type(error).__name__}: {error}). Remove it, and what it holds is "
                "forgotten; what runs is not touched by that."
            ) from None

    # ---- writing -------------------------------------------------------------------------------------

    def put(self, deployment: str, name: str, data: Mapping[str, Any]) -> None:
        """Write a file of a deployment; it is on disk, and under its name, when this returns."""
        directory = os.path.join(self.root, deployment)
        make_private(self.root)
        make_private(directory)
        write_atomic(os.path.join(directory, name), json.dumps(data, indent=1) + "\n", 0o600)
        _sync(directory)

    def drop(self, deployment: str, number: int) -> None:
        """Forget a generation."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(deployment, f"{number}.json"))
        _sync(os.path.join(self.root, deployment))

    def summarise(self, deployment: str) -> None:
        """Write summary.json anew from the generations."""
        kept = [light(self.generation(deployment, number)) for number in self.numbers(deployment)]
        self.put(deployment, SUMMARY, {"schema": SCHEMA, "kept": kept})

    def note(self, lines: Iterable[str], now: str) -> None:
        """Append lines to the journal."""
        text = "".join(f"{now} {' '.join(line.split())}\n" for line in lines)
        if not text:
            return
        os.makedirs(os.path.dirname(self.journal), exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.journal, flags, 0o600)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def light(generation: Mapping[str, Any]) -> Json:
    """A generation without its members' files and descriptions."""
    members = [
        {key: value for key, value in member.items() if key not in HEAVY} for member in generation["members"]
    ]
    return {**generation, "members": members}


def now_text() -> str:
    """The time as records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _sync(directory: str) -> None:
    """A new name, or that a name is gone, is on disk when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- for the module vllm_server ---------------------------------------------------------------


def resolved(items: Iterable[Mapping[str, Any]], store: Store | None = None) -> list[Json]:
    """Servers, of which those that name a generation are as the node's store has them.

    Raises NodeError for one that is not there.
    """
    source = store or Store()
    return [
        {key: value for key, value in item.items() if key != "generation"}
        if item.get("generation") is None
        else source.server(item)
        for item in items
    ]


def note_servers(
    servers: Iterable[Any], result: Mapping[str, Any], removed: Iterable[str], store: Store | None = None
) -> None:
    """Lines in the journal for what vllm_server did; `servers` are of server.Server, `result` the module's."""
    target = store or Store()
    known = {server.name: server for server in servers}
    found: dict[tuple[str, str, str], list[str]] = {}
    for outcome in result.get("servers") or ():
        if outcome["changed"] or outcome["state"] == "failed":
            one, many = VERBS.get(outcome["state"], ("failed", "failed"))
            if one == "failed":
                one = many = f"failed: {outcome.get('class')}: {outcome.get('log_line')}"
            key = (_owner(target, known[outcome["name"]]), one, many)
            found.setdefault(key, []).append(outcome["name"])
    lines = [
        f"{owner}{', '.join(names)} {one if len(names) == 1 else many}"
        for (owner, one, many), names in found.items()
    ]
    target.note([*lines, *(f"{name} removed" for name in removed)], now_text())


VERBS = {"ready": ("serves", "serve"), "started": ("starts", "start"), "stopped": ("stopped", "stopped")}


def _owner(store: Store, server: Any) -> str:
    """The deployment and, where it is known, the generation of a server, as the beginning of a line."""
    made = None
    if NAME.fullmatch(server.deployment):
        with contextlib.suppress(NodeError):
            made = store.history(server.deployment).of_spec(server.name, server.spec_hash)
    if made:
        return f"{server.deployment} generation {made.generation}: "
    return f"{server.deployment}: " if server.deployment else ""


# ---- what the module does ----------------------------------------------------------------------------


def change(
    store: Store,
    record: Sequence[Mapping[str, Any]],
    instances: Sequence[Mapping[str, Any]],
    bindings: Sequence[Mapping[str, Any]],
    journal: Sequence[str],
    keep: int,
    check: bool,
) -> dict[str, Any]:
    """Record generations, bind deployments, and note lines. What is there already is not written again."""
    now, actions, diff, lines = now_text(), [], [], []
    described = {str(item.get("name")): item for item in instances}
    for wanted in record:
        deployment, number = _named(wanted), int(wanted["generation"])
        generation = _joined(wanted, described, now)
        path = store.path(deployment, f"{number}.json")
        if number in store.numbers(deployment):
            _same(store.generation(deployment, number), generation, path)
            continue
        actions.append(f"write {path} (mode 0600)")
        diff.append(_diff(path, None, light(generation)))
        names = ", ".join(item["name"] for item in generation["members"]) or "no instance"
        lines.append(f"{deployment} generation {number} recorded: {names} ({generation['why']})")
        if not check:
            store.put(deployment, f"{number}.json", generation)
    for wanted in bindings:
        deployment = _named(wanted)
        before = store.state(deployment)
        after = _bound(before, wanted, now)
        if after == before:
            continue
        path = store.path(deployment, STATE)
        actions.append(f"write {path} (mode 0600)")
        diff.append(_diff(path, before, after))
        lines += _bound_lines(deployment, before, after)
        if not check:
            store.put(deployment, STATE, after)
    for deployment in dict.fromkeys(_named(wanted) for wanted in record):
        needed = [int(item) for wanted in record for item in wanted.get("needed") or ()
                  if wanted["deployment"] == deployment]  # fmt: skip
        more = [int(w["generation"]) for w in record if w["deployment"] == deployment] if check else []
        for number in _too_old(store, deployment, keep, needed, more):
            actions.append(f"remove {store.path(deployment, f'{number}.json')}")
            if not check:
                store.drop(deployment, number)
        if not check:
            store.summarise(deployment)
    lines += journal
    actions += [f"append to {store.journal}: {line}" for line in lines]
    if not check:
        store.note(lines, now)
    return {"changed": bool(actions), "actions": actions, "diff": diff}


def _named(data: Mapping[str, Any]) -> str:
    name = data.get("deployment")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise NodeError(f"{name!r} is not the name of a deployment: lower-case letters, digits and hyphens.")
    return name


def _joined(wanted: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]], now: str) -> Json:
    """The generation as it is stored: its members with their servers and descriptions."""
    members = []
    for member in wanted["members"]:
        instance = described.get(member["name"])
        server = (instance or {}).get("server")
        if instance is None or not server or server.get("spec_hash") != member["spec_hash"]:
            raise NodeError(
                f"Generation {wanted['generation']} of {wanted['deployment']} has {member['name']}, "
                "which is not among the instances with that hash. Give both from the same plan."
            )
        plain = {key: value for key, value in instance.items() if key not in ("server", "host")}
        members.append({**member, "server": server, "described": plain})
    head = {key: value for key, value in wanted.items() if key != "needed"}
    return {**head, "schema": SCHEMA, "made": now, "members": members}


def _same(there: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> None:
    """Raise when a number stands for something else: two runs at once, or a store from elsewhere."""
    specs = [{item["name"]: item["spec_hash"] for item in each["members"]} for each in (there, wanted)]
    if canonical(specs[0]) != canonical(specs[1]):
        raise NodeError(
            f"{path} is already recorded, with other members: another run has recorded it since this one "
            "looked. Nothing was changed; run again."
        )


def _bound(before: Mapping[str, Any], wanted: Mapping[str, Any], now: str) -> Json:
    after = dict(before)
    for key, parse, gone in (("held", Hold.from_json, "lifted"), ("trial", Trial.from_json, "ended")):
        if key not in wanted:
            continue
        value = wanted[key]
        if value is None:
            # When: a host that was away meanwhile still has it, and must not bind the others again.
            after.update({key: None, gone: now} if before.get(key) else {})
            continue
        try:
            new = parse(value).to_json()
        except (KeyError, TypeError, ValueError) as error:
            raise NodeError(f"{key} of {wanted['deployment']}: {error} is missing or wrong.") from None
        old = before.get(key) or {}
        same = (old.get("generation"), old.get("why")) == (new["generation"], new["why"])
        new["since"] = new["since"] or (old.get("since") if same else "") or now
        after[key] = new
    return after


def _bound_lines(deployment: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, begins, ends in (
        ("held", "is held at", "is no longer held at"),
        ("trial", "is on trial with", "is no longer on trial with"),
    ):
        old, new = before.get(key) or {}, after.get(key) or {}
        if (old.get("generation"), old.get("why")) == (new.get("generation"), new.get("why")):
            continue
        if new:
            lines.append(f"{deployment} {begins} generation {new['generation']} ({new['why']})")
        else:
            lines.append(f"{deployment} {ends} generation {old['generation']}")
    return lines


def _too_old(
    store: Store, deployment: str, keep: int, needed: Iterable[int], more: Iterable[int]
) -> list[int]:
    """Numbers to forget: all but the newest, and those that something still stands on."""
    numbers = sorted({*store.numbers(deployment), *more})
    state = store.state(deployment)
    bound = [item["generation"] for item in (state["held"], state["trial"]) if item]
    return [number for number in numbers[:-keep] if number not in {*needed, *bound}]


def _diff(path: str, before: Any, after: Any) -> Json:
    texts = ["" if item is None else json.dumps(item, indent=1) + "\n" for item in (before, after)]
    return {"before_header": path, "after_header": path, "before": texts[0], "after": texts[1]}
