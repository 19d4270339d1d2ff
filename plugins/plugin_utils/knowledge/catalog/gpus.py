# SPDX-License-Identifier: Apache-2.0
"""GPU models as the catalogue (catalog/gpus.yml) describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..sizing.decode import PeakRates

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class ValidatedModes:
    """A pair of partition modes that AMD lists as validated, and the first ROCm release with it."""

    compute: str
    memory: str
    rocm: str


@dataclass(frozen=True)
class GpuModel:
    """A GPU product: its parts and how it can be partitioned. peak: of the whole GPU, None if no document states it."""

    name: str
    pci_ids: tuple[str, ...]
    gfx: str
    memory_bytes: int
    partitions: tuple[tuple[str, int], ...]
    memory: tuple[tuple[str, tuple[str, ...]], ...]
    validated: tuple[ValidatedModes, ...]
    source: str
    peak: PeakRates | None = None

    def peak_of(self, compute: str) -> PeakRates | None:
        """Return the peak rates of one partition in a compute mode, an equal part of the GPU's; None if not known.

        With one NPS domain all partitions share the whole HBM; the part is what each gets when all are busy.
        """
        count = self.count(compute)
        return self.peak.part(count) if self.peak and count else None

    def count(self, compute: str) -> int | None:
        """Return the number of partitions of one GPU in a compute mode, or None if it does not have the mode."""
        return dict(self.partitions).get(compute)

    def memory_for(self, compute: str) -> tuple[str, ...]:
        """Return the memory modes that can be combined with a compute mode."""
        return dict(self.memory).get(compute, ())

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the compute modes, ordered by number of partitions."""
        return tuple(mode for mode, _unused in self.partitions)

    def is_validated(self, compute: str, memory: str) -> bool:
        """Return whether AMD lists this pair as validated."""
        return any(item.compute == compute and item.memory == memory for item in self.validated)


@dataclass(frozen=True)
class GpuCatalog:
    """All models, and the rule for numbering render nodes."""

    models: tuple[GpuModel, ...]
    first_minor: int
    minors_per_gpu: int
    source: str

    def by_name(self, name: str) -> GpuModel | None:
        """Return the model of this name, or None."""
        return next((model for model in self.models if model.name == name), None)

    def by_pci_id(self, pci_id: str) -> GpuModel | None:
        """Return the model with this "vendor:device", or None."""
        return next((model for model in self.models if pci_id in model.pci_ids), None)

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the compute modes of all models, ordered by number of partitions."""
        counts = {mode: count for model in self.models for mode, count in model.partitions}
        return tuple(sorted(counts, key=lambda mode: (counts[mode], mode)))

    @property
    def memory_modes(self) -> tuple[str, ...]:
        """Return the memory modes that some mode of some model can be combined with."""
        return tuple(
            sorted({name for model in self.models for _unused, names in model.memory for name in names})
        )


def parse_gpus(data: Mapping[str, Any]) -> GpuCatalog:
    """Build the catalogue from gpus.yml; the tests check its schema, so a run does not."""
    models = []
    for name, item in data["models"].items():
        partitions = item["compute_partitions"]
        vram = item.get("vram_mib")
        models.append(
            GpuModel(
                name=name,
                pci_ids=tuple(item["pci_ids"]),
                gfx=item["gfx"],
                memory_bytes=vram * MIB if vram else item["hbm_gib"] * GIB,
                partitions=tuple((mode, entry["count"]) for mode, entry in partitions.items()),
                memory=tuple((mode, tuple(entry["memory"])) for mode, entry in partitions.items()),
                validated=tuple(
                    ValidatedModes(entry["compute"], entry["memory"], entry["rocm"])
                    for entry in item["validated"]
                ),
                source=item["source"],
                peak=_peak(item.get("peak")),
            )
        )
    nodes = data["render_nodes"]
    return GpuCatalog(tuple(models), nodes["first_minor"], nodes["minors_per_gpu"], nodes["source"])


def _peak(item: Mapping[str, Any] | None) -> PeakRates | None:
    if item is None:
        return None
    flops = tuple((name, tera * 1e12) for name, tera in item["dense_tflops"].items())
    return PeakRates(item["hbm_tb_per_s"] * 1e12, flops)
