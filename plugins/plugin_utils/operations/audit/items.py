# SPDX-License-Identifier: Apache-2.0
"""Define the items of a host's audit (catalog/host_items.yml), and their results. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...knowledge.catalog.gpus import GpuCatalog, GpuModel
from ...planning.generations.drift import Drift

REQUIRED, RECOMMENDED, ADVISORY = "required", "recommended", "advisory"
OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"
ELSEWHERE, SKIPPED = "not applicable", "skipped"
SETTINGS = ("kernel_cmdline", "sysctl", "sysfs", "limits", "units")
"""Kinds of fixes that prepare.yml applies."""


@dataclass(frozen=True)
class HostItem:
    """One property that a host should have; the keys are those of catalog/host_items.yml."""

    id: str
    title: str
    level: str
    check: Mapping[str, Any]
    fix: Mapping[str, Any]
    reboot: bool
    why: str
    see: str
    source: str
    when: Mapping[str, Any] = field(default_factory=dict)
    kept: str = ""


def parse_items(data: Mapping[str, Any]) -> tuple[HostItem, ...]:
    """Return the items of catalog/host_items.yml, in its order."""
    return tuple(HostItem(**item) for item in data["items"])


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: OK, WRONG, UNKNOWN or ELSEWHERE.

    `note` says what sets or changed the value. For a wrong value, `pending` means that the next boot corrects it,
    and `now` that it is right until the next boot. `fix` replaces the item's fix if the host needs another one.
    """

    status: str
    found: str
    wanted: str = ""
    note: str = ""
    pending: bool = False
    now: bool = False
    fix: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AuditFinding:
    """An item with its result on one host."""

    item: HostItem
    verdict: CheckResult

    @property
    def status(self) -> str:
        """Return the status of the result."""
        return self.verdict.status

    @property
    def fix(self) -> Mapping[str, Any]:
        """Return the fix on this host."""
        return self.item.fix if self.verdict.fix is None else self.verdict.fix

    @property
    def reboot(self) -> bool:
        """Return whether the fix needs a reboot."""
        return self.status == WRONG and self.item.reboot and not self.verdict.now

    def to_json(self) -> dict[str, Any]:
        """Return the content for -e audit_file and other programs."""
        (how, what), *_unused = self.fix.items()
        wrong = self.status == WRONG
        return {
            "id": self.item.id,
            "title": self.item.title,
            "level": self.item.level,
            "status": self.status,
            "found": self.verdict.found,
            "wanted": self.verdict.wanted or self.item.title,
            "note": self.verdict.note,
            "fix": {how: what} if wrong else None,
            "reboot": self.reboot,
            "source": self.item.source,
        }


@dataclass(frozen=True)
class HostView:
    """A host as the checks see it: its facts, the inventory's declarations, and the catalogue.

    Attributes:
        facts, state: from the module host_facts.
        rocms: the ROCm releases of the host's images, by image.
        images: catalog/images.yml.
        gpu_count: 0 for as many as `per_node` of the model.
        drift: differences between what runs and its records.
    """

    facts: Mapping[str, Any]
    state: Mapping[str, Any]
    catalog: GpuCatalog
    images: Mapping[str, Any]
    gpu_model: str | None = None
    gpu_count: int = 0
    rocms: Mapping[str, str] = field(default_factory=dict)
    per_node: Mapping[str, int] = field(default_factory=dict)
    drift: tuple[Drift, ...] = ()

    @property
    def gpus(self) -> tuple[Mapping[str, Any], ...]:
        """Return the accelerators on the PCI bus; empty if it could not be read."""
        return tuple(self.facts.get("pci_gpus") or ())

    @property
    def models(self) -> tuple[GpuModel, ...]:
        """Return the GPU models that the catalogue knows, each once; else the declared one."""
        ids = dict.fromkeys(f"1002:{gpu['device_id'] or 0:04x}" for gpu in self.gpus)
        found = [model for model in map(self.catalog.by_pci_id, ids) if model]
        declared = self.catalog.by_name(self.gpu_model) if self.gpu_model and not found else None
        found += [declared] if declared else []
        return tuple(dict.fromkeys(found))

    def applies(self, when: Mapping[str, Any]) -> bool:
        """Return whether all conditions of an item are met."""
        vendor = (self.facts.get("cpu") or {}).get("vendor") or ""
        roce = any(nic["layer"] == "Ethernet" for nic in self.facts.get("nics") or ())
        holds = {
            "cpu": {"AuthenticAMD": "amd", "GenuineIntel": "intel"}.get(vendor) == when.get("cpu"),
            "bare_metal": not self.state.get("virtual_machine"),
            "roce": roce,
        }
        return all(holds[name] for name in when)
