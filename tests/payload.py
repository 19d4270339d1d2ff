# SPDX-License-Identifier: Apache-2.0
"""What Ansible sends to a node for each module: its sources, and the program that its action plugin gives it.

    make payload                       a line for each module; fails when one is above its limit
    make payload MODULE=vllm_server    also the files of that one

Sources are the module and all files of module_utils that it imports, and these import. What comes with every module,
Ansible's own module_utils, is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.instinct.fleet.plugins.plugin_utils.base.assemble import PLUGINS, closure
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import GIVEN

LIMIT = 155_500
LIMITS = {"partition_boot": 60_000, "host_forget": 185_000}  # the latter comes to a host once
"""Bytes of sources, of modules that have another limit than all."""


@dataclass(frozen=True)
class Payload:
    """What is sent for a module. sources: bytes of each file; program: bytes of the parameter."""

    module: str
    sources: Mapping[str, int]
    program: int

    @property
    def size(self) -> int:
        """Bytes of all sources."""
        return sum(self.sources.values())

    @property
    def limit(self) -> int:
        """How many there may be."""
        return LIMITS.get(self.module, LIMIT)


def payloads() -> list[Payload]:
    """Of every module that runs on nodes: one that only documents an action plugin is not sent."""
    found = []
    for path in sorted((PLUGINS / "modules").glob("*.py")):
        if "__main__" in path.read_text(encoding="utf-8"):
            sources = {str(file.relative_to(PLUGINS)): file.stat().st_size for file in closure(path)}
            program = len(json.dumps(GIVEN[path.stem]())) if path.stem in GIVEN else 0
            found.append(Payload(path.stem, sources, program))
    return found


def main(names: list[str]) -> int:
    """Print them. The exit code says whether all keep to their limits."""
    found = payloads()
    print(f"{'module':20} {'files':>5} {'sources, bytes':>15} {'limit':>8} {'program, bytes':>15}")
    for one in sorted(found, key=lambda one: -one.size):
        above = "  above its limit" if one.size > one.limit else ""
        print(f"{one.module:20} {len(one.sources):5} {one.size:15,} {one.limit:8,} {one.program:15,}{above}")
        if one.module in names:
            for path, size in sorted(one.sources.items(), key=lambda item: -item[1]):
                print(f"  {size:8,} {path}")
    return any(one.size > one.limit for one in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
