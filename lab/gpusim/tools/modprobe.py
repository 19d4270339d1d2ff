# SPDX-License-Identifier: Apache-2.0
"""modprobe for the simulated amdgpu and ast modules; other modules are handed to the real one.

Messages and exit codes are kmod's: unloading a module in use is `FATAL: Module amdgpu is in use.`, 1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ..driver import faults, kernel
from .smi import Lib, Terminal

KMOD = "/usr/bin/kmod"  # the target of the link modprobe; it acts by the name of the call
SIMULATED = ("amdgpu", "ast")


def run(argv: Sequence[str], lib: Lib, terminal: Terminal) -> int:
    """Run one modprobe command line and return its exit code."""
    flags = {letter for arg in argv if arg.startswith("-") and not arg.startswith("--") for letter in arg[1:]}
    remove = "r" in flags or "--remove" in argv
    verbose = "v" in flags or "--verbose" in argv
    names = [arg for arg in argv if not arg.startswith("-") and "=" not in arg]
    mine = [name for name in names if name in SIMULATED]
    if names != mine or not names:
        if os.path.exists(KMOD):
            os.execv(KMOD, ["modprobe", *argv])
        missing = next((n for n in names if n not in SIMULATED), None)
        text = f"Module {missing} not found." if missing else "missing parameters. See -h."
        terminal.err.write(f"modprobe: {'FATAL' if missing else 'ERROR'}: {text}\n")
        return 1
    for name in mine:
        code = _remove(name, lib, terminal, verbose) if remove else _insert(name, lib, terminal, verbose)
        if code:
            return code
    return 0


def _refused(terminal: Terminal, verb: str, name: str) -> int:
    terminal.err.write(f"modprobe: ERROR: could not {verb} '{name}': Operation not permitted\n")
    return 1


def _remove(name: str, lib: Lib, terminal: Terminal, verbose: bool) -> int:
    if name == "ast":
        if lib.euid != 0:
            return _refused(terminal, "remove", name)
        lib.store.change(lambda node: (replace(node, ast=False), None))
        return 0
    if not lib.node.driver.loaded:
        return 0
    while faults.value(lib.node, "reload") == "hang":
        lib.sleep(0.5)
    holders = lib.holders.fresh()
    if holders or faults.value(lib.node, "reload") == "refused":
        terminal.err.write(f"modprobe: FATAL: Module {name} is in use.\n")
        return 1
    if lib.euid != 0:
        return _refused(terminal, "remove", name)
    if lib.store.change(lambda node: kernel.unload(node, holders)):
        terminal.err.write(f"modprobe: FATAL: Module {name} is in use.\n")
        return 1
    if verbose:
        terminal.print(f"rmmod {name}")
    return 0


def _insert(name: str, lib: Lib, terminal: Terminal, verbose: bool) -> int:
    if name == "ast":
        if lib.euid != 0:
            return _refused(terminal, "insert", name)
        lib.store.change(lambda node: (replace(node, ast=True), None))
        return 0
    if lib.node.driver.loaded:
        return 0
    if lib.euid != 0:
        return _refused(terminal, "insert", name)
    lib.sleep(float(faults.value(lib.node, "slow-reload") or 0))
    if lib.store.change(kernel.load):
        terminal.err.write(f"modprobe: ERROR: could not insert '{name}': Invalid argument\n")
        return 1
    if verbose:
        terminal.print(f"insmod /lib/modules/{os.uname().release}/updates/dkms/{name}.ko")
    return 0
