# SPDX-License-Identifier: Apache-2.0
"""The record of a node's desired partition modes, kept on its disk for the next boot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
DRIVER_SECONDS = 90.0
"""Seconds that the driver may take at boot to show the GPUs."""
ABOUT = (
    "The partition modes that this node's GPUs are to have, compute modes by PCI address. They are set again at every "
    "boot by instinct-partition.service. Written by instinct-fleet; change gpu_partition_compute and "
    "gpu_partition_memory in the inventory, not this file."
)


@dataclass(frozen=True)
class Record:
    """Modes to set at boot; memory None: the driver has no memory modes."""

    memory: str | None
    compute: Mapping[str, str]

    def to_text(self) -> str:
        """Return the text of the record's file."""
        data = {"schema": SCHEMA, "about": ABOUT, "memory": self.memory, "compute": dict(self.compute)}
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Record:
        """Parse that text. Raise ValueError for any other one."""
        try:
            data: dict[str, Any] = json.loads(text)
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']}")
            return cls(data["memory"], {str(bdf): str(mode) for bdf, mode in data["compute"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
