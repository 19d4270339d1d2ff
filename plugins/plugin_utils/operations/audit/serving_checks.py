# SPDX-License-Identifier: Apache-2.0
"""Check what runs on a host against its records of generations. Pure functions, and the items that use them.

The items are defined here instead of in catalog/host_items.yml, as they are the toolkit's own rules and have no other
source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import natural
from ...planning.generations import drift
from ...planning.observed.node_state import NodeState
from .items import OK, RECOMMENDED, WRONG, CheckResult, HostItem, HostView

TOLD = 3
SEE = "playbooks/status.yml"
SOURCE = "docs/runbooks/status.md"
# Details that differ between hosts and do not matter to the reader: hosts in the same state share a line.
_OWN = re.compile(r" \(spec \w+\)| since [0-9TZ:.-]+(?= )")


def _item(name: str, title: str, why: str, *kinds: str) -> HostItem:
    check = {"kind": "records", "of": kinds}
    return HostItem(name, title, RECOMMENDED, check, {"hand": "site.yml"}, False, why, SEE, SOURCE)


RECORDS: tuple[HostItem, ...] = (
    _item(
        "serving-recorded",
        "what runs is recorded",
        "rollback.yml can only restore what a generation records",
        drift.UNKNOWN,
        drift.BROKEN,
    ),
    _item(
        "serving-files",
        "instances' files are unchanged",
        "a restart would apply the changes made by hand",
        drift.FILES,
    ),
    _item(
        "serving-runs",
        "recorded instances run",
        "rollouts count on capacity that is missing",
        drift.STOPPED,
        drift.MISSING,
        drift.SURPLUS,
    ),
    _item(
        "serving-alike",
        "hosts run the same generation",
        "the same request is answered by different models or releases",
        drift.DIFFERS,
    ),
    _item(
        "serving-free",
        "no hold, no interrupted rollout",
        "a held deployment does not follow the inventory, and an unfinished upgrade waits to be continued",
        drift.HELD,
        drift.TRIAL,
    ),
)


def records(rule: Mapping[str, Any], view: HostView) -> CheckResult:
    """Check a host against its records, for some kinds of differences."""
    found = [item for item in view.drift if item.kind in rule["of"]]
    if not found:
        return CheckResult(OK, "as recorded")
    names = list(dict.fromkeys(item.instance or item.deployment for item in found))
    texts = [_OWN.sub("", f"{item.instance or item.deployment} {item.text}") for item in found]
    more = [f"{len(texts) - TOLD} more"] if len(texts) > TOLD else []
    fixes = list(dict.fromkeys(item.fix for item in found))
    return CheckResult(
        WRONG,
        ", ".join(names) if len(names) <= TOLD else f"{len(names)} instances",
        note="; ".join([*texts[:TOLD], *more]),
        fix={"hand": " ".join(fixes)},
    )


def drifts(states: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[drift.Drift, ...]]:
    """Return every host's differences by its node_state; those between hosts appear on all hosts of the deployment."""
    nodes = {host: NodeState.from_json(state) for host, state in states.items()}
    found: dict[str, list[drift.Drift]] = {host: [] for host in nodes}
    for item in drift.drift(nodes):
        for host in [item.host] if item.host else _with(nodes, item.deployment):
            found[host].append(item)
    return {host: tuple(items) for host, items in found.items()}


def _with(nodes: Mapping[str, NodeState], deployment: str) -> Sequence[str]:
    return sorted(
        (
            host
            for host, node in nodes.items()
            if any(item.deployment == deployment for item in node.generations)
        ),
        key=natural,
    )
