# SPDX-License-Identifier: Apache-2.0
"""Decide what follows from a batch of a rollout; reads what the hosts noted, decides nothing itself.

Documentation: plugins/modules/rollout_verdict.py (`ansible-doc -t module instinct.fleet.rollout_verdict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.plugin_utils.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.failures import failure_of
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.text import (
    judge_batch,
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
KEPT = ("stop", "back", "why", "told", "turned", "resumable", "hosts", "batch", "lost")
"""What later batches leave of the verdict that ended the rollout."""
BALANCERS = "load_balancer_verdict"


class ActionModule(ControllerAction):
    """rollout_verdict."""

    options: ClassVar = OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return stop, back, why and the number of the batch that ended the rollout; fail in the end of such one."""
        rollout, batch = options["rollout"], options["batch"]
        before = dict(facts.get(RESULT) or {})
        if batch is None:
            return self._end(rollout, before, facts)
        if before.get("stop"):
            return {"changed": False, **_kept(before), "phases": [], "steps": {}}
        alive = set(facts["ansible_play_hosts"])
        notes = _notes(facts, batch["hosts"], FAILURE, batch["number"])
        # Without what was to start first on hosts that it awaits, the batch changed nothing.
        gone = [host for host in (*batch["hosts"], *batch["awaits"]) if host not in alive]
        failures = {host: failure_of(note["action"], note["result"]) for host, note in notes.items()}
        verdict = judge_batch(batch, failures, gone)
        self.show(verdict.message)
        lost = {**(before.get("lost") or {}), **_lost(facts, batch["hosts"])}
        return {
            "changed": False,
            **verdict.to_json(),
            "batch": batch["number"],
            "lost": lost,
        }

    def _end(
        self, rollout: Mapping[str, Any], before: Mapping[str, Any], variables: Mapping[str, Any]
    ) -> dict[str, Any]:
        ended = before.get("batch") if before.get("stop") else None
        hosts = [host for batch in rollout["batches"] for host in batch["hosts"]]
        notes = _notes(variables, hosts, UNMENDED, ended) if ended else {}
        unmended = {host: unmended_message(note["action"], note["result"]) for host, note in notes.items()}
        text = summarize_rollout(rollout["operation"], rollout["batches"], ended, before, unmended)
        if ended is None:
            self.show(text)
        return {"changed": False, "failed": ended is not None, "msg": text}


def _kept(before: Mapping[str, Any]) -> dict[str, Any]:
    return {key: before[key] for key in KEPT}


def _lost(variables: Mapping[str, Any], hosts: Any) -> dict[str, str]:
    """The load balancers that did not answer when these hosts' servers were last set, and why."""
    found: dict[str, str] = {}
    for host in hosts:
        found |= (variables["hostvars"].raw_get(host).get(BALANCERS) or {}).get("lost") or {}
    return {str(name): str(why) for name, why in found.items()}


def _notes(variables: Mapping[str, Any], hosts: Any, name: str, number: int | None) -> dict[str, Any]:
    """What hosts noted of a batch: the module that failed (action), and its result."""
    found = {}
    for host in dict.fromkeys(hosts):
        note = variables["hostvars"].raw_get(host).get(name)
        if note and note["batch"] == number:
            found[str(host)] = note
    return found
