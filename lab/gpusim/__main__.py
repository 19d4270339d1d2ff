# SPDX-License-Identifier: Apache-2.0
"""Command line of the simulation.

serve [--gpus N] [--model M] [KEY=VALUE …]  mount and serve until SIGTERM
rocm-smi …, amd-smi …, modprobe …           the simulated tools
fault NAME[=VALUE] … | fault clear [NAME] | fault list
config KEY=VALUE …                          release=7.0.0, driver=inbox, cpu=xeon, platform=guest …
show                                        the state as JSON
dmesg                                       the kernel log
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from .driver import faults, holders
from .machine.paths import Paths
from .machine.settings import apply, split
from .machine.state import Holder, StateError, make_node, to_json
from .machine.store import FileStore
from .node import finder, open_store
from .tools.smi import Lib, Terminal

TOOLS = ("rocm-smi", "amd-smi")


def _finder(paths: Paths, store: FileStore) -> Callable[[], Sequence[Holder]]:
    """Return a function that finds the holders: root scans /proc, others read sysfs, as on a real node."""
    if os.geteuid() == 0:
        return finder(paths)

    def look() -> list[Holder]:
        from .machine.topology import partitions

        node = store.read()
        injected = {h.pid for h in node.holders}
        found = holders.exported(paths.fuse / "class/kfd/kfd/proc", partitions(node))
        return [h for h in found if h.pid not in injected]

    return look


def _tool(name: str, argv: list[str], paths: Paths) -> int:
    store = open_store(paths)
    state = faults.tool_state(store.read(), name)
    if state == "missing":
        sys.stderr.write(f"{name}: command not found\n")
        return 127
    while state == "hang":
        time.sleep(0.5)
        state = faults.tool_state(store.read(), name)
    lib = Lib(store, _finder(paths, store))
    if name == "rocm-smi":
        from .tools import rocm_smi

        return rocm_smi.tool_for(lib.start)(lib, Terminal()).run(argv)
    from .tools import amd_smi

    return amd_smi.tool_for(lib.start)(lib, Terminal()).run(argv)


def _modprobe(argv: list[str], paths: Paths) -> int:
    from .tools import modprobe

    store = open_store(paths)
    return modprobe.run(argv, Lib(store, _finder(paths, store)), Terminal())


def _fault(argv: list[str], paths: Paths) -> int:
    if argv[:1] == ["list"] or not argv:
        for name, fault in faults.FAULTS.items():
            print(f"{name:18} {fault.text}")
        return 0
    from .driver import zombie

    store = open_store(paths)
    if argv[0] == "clear":
        cleared = argv[1] if len(argv) > 1 else None
        made = faults.value(store.read(), "zombie")
        store.change(lambda node: (faults.clear(node, cleared), None))
        if made and cleared in (None, "zombie"):
            zombie.end(made["keeper"])
        return 0
    for word in argv:
        text = word
        if word.startswith("zombie="):
            called = word.removeprefix("zombie=")
            pid, keeper = zombie.make(called)
            text = f"zombie={pid}:{keeper}:{called}"
        store.change(lambda node, text=text: (faults.add(node, text), None))  # type: ignore[misc]
    return 0


def _config(argv: list[str], paths: Paths) -> int:
    settings = split(argv)
    open_store(paths).change(lambda node: (apply(node, settings), None))
    return 0


def _serve(argv: list[str], paths: Paths) -> int:
    from .serve import serve

    settings = split([a.removeprefix("--") for a in argv])
    count, model = int(settings.pop("gpus", "8")), settings.pop("model", "MI300X")
    return serve(paths, apply(make_node(count, model), settings))


def main(argv: list[str]) -> int:
    """Run one command and return its exit code."""
    paths = Paths.of_environment()
    if argv[:1] == ["gpusim"]:  # the node's name for this program
        argv = argv[1:]
    command, rest = (argv[0], argv[1:]) if argv else ("help", [])
    try:
        if command in TOOLS:
            return _tool(command, rest, paths)
        actions = {"modprobe": _modprobe, "fault": _fault, "config": _config, "serve": _serve}
        if command in actions:
            return actions[command](rest, paths)
        if command == "show":
            print(to_json(open_store(paths).read(), indent=1), end="")
            return 0
        if command == "dmesg":
            from .tools.kernel_log import dmesg

            return dmesg(rest, open_store(paths).read(), os.geteuid(), Terminal())
    except StateError as e:
        sys.stderr.write(f"gpusim: {e}\n")
        return 1
    except PermissionError as e:
        sys.stderr.write(f"gpusim: {e.filename}: {e.strerror}; run as root\n")
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    sys.stderr.write((__doc__ or "").strip() + "\n")
    return 0 if command in ("help", "-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
