# SPDX-License-Identifier: Apache-2.0
"""Decide what follows from a batch of a rollout; read what the hosts recorded, and decide nothing here.

Documentation: plugins/modules/rollout_verdict.py (`ansible-doc -t module instinct.fleet.rollout_verdict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import MEASUREMENTS
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.failures import failure_of
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.judge import judge_batch
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.text import (
    summarize_measurement,
    summarize_rollout,
    unmended_message,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "rollout": {"type": "dict", "required": True},
    "batch": {"type": "dict"},
}
FAILURE = "rollout_failure"
UNMENDED = "rollout_unmended"
RESULT = "rollout_verdict_result"
FAILURES = "_failures"
"""Suffix, after a measurement role's name, of the host variable in which the role lists what failed."""
KEPT = ("stop", "back", "why", "told", "turned", "resumable", "hosts", "batch", "lost", "missed")
"""The parts of the verdict that ended the rollout which later batches do not change."""
BALANCERS = "load_balancer_verdict"


class ActionModule(ControllerAction):
    """rollout_verdict."""

    options: ClassVar = OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return stop, back, why and the number of the batch that ended the rollout.

        Fail at the end of a rollout that ended early.
        """
        rollout, batch = options["rollout"], options["batch"]
        before = dict(facts.get(RESULT) or {})
        if batch is None:
            return self._end(rollout, before, facts)
        if before.get("stop"):
            return {"changed": False, **_kept(before), "phases": []}
        alive = set(facts["ansible_play_hosts"])
        notes = _notes(facts, batch["hosts"], FAILURE, batch["number"])
        # If the hosts that the batch waits for did not start theirs first, the batch changed nothing.
        gone = [host for host in (*batch["hosts"], *batch["awaits"]) if host not in alive]
        failures = {
            host: failure_of(note["action"], note["result"], _asked(note, host, batch))
            for host, note in notes.items()
        }
        verdict = judge_batch(batch, failures, gone)
        self.show(verdict.message)
        lost = {**(before.get("lost") or {}), **_lost(facts, batch["hosts"])}
        return {
            "changed": False,
            **verdict.to_json(),
            "batch": batch["number"],
            "lost": lost,
            "missed": [*(before.get("missed") or ()), *verdict.missed],
        }

    def _end(
        self, rollout: Mapping[str, Any], before: Mapping[str, Any], variables: Mapping[str, Any]
    ) -> dict[str, Any]:
        ended = before.get("batch") if before.get("stop") else None
        operation = rollout["operation"]
        hosts = [host for batch in rollout["batches"] for host in batch["hosts"]]
        measures = operation in MEASUREMENTS
        notes = _notes(variables, hosts, UNMENDED, None if measures else ended) if ended or measures else {}
        unmended = {host: unmended_message(note["action"], note["result"]) for host, note in notes.items()}
        if measures:
            failed = [*(before.get("missed") or ()), *_failures(variables, hosts, f"{operation}{FAILURES}")]
            text = summarize_measurement(operation, rollout["batches"], ended, failed, unmended)
            bad = bool(failed or unmended or ended)
        else:
            text = summarize_rollout(
                operation, rollout["batches"], ended, before, unmended, rollout["ignored"]
            )
            bad = ended is not None
        if not bad:
            self.show(text)
        return {"changed": False, "failed": bad, "msg": text}


def _asked(note: Mapping[str, Any], host: str, batch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the batch's instances of a host, as they were found when they had not entered service."""
    mine = {name for unit in batch["units"] for name in unit}
    return [item for item in note.get("asked") or () if f"{host}/{item['name']}" in mine]


def _kept(before: Mapping[str, Any]) -> dict[str, Any]:
    return {key: before[key] for key in KEPT}


def _lost(variables: Mapping[str, Any], hosts: Any) -> dict[str, str]:
    """Return the load balancers that did not answer when these hosts' servers were last set, and why."""
    found: dict[str, str] = {}
    for host in hosts:
        found |= (variables["hostvars"].raw_get(host).get(BALANCERS) or {}).get("lost") or {}
    return {str(name): str(why) for name, why in found.items()}


def _failures(variables: Mapping[str, Any], hosts: Any, name: str) -> list[str]:
    """Return what failed on hosts while their instances were measured."""
    return [
        f"{host}: {text}"
        for host in dict.fromkeys(hosts)
        for text in variables["hostvars"].raw_get(host).get(name) or ()
    ]


def _notes(variables: Mapping[str, Any], hosts: Any, name: str, number: int | None) -> dict[str, Any]:
    """Return what hosts recorded of a batch, or last of any: the module that failed (action), and its result."""
    found = {}
    for host in dict.fromkeys(hosts):
        note = variables["hostvars"].raw_get(host).get(name)
        if note and number in (None, note["batch"]):
            found[str(host)] = note
    return found
