# SPDX-License-Identifier: Apache-2.0
"""Inventories on disk, read by Ansible itself: what it takes for a host is what its author has to expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

HOSTS = {"instinct": {"hosts": {"n1": None, "n2": None}}}


class Inventory:
    """An inventory as ansible-playbook reads it, of a playbook in a directory `plays`."""

    def __init__(self, place: Path, sources: Sequence[str] = ("mine",)) -> None:
        (place / "plays").mkdir(exist_ok=True)
        self.sources = [str(place / name) for name in sources]
        self.loader = DataLoader()
        self.loader.set_basedir(str(place / "plays"))
        self.manager = InventoryManager(self.loader, sources=self.sources)
        self.variables = VariableManager(self.loader, self.manager)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Every group with its hosts."""
        return {
            str(name): [str(host) for host in hosts] for name, hosts in self.manager.get_groups_dict().items()
        }

    def taken(self, host: str) -> dict[str, Any]:
        """The variables that Ansible takes for a host."""
        found: dict[str, Any] = self.variables.get_vars(
            host=self.manager.get_host(host), include_hostvars=False
        )
        return found


def write(place: Path, files: Mapping[str, Any]) -> Path:
    """Write files below a directory, by their paths: a text as it is, anything else as YAML."""
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return place
