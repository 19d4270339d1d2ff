# SPDX-License-Identifier: Apache-2.0
"""A host with simulated GPUs in namespaces of its own, for changes of partition modes. Needs root, no container engine.

The host is a process tree with its own mounts and process ids: what a lab node has under /sys/class, /dev, /opt/rocm
and /usr/sbin is at the same places, served by the same simulation; of this machine it sees the programs. The
toolkit's node (partition_node.Node) works there as it does on a server. Nothing of it outlives its process 1, and
that ends with the input from the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.gpusim.__main__ import main as gpusim
from lab.gpusim.driver import faults
from lab.gpusim.machine.paths import Paths
from lab.gpusim.machine.settings import apply, split
from lab.gpusim.machine.state import make_node
from lab.gpusim.node import open_store
from lab.node.systemctl import Unit
from tests import ROOT
from tests.oracles.partition_driver import case, serve

CGROUP = "instinct-test-"
# Of this machine: programs and libraries. Everything else of the host is made for it.
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
TOOLS = {
    "opt/rocm/bin/rocm-smi": 'from lab.gpusim.__main__ import main; sys.exit(main(["rocm-smi", *sys.argv[1:]]))',
    "opt/rocm/bin/amd-smi": 'from lab.gpusim.__main__ import main; sys.exit(main(["amd-smi", *sys.argv[1:]]))',
    "usr/sbin/modprobe": 'from lab.gpusim.__main__ import main; sys.exit(main(["modprobe", *sys.argv[1:]]))',
    "usr/sbin/gpusim": "from lab.gpusim.__main__ import main; sys.exit(main(sys.argv[1:]))",
    "usr/sbin/systemctl": "from lab.node.systemctl import main; sys.exit(main(sys.argv[1:]))",
}
# A unit that holds the GPUs as AMD's exporter does.
UNIT = '[Service]\nExecStart=/bin/sh -c "exec sleep infinity < /dev/kfd"\n'
READY_SECONDS = 60
MNT_DETACH = 2
JOURNAL = Path("/var/lib/instinct-fleet/partition.json")


# ---------------------------------------------------------------- outside: the test


def lacking() -> str:
    """Why there can be no such host here; empty when there can."""
    if os.geteuid() != 0:
        return "the simulated host is made of mounts: run the tests as root"
    if not os.path.exists("/dev/fuse"):
        return "the simulated host needs /dev/fuse: modprobe fuse, or give the container --device /dev/fuse"
    if not os.access(_own_cgroup(), os.W_OK):
        return f"the simulated host needs a cgroup of its own, and {_own_cgroup()} cannot be written"
    return ""


def _own_cgroup() -> Path:
    """This process's directory in the hierarchy that names units, where lab/node/systemctl.py looks for it too."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    named = next((path for _, names, path in lines if names == "name=systemd"), None)
    unified = next((path for number, _, path in lines if number == "0"), "")
    return Path(f"/sys/fs/cgroup{unified}" if named is None else f"/sys/fs/cgroup/systemd{named}")


def _remove_cgroup(path: Path) -> None:
    """Remove a cgroup and those below it, as far as nothing runs there."""
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)


class Host:
    """A running host; orders to its process 1, one after the other."""

    def __init__(self) -> None:
        parent = _own_cgroup()
        for old in parent.glob(f"{CGROUP}*"):  # of tests that were killed
            if not os.path.exists(f"/proc/{old.name.removeprefix(CGROUP).partition('-')[0]}"):
                _remove_cgroup(old)
        # Processes of other PID namespaces have the same numbers.
        self.cgroup = Path(tempfile.mkdtemp(prefix=f"{CGROUP}{os.getpid()}-", dir=parent))
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        root = tempfile.mkdtemp()  # where the host's root directory is put together
        self.process = subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *(sys.executable, "-m", "tests.worlds.partition_host", str(self.cgroup), root),
            ],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            env={
                **{key: value for key, value in os.environ.items() if key.startswith("COVERAGE_")},
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'module_utils'}",
            },
        )  # fmt: skip
        try:
            self._answer()
        except BaseException:
            self.close()
            raise
        finally:
            os.rmdir(root)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"killed": "all of it"}
        if "killed" in answer:
            self.log.seek(0)
            raise AssertionError(f"the simulated host answers {answer}:\n{self.log.read()}")
        return dict(answer)

    def ask(self, what: str, **order: Any) -> dict[str, Any]:
        """Have one order done; its result."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **order}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it and all that runs in it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        _remove_cgroup(self.cgroup)


# ---------------------------------------------------------------- inside: process 1 of the host


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def _share(path: Path, root: Path) -> None:
    """Show a directory or file of this machine at the same place below root, with all that is mounted in it."""
    target = root / path.relative_to("/")
    if path.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount("--rbind", str(path), str(target))


def _needed() -> Iterator[Path]:
    """Directories of the checkout and of this Python; a virtual environment's may be links."""
    given = (ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1])
    for path in dict.fromkeys((*given, *(link.resolve() for link in given))):
        if not path.is_relative_to("/usr"):
            yield path


def make_root(root: Path) -> None:
    """Fill an empty directory, which gets a file system of its own, with the host's files."""
    _mount("-t", "tmpfs", "-o", "mode=755", "host", str(root))
    for name in SYSTEM:
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            _share(Path(f"/{name}"), root)
    _mount("-t", "tmpfs", "-o", "mode=755", "host", str(root / "usr/sbin"))
    for place in _needed():
        _share(place, root)
    _share(Path("/sys"), root)
    for device in DEVICES:
        _share(Path("/dev", device), root)
    (root / "proc").mkdir()
    _mount("-t", "proc", "proc", str(root / "proc"))
    for place in ("run", "tmp", "etc/systemd/system", "opt/rocm/bin", "opt/rocm/.info", "var/log", "var/lib"):
        (root / place).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nrender:x:109:\nnogroup:x:65534:\n")
    (root / "etc/systemd/system/gpuagent.service").write_text(UNIT)
    (root / "run/.containerenv").touch()  # the simulation covers /sys only where that is not a machine's own
    for path, program in TOOLS.items():
        tool = root / path
        tool.write_text(f"#!{sys.executable} -SE\nimport sys\nsys.path[:0] = [{str(ROOT)!r}]\n{program}\n")
        tool.chmod(0o755)


def enter(root: Path) -> None:
    """Make `root` the root directory. Of the one before nothing is left to be seen, or to be harmed."""
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.pivot_root(b".", b".") or libc.umount2(b".", MNT_DETACH):
        sys.exit(f"the host's own root directory: {os.strerror(ctypes.get_errno())}")
    os.chdir("/")


def _serve_gpus() -> int:
    """Start the simulation; its pid once the GPUs are there."""
    with open("/var/log/gpusim.log", "w+") as log:
        server = subprocess.Popen(["gpusim", "serve"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + READY_SECONDS
        while not Paths(Path("/")).ready.exists():
            if server.poll() is not None or time.monotonic() > end:
                log.seek(0)
                sys.exit(f"gpusim serve: {log.read()}")
            time.sleep(0.01)
    server.returncode = 0  # it goes on, and ends with us
    return server.pid


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _wait(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {READY_SECONDS} s for {what}")
        time.sleep(0.005)


def _has_open(pid: int, device: str) -> bool:
    try:
        return any(os.readlink(path) == device for path in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def reset(order: dict[str, Any], server: int) -> dict[str, Any]:
    """A host as after its first boot, where an exporter holds the GPUs; then the faults.

    Nothing of what ran before is left: no process, no journal, no setting of the simulation's.
    """
    strays = _pids() - {1, server, os.getpid()}
    for pid in strays:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _wait("what ran before to end", lambda: not strays & _pids())
    JOURNAL.unlink(missing_ok=True)
    store = open_store(Paths(Path("/")))
    fresh = apply(make_node(), split(order["settings"]))
    store.change(lambda _: (fresh, None))
    if order["exporter"]:
        exporter = Unit("gpuagent")
        exporter.start()
        _wait("the exporter", lambda: _has_open(exporter.pid(), "/dev/kfd"))
    if order["faults"] and gpusim(["fault", *order["faults"]]):
        raise AssertionError(f"gpusim fault {order['faults']} failed")
    if faults.value(store.read(), "busy-after-exit"):
        _wait("the simulation to see who uses the GPUs", lambda: store.read().driver.lingers)
    return {}


def _modes(name: str) -> str:
    found = {path.read_text().strip() for path in Path("/sys/class/drm").glob(f"card*/device/{name}")}
    return " ".join(sorted(found))


def state() -> dict[str, Any]:
    """Modes and number of logical GPUs, an open journal, the exporter."""
    nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    count = sum("cpu_cores_count 0" in path.read_text().splitlines() for path in nodes)
    modes = f"{_modes('current_compute_partition')}/{_modes('current_memory_partition')} {count}"
    return {"state": [modes, *(["journal"] if JOURNAL.exists() else []), Unit("gpuagent").state[0]]}


def shell(command: str) -> dict[str, Any]:
    done = subprocess.run(
        ["/bin/bash", "-c", command], text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return {"out": done.stdout}


def main(cgroup: Path, root: Path) -> None:
    """Make the host, say so, and do as told until the input ends."""
    (cgroup / "cgroup.procs").write_text("0")
    make_root(root)
    enter(root)
    server = _serve_gpus()
    print("{}", flush=True)
    orders: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "change": case,
        "reset": lambda order: reset(order, server),
        "state": lambda order: state(),
        "shell": lambda order: shell(order["command"]),
    }
    serve(lambda order: orders[order["do"]](order))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
