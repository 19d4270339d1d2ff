# SPDX-License-Identifier: Apache-2.0
"""A simulated node in memory, and commands on it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from lab.gpusim.driver import faults, kernel
from lab.gpusim.machine import settings
from lab.gpusim.machine.state import Node, make_node
from lab.gpusim.machine.store import MemoryStore
from lab.gpusim.tools import amd_smi, modprobe, rocm_smi
from lab.gpusim.tools.smi import Lib, Terminal


class Run:
    """One command on a node: stdout, stderr, exit code, and the node afterwards."""

    def __init__(self, node: Node, command: str, stdin: str = "", euid: int = 0) -> None:
        terminal = Terminal.buffers(stdin)
        store = MemoryStore(node)
        lib = Lib(store, lambda: [], euid)
        lib.sleep = lambda seconds: None
        tool, *argv = command.split()
        if tool == "modprobe":
            self.code = modprobe.run(argv, lib, terminal)
        else:
            module = rocm_smi if tool == "rocm-smi" else amd_smi
            self.code = module.tool_for(node)(lib, terminal).run(argv)
        self.out: str = terminal.out.getvalue()  # type: ignore[attr-defined]
        self.err: str = terminal.err.getvalue()  # type: ignore[attr-defined]
        self.node = store.read()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def node(*changes: str, count: int = 2, **fields: Any) -> Node:
    """A node with settings (KEY=VALUE) and faults (fault:NAME=VALUE) made."""
    made = replace(make_node(count), **fields)
    for change in changes:
        kind, _, fault = change.partition(":")
        made = faults.add(made, fault) if kind == "fault" else settings.apply(made, settings.split([change]))
    return made


def cpx(made: Node) -> Node:
    for k in range(len(made.gpus)):
        made = kernel.set_compute(made, k, "CPX", ()).node
    return made
