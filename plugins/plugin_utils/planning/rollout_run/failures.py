# SPDX-License-Identifier: Apache-2.0
"""Describe a host's failure in a rollout: its message, and whether it is a verdict on the release. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.service.endpoint import NOT_IN_SERVICE
from ...base.hints import cause, failed_item
from ...base.infrastructure import CLASSES, STEP

SERVER, WATCH = "vllm_server", "vllm_watch"
RECORD = "serving_generation"
CANARY = "canary_verdict"
UNHEALTHY = "unhealthy"
"""The class of an instance that no load balancer takes, and that does not answer when it is asked directly."""


@dataclass(frozen=True)
class Failure:
    """Why a host of a batch failed.

    classes: of its instances, or of the step itself. started: whether its instances had started.
    """

    text: str
    classes: tuple[str, ...]
    started: bool = True

    @property
    def release(self) -> bool:
        """Return whether the release may be the cause: one instance of several is enough."""
        return not set(self.classes) <= CLASSES


def failure_of(action: str, result: Any, asked: Iterable[Mapping[str, Any]] = ()) -> Failure:
    """Return the failure from the module that failed, and its result.

    Only what a module says of instances, and the verdict of a canary, is of the release. asked: the host's instances of
    the batch as instance_status found them, after load balancers have not taken them into service.
    """
    module, text = action.rpartition(".")[2], message_of(result)
    found = failed_item(result) if isinstance(result, Mapping) else {}
    kind = str(found.get("class") or "")
    if module in (SERVER, WATCH):
        # Without a class of an instance, it reached none: another run is at work, Docker is dead, the disk is full.
        servers = tuple(str(item["class"]) for item in found.get("servers") or () if item.get("class"))
        return Failure(text, servers or (kind or "docker",), started=module != SERVER)
    if module == RECORD:
        return Failure(text, (kind or "record",))
    if module == CANARY and found.get("verdict"):
        return Failure(text, (str(found["verdict"]),))
    ill = [str(item.get("name")) for item in asked if not _answers(item)] if kind == NOT_IN_SERVICE else []
    if ill:
        return Failure(f"{text} Asked directly, {', '.join(ill)} does not answer either.", (UNHEALTHY,))
    return Failure(text, (kind if kind in CLASSES else STEP,))


def _answers(instance: Mapping[str, Any]) -> bool:
    """Return whether an instance runs, and answers if it can be asked."""
    return instance.get("status") == "running" and (
        not instance.get("endpoint") or instance.get("health") == 200
    )


def message_of(result: Any) -> str:
    """Return the error of a task's result, or of its first failed item."""
    if not isinstance(result, Mapping):
        return str(result)
    found = failed_item(result)
    return cause(found) or str(found.get("msg") or found.get("stderr") or "no message").strip()
