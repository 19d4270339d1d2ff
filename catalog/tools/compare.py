# SPDX-License-Identifier: Apache-2.0
"""What the catalogue has of a release, against what a probe of a real vLLM found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .packing import same


@dataclass(frozen=True)
class Difference:
    """One attribute that differs. `shipped` or `probed` is None where the whole name is on one side only."""

    table: str
    name: str
    attribute: str
    shipped: Any
    probed: Any

    def text(self) -> str:
        """One line for people."""
        if self.attribute == "":
            side = "only in the catalogue" if self.probed is None else "only in this vLLM"
            return f"{self.table} {self.name}: {side}"
        here, there = f"{self.shipped!r} here", f"{self.probed!r} in this vLLM"
        return f"{self.table} {self.name}: {self.attribute} is {here}, {there}"


def differences(
    table: str,
    shipped: Mapping[str, Mapping[str, Any]],
    probed: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
) -> Iterator[Difference]:
    """Names on one side only, and attributes that differ, in the order of their names."""
    for name in sorted({*shipped, *probed}):
        if name not in probed or name not in shipped:
            yield Difference(table, name, "", shipped.get(name), probed.get(name))
            continue
        for key, default in defaults.items():
            here, there = shipped[name].get(key, default), probed[name].get(key, default)
            if not same(here, there):
                yield Difference(table, name, key, here, there)
