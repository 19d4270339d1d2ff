# SPDX-License-Identifier: Apache-2.0
"""The simulated sysfs tree, its mirror in plain files, the processes found in /proc, and the file system."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.gpusim.driver import faults, holders, kernel
from lab.gpusim.driver.holders import Scanner
from lab.gpusim.files.entries import Dir, File, Link
from lab.gpusim.files.fs import SysFs
from lab.gpusim.files.fuseproto import CREATE, GETATTR, LOOKUP, OPEN, READ, READDIR, SETATTR, Server
from lab.gpusim.files.mirror import Mirror
from lab.gpusim.files.sysfs import View
from lab.gpusim.machine import settings, topology
from lab.gpusim.machine.models import MIB
from lab.gpusim.machine.processors import EPYC, PROCESSORS
from lab.gpusim.machine.state import Holder, Node, make_node, to_json
from lab.gpusim.machine.store import FileStore
from lab.gpusim.node import wanted_devices
from tests.helpers.some import some

GPU = "devices/pci0000:00/0000:05:00.0"


def view(node: Node, users: Sequence[Holder] = ()) -> View:
    return View(node, lambda: users)


def text(node: Node, path: str, users: Sequence[Holder] = ()) -> str:
    entry = view(node, users).find(path)
    assert isinstance(entry, File), f"{path}: {entry}"
    return entry.data().decode()


def names(node: Node, path: str, users: Sequence[Holder] = ()) -> set[str]:
    entry = view(node, users).find(path)
    assert isinstance(entry, Dir), path
    return set(entry.entries)


# ---------------------------------------------------------------- contents


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vendor", "0x1002"),
        ("device", "0x74a1"),
        ("numa_node", "0"),
        ("current_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("mem_info_vram_total", "206141652992"),
        ("mem_info_vram_used", "296747008"),
        ("current_compute_partition", "SPX"),
        ("available_compute_partition", "SPX, DPX, QPX, CPX"),
        ("current_memory_partition", "NPS1"),
        ("available_memory_partition", "NPS1, NPS4"),
        ("compute_partition_config/supported_nps_configs", "NPS1"),
        ("unique_id", "e3aa140f9a5f9e31"),
        ("power/runtime_status", "active"),
    ],
)
def test_attributes_of_a_gpu(name: str, content: str) -> None:
    assert text(make_node(), f"{GPU}/{name}") == f"{content}\n"


@pytest.mark.parametrize(
    ("change", "path", "present"),
    [
        ("driver=inbox", "module/amdgpu/version", False),
        ("driver=dkms", "module/amdgpu/version", True),
        ("driver=inbox", f"{GPU}/current_compute_partition", True),
        ("driver=inbox", f"{GPU}/compute_partition_config", False),
        ("driver=old", f"{GPU}/current_compute_partition", False),
        ("driver=none", f"{GPU}/vendor", True),
        ("driver=none", f"{GPU}/unique_id", False),
        ("driver=none", "class/kfd", False),
        ("driver=none", "class/drm", False),
        ("driver=none", "module/amdgpu", False),
        ("memory_modes=NPS1", f"{GPU}/available_memory_partition", False),
    ],
)
def test_what_a_driver_shows(change: str, path: str, present: bool) -> None:
    node = settings.apply(make_node(), settings.split([change]))
    assert (view(node).find(path) is not None) == present


@pytest.mark.parametrize(
    ("change", "name", "mode"),
    [
        ("platform=baremetal", "current_compute_partition", 0o644),
        ("platform=guest", "current_compute_partition", 0o444),
        ("platform=baremetal", "current_memory_partition", 0o644),
        ("memory_modes=NPS1", "current_memory_partition", 0o444),
    ],
)
def test_who_may_write(change: str, name: str, mode: int) -> None:
    entry = view(settings.apply(make_node(), settings.split([change]))).find(f"{GPU}/{name}")
    assert isinstance(entry, File)
    assert (entry.mode, entry.write is not None) == (mode, mode == 0o644)


def test_reading_in_reset_is_eperm() -> None:
    with pytest.raises(OSError, match="partition") as e:
        text(faults.add(make_node(), "gpu-reset=0"), f"{GPU}/current_compute_partition")
    assert e.value.errno == errno.EPERM


def test_every_link_leads_somewhere() -> None:
    tree = view(kernel.set_compute(make_node(), 0, "CPX", ()).node)

    def check(path: str, entry: Any) -> int:
        if isinstance(entry, Link):
            target = os.path.normpath(f"{os.path.dirname(path)}/{entry.target}")
            for _ in range(4):
                found = tree.find(target)
                if not isinstance(found, Link):
                    break
                target = os.path.normpath(f"{os.path.dirname(target)}/{found.target}")
            assert found is not None, f"{path} -> {entry.target}"
            return 1
        if isinstance(entry, Dir):
            return sum(check(f"{path}/{name}", child) for name, child in entry.entries.items())
        return 0

    assert check("", tree.root) > 100


def test_pci_configuration_space_has_the_link() -> None:
    entry = view(make_node()).find(f"{GPU}/config")
    assert isinstance(entry, File)
    space = entry.data()
    assert struct.unpack_from("<HH", space) == (0x1002, 0x74A1)
    capability = space[0x34]
    status = struct.unpack_from("<H", space, capability + 0x12)[0]
    assert (space[capability], status & 0xF, status >> 4 & 0x3F) == (0x10, 5, 16)


# ---------------------------------------------------------------- topology


@pytest.mark.parametrize(
    ("mode", "count", "simds", "renders"),
    [
        ("SPX", 2, 1216, [128, 136]),
        ("DPX", 4, 608, [128, 129, 136, 137]),
        ("QPX", 8, 304, [*range(128, 132), *range(136, 140)]),
        ("CPX", 16, 152, [*range(128, 144)]),
    ],
)
def test_logical_gpus(mode: str, count: int, simds: int, renders: list[int]) -> None:
    node = make_node(2)
    for k in range(2):
        node = kernel.set_compute(node, k, mode, ()).node
    parts = topology.partitions(node)
    assert [p.render for p in parts] == renders
    assert [p.kfd_node for p in parts] == list(range(2, 2 + count))
    assert len({p.gpu_id for p in parts}) == count
    assert {p.memory for p in parts} == {node.spec.vram * 2 // count}
    for p in parts:
        assert f"simd_count {simds}\n" in topology.gpu_properties(node, parts, p)
    assert names(node, "devices/virtual/kfd/kfd/topology/nodes") == {str(i) for i in range(2 + count)}
    gpus = {name for name in wanted_devices(node) if not name.startswith("infiniband/")}
    assert gpus == {"kfd", *(f"dri/renderD{r}" for r in renders)}


@pytest.mark.parametrize(
    ("model", "compute", "sizes", "caches", "clock"),
    [
        # ROCm/k8s-device-plugin, testdata/topology-parsing-mi308: the last partition lacks what the firmware keeps
        ("MI308X", "CPX", [49152, 49152, 49152, 49136], 46, 1420),
        ("MI300X", "CPX", [24576] * 6 + [24568] * 2, 80, 2100),
        ("MI300X", "QPX", [49152, 49152, 49152, 49136], 160, 2100),
    ],
)
def test_memory_partitions_divide_the_hbm(
    model: str, compute: str, sizes: list[int], caches: int, clock: int
) -> None:
    made = settings.apply(make_node(), settings.split([f"model={model}", "gpus=2"]))
    made = replace(made, memory="NPS4", gpus=tuple(replace(gpu, compute=compute) for gpu in made.gpus))
    parts = topology.partitions(made)
    assert [p.memory // MIB for p in parts] == sizes * 2
    assert sum(sizes) == made.spec.vram_mib
    text = topology.gpu_properties(made, parts, parts[0])
    assert f"caches_count {caches}\n" in text
    assert f"max_engine_clk_fcompute {clock}\n" in text


def test_drm_devices_are_there_in_any_mode() -> None:
    assert len([n for n in names(make_node(), "class/drm") if n.startswith("renderD")]) == 64
    node = faults.add(make_node(), "all-render-nodes")
    wanted = wanted_devices(node)
    assert len([name for name in wanted if not name.startswith("infiniband/")]) == 65
    assert wanted["dri/renderD128"] == os.makedev(1, 3)
    assert wanted["dri/renderD129"] == os.makedev(226, 129)


def test_a_vga_driver_costs_the_last_partition() -> None:
    node = settings.apply(make_node(), {"ast": "1"})
    assert len(topology.partitions(node)) == 8
    for k in range(8):
        node = kernel.set_compute(node, k, "CPX", ()).node
    parts = topology.partitions(node)
    assert (len(parts), parts[-1].render, parts[0].card) == (63, 190, 1)


def test_gpu_ids_come_back_after_a_change_and_back() -> None:
    node = make_node()
    before = topology.partitions(node)
    there = kernel.set_compute(node, 0, "CPX", ()).node
    assert topology.partitions(kernel.set_compute(there, 0, "SPX", ()).node) == before


# ---------------------------------------------------------------- processes


def process(proc: Path, pid: int, name: str, *opened: str, namespace: str = "mnt:[1]") -> Path:
    """A /proc entry with open files, in a mount namespace."""
    place = proc / str(pid)
    (place / "fd").mkdir(parents=True)
    (place / "ns").mkdir()
    (place / "comm").write_text(f"{name}\n")
    (place / "ns/mnt").symlink_to(namespace)
    for number, target in enumerate(opened):
        (place / "fd" / str(number)).symlink_to(target)
    return place


def container(proc: Path, pids: dict[int, str], minors: Sequence[int], kfd: bool, namespace: str) -> None:
    for pid, name in pids.items():
        place = process(proc, pid, name, namespace=namespace)
        dev = place / "root/dev"
        (dev / "dri").mkdir(parents=True)
        if kfd:
            (dev / "kfd").touch()
        for minor in minors:
            (dev / f"dri/renderD{minor}").touch()


def test_holders_are_found(tmp_path: Path) -> None:
    process(tmp_path, 10, "sshd", "/dev/null", "socket:[1]")
    process(tmp_path, 11, "exporter", "/dev/kfd")
    process(tmp_path, 12, "Xorg", "/dev/dri/renderD129", "/dev/dri/card0")
    process(tmp_path, 13, "gone", "/dev/kfd2", "/tmp/dev/kfd")
    container(
        tmp_path, {20: "docker-init", 21: "bash", 22: "vllm", 23: "worker"}, [128, 136], True, "mnt:[2]"
    )
    container(tmp_path, {30: "python3"}, [], False, "mnt:[3]")
    container(tmp_path, {40: "docker-init", 41: "sh"}, [144], True, "mnt:[4]")
    waiting = {50: "docker-init", 51: "python3"}
    serving = {60: "docker-init", 61: "python3", 62: "python3"}
    for pids, minor in ((waiting, 152), (serving, 160)):
        container(tmp_path, pids, [minor], True, f"mnt:[{minor}]")
        (tmp_path / f"{min(pids) + 1}/cmdline").write_bytes(
            b"python3\0/instinct-lib/supervise.py\0--\0vllm\0"
        )
    assert holders.scan(tmp_path, own="mnt:[1]") == [
        Holder(11, "exporter"),
        Holder(12, "Xorg", (129,), kfd=False),
        Holder(22, "vllm", (128, 136), vram=None),
        Holder(41, "sh", (144,), vram=None),
        Holder(62, "python3", (160,), vram=None),
    ]


def test_vram_of_a_container_is_shared_out_per_partition() -> None:
    node = make_node(2)
    parts = topology.partitions(node)
    inside = Holder(22, "vllm", (128,), vram=None)
    share = int(node.spec.vram * holders.CONTAINER_SHARE)
    used = [holders.vram_used(node, [inside], parts, k) for k in range(2)]
    assert used == [283 * MIB + share, 283 * MIB]
    crowded = [inside, replace(inside, pid=23)]
    assert holders.vram_used(node, crowded, parts, 0) == node.spec.vram
    stranded = faults.add(node, "stranded=46111")
    assert holders.vram_used(stranded, [], parts, 1) == (283 + 46111) * MIB


def test_processes_show_in_sysfs_and_are_read_back(tmp_path: Path) -> None:
    node = make_node(2)
    parts = topology.partitions(node)
    users = [Holder(22, "vllm", (136,), vram=5), Holder(8, "Xorg", (128,), kfd=False)]
    base = "devices/virtual/kfd/kfd/proc"
    assert names(node, base, users) == {"22"}
    assert text(node, f"{base}/22/vram_{parts[1].gpu_id}", users) == "5\n"
    assert view(node, users).find(f"{base}/22/vram_{parts[0].gpu_id}") is None
    assert text(node, "module/amdgpu/refcnt", users) == "2\n"
    kfd_proc = tmp_path / "kfd"
    (kfd_proc / "22").mkdir(parents=True)
    (kfd_proc / f"22/vram_{parts[1].gpu_id}").write_text("5\n")
    process(tmp_path / "proc", 22, "vllm")
    assert holders.exported(kfd_proc, parts, tmp_path / "proc") == [Holder(22, "vllm", (136,), vram=5)]
    assert holders.exported(tmp_path / "none", parts) == []


def test_scanner_looks_again_for_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(holders, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found: list[Holder] = []
    scanner = Scanner(lambda: list(found), make_node)
    assert list(scanner()) == []
    found.append(Holder(7, "rdc"))
    assert list(scanner()) == []  # too soon
    assert list(scanner.fresh()) == [Holder(7, "rdc")]
    found.clear()
    now[0] += 0.9 * Scanner.AGE
    assert list(scanner()) == [Holder(7, "rdc")]
    now[0] += 0.2 * Scanner.AGE
    assert list(scanner()) == []


# ---------------------------------------------------------------- mirror


def snapshot(root: Path) -> dict[str, str]:
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text(errors="replace")
        else:
            found[name] = "dir"
    return found


def test_mirror_follows_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through mode changes and an unload, it is what a fresh mirror of that state would be."""
    monkeypatch.setitem(PROCESSORS, "epyc", replace(EPYC, cores=2))  # thousands of files less
    served = Path("/live")
    mirror = Mirror(tmp_path / "kept", served)
    (tmp_path / "kept").mkdir()
    node = make_node(2)
    states = [node, kernel.set_compute(node, 0, "CPX", ()).node, node]
    states += [kernel.unload(node, ()).node, kernel.load(kernel.unload(node, ()).node).node]
    for number, state in some(enumerate(states)):
        mirror.apply(view(state))
        fresh = tmp_path / f"fresh{number}"
        fresh.mkdir()
        Mirror(fresh, served).apply(view(state))
        assert snapshot(tmp_path / "kept") == snapshot(fresh)


def test_live_entries_are_links_to_the_served_tree(tmp_path: Path) -> None:
    Mirror(tmp_path, Path("/live")).apply(view(make_node(1)))
    for name in ("current_compute_partition", "mem_info_vram_used", "current_memory_partition"):
        assert os.readlink(tmp_path / GPU / name) == f"/live/{GPU}/{name}"
    assert os.readlink(tmp_path / "devices/virtual/kfd/kfd/proc") == "/live/devices/virtual/kfd/kfd/proc"
    assert (tmp_path / GPU / "vendor").read_text() == "0x1002\n"
    assert not (tmp_path / GPU / "vendor").is_symlink()


# ---------------------------------------------------------------- file operations, without a mount


@pytest.fixture
def served(tmp_path: Path) -> SysFs:
    (tmp_path / "state.json").write_text(to_json(make_node(2)))
    store = FileStore(tmp_path / "state.json")
    return SysFs(store, Scanner(lambda: [], store.read))


CURRENT = f"/{GPU}/current_compute_partition"


@pytest.mark.parametrize(
    ("path", "data", "number"),
    [
        (CURRENT, b"XPX\n", errno.EINVAL),
        (CURRENT, b"TPX\n", errno.EINVAL),
        (CURRENT, b"CPX\n", 0),
        (f"/{GPU}/current_memory_partition", b"NPS4\n", 0),
        (f"/{GPU}/current_memory_partition", b"NPS3\n", errno.EINVAL),
        (f"/{GPU}/mem_info_vram_used", b"0\n", errno.EACCES),
        (f"/{GPU}/nothing", b"0\n", errno.ENOENT),
        (f"/{GPU}", b"0\n", errno.EISDIR),
    ],
)
def test_writes(served: SysFs, path: str, data: bytes, number: int) -> None:
    if number == 0:
        served.write(path, data)
        return
    with pytest.raises(OSError, match=path) as e:
        served.write(path, data)
    assert e.value.errno == number


def test_a_write_is_read_back_at_once(served: SysFs) -> None:
    served.write(CURRENT, b"CPX\n")
    assert served.read(CURRENT) == b"CPX\n"
    assert len(served.names("/devices/virtual/kfd/kfd/topology/nodes")) == 2 + 9


def test_opening_for_write_needs_a_writable_attribute(served: SysFs) -> None:
    served.open(CURRENT, os.O_WRONLY)
    with pytest.raises(PermissionError) as e:
        served.open(f"/{GPU}/vendor", os.O_RDWR)
    assert e.value.errno == errno.EACCES


class Wire:
    """A Server whose kernel is this test: requests in, replies out of a pipe."""

    def __init__(self, tree: SysFs) -> None:
        self.server = Server(tree, "/nowhere")
        self._out, self.server._fd = os.pipe()

    def ask(self, opcode: int, node: int, body: bytes = b"") -> tuple[int, bytes]:
        """(errno, reply)"""
        self.server._answer(opcode, 9, node, body)
        raw = os.read(self._out, 1 << 16)
        length, error, unique = struct.unpack_from("<IiQ", raw)
        assert (length, unique) == (len(raw), 9)
        return -error, raw[16:]

    def walk(self, path: str) -> int:
        node = 1
        for name in path.strip("/").split("/"):
            error, reply = self.ask(LOOKUP, node, name.encode() + b"\0")
            assert error == 0, path
            node = struct.unpack_from("<Q", reply)[0]
        return node


def test_protocol(served: SysFs) -> None:
    wire = Wire(served)
    assert wire.ask(LOOKUP, 1, b"nothing\0")[0] == errno.ENOENT
    node = wire.walk(CURRENT)
    assert wire.walk(CURRENT) == node
    error, reply = wire.ask(GETATTR, node)
    assert error == 0
    mode = struct.unpack_from("<I", reply, 16 + 60)[0]
    assert mode == stat.S_IFREG | 0o644
    assert wire.ask(OPEN, node, struct.pack("<II", os.O_WRONLY, 0))[0] == 0
    assert wire.ask(OPEN, wire.walk(f"{GPU}/vendor"), struct.pack("<II", os.O_WRONLY, 0))[0] == errno.EACCES
    assert wire.ask(READ, node, struct.pack("<QQIIQII", 0, 0, 4096, 0, 0, 0, 0)) == (0, b"SPX\n")
    assert wire.ask(READ, node, struct.pack("<QQIIQII", 0, 4, 4096, 0, 0, 0, 0)) == (0, b"")
    assert wire.ask(SETATTR, node, struct.pack("<II80x", 1 << 3, 0))[0] == 0  # truncate
    assert wire.ask(SETATTR, node, struct.pack("<II80x", 1, 0))[0] == errno.EPERM  # chmod
    assert wire.ask(CREATE, 1)[0] == errno.EACCES
    assert wire.ask(10, 1)[0] == errno.EPERM  # unlink
    assert wire.ask(22, 1)[0] == errno.ENOSYS  # getxattr


def test_a_defect_in_the_tree_is_answered(served: SysFs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without an answer would hang whoever made it."""
    wire = Wire(served)
    monkeypatch.setattr(served, "info", lambda path: 1 / 0)
    assert wire.ask(LOOKUP, 1, b"class\0")[0] == errno.EIO


def test_long_directories_are_read_in_pieces(served: SysFs) -> None:
    wire = Wire(served)
    directory = wire.walk("class/drm")
    found: list[str] = []
    offset = 0
    while True:
        error, reply = wire.ask(READDIR, directory, struct.pack("<QQIIQII", 0, offset, 512, 0, 0, 0, 0))
        assert error == 0
        if not reply:
            break
        at = 0
        while at < len(reply):
            _, offset, length, _ = struct.unpack_from("<QQII", reply, at)
            found.append(reply[at + 24 : at + 24 + length].decode())
            at += 24 + (length + 7) // 8 * 8
    assert len(found) == len(set(found)) == 2 + 1 + 32
    assert {"card0", "renderD143", ".", ".."} <= set(found)
