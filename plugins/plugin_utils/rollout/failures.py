# SPDX-License-Identifier: Apache-2.0
"""Tell a host's failure in a rollout: what was said, and whether it is a verdict on the release. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..hints import cause
from ..infrastructure import CLASSES

SERVER = "vllm_server"
RECORD = "serving_generation"


@dataclass(frozen=True)
class Failure:
    """Why a host of a batch failed.

    classes: of its instances, or of the step itself; "" for a failure that has none. started: whether its instances
    had started.
    """

    text: str
    classes: tuple[str, ...] = ("",)
    started: bool = True

    @property
    def release(self) -> bool:
        """Return whether the release may be the cause: one instance of several is enough."""
        return not set(self.classes) <= CLASSES


def failure_of(action: str, result: Any) -> Failure:
    """Return the failure from the module that failed, and its result."""
    module, text = action.rpartition(".")[2], message_of(result)
    found = result if isinstance(result, Mapping) else {}
    if module == SERVER:
        # Without a class of an instance, it got to none: another run is at work, Docker is dead, the disk is full.
        servers = tuple(str(item["class"]) for item in found.get("servers") or () if item.get("class"))
        return Failure(text, servers or (str(found.get("class") or "docker"),), started=False)
    if module == RECORD:
        return Failure(text, (str(found.get("class") or "record"),))
    return Failure(text, (str(_failed(found).get("class") or ""),))


def message_of(result: Any) -> str:
    """Return the error of a task's result, or of its first failed item."""
    if not isinstance(result, Mapping):
        return str(result)
    found = _failed(result)
    return cause(found) or str(found.get("msg") or found.get("stderr") or "no message").strip()


def _failed(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first failed item of a loop's result, else the result itself."""
    items = result.get("results")
    # Not every module has the items of a loop under this name: dnf has lines of text there.
    found = [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return next((item for item in found if item.get("failed")), result)
