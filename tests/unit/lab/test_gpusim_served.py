# SPDX-License-Identifier: Apache-2.0
"""The simulation as a process: mounted in a scratch directory, written to, and changed by the tools.

The same logic is tested without a mount elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.eventually import GENEROUS, eventually

NOBODY = 65534


def why_no_mount() -> str | None:
    """Why no file system can be mounted here, None when it can."""
    if os.geteuid() != 0:
        return "not root"
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse"
    if shutil.which("mount") is None:
        return "no mount(8)"
    effective = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
    return None if effective >> 21 & 1 else "no CAP_SYS_ADMIN"


@pytest.fixture(scope="module", autouse=True)
def mountable() -> None:
    """Here these tests fail where they cannot run: a lab could not run there either."""
    assert why_no_mount() is None


class Served:
    """A running simulation below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sys = root / "sys"
        self.dev = root / "dev"
        self.environment = {**os.environ, "GPUSIM_ROOT": str(root), "PYTHONPATH": str(ROOT)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lab.gpusim", "serve", "gpus=2"], env=self.environment, cwd="/"
        )
        process, ready = self.process, self.root / "run/gpusim/ready"
        eventually("the simulation", lambda: ready.exists() or process.poll() is not None)
        assert ready.exists(), "serve ended"

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(GENEROUS)

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command of the simulation, such as rocm-smi with its arguments."""
        return subprocess.run(
            [sys.executable, "-m", "lab.gpusim", *command],
            env=self.environment, cwd="/", input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def gpu(self, name: str, index: int = 0) -> Path:
        return self.sys / f"class/drm/card{8 * index}/device/{name}"

    def read(self, name: str, index: int = 0) -> str:
        return self.gpu(name, index).read_text().strip()

    def nodes(self) -> list[str]:
        return os.listdir(self.sys / "class/kfd/kfd/topology/nodes")

    def renders(self) -> list[int]:
        return sorted(int(path.name.removeprefix("renderD")) for path in self.dev.glob("dri/renderD*"))


@contextlib.contextmanager
def simulation() -> Iterator[Served]:
    # Others must get through, as in a node; pytest closes its own directory to them whenever a session starts.
    root = Path(tempfile.mkdtemp(prefix="gpusim-"))
    root.chmod(0o755)
    served = Served(root)
    served.dev.mkdir(mode=0o755)
    served.start()
    try:
        yield served
    finally:
        assert served.process is not None
        if served.process.poll() is None:
            served.stop()
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with simulation() as served:
        yield served


@pytest.fixture
def node(running: Served) -> Served:
    """The simulation in its initial state."""
    assert running.run("fault", "clear").returncode == 0
    for index in range(2):
        running.gpu("current_compute_partition", index).write_text("SPX\n")
    return running


def error_of(action: Callable[[], object]) -> int:
    """The errno that an action fails with, 0 when it does not."""
    try:
        action()
    except OSError as e:
        return e.errno or -1
    return 0


def as_nobody(action: Callable[[], object]) -> int:
    """error_of(action) of an unprivileged process."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = error_of(action)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_written_mode_changes_everything_at_once(node: Served) -> None:
    node.gpu("current_compute_partition", 1).write_text("CPX\n")
    assert node.read("current_compute_partition", 1) == "CPX"
    assert node.read("current_compute_partition", 0) == "SPX"
    assert len(node.nodes()) == 2 + 1 + 8
    assert node.renders() == [128, *range(136, 144)]
    listed = node.run("rocm-smi", "--showcomputepartition", "--json").stdout
    assert listed == '{"card0": {"Compute Partition": "SPX"}, "card1": {"Compute Partition": "CPX"}}\n'


def test_a_mode_set_by_a_tool_is_seen_when_the_tool_returns(node: Served) -> None:
    done = node.run("rocm-smi", "--setcomputepartition", "DPX")
    assert (done.returncode, done.stderr) == (0, "")
    assert (len(node.nodes()), node.renders()) == (2 + 4, [128, 129, 136, 137])
    done = node.run("amd-smi", "set", "-C", "CPX", "-g", "0")
    assert "Successfully set accelerator partition to CPX (profile #3)" in done.stdout
    assert (len(node.nodes()), node.read("current_compute_partition")) == (2 + 8 + 2, "CPX")


@pytest.mark.parametrize(
    ("name", "content", "number"),
    [
        ("current_compute_partition", "XPX", errno.EINVAL),
        ("current_compute_partition", "TPX", errno.EINVAL),
        ("current_compute_partition", "spx", 0),
        ("current_memory_partition", "NPS2", errno.EINVAL),
        ("mem_info_vram_used", "0", errno.EACCES),
        ("vendor", "0", errno.EROFS),
        ("new_file", "0", errno.EROFS),
    ],
)
def test_errors_of_writes(node: Served, name: str, content: str, number: int) -> None:
    assert error_of(lambda: node.gpu(name).write_text(content)) == number


def test_others_may_look_and_not_write(node: Served) -> None:
    assert as_nobody(lambda: node.read("current_compute_partition")) == 0
    assert as_nobody(lambda: node.gpu("current_compute_partition").write_text("CPX")) == errno.EACCES
    assert as_nobody(lambda: open(node.dev / "kfd").close()) == errno.EACCES


def test_device_nodes(node: Served) -> None:
    for name in ("kfd", "dri/renderD128"):
        found = (node.dev / name).stat()
        assert stat.S_ISCHR(found.st_mode)
        assert (found.st_rdev, stat.S_IMODE(found.st_mode)) == (os.makedev(1, 3), 0o660)
    before = (node.dev / "kfd").stat().st_ino
    node.gpu("current_compute_partition").write_text("CPX")
    assert (node.dev / "kfd").stat().st_ino == before  # it may be open


def test_a_real_process_makes_it_busy(node: Served) -> None:
    with open(node.dev / "kfd") as kfd:
        user = subprocess.Popen(["sleep", "3600"], stdin=kfd)
    try:
        assert error_of(lambda: node.gpu("current_compute_partition").write_text("CPX")) == errno.EBUSY
        assert str(user.pid) in os.listdir(node.sys / "class/kfd/kfd/proc")
        assert f'"pid": {user.pid}' in node.run("amd-smi", "process", "-g", "0", "--json").stdout
        done = node.run("rocm-smi", "--setcomputepartition", "CPX", "--loglevel", "error")
        assert (done.returncode, done.stdout.count("Device is currently busy")) == (16, 2)
        done = node.run("modprobe", "-r", "amdgpu")
        assert (done.returncode, done.stderr) == (1, "modprobe: FATAL: Module amdgpu is in use.\n")
    finally:
        user.kill()
        user.wait()
    assert error_of(lambda: node.gpu("current_compute_partition").write_text("CPX")) == 0


def test_memory_mode_comes_with_the_driver_reload(node: Served) -> None:
    done = node.run("amd-smi", "set", "-M", "NPS4", stdin="y\n")
    assert done.stdout.count("Successfully set memory partition to NPS4") == 2
    assert node.read("current_memory_partition") == "NPS1"
    assert "please remove and reload the driver" in node.run("dmesg").stdout
    assert node.run("modprobe", "-r", "amdgpu").returncode == 0
    assert not (node.sys / "class/kfd").exists()
    assert not (node.dev / "kfd").exists()
    assert node.renders() == []
    off = node.run("rocm-smi", "--showcomputepartition")
    assert (off.returncode, off.stdout) == (0, "")
    assert off.stderr == "ERROR:root:Driver not initialized (amdgpu not found in modules)\n"
    assert node.run("amd-smi", "list").returncode == 255
    assert node.run("modprobe", "amdgpu").returncode == 0
    assert node.read("current_memory_partition") == "NPS4"
    assert node.read("current_compute_partition") == "CPX"
    assert node.read("available_compute_partition") == "QPX, CPX"
    assert len(node.nodes()) == 2 + 16
    back = node.run("rocm-smi", "--setmemorypartition", "NPS1", "--autorespond", "y")
    assert back.stdout.count("Successfully set memory partition to NPS1") == 2
    assert node.read("current_compute_partition") == "SPX"


def test_faults_and_settings_work_on_the_running_node(node: Served) -> None:
    assert node.run("fault", "compute-errno=EIO@1").returncode == 0
    assert error_of(lambda: node.gpu("current_compute_partition", 1).write_text("CPX")) == errno.EIO
    assert node.run("fault", "tool-missing=amd-smi").returncode == 0
    assert node.run("amd-smi", "list").returncode == 127
    wrong = node.run("fault", "tool-mising=amd-smi")
    assert wrong.returncode == 1
    assert "did you mean 'tool-missing'" in wrong.stderr
    assert node.run("config", "release=6.3.0").returncode == 0
    assert node.run("fault", "clear").returncode == 0
    assert "ROCm version: 6.3.0\n" in node.run("amd-smi", "version").stdout
    assert node.run("config", "release=7.0.0").returncode == 0


def test_a_zombie_is_a_real_one(node: Served) -> None:
    assert node.run("fault", "zombie=VLLM::Worker").returncode == 0
    (pid,) = os.listdir(node.sys / "class/kfd/kfd/proc")
    assert Path(f"/proc/{pid}/stat").read_text().split(") ")[1].startswith("Z")
    assert Path(f"/proc/{pid}/comm").read_text() == "VLLM::Worker\n"
    assert error_of(lambda: node.gpu("current_compute_partition").write_text("CPX")) == errno.EBUSY
    assert node.run("fault", "clear", "zombie").returncode == 0
    assert os.listdir(node.sys / "class/kfd/kfd/proc") == []
    eventually("its end", lambda: not is_zombie(int(pid)))


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it is gone, perhaps since its file was opened
        return False


def test_the_driver_stays_busy_for_a_moment(node: Served) -> None:
    assert node.run("fault", "busy-after-exit=3600").returncode == 0
    with open(node.dev / "kfd") as kfd:
        user = subprocess.Popen(["sleep", "3600"], stdin=kfd)
    # The simulation looks for users five times a second: one that came and went in between it does not see.
    state = node.root / "var/lib/gpusim/state.json"
    users = node.sys / "class/kfd/kfd/proc"
    # This process is seen first, where it has not closed the device yet.
    eventually("its use to be seen", lambda: str(user.pid) in os.listdir(users))
    eventually("that to be noted", lambda: json.loads(state.read_text())["driver"]["lingers"])
    user.kill()
    user.wait()
    assert error_of(lambda: node.gpu("current_compute_partition").write_text("CPX")) == errno.EBUSY
    assert os.listdir(node.sys / "class/kfd/kfd/proc") == []
    # Now the moment is shorter, and over.
    assert node.run("fault", "busy-after-exit=0.1").returncode == 0
    eventually(
        "the driver",
        lambda: error_of(lambda: node.gpu("current_compute_partition").write_text("CPX")) != errno.EBUSY,
    )


def test_settings_of_the_host_are_files(node: Served) -> None:
    pages = node.sys / "kernel/mm/transparent_hugepage/enabled"
    governor = node.sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor"
    assert (pages.read_text(), governor.read_text()) == ("[always] madvise never\n", "performance\n")
    pages.write_text("madvise\n")
    assert pages.read_text() == "always [madvise] never\n"
    assert error_of(lambda: governor.write_text("fast")) == errno.EINVAL
    assert as_nobody(lambda: governor.write_text("powersave")) == errno.EACCES
    assert len(os.listdir(node.sys / "class/infiniband")) == 8
    assert node.run("fault", "nic-down=2").returncode == 0
    assert (node.sys / "class/infiniband/mlx5_2/ports/1/state").read_text() == "1: DOWN\n"


def test_other_gpus_and_a_reboot(node: Served) -> None:
    assert node.run("config", "model=MI355X").returncode == 0
    assert node.read("available_memory_partition") == "NPS1, NPS2"
    asked = node.run("amd-smi", "set", "-M", "NPS2", stdin="y\n")
    assert asked.stdout.count("Successfully set memory partition to NPS2") == 2
    assert node.run("modprobe", "-r", "amdgpu").returncode == 0
    assert node.run("modprobe", "amdgpu").returncode == 0
    assert (node.read("current_memory_partition"), node.read("current_compute_partition")) == ("NPS2", "DPX")
    node.gpu("current_compute_partition").write_text("CPX")
    assert node.stop() == 0
    node.start()
    assert (node.read("current_memory_partition"), node.read("current_compute_partition")) == ("NPS2", "DPX")
    assert (node.read("device"), len(node.nodes())) == ("0x75a3", 2 + 4)
    assert node.run("config", "model=MI300X").returncode == 0
    assert node.read("current_compute_partition") == "SPX"


def test_stopping_leaves_nothing_mounted() -> None:
    with simulation() as served:
        assert str(served.root) in Path("/proc/self/mounts").read_text()
        assert served.stop() == 0
        assert str(served.root) not in Path("/proc/self/mounts").read_text()
        assert not (served.root / "run/gpusim/ready").exists()
