# SPDX-License-Identifier: Apache-2.0
"""Judge a batch of a rollout: whether it continues, goes back or stops, and whether the release goes back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.service.endpoint import BALANCER
from ....module_utils.service.generations import MEASUREMENTS, UPGRADE
from ..rollout.steps import NOT_WITHOUT_VERDICT, hold_reason
from .failures import Failure
from .text import VERBS


@dataclass(frozen=True)
class BatchVerdict:
    """The consequence of a batch's result.

    stop: no more batches. back: roll this batch back. why: the reason, in one line. phases: those that follow on hosts.
    turned: the release was turned back. resumable: something around it failed, so the same command continues. missed:
    what the run reports as failed at the end, although it continues.
    """

    stop: bool
    back: bool
    why: str
    message: str
    phases: Sequence[str] = ()
    hosts: Sequence[str] = ()
    turned: bool = False
    resumable: bool = False
    missed: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the verdict for the playbook."""
        return {
            "stop": self.stop,
            "back": self.back,
            "why": self.why,
            "told": self.message,
            "phases": list(self.phases),
            "hold_why": hold_reason(self.why),
            "hosts": list(self.hosts),
            "turned": self.turned,
            "resumable": self.resumable,
            "missed": list(self.missed),
        }


def judge_batch(
    batch: Mapping[str, Any], failures: Mapping[str, Failure], gone: Sequence[str]
) -> BatchVerdict:
    """Judge a batch.

    failures: of the hosts of the batch that failed. gone: hosts that became unreachable. An unreachable host says
    nothing about the new generation: the others keep it, and the rollout ends. Nor does a failure of its surroundings:
    the hosts concerned go back, if they can, and the same command continues. One failure of the release is a verdict.
    A canary that did not start gets its report on the way back; one that was measured already has its report.
    A measurement continues with the other instances; one that failed is returned, for the load balancers to use once it
    is ready.
    """
    operation = batch["operation"]
    what = f"{VERBS[operation]} of {batch['deployment']}, {batch['text']}"
    everyone = tuple(batch["all_hosts"])
    if failures:
        why = "; ".join(dict.fromkeys(f"{host}: {item.text}" for host, item in failures.items()))
        if operation in MEASUREMENTS:
            missed = (f"{batch['text']}: {why}",)
            ends = any(UNTOUCHED.intersection(item.classes) for item in failures.values())
            return BatchVerdict(
                ends, True, why, f"{what}: failed", batch["way_back"], tuple(failures), missed=missed
            )
        if operation != UPGRADE:
            return BatchVerdict(True, False, why, f"{what}: failed", hosts=everyone)
        if not _of_the_release(batch, failures, gone):
            lost = f"; {', '.join(gone)} {_gone(gone, batch)}" if gone else ""
            return _not_judged(batch, failures, f"{why}{lost}", what)
        canary = failures.get(batch["canary"].partition("/")[0])
        reported = canary is None or canary.started
        way = [phase for phase in batch["way_back"] if phase != "report" or not reported]
        return BatchVerdict(True, True, why, f"{what}: failed", way, everyone, turned=True)
    if gone and operation in MEASUREMENTS:
        why = f"{', '.join(gone)} {_gone(gone, batch)}"
        return BatchVerdict(
            False, False, why, f"{what}: failed", hosts=everyone, missed=(f"{batch['text']}: {why}",)
        )
    if gone:
        return BatchVerdict(
            True,
            False,
            f"{', '.join(gone)} {_gone(gone, batch)}",
            f"{what}: interrupted",
        )
    return BatchVerdict(False, False, "", f"{what}: done", hosts=everyone)


def _of_the_release(
    batch: Mapping[str, Any], failures: Mapping[str, Failure], gone: Sequence[str]
) -> list[str]:
    """Return the hosts whose failure is a verdict on the release.

    It is not a verdict if all engines of the host in this batch also need a host that is gone, or that failed for
    another reason.
    """
    sick = {*gone, *(host for host, item in failures.items() if not item.release)}
    found = []
    for host, item in failures.items():
        engines = [names for names in _hosts_of_units(batch) if host in names]
        alone = [names for names in engines if sick.isdisjoint(names)]
        if item.release and (alone or not engines):
            found.append(host)
    return found


def _hosts_of_units(batch: Mapping[str, Any]) -> list[set[str]]:
    return [{name.partition("/")[0] for name in unit} for unit in batch["units"]]


UNTOUCHED = {BALANCER, "other_run", "stale_plan"}
"""Classes of failures after which a host waits as it is."""


def _not_judged(
    batch: Mapping[str, Any], failures: Mapping[str, Failure], why: str, what: str
) -> BatchVerdict:
    """Return what follows from failures of the infrastructure alone: nothing is held, and what works stays."""
    # Where no load balancer answers, nothing can be drained, and another run's hosts are left to that run.
    ill = [host for host, item in failures.items() if not set(item.classes) <= UNTOUCHED]
    away = [phase for phase in batch["way_back"] if phase not in NOT_WITHOUT_VERDICT] if ill else []
    hosts = {host for group in _hosts_of_units(batch) if group & set(ill) for host in group}
    back = tuple(host for host in batch["hosts"] if host in hosts)
    return BatchVerdict(True, bool(away), why, f"{what}: interrupted", away, back, resumable=True)


def _gone(hosts: Sequence[str], batch: Mapping[str, Any]) -> str:
    if set(hosts) & set(batch["hosts"]):
        return "can no longer be reached"
    return "failed to start what must serve before others change"
