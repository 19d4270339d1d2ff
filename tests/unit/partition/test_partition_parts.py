# SPDX-License-Identifier: Apache-2.0
"""Who holds the GPUs, the journal, and what the tools say of memory modes: each alone."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.partition import journal
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import PartitionError
from ansible_collections.instinct.fleet.plugins.module_utils.partition.holders import (
    GpuHolder,
    Service,
    holders,
    owner_of,
    services,
    unmanaged_holders,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.journal import (
    STEPS,
    Journal,
    parse_journal,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.smi_set_output import (
    BROKEN,
    BUSY,
    DONE,
    PENDING,
    REFUSED,
    SetResult,
    amd_smi_set,
    rocm_smi_set,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.gpu_tree import SAMPLES, write

ID, OTHER = "ab" * 32, "cd" * 32

# --- holders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "own", "expected"),
    [
        ("0::/system.slice/rdc.service\n", "0::/user.slice/session-1.scope\n", (None, "rdc.service")),
        (f"0::/system.slice/docker-{ID}.scope\n", "", (ID, None)),
        (f"0::/docker/{ID}\n", "", (ID, None)),
        (f"12:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/\n", "", (ID, None)),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", "", (ID, None)),
        (f"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope\n", "", (ID, None)),
        # systemd's own hierarchy says what it is, whatever the others say
        ("4:memory:/other.service\n1:name=systemd:/system.slice/rdc.service\n", "", (None, "rdc.service")),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "", (None, None)),
        # the node itself is a container: that is no container of the process
        (f"0::/docker/{ID}\n", f"0::/docker/{ID}\n", (None, None)),
        (f"0::/docker/{ID}/system.slice/rdc.service\n", f"0::/docker/{ID}\n", (None, "rdc.service")),
        (f"0::/docker/{ID}/docker/{OTHER}\n", f"0::/docker/{ID}\n", (OTHER, None)),
        (f"0::/docker/{OTHER}\n", f"0::/docker/{ID}\n", (OTHER, None)),
        ("", "", (None, None)),
        ("nonsense", "", (None, None)),
    ],
)  # fmt: skip
def test_belongs(text: str, own: str, expected: tuple[str | None, str | None]) -> None:
    assert owner_of(text, {row.split(":", 2)[2] for row in own.splitlines()}) == expected


class Proc:
    """Processes and devices of a node in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/class/kfd/kfd/proc").mkdir(parents=True)
        (root / "proc").mkdir()
        self.containers: dict[str, dict[str, Any]] = {}

    def process(
        self,
        pid: int,
        *opened: str,
        kfd: bool = False,
        command: str = "x",
        cgroup: str = "0::/\n",
        state: str = "S",
    ) -> None:
        place = self.root / f"proc/{pid}"
        (place / "fd").mkdir(parents=True)
        for number, target in enumerate(opened):
            (place / f"fd/{number}").symlink_to(target)
        write(place / "cmdline", command.replace(" ", "\0") + "\0")
        write(place / "comm", command.split()[0].rpartition("/")[2] + "\n")
        write(place / "cgroup", cgroup)
        write(place / "stat", f"{pid} (a ) b) {state} 1 1 1 0\n")
        if kfd:
            (self.root / f"sys/class/kfd/kfd/proc/{pid}").mkdir()

    def drm(self, name: str, driver: str) -> None:
        device = self.root / f"sys/class/drm/{name}/device"
        device.mkdir(parents=True)
        (self.root / f"drivers/{driver}").mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(self.root / f"drivers/{driver}")

    def found(self) -> list[GpuHolder]:
        return holders(Source(str(self.root)), self.containers.get)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_holders_of_kfd_and_dri(proc: Proc) -> None:
    proc.drm("renderD128", "amdgpu")
    proc.drm("card0", "ast")
    proc.process(1, "/dev/null", "/dev/kfd", command="/usr/bin/train --token s3cret")
    proc.process(2, "/dev/dri/renderD128")
    proc.process(3, "/dev/dri/card0", command="Xorg")  # the BMC's screen
    proc.process(4, kfd=True, command="closed-it")
    proc.process(5, "/dev/kfdx", "/tmp/dri/renderD128", "socket:[1]")
    proc.process(os.getpid(), "/dev/kfd")
    write(proc.root / "proc/self/cgroup", "0::/\n")
    assert [(holder.pid, holder.service) for holder in proc.found()] == [(1, None), (2, None), (4, None)]
    assert proc.found()[0].name == "pid 1 /usr/bin/train"


@pytest.mark.parametrize(
    ("labels", "image", "service"),
    [
        ({"instinct-fleet.instance": "a-0"}, "rocm/vllm@sha256:1", Service("instance", "c")),
        ({}, "docker.io/rocm/device-metrics-exporter:v1.4.0", Service("container", "c")),
        ({}, "rocm/vllm:latest", None),
        (None, "device-metrics-exporter-fake:1", None),
    ],
)
def test_containers(proc: Proc, labels: Any, image: str, service: Service | None) -> None:
    proc.containers[ID] = {"Name": "/c", "Config": {"Labels": labels, "Image": image, "StopTimeout": 7}}
    proc.process(1, "/dev/kfd", command="python3", cgroup=f"0::/docker/{ID}\n")
    (holder,) = proc.found()
    assert holder.name == "pid 1 python3 in container c"
    assert holder.service == service
    if service:
        assert holder.service is not None
        assert holder.service.seconds == 7


def test_a_container_of_another_engine_is_foreign(proc: Proc) -> None:
    proc.process(1, "/dev/kfd", command="python3", cgroup=f"0::/kubepods/cri-containerd-{ID}.scope\n")
    assert [holder.name for holder in unmanaged_holders(proc.found())] == [
        f"pid 1 python3 in container {ID[:12]}"
    ]


def test_units_and_screens(proc: Proc) -> None:
    proc.process(1, "/dev/kfd", command="gpuagent", cgroup="0::/system.slice/gpuagent.service\n")
    proc.process(2, "/dev/kfd", command="/opt/mine", cgroup="0::/system.slice/mine.service\n")
    proc.process(
        3, "/dev/dri/card1", command="Xorg", cgroup="0::/user.slice/user-125.slice/session-c1.scope\n"
    )
    proc.process(4, "/dev/kfd", command="vllm", state="Z")
    found = proc.found()
    assert services(found) == (
        Service("unit", "gpuagent.service"),
        Service("unit", "display-manager.service"),
    )
    assert [holder.name for holder in unmanaged_holders(found)] == [
        "pid 2 /opt/mine of mine.service",
        "pid 4 vllm (a zombie: its parent has to be stopped)",
    ]


@given(st.text(), st.text())
def test_any_text_is_some_cgroup(text: str, own: str) -> None:
    container, unit = owner_of(text, {own})
    assert container is None or container in text
    assert unit is None or unit in text


# --- the journal -------------------------------------------------------------------------------------------

JOURNAL = Journal(
    "set", "2026-01-01T00:00:00Z", "NPS1", {"0000:05:00.0": "SPX"}, "NPS4", {"0000:05:00.0": "CPX"},
    (Service("instance", "instinct-a-0", 120), Service("unit", "rdc.service", 60)),
)  # fmt: skip


def test_journal_on_disk(tmp_path: Path) -> None:
    path = str(tmp_path / "a/b/partition.json")
    assert journal.load(path) is None
    journal.reserve(path)
    journal.save(path, JOURNAL)
    assert journal.load(path) == JOURNAL
    assert "undoes it" in json.loads(Path(path).read_text())["about"]
    journal.drop(path)
    journal.drop(path)
    assert journal.load(path) is None
    assert os.listdir(tmp_path / "a/b") == []


def test_a_journal_that_cannot_be_read_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    path.write_text(json.dumps(JOURNAL.to_json())[:-30])
    with pytest.raises(PartitionError, match=r"partition\.json is the journal of an earlier change"):
        journal.load(str(path))


KEYS = ("schema", "step", "started", "before", "wanted", "stopped")


@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        st.recursive(
            st.none()
            | st.integers()
            | st.text()
            | st.sampled_from([1, *STEPS, {"memory": "NPS1", "compute": {}}]),
            lambda inner: (
                st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["kind", "name"]), inner)
            ),
        ),
    )
)
def test_no_other_data_is_a_journal(data: dict[str, Any]) -> None:
    text = json.dumps({**JOURNAL.to_json(), **data})
    with contextlib.suppress(ValueError):
        found = parse_journal(text)
        assert found.step in STEPS
        modes = [*found.before_compute.values(), *found.wanted_compute.values(), found.before_memory]
        assert all(mode is None or isinstance(mode, str) for mode in modes)


@given(st.text())
def test_no_other_text_is_a_journal(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_journal(text)


# --- memory modes: what the tools say ----------------------------------------------------------------------


def sample(name: str) -> tuple[str, str]:
    texts = [SAMPLES / f"{name}{suffix}" for suffix in (".txt", ".stderr.txt")]
    stdout, stderr = (path.read_text() if path.exists() else "" for path in texts)
    return stdout, stderr


def verdicts(result: SetResult) -> dict[int, str]:
    return {index: verdict for index, (verdict, _) in result.verdicts.items()}


@pytest.mark.parametrize(
    ("name", "mode", "expected", "failure"),
    [
        ("rocmsmi_6.0_set_mem_ok", "NPS4", {0: DONE, 1: DONE}, None),
        ("rocmsmi_7.0_set_mem_autorespond_y", "NPS4", {0: DONE, 1: DONE}, None),
        ("rocmsmi_7.0_set_mem_busy", "NPS4", {0: BUSY, 1: BUSY}, None),
        ("rocmsmi_7.0_set_mem_restart_err", "NPS4", {0: PENDING, 1: PENDING}, None),
        ("rocmsmi_7.0_set_mem_invalid_mode", "NPS8", {0: REFUSED, 1: REFUSED}, None),
        ("rocmsmi_7.0_set_mem_prompt_eof", "NPS4", {}, BROKEN),
        ("rocmsmi_7.0_set_mem_prompt_no", "NPS4", {}, BROKEN),
        ("rocmsmi_7.0_set_mem_json", "NPS4", {}, BROKEN),
        ("rocmsmi_7.0_set_mem_autorespond_y", "NPS1", {}, BROKEN),
        ("rocmsmi_7.0_set_compute_ok", "NPS4", {}, BROKEN),
    ],
)
def test_rocm_smi_memory(name: str, mode: str, expected: dict[int, str], failure: str | None) -> None:
    result = rocm_smi_set(*sample(name), mode)
    assert verdicts(result) == expected
    assert (result.failure[0] if result.failure else None) == failure


@pytest.mark.parametrize(
    ("name", "mode", "expected", "failure"),
    [
        ("amdsmi_6.3dev_set_mem_ok", "NPS4", {0: DONE, 1: DONE}, None),
        ("amdsmi_6.3dev_set_mem_notsupp", "NPS4", {0: BROKEN}, BROKEN),
        ("amdsmi_6.4_doc_set_memory_nps4_toomanyfiles", "NPS4", dict.fromkeys(range(15), DONE), None),
        ("amdsmi_7.0_set_M_prompt_notsupported", "NPS2", {0: BROKEN, 1: BROKEN}, None),
        ("amdsmi_6.3dev_set_mem_ok", "NPS1", {0: BROKEN, 1: BROKEN}, None),
        ("amdsmi_6.3dev_set_compute_ok", "NPS4", {0: BROKEN, 1: BROKEN}, None),
        ("amdsmi_6.3dev_bad_gpu", "NPS4", {}, BROKEN),
    ],
)
def test_amd_smi_memory(name: str, mode: str, expected: dict[int, str], failure: str | None) -> None:
    result = amd_smi_set(*sample(name), mode)
    assert verdicts(result) == expected
    assert (result.failure[0] if result.failure else None) == failure


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("Successfully set memory partition to NPS4, reload driver when ready", DONE),
        (
            "Successfully set memory partition to NPS4, use `sudo modprobe -r amdgpu && sudo modprobe amdgpu`",
            DONE,
        ),
        ("Successfully set memory partition to NPS42", BROKEN),
        (
            "[AMDSMI_STATUS_AMDGPU_RESTART_ERR] Could not successfully restart driver after applying NPS4",
            PENDING,
        ),
        ("[AMDSMI_STATUS_BUSY] Unable to set memory partition to NPS4", BUSY),
        ("[AMDSMI_STATUS_INVAL] Unable to set memory partition to NPS4", REFUSED),
        ("[AMDSMI_STATUS_WHATEVER] Unable to set memory partition to NPS4", BROKEN),
        ("", BROKEN),
    ],
)
def test_what_amd_smi_says_of_a_gpu(message: str, verdict: str) -> None:
    bar = "\nUpdating memory partition for gpu 0: [\u2588\u2588....] 3/140 secs remain\n"
    text = f"{bar}\nGPU: 0\n    MEMORY_PARTITION: {message}\n\n"
    assert verdicts(amd_smi_set(text, "", "NPS4")) == {0: verdict}


@given(st.sampled_from(["rocm", "amd"]), st.text(), st.text())
def test_random_text_is_no_success(tool: str, stdout: str, stderr: str) -> None:
    result = (rocm_smi_set if tool == "rocm" else amd_smi_set)(stdout, stderr, "NPS4")
    assert DONE not in verdicts(result).values()


FAILED = [
    ("rocmsmi_7.0_set_mem_busy", rocm_smi_set),
    ("rocmsmi_7.0_set_mem_restart_err", rocm_smi_set),
    ("amdsmi_7.0_set_M_prompt_notsupported", amd_smi_set),
]


@given(
    st.sampled_from(FAILED), st.integers(0, 1 << 14), st.integers(0, 40), st.text(max_size=8), st.booleans()
)
def test_a_damaged_failure_is_no_success(
    failed: tuple[str, Any], start: int, length: int, put: str, cut: bool
) -> None:
    text, stderr = sample(failed[0])
    start %= len(text)
    damaged = text[:start] if cut else text[:start] + put + text[start + length :]
    assert DONE not in verdicts(failed[1](damaged, stderr, "NPS4")).values()
