# SPDX-License-Identifier: Apache-2.0
"""The work of the module serving_generation: record generations, hold deployments, remove old generations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.hashing import canonical
from ..common.module_main import NodeError
from ..docker.client import Json
from ..engines.names import NAME
from ..service.generation_schema import SCHEMA
from ..service.generations import Hold, OpenRollout
from .store import now_text
from .store_writer import STATE, GenerationWriter, without_files

KEEP = 5
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class StoreUpdate:
    """What to record, in the form of the module's options.

    at: the time of the holds and trials, by the control node's clock (UTC); "" for this node's. The planner compares
    those of all nodes, so one clock has to give them.
    """

    record: Sequence[Mapping[str, Any]] = ()
    instances: Sequence[Mapping[str, Any]] = ()
    bindings: Sequence[Mapping[str, Any]] = ()
    journal: Sequence[str] = ()
    keep: int = KEEP
    at: str = ""


def change(store: GenerationWriter, update: StoreUpdate, check: bool) -> dict[str, Any]:
    """Record generations, update holds and trials, and add journal lines. Existing records are not written again."""
    if update.at and not _TIME.fullmatch(update.at):
        raise NodeError(f"at: {update.at!r} is not a time such as 2026-11-21T23:00:00Z.")
    actions: list[str] = []
    diff: list[Json] = []
    lines: list[str] = []
    now, record = now_text(), update.record
    described = {str(item.get("name")): item for item in update.instances}
    for wanted in record:
        deployment, number = _named(wanted), int(wanted["generation"])
        generation = _joined(wanted, described, now)
        path = store.path(deployment, f"{number}.json")
        if number in store.numbers(deployment):
            _same(store.generation(deployment, number), generation, path)
            continue
        actions.append(f"write {path} (mode 0600)")
        diff.append(_diff(path, None, without_files(generation)))
        names = ", ".join(item["name"] for item in generation["members"]) or "no instance"
        lines.append(f"{deployment} generation {number} recorded: {names} ({generation['why']})")
        if not check:
            store.put(deployment, f"{number}.json", generation)
    for wanted in update.bindings:
        deployment = _named(wanted)
        before = store.state(deployment)
        after = _bound(before, wanted, update.at or now)
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
        for number in _too_old(store, deployment, update.keep, needed, more):
            actions.append(f"remove {store.path(deployment, f'{number}.json')}")
            if not check:
                store.drop(deployment, number)
        if not check:
            store.summarise(deployment)
    lines += update.journal
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
    """Return the generation in the form of the store: its members with their servers and descriptions."""
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
    """Raise NodeError if the number is already taken by another generation: two concurrent runs, or a foreign store."""
    specs = [{item["name"]: item["spec_hash"] for item in each["members"]} for each in (there, wanted)]
    if canonical(specs[0]) != canonical(specs[1]):
        raise NodeError(
            f"{path} is already recorded, with other members: another run has recorded it since this one "
            "looked. Nothing was changed; run again."
        )


def _bound(before: Mapping[str, Any], wanted: Mapping[str, Any], now: str) -> Json:
    after = dict(before)
    for key, parse, gone in (("held", Hold.from_json, "lifted"), ("trial", OpenRollout.from_json, "ended")):
        if key not in wanted:
            continue
        value = wanted[key]
        if value is None:
            # The time of an end is kept: a host that was unreachable still has the hold, and must not impose it on the
            # others.
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
            failed = ", ".join(str(number) for number in new.get("failed") or ())
            turned = f", {failed} turned back" if failed else ""
            lines.append(f"{deployment} {begins} {_generation(new)}{turned} ({new['why']})")
        else:
            lines.append(f"{deployment} {ends} {_generation(old)}")
    return lines


def _generation(bound: Mapping[str, Any]) -> str:
    return f"generation {bound['generation']}" if bound["generation"] else "no generation"


def _too_old(
    store: GenerationWriter, deployment: str, keep: int, needed: Iterable[int], more: Iterable[int]
) -> list[int]:
    """Return the generations to remove: all but the newest, and except those still in use."""
    numbers = sorted({*store.numbers(deployment), *more})
    state = store.state(deployment)
    bound = [item["generation"] for item in (state["held"], state["trial"]) if item]
    # What was turned back is compared with the inventory, and a rollback goes to what was there before the rollout.
    bound += [number for item in (state["held"],) if item for number in item.get("failed") or ()]
    bound += [item["before"] for item in (state["trial"],) if item and item.get("before")]
    return [number for number in numbers[:-keep] if number not in {*needed, *bound}]


def _diff(path: str, before: Any, after: Any) -> Json:
    texts = ["" if item is None else json.dumps(item, indent=1) + "\n" for item in (before, after)]
    return {"before_header": path, "after_header": path, "before": texts[0], "after": texts[1]}
