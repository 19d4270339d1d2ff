# SPDX-License-Identifier: Apache-2.0
"""Change a node's partition modes, or predict the change: the work of the module rocm_partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..common.module_main import NodeError
from ..common.paths import container_name
from ..engines.names import check_name
from .gpus import PartitionError
from .holders import Service
from .request import NodeInterface, PartitionRequest, PartitionResult, make_plan, predict
from .transaction import Transaction

STOP_SECONDS = 120


def services_of(servers: Sequence[Mapping[str, Any]]) -> tuple[Service, ...]:
    """Return a plan's instances as services to stop. Raise NodeError for an invalid name."""
    return tuple(
        Service(
            "instance",
            container_name(check_name(str(item.get("name")))),
            int(item.get("stop_timeout") or STOP_SECONDS),
        )
        for item in servers
    )


def change(node: NodeInterface, request: PartitionRequest, check: bool) -> PartitionResult:
    """Set the node's modes, or predict that. Raise NodeError if the change is refused.

    If a change is refused that should finish an interrupted one, the interrupted one is undone.
    """
    try:
        plan = make_plan(node, request)
        return predict(node, plan, request) if check else Transaction(node, plan, request).run()
    except PartitionError as refusal:
        try:
            outcome = None if check else _take_back(node, request)
        except PartitionError as error:
            raise NodeError(f"{refusal} The earlier, interrupted change is still open: {error}") from None
        if outcome is None:
            raise NodeError(str(refusal)) from None
        what = outcome.error or "The earlier, interrupted change was undone."
        return replace(outcome, error=f"{refusal} {what}")


def _take_back(node: NodeInterface, request: PartitionRequest) -> PartitionResult | None:
    """Undo an interrupted change; None if there is none, or if its undoing was just refused."""
    if node.load_journal() is None or (request.compute is None and request.memory is None):
        return None
    back = PartitionRequest(timeout=request.timeout, retries=request.retries)
    return Transaction(node, make_plan(node, back), back).run()
