# SPDX-License-Identifier: Apache-2.0
"""The simulation of a node, from its boot to SIGTERM: it serves, mounts and updates the simulated files."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from dataclasses import replace

from .driver import faults, holders, kernel
from .files.fs import SysFs
from .files.fuseproto import Server
from .files.mirror import Mirror
from .files.mounts import cover, run, uncover
from .machine.paths import Paths
from .machine.state import Node, StateError, from_json
from .machine.store import FileStore
from .node import finder, sync, sync_shown

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def cmdline(paths: Paths) -> tuple[str, ...]:
    """Return the words of the kernel command line; none if there is no such file."""
    try:
        return tuple((paths.proc / "cmdline").read_text().split())
    except OSError:
        return ()


def blacklist(paths: Paths) -> set[str]:
    """Return the modules blacklisted by modprobe.d or the kernel command line."""
    lines = [
        line.split()
        for path in (paths.root / "etc/modprobe.d").glob("*.conf")
        for line in path.read_text().splitlines()
    ]
    found = {words[1] for words in lines if len(words) == 2 and words[0] == "blacklist"}
    for word in cmdline(paths):
        if word.startswith("modprobe.blacklist="):
            found |= set(word.partition("=")[2].split(","))
    return found


def boot(paths: Paths, fresh: Node) -> Node:
    """Return the initial state: the stored one, as after a reboot, or `fresh`."""
    try:
        node = kernel.reboot(from_json(paths.state.read_text()), blacklist(paths))
    except FileNotFoundError:
        node = fresh
    return replace(node, cmdline=cmdline(paths))


def _watch(store: FileStore, scanner: holders.Scanner, stop: threading.Event) -> None:
    """Watch for the end of the last process that uses KFD, for the fault busy-after-exit."""
    last = -math.inf
    while not stop.wait(0.2):
        seconds = faults.value(store.read(), "busy-after-exit")
        if seconds is None:
            last = -math.inf
            continue
        if any(holder.kfd for holder in scanner()):
            last = time.monotonic()
        held = time.monotonic() - last < seconds
        store.change(lambda node, held=held: kernel.linger(node, held))  # type: ignore[misc]


def serve(paths: Paths, fresh: Node) -> int:
    """Mount, create device nodes, serve until SIGTERM or SIGINT, and undo everything."""
    if not paths.scratch and not any(os.path.exists(mark) for mark in CONTAINER_MARKS):
        raise StateError(
            "serve covers parts of /sys and is for containers; elsewhere set GPUSIM_ROOT=<directory>"
        )
    paths.run.mkdir(parents=True, exist_ok=True)
    paths.state.parent.mkdir(parents=True, exist_ok=True)
    paths.ready.unlink(missing_ok=True)
    uncover(paths)  # left by an earlier run
    store = FileStore(paths.state)
    store.write(boot(paths, fresh))
    for place in (paths.fuse, paths.files, paths.tree):
        place.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "mode=755,size=64m", "gpusim", str(paths.files))
    run("mount", "--bind", str(paths.files), str(paths.tree))
    run("mount", "-o", "remount,bind,ro", str(paths.tree))
    scanner = holders.Scanner(finder(paths), store.read, lambda h: os.path.exists(f"/proc/{h.pid}"))
    served = SysFs(store, scanner, Mirror(paths.files, paths.fuse))
    server = Server(served, str(paths.fuse))

    def changed(node: Node) -> None:
        served.refresh()
        sync(paths, node)

    store.changed = changed
    server.mount()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.unmount())
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(store, scanner, stop), daemon=True)
    try:
        served.refresh()
        sync_shown(paths, store.read())
        cover(paths)
        changed(store.read())
        watch.start()
        paths.ready.write_text(json.dumps({"pid": os.getpid(), "gpus": len(store.read().gpus)}) + "\n")
        server.serve()
    finally:
        stop.set()
        paths.ready.unlink(missing_ok=True)
        server.unmount()
        uncover(paths)
    return 0
