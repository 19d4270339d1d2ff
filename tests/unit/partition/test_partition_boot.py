# SPDX-License-Identifier: Apache-2.0
"""Partition modes over a reboot: what is recorded, what is installed, and what the unit does at a boot."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import (
    PARTITION_LINK,
    PARTITION_PROGRAM,
    PARTITION_RECORD,
    PARTITION_UNIT,
)
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.partition import boot_unit
from ansible_collections.instinct.fleet.plugins.module_utils.partition.boot_unit import (
    converge,
    default,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import PartitionError
from ansible_collections.instinct.fleet.plugins.module_utils.partition.holders import GpuHolder
from ansible_collections.instinct.fleet.plugins.module_utils.partition.journal import Journal
from ansible_collections.instinct.fleet.plugins.module_utils.partition.record import (
    DRIVER_SECONDS,
    Record,
    follow,
    record_of,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.request import PartitionRequest
from ansible_collections.instinct.fleet.plugins.module_utils.programs import partition_boot
from ansible_collections.instinct.fleet.plugins.module_utils.programs.partition_boot import (
    CHANGE_SECONDS,
    RETRIES,
    parse_record,
    requests,
    restore,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import archive

from tests.worlds.partition_world import World

PROGRAM = base64.b64decode(archive("partition_boot"))

CPX = Record("NPS1", {"0000:00:00.0": "CPX", "0000:01:00.0": "CPX"})


@pytest.mark.parametrize(
    ("now", "compute", "memory", "expected"),
    [
        (("SPX", "NPS1"), None, None, None),
        (("SPX", "NPS1"), "SPX", "NPS1", None),
        (("SPX", "NPS1"), "CPX", None, ("NPS1", "CPX")),
        (("CPX", "NPS4"), None, None, ("NPS4", "CPX")),
        (("CPX", "NPS4"), "SPX", "NPS1", None),
        (("DPX", "NPS2"), None, "NPS4", ("NPS4", "DPX")),
    ],
)
def test_what_is_recorded(
    now: tuple[str, str], compute: str | None, memory: str | None, expected: tuple[str, str] | None
) -> None:
    found = record_of(World(2, now[1], now[0]).gpus(), compute, memory)
    kept = None if default(found) else (found.memory, set(found.compute.values()))
    assert kept == (expected and (expected[0], {expected[1]}))


def test_a_record_is_read_as_it_was_written() -> None:
    assert parse_record(CPX.to_text()) == CPX
    for text in ("", "[]", '{"schema": 2}', '{"schema": 1, "memory": null}'):
        with pytest.raises(ValueError, match=r"."):
            parse_record(text)


def test_modes_are_set_again_and_a_second_time_nothing_is() -> None:
    world = World(2, "NPS1", "CPX")
    world.reboot()
    assert world.modes == ["SPX", "SPX"]
    good, lines = restore(world, CPX)
    assert (good, lines[-1], world.modes) == (True, "GPUs are CPX, memory NPS1.", ["CPX", "CPX"])
    assert world.clock == 0.0  # it does not wait for what is there
    world.again()
    assert restore(world, CPX) == (True, ["GPUs are CPX, memory NPS1, as they were."])
    assert world.operations == []


def test_memory_modes_and_gpus_that_differ() -> None:
    world = World(2)
    record = Record("NPS4", {"0000:00:00.0": "CPX", "0000:01:00.0": "QPX"})
    good, lines = restore(world, record)
    assert (good, world.memory, world.modes) == (True, "NPS4", ["CPX", "QPX"]), lines
    world.again()
    assert restore(world, record)[0]
    assert world.operations == []


def test_what_is_asked_of_the_node() -> None:
    common: dict[str, Any] = {"timeout": CHANGE_SECONDS, "retries": RETRIES}
    gpus = World(2).gpus()
    assert requests(CPX, gpus) == (PartitionRequest(compute="CPX", memory="NPS1", **common),)
    first, second = CPX.compute
    mixed = {first: "QPX", second: "CPX"}
    each = (
        PartitionRequest(compute="QPX", gpus=(first,), **common),
        PartitionRequest(compute="CPX", gpus=(second,), **common),
    )
    assert requests(Record("NPS1", mixed), gpus) == each
    assert requests(Record(None, mixed), gpus) == each
    # Another memory mode comes first, with all GPUs in one compute mode.
    assert requests(Record("NPS4", mixed), gpus) == (
        PartitionRequest(compute="QPX", memory="NPS4", **common),
        *each,
    )


def test_every_step_is_told_and_the_first_that_fails_ends_it() -> None:
    record = Record("NPS4", {"0000:00:00.0": "QPX", "0000:01:00.0": "CPX"})
    good, lines = restore(World(2), record)
    assert good
    assert [line for line in lines if line.startswith("write QPX") or line == "modprobe amdgpu"] == [
        "modprobe amdgpu", "write QPX > /gpu0/current_compute_partition", "write QPX > /gpu1/current_compute_partition",
    ]  # fmt: skip
    assert "rocm-smi and amd-smi not installed; using sysfs." in lines
    assert lines[-1] == "GPUs are QPX, CPX, memory NPS4."
    world = World(2)
    world.faults = {"einval 0"}
    good, lines = restore(world, Record(None, {"0000:00:00.0": "QPX", "0000:01:00.0": "CPX"}))
    assert not good
    assert lines[0] == "write QPX > /gpu0/current_compute_partition"
    assert "GPU 0 (0000:00:00.0): Invalid argument" in lines[-1]
    assert not any("CPX" in line for line in lines)
    assert restore(World(2), Record(None, dict.fromkeys(record.compute, "SPX")))[1] == [
        "GPUs are SPX, as they were."
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PartitionError("the journal cannot be read"), "the journal cannot be read"),
        (NodeError("another run"), "another run"),
        (ZeroDivisionError("so"), "Internal error, please report it: ZeroDivisionError: so"),
    ],
)
def test_whatever_goes_wrong_is_a_sentence(error: Exception, said: str) -> None:
    class Broken(World):
        def load_journal(self) -> Journal | None:
            raise error

    good, lines = restore(Broken(2), CPX)
    assert (good, len(lines)) == (False, 1)
    assert lines[0].startswith(said)


def test_a_driver_that_shows_its_gpus_late() -> None:
    world = World(2)
    world.shown_at = DRIVER_SECONDS
    assert restore(world, CPX)[0]
    assert world.clock == DRIVER_SECONDS


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """What the program finds: a node of two GPUs in SPX, and the record in `record`."""
    world = World(2)
    monkeypatch.setattr(partition_boot, "PartitionNode", lambda: world)
    monkeypatch.setattr(partition_boot, "PARTITION_RECORD", str(tmp_path / "record"))
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    return world


@pytest.mark.parametrize(
    ("text", "code", "out", "err"),
    [
        (None, 0, "No partition modes are recorded.", ""),
        (CPX.to_text(), 0, "GPUs are CPX, memory NPS1.", ""),
        ("{", 1, "", "/record: Expecting property name"),
        ('{"schema": 2}', 1, "", "/record: schema 2"),
        ("[]", 1, "", "/record: TypeError: "),
        (Record(None, {"0000:07:00.0": "CPX"}).to_text(), 1, "", "The driver does not show 0000:07:00.0."),
    ],
)
def test_the_program_at_a_boot(
    boot: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    code: int,
    out: str,
    err: str,
) -> None:
    if text is not None:
        (tmp_path / "record").write_text(text)
    assert partition_boot.main() == code
    said = capsys.readouterr()
    assert (bool(said.out), bool(said.err)) == (bool(out), bool(err))
    assert out in said.out
    assert err in said.err
    assert boot.modes == (["CPX", "CPX"] if "CPX" in said.out else ["SPX", "SPX"])


def test_at_a_boot_another_run_is_waited_for_and_then_told(
    boot: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "record").write_text(CPX.to_text())
    clock = [0.0]
    monkeypatch.setattr(run_lock.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(run_lock.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    with run_lock.run_lock("rocm_partition", 1.0):
        assert partition_boot.main() == 1
    assert CHANGE_SECONDS <= clock[0] < CHANGE_SECONDS + 1
    assert capsys.readouterr().err.startswith(
        "Another run of rocm_partition is in progress on this node (pid "
    )
    assert boot.operations == []


def test_nothing_is_touched_after_a_change_that_was_cut_off() -> None:
    world = World(2, "NPS1", "SPX")
    journal = {
        "schema": 1, "step": "set", "started": "", "before": {"memory": "NPS1", "compute": {}},
        "wanted": {"memory": "NPS1", "compute": {}}, "stopped": [],
    }  # fmt: skip
    world.text = json.dumps(journal)
    good, lines = restore(world, CPX)
    assert not good
    assert "playbooks/partition.yml" in lines[0]
    assert world.operations == []


def test_it_waits_for_the_driver_and_not_for_ever() -> None:
    world = World(2)
    good, lines = restore(world, Record(None, {"0000:00:00.0": "CPX", "0000:07:00.0": "CPX"}))
    assert (good, lines) == (False, ["The driver does not show 0000:07:00.0. Nothing was done."])
    assert world.clock == DRIVER_SECONDS


def test_who_holds_a_gpu_is_named_and_a_busy_driver_ends() -> None:
    world = World(2)
    world.strangers = [GpuHolder(77, "someone")]
    good, lines = restore(world, CPX)
    assert not good
    assert "someone" in lines[-1]
    world = World(2)
    world.busy = 10**6
    assert not restore(world, CPX)[0]
    # Setting and setting back; systemd's limit is above that.
    assert world.clock < 2 * CHANGE_SECONDS + DRIVER_SECONDS <= boot_unit.LIMIT


def test_installed_changed_and_removed(tmp_path: Path) -> None:
    def path(name: str) -> str:
        return f"{tmp_path}{name}"

    commands: list[list[str]] = []
    for directory in ("/etc/systemd/system", "/run/systemd/system"):
        os.makedirs(path(directory))

    own = Record("NPS1", dict.fromkeys(CPX.compute, "SPX"))

    def run(record: Record, *, check: bool = False) -> list[str]:
        result = converge(path, record, check, commands.append, PROGRAM, sys.executable)
        assert result["changed"] is bool(result["actions"])
        return result["actions"]

    everything = [f"write {name}" for name in (PARTITION_RECORD, PARTITION_PROGRAM, PARTITION_UNIT)] + [
        f"link {PARTITION_LINK}"
    ]
    assert run(CPX, check=True) == everything
    assert not os.path.exists(path(PARTITION_UNIT))
    assert commands == []
    assert run(CPX) == everything
    assert commands == [["systemctl", "daemon-reload"]]
    assert run(CPX) == []
    assert os.stat(os.path.dirname(path(PARTITION_PROGRAM))).st_mode & 0o077 == 0
    assert "Before=docker.service" in Path(path(PARTITION_UNIT)).read_text()
    assert run(Record("NPS4", CPX.compute)) == [f"write {PARTITION_RECORD}"]
    # A change by hand is followed, as the next boot would undo it otherwise.
    for by_hand in (World(2, "NPS1", "DPX"), World(2)):
        assert follow(path, by_hand.gpus()) == [f"write {PARTITION_RECORD}"]
        assert follow(path, by_hand.gpus()) == []
        assert parse_record(Path(path(PARTITION_RECORD)).read_text()) == record_of(by_hand.gpus())
    assert len(run(own, check=True)) == len(run(own)) == 4
    assert run(own) == []
    assert follow(path, World(2, "NPS1", "DPX").gpus()) == []  # nothing is kept
    assert not os.path.lexists(path(PARTITION_LINK))


def test_the_program_runs_by_itself(tmp_path: Path) -> None:
    """Without the toolkit beside it: the archive has all that it imports."""
    file = tmp_path / "restore.pyz"
    file.write_bytes(PROGRAM)
    with zipfile.ZipFile(file) as found:
        assert not any(name.startswith("ansible") for name in found.namelist())
    done = subprocess.run(
        [sys.executable, "-I", str(file)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "No partition modes are recorded.\n"), done.stderr
