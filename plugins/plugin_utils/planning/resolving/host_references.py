# SPDX-License-Identifier: Apache-2.0
"""What the control node knows of a host's images and weights: its lock file, deployments and mirrors of registries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError
from ....module_utils.content.image_names import Override
from ...base.checker import Checker
from ..desired.inventory_check import conflict_problems
from ..desired.variables import InventoryReader
from ..pins.lockfile import LOCK, Lock
from ..pins.prune_roots import pushed_repositories
from ..pins.registry_override import VARIABLE, parse_overrides
from .lock_file import read_lock


@dataclass(frozen=True)
class HostReferences:
    """A host's references. path: of the lock file, which need not exist."""

    path: Path
    lock: Lock
    deployments: Sequence[Any]
    overrides: tuple[Override, ...]

    def image_names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options by which a module knows images as the toolkit's. given: the task's own."""
        return {
            "registry_override": {
                **(given.get("registry_override") or {}),
                **{rule.origin: rule.mirror for rule in self.overrides},
            },
            "push_repositories": [
                *(given.get("push_repositories") or ()),
                *pushed_repositories(self.lock, self.deployments),
            ],
        }


def host_references(reader: InventoryReader, host: str, loader: Any) -> HostReferences:
    """Return what is known of a host. Raise FleetError if the inventory contradicts itself, or a file is damaged."""
    if wrong := [*conflict_problems(reader, [host], loader)]:
        raise FleetError(wrong)
    path, check = reader.inventory_directory([host]) / LOCK, Checker()
    lock = read_lock(path)
    own = reader.values(host, ("vllm_deployments", VARIABLE))
    overrides = parse_overrides(check, own.get(VARIABLE) or {})
    if check.problems:
        raise FleetError(check.problems)
    return HostReferences(path, lock, own.get("vllm_deployments") or (), tuple(overrides))
