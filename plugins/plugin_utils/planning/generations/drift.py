# SPDX-License-Identifier: Apache-2.0
"""Find differences between nodes and their own records of generations, and among the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....module_utils.common.errors import natural
from ....module_utils.service.generations import Generation, History
from ..desired.actions import ALIVE
from ..observed.node_state import NodeState, ObservedInstance
from .bindings import ENDS, hold_text

UNKNOWN, FILES, STOPPED, MISSING, SURPLUS, DIFFERS, HELD, TRIAL, BROKEN = (
    "unknown", "files", "stopped", "missing", "surplus", "differs", "held", "trial", "broken",
)  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """One difference.

    host: "" if it concerns the fleet. instance: "" if it concerns the whole deployment. fix: what to do.
    """

    kind: str
    host: str
    deployment: str
    instance: str
    text: str
    fix: str


def drift(states: Mapping[str, NodeState]) -> tuple[Drift, ...]:
    """Return all differences, by host in natural order.

    A host should run its newest record, or the one at which it is held. During an open rollout, any record is right.
    """
    found: list[Drift] = []
    for host in sorted(states, key=natural):
        state = states[host]
        histories = {item.deployment: item for item in state.generations}
        for name in sorted({*histories, *(item.deployment for item in state.instances)}, key=natural):
            there = [item for item in state.instances if item.deployment == name]
            found += _of_host(host, name, histories.get(name, History(name)), there)
    return (*found, *_between(states))


def wanted_of(history: History) -> Generation | None:
    """Return the record that a host should run, or None during an open rollout or without records."""
    if history.held:
        return history.as_of(history.held.generation)
    return None if history.trial else history.newest


def _of_host(host: str, name: str, history: History, there: Iterable[ObservedInstance]) -> Iterable[Drift]:
    if history.broken:
        fix = "Delete the named file; only that record is lost, running instances are not affected."
        yield Drift(BROKEN, host, name, "", f"its record cannot be read: {history.broken}", fix)
        return
    if history.held:
        text = hold_text(name, history.held).removeprefix(f"{name} is ")
        yield Drift(HELD, host, name, "", text, ENDS)
    if history.trial:
        text = (
            f"unfinished upgrade to generation {history.trial.generation} since {history.trial.since} "
            f"({history.trial.why})"
        )
        yield Drift(
            TRIAL, host, name, "", text, "site.yml or upgrade.yml continues it; rollback.yml undoes it."
        )
    wanted = wanted_of(history)
    specs = wanted.specs if wanted else {}
    seen = set()
    for running in there:
        seen.add(running.name)
        yield from _of_instance(host, history, wanted, running)
    for missing in [item for item in specs if item not in seen]:
        number = wanted.generation if wanted else 0
        text = f"is missing, but generation {number} includes it"
        yield Drift(MISSING, host, name, missing, text, "site.yml starts it again.")


def _of_instance(
    host: str, history: History, wanted: Generation | None, running: ObservedInstance
) -> Iterable[Drift]:
    name, deployment = running.name, running.deployment
    runs = history.of_spec(name, running.spec_hash)
    if runs is None:
        spec = (running.spec_hash or "none")[:12]
        yield Drift(
            UNKNOWN,
            host,
            deployment,
            name,
            f"runs a configuration that is not recorded (spec {spec})",
            "Run site.yml.",
        )
    elif wanted is not None and name not in wanted.specs:
        text = f"runs, but generation {wanted.generation} does not include it"
        yield Drift(SURPLUS, host, deployment, name, text, "site.yml removes it.")
    elif wanted is not None and wanted.specs[name] != running.spec_hash:
        text = f"runs generation {runs.generation}, but the host should run {wanted.generation}"
        yield Drift(DIFFERS, host, deployment, name, text, "site.yml or upgrade.yml changes it.")
    if running.spec_hash and running.artefact_hash != running.spec_hash:
        what = "are missing" if running.artefact_hash is None else "were changed on the node"
        text = f"its files {what} since the container was created"
        yield Drift(FILES, host, deployment, name, text, "site.yml writes them again, and restarts it.")
    if running.state not in ALIVE and (wanted is None or name in wanted.specs):
        code = f" (exit code {running.exit_code})" if running.exit_code is not None else ""
        text = f"is not running: {running.state or 'no container'}{code}"
        yield Drift(STOPPED, host, deployment, name, text, "status.yml shows why; site.yml starts it.")


def _between(states: Mapping[str, NodeState]) -> Iterable[Drift]:
    """Yield deployments whose hosts run different releases: image, vLLM, model or flags, not GPUs."""
    found: dict[str, dict[tuple[str, ...], list[tuple[str, int]]]] = {}
    for host in sorted(states, key=natural):
        for history in states[host].generations:
            there = [item for item in states[host].instances if item.deployment == history.deployment]
            known = (history.of_spec(item.name, item.spec_hash) for item in there)
            runs = max((item for item in known if item), key=lambda item: item.generation, default=None)
            if runs and not history.trial:
                what = (runs.image, runs.vllm, runs.model, runs.commit)
                found.setdefault(history.deployment, {}).setdefault(what, []).append((host, runs.generation))
    for name, kinds in sorted(found.items()):
        if len(kinds) > 1:
            parts = [
                f"{what[0] or 'no image'} on {', '.join(f'{host} (generation {number})' for host, number in hosts)}"
                for what, hosts in kinds.items()
            ]
            text = f"hosts run different releases: {'; '.join(parts)}"
            yield Drift(DIFFERS, "", name, "", text, "Run site.yml or upgrade.yml without --limit.")
