# SPDX-License-Identifier: Apache-2.0
"""The transaction: whatever goes wrong, and wherever it is cut off, the node ends in the new modes or in the old."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.partition.converge import change, services_of
from ansible_collections.instinct.fleet.plugins.module_utils.partition.holders import GpuHolder, Service
from ansible_collections.instinct.fleet.plugins.module_utils.partition.request import (
    PartitionRequest,
    PartitionResult,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.partition_world import GIB, Crash, World, journal_of, served

INSTANCES = services_of([{"name": "llama-0", "stop_timeout": 5}, {"name": "llama-1"}])
CPX4 = PartitionRequest("CPX", "NPS4", backend="sysfs", retries=2, timeout=100.0, servers=INSTANCES)
ALL = {"instinct-llama-0", "instinct-llama-1", "exporter", "gpuagent.service", "amd-metrics-exporter.service"}
MONITORS = {"exporter", "gpuagent.service", "amd-metrics-exporter.service"}
NEW = ("NPS4", ["CPX", "CPX"])
OLD = ("NPS1", ["SPX", "SPX"])


def modes(world: World) -> tuple[str, list[str]]:
    return world.memory, world.modes


def ended_well(world: World, outcome: PartitionResult | None) -> None:
    """The new modes with the monitors (instances start by the plan), or the old ones with everything."""
    assert world.driver
    assert world.text is None
    if outcome is not None and outcome.error is None:
        assert modes(world) == NEW
        assert world.up() >= MONITORS
    else:
        assert modes(world) == OLD
        assert world.up() == ALL


def test_all_steps() -> None:
    world = served(World())
    foreseen = change(world, CPX4, check=True)
    assert world.operations == []
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None
    assert outcome.changed
    ended_well(world, outcome)
    assert world.up() == MONITORS
    assert foreseen.actions == outcome.actions
    assert foreseen.after == outcome.after
    assert outcome.actions[:4] == [
        "stop container instinct-llama-0",
        "stop container instinct-llama-1",
        "stop container exporter",
        "stop gpuagent.service",
    ]
    assert "modprobe -r amdgpu" in outcome.actions
    # What goes with a unit that is stopped is started again as well, when it does not run.
    assert outcome.actions[-2:] == ["start gpuagent.service", "start container exporter"]
    steps = [text for text in world.operations if "journal" in text]
    assert list(dict.fromkeys(steps)) == [
        "journal drain", "journal wait", "journal set", "journal verify", "journal restore", "no journal",
    ]  # fmt: skip

    world.again()
    assert not change(world, CPX4, check=False).changed
    assert world.operations == []


def test_instances_stop_before_monitors_and_names_are_on_disk_before() -> None:
    world = served(World())
    change(world, CPX4, check=False)
    first_stop = next(number for number, text in enumerate(world.operations) if text.startswith("stop"))
    assert world.operations[:first_stop] == ["reserve", "journal drain", "journal drain"]


class Reluctant(World):
    """A node on which something does not stop as it should."""

    def stop(self, wanted: Sequence[Service]) -> list[str]:
        return [*super().stop(wanted), f"{wanted[0].name}: did not end in time"]


def test_what_does_not_stop_as_it_should_is_reported() -> None:
    outcome = change(served(Reluctant()), CPX4, check=False)
    assert outcome.error is None
    assert outcome.warnings == ["instinct-llama-0: did not end in time"]


def test_back_from_partitions() -> None:
    world = served(World(memory="NPS4", mode="CPX"))
    outcome = change(world, replace(CPX4, compute="SPX", memory="NPS1"), check=False)
    assert outcome.error is None, outcome
    assert modes(world) == OLD


def test_a_compute_mode_that_the_reload_does_not_give() -> None:
    world = World()
    outcome = change(world, PartitionRequest("QPX", "NPS4", backend="sysfs"), check=False)
    assert outcome.error is None, outcome
    assert modes(world) == ("NPS4", ["QPX", "QPX"])


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"refused"}, "modprobe -r amdgpu: modprobe: FATAL: Module amdgpu is in use."),
        ({"refused"}, "The driver keeps the request for NPS4"),
        ({"pinned"}, "amdgpu cannot be unloaded: 1 users, and no process that has a device open."),
        ({"hang"}, "modprobe did not end within"),
        ({"hang"}, "the driver is still loaded. If that happens again, reboot the node."),
        ({"kept"}, "did not change to NPS4; look at dmesg | grep 'NPS mode'"),
        ({"lost"}, "15 of 16 partitions are visible: GPU 0 (0000:00:00.0) shows 7 of 8 partitions."),
        ({"lost"}, "Set back to the earlier modes: SPX/NPS1. Started again: "),
    ],
)
def test_what_goes_wrong_is_undone(faults: set[str], says: str) -> None:
    world = served(World())
    world.faults = faults
    outcome = change(world, CPX4, check=False)
    assert outcome.error is not None
    assert says in outcome.error
    world.faults = set()
    ended_well(world, outcome)


def test_one_gpu_refuses() -> None:
    world = served(World())
    world.faults = {"einval 1"}
    outcome = change(world, replace(CPX4, memory=None), check=False)
    assert "GPU 1 (0000:01:00.0): Invalid argument" in str(outcome.error)
    assert "Set back to the earlier mode: GPU 0 (0000:00:00.0)." in str(outcome.error)
    ended_well(world, outcome)


def test_a_driver_that_loads_at_the_second_try() -> None:
    world = served(World())
    world.faults = {"broken once"}
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None
    ended_well(world, outcome)


def test_a_driver_that_does_not_load_leaves_a_journal_for_the_next_run() -> None:
    world = served(World())
    world.faults = {"broken"}
    outcome = change(world, CPX4, check=False)
    assert "The amdgpu driver does not load" in str(outcome.error)
    assert "reboot the node, and run again. Still stopped: container instinct-llama-0" in str(outcome.error)
    assert journal_of(world)["step"] == "undo"
    assert journal_of(world)["before"]["compute"] == {"0000:00:00.0": "SPX", "0000:01:00.0": "SPX"}
    world.reboot()
    world.faults = set()
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None
    ended_well(world, outcome)


def test_busy_for_a_while() -> None:
    world = served(World())
    world.busy = 3
    outcome = change(world, replace(CPX4, memory=None), check=False)
    assert outcome.error is None
    assert world.modes == ["CPX", "CPX"]


STRANGER = GpuHolder(77, "/usr/bin/train")


def test_a_stranger_ends_it_before_anything_is_touched() -> None:
    world = served(World())
    world.strangers = [STRANGER]
    with pytest.raises(
        NodeError, match=r"use the GPUs, and instinct-fleet does not stop them: pid 77 /usr/bin/train"
    ):
        change(world, CPX4, check=False)
    assert world.operations == []
    assert world.up() == ALL


def test_a_stranger_that_only_looks_is_waited_for() -> None:
    class Brief(World):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.strangers = []

    world = served(Brief())
    world.strangers = [STRANGER]
    assert change(world, CPX4, check=False).error is None


def test_a_stranger_that_comes_later_is_named_and_all_undone() -> None:
    class Late(World):
        def stop(self, wanted: Any) -> list[str]:
            self.strangers = [STRANGER]
            return super().stop(wanted)

    world = served(Late())
    outcome = change(world, CPX4, check=False)
    assert "pid 77 /usr/bin/train" in str(outcome.error)
    ended_well(world, outcome)


def test_a_zombie_is_named() -> None:
    class Late(World):
        def stop(self, wanted: Any) -> list[str]:
            self.strangers = [GpuHolder(9, "vllm", zombie=True)]
            return super().stop(wanted)

    world = served(Late())
    outcome = change(world, CPX4, check=False)
    assert "pid 9 vllm (a zombie: its parent has to be stopped)" in str(outcome.error)
    ended_well(world, outcome)


def test_an_exporter_that_comes_back_is_stopped_once_more() -> None:
    class Stubborn(World):
        again_at = 2

        def holders(self) -> list[GpuHolder]:
            self.again_at -= 1
            if self.again_at == 0:
                self.stopped_by_hand.discard(Service("unit", "gpuagent.service"))
            return super().holders()

    world = served(Stubborn())
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None, outcome
    assert outcome.actions.count("stop gpuagent.service") == 2


def test_an_exporter_that_opens_the_gpus_now_and_then() -> None:
    """Nobody holds a GPU until the driver is asked."""
    agent = Service("unit", "gpuagent.service")

    class Sampling(World):
        def write(self, step: Any) -> None:
            if agent not in self.stopped_by_hand:
                self.running[agent] = 300
            super().write(step)

    world = Sampling()
    world.running[agent] = 0
    outcome = change(world, replace(CPX4, memory=None, servers=()), check=False)
    assert outcome.error is None, outcome
    assert "stop gpuagent.service" in outcome.actions
    assert world.modes == ["CPX", "CPX"]
    assert world.up() == {"gpuagent.service"}


# --- a disk that is full, or fills up meanwhile -------------------------------------------------------------

WRITES = 10  # more than a change writes its journal


@pytest.mark.parametrize("faults", [set(), {"einval 0"}, {"kept"}, {"broken once"}])
@pytest.mark.parametrize("at", range(WRITES))
def test_wherever_the_journal_cannot_be_written_all_is_put_back(at: int, faults: set[str]) -> None:
    world = served(World())
    world.full_at, world.faults = at, set(faults)
    outcome: PartitionResult | None = None
    if at < 2:  # its room, and its first step
        with pytest.raises(NodeError) as refused:
            change(world, CPX4, check=False)
        assert str(refused.value) == (
            "the journal cannot be written (No space left on device): without it no mode is changed. Make room on that "
            "disk, and run again."
        )
        assert [text for text in world.operations if "journal" not in text] == ["reserve"][: at + 1]
    else:
        outcome = change(world, CPX4, check=False)
    ended_well(world, outcome)
    if outcome and outcome.error and "journal" in outcome.error:
        assert "No GPU was changed" in outcome.error or "Set back to the earlier modes" in outcome.error
    said = [text for text in (outcome.warnings if outcome else ()) if "was completed without it" in text]
    refused_once = outcome is not None and "without it no mode is changed" in (outcome.error or "")
    assert len(said) == (outcome is not None and world.journalled - at > refused_once)


def test_a_service_that_does_not_start_is_a_warning() -> None:
    world = served(World())
    world.faults = {"dead gpuagent.service"}
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None
    assert any(
        "gpuagent.service was stopped for this and does not start" in text for text in outcome.warnings
    )
    assert world.text is None


# --- cut off -----------------------------------------------------------------------------------------------


def crashed(at: int, request: PartitionRequest = CPX4, world: World | None = None) -> World:
    """A world in which the change was cut off before its operation number `at`."""
    world = world or served(World())
    world.crash_at = at
    with pytest.raises(Crash):
        change(world, request, check=False)
    world.again()
    return world


def operations(request: PartitionRequest = CPX4) -> int:
    world = served(World())
    change(world, request, check=False)
    return len(world.operations)


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("at", range(operations()))
def test_cut_off_anywhere_the_next_run_finishes(at: int, reboot: bool) -> None:
    world = crashed(at)
    if reboot:
        world.reboot()
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None, outcome
    ended_well(world, outcome)


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("at", range(operations()))
def test_cut_off_anywhere_it_can_be_taken_back(at: int, reboot: bool) -> None:
    world = crashed(at)
    if reboot:
        world.reboot()
    cut_off = world.text is not None
    outcome = change(world, PartitionRequest(), check=False)
    assert outcome.error is None, outcome
    assert outcome.changed == cut_off
    if cut_off:
        assert modes(world) == OLD
        assert world.up() == ALL
        assert world.text is None


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=4))
def test_cut_off_again_and_again(cuts: list[tuple[int, bool]]) -> None:
    world = served(World())
    for at, reboot in cuts:
        world.crash_at = at
        with contextlib.suppress(Crash):
            change(world, CPX4, check=False)
        world.again()
        if reboot:
            world.reboot()
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None, outcome
    ended_well(world, outcome)


@pytest.mark.parametrize("at", range(0, operations(), 3))
def test_cut_off_and_then_refused_it_is_taken_back(at: int) -> None:
    """The operator wants something that cannot be: what was stopped must not stay so."""
    world = crashed(at)
    cut_off = world.text is not None
    if not cut_off:
        return
    outcome = change(world, PartitionRequest("SPX", "NPS4", backend="sysfs"), check=False)
    assert "SPX" in str(outcome.error)
    assert "The earlier, interrupted change was undone." in str(outcome.error)
    assert modes(world) == OLD
    assert world.up() == ALL


@pytest.mark.parametrize("full_at", range(4))
@pytest.mark.parametrize("at", range(operations()))
def test_cut_off_and_then_the_disk_is_full(at: int, full_at: int) -> None:
    """What was stopped must not stay so, whatever else is impossible."""
    world = crashed(at)
    if world.text is None:
        return
    world.full_at, world.journalled = full_at, 0
    outcome = change(world, CPX4, check=False)
    if outcome.error is None:
        assert modes(world) == NEW
        assert world.up() >= MONITORS
    else:
        assert modes(world) == OLD
        assert world.up() == ALL
    assert world.text is None


@pytest.mark.parametrize("at", range(WRITES))
def test_cut_off_and_taken_back_on_a_full_disk(at: int) -> None:
    world = crashed(operation_names().index("journal verify"))
    world.full_at, world.journalled = at, 0
    outcome = change(world, PartitionRequest(), check=False)
    assert outcome.error is None
    assert (modes(world), world.up(), world.text) == (OLD, ALL, None)
    said = [text for text in outcome.warnings if "was completed without it" in text]
    assert len(said) == (world.journalled > at)


def test_an_unloaded_driver_is_loaded_by_the_next_run() -> None:
    unload = served(World())
    change(unload, CPX4, check=False)
    world = crashed(unload.operations.index("modprobe -r amdgpu") + 1)
    assert not world.driver
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None, outcome
    ended_well(world, outcome)


# --- reloads that free VRAM --------------------------------------------------------------------------------


def test_stranded_vram() -> None:
    world = World()
    world.running[Service("unit", "amd-metrics-exporter.service")] = 0
    world.stranded = 46 * GIB
    assert not change(world, PartitionRequest(), check=False).changed
    outcome = change(world, PartitionRequest(clean=True, backend="sysfs"), check=False)
    assert outcome.error is None, outcome
    assert outcome.actions == ["modprobe -r amdgpu", "modprobe amdgpu"]
    assert world.stranded == 0
    assert modes(world) == OLD
    assert not change(world, PartitionRequest(clean=True), check=False).changed


def test_a_reload_puts_the_compute_modes_back() -> None:
    world = World(mode="CPX")
    world.stranded = 46 * GIB
    outcome = change(world, PartitionRequest(clean=True, backend="sysfs"), check=False)
    assert outcome.error is None, outcome
    assert modes(world) == ("NPS1", ["CPX", "CPX"])


def test_vram_in_use_by_a_process_is_not_stranded() -> None:
    world = served(World())
    world.stranded = 46 * GIB
    assert not change(world, PartitionRequest(clean=True), check=False).changed


def test_vram_in_use_is_no_matter_of_a_change_that_was_not_to_free_it() -> None:
    world = World()
    world.stranded = 46 * GIB
    outcome = change(world, PartitionRequest("CPX", backend="sysfs"), check=False)
    assert outcome.error is None, outcome
    assert (world.modes, world.stranded) == (["CPX", "CPX"], 46 * GIB)


# --- refused early -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            PartitionRequest("SPX", "NPS4"),
            "SPX cannot be combined with NPS4: 1 compute partition cannot use 4 memory partitions",
        ),
        (PartitionRequest("DPX", "NPS4"), "Choose a compute mode with at least 4: QPX, CPX."),
        (PartitionRequest(memory="NPS4"), "SPX cannot be combined with NPS4"),
        (PartitionRequest("CPX", "NPS4", gpus=("0",)), "memory: NPS4 is a mode of the whole node"),
        (PartitionRequest("TPX"), "mode TPX is not offered in memory partition mode NPS1"),
    ],
)
def test_refused(request_: PartitionRequest, says: str) -> None:
    world = served(World())
    with pytest.raises(NodeError, match=says.replace("(", r"\(")):
        change(world, request_, check=False)
    assert world.operations == []


# --- the way through -----------------------------------------------------------------------------------------


def test_a_memory_mode_alone() -> None:
    """The change is whole: instances start by the plan that comes after it, not here by the old one."""
    world = served(World(mode="CPX"))
    request = replace(CPX4, compute=None)
    foreseen = change(world, request, check=True)
    outcome = change(world, request, check=False)
    assert outcome.error is None, outcome
    assert modes(world) == NEW
    assert world.up() == MONITORS
    assert foreseen.actions == outcome.actions
    assert outcome.stopped[:2] == ["instinct-llama-0", "instinct-llama-1"]
    world.again()
    assert not change(world, request, check=False).changed


def test_a_compute_mode_alone() -> None:
    world = served(World())
    outcome = change(world, replace(CPX4, memory=None), check=False)
    assert outcome.error is None, outcome
    assert modes(world) == ("NPS1", ["CPX", "CPX"])
    assert world.up() == MONITORS


def test_without_a_change_to_come_the_instances_start_here() -> None:
    world = served(World())
    world.running = dict.fromkeys(world.running, 0)
    world.stranded = 46 * GIB
    outcome = change(world, PartitionRequest(clean=True, backend="sysfs", servers=INSTANCES), check=False)
    assert outcome.error is None, outcome
    assert world.up() == ALL
    assert [action for action in outcome.actions if "container instinct" in action] == [
        "stop container instinct-llama-0", "stop container instinct-llama-1",
        "start container instinct-llama-1", "start container instinct-llama-0",
    ]  # fmt: skip


def test_a_container_that_starts_again_and_again_ends_the_change() -> None:
    class Restless(World):
        def holders(self) -> list[GpuHolder]:
            self.stopped_by_hand.discard(Service("container", "exporter"))
            return super().holders()

    world = served(Restless())
    outcome = change(world, replace(CPX4, retries=3), check=False)
    assert "The GPUs are busy after 4 attempts (they do not end). They are held by pid 200 exporter." in str(
        outcome.error
    )
    assert outcome.actions.count("stop container exporter") == 2  # at first, and once more
    assert world.clock == 0.5 + 1.0  # pauses
    ended_well(world, outcome)


@pytest.mark.parametrize(
    ("retries", "timeout", "pauses"),
    [
        (0, 100.0, []),
        (3, 100.0, [0.5, 1.0, 2.0]),
        (8, 100.0, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0]),
        (8, 3.5, [0.5, 1.0]),  # two more seconds would be as long as it has
        (8, 3.6, [0.5, 1.0, 2.0]),
    ],
)
def test_how_long_it_waits_for_those_who_do_not_end(
    retries: int, timeout: float, pauses: list[float]
) -> None:
    class Late(World):
        pauses: list[float]

        def stop(self, wanted: Any) -> list[str]:
            self.pauses, self.strangers = [], [STRANGER]
            return super().stop(wanted)

        def sleep(self, seconds: float) -> None:
            self.pauses.append(seconds)
            super().sleep(seconds)

    world = served(Late())
    outcome = change(world, replace(CPX4, retries=retries, timeout=timeout), check=False)
    assert "use the GPUs, and instinct-fleet does not stop them: pid 77 /usr/bin/train" in str(outcome.error)
    assert world.pauses == pauses
    ended_well(world, outcome)


def test_a_driver_that_is_in_use_without_a_process_is_told_only_when_it_is_to_be_reloaded() -> None:
    world = served(World())
    world.faults = {"pinned"}
    assert change(world, replace(CPX4, memory=None), check=False).error is None
    outcome = change(world, CPX4, check=False)
    assert "amdgpu cannot be unloaded: 1 users" in str(outcome.error)


def test_modes_have_ten_seconds_to_be_seen() -> None:
    class Late(World):
        """The nodes of the last GPUs appear late."""

        after = 9.75

        def write(self, step: Any) -> None:
            super().write(step)
            if step.value == "CPX":
                self.faults = {"lost"}
                self.until = self.clock + self.after

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if "lost" in self.faults and self.clock >= self.until:
                self.faults = set()

    world = served(Late())
    assert change(world, replace(CPX4, memory=None), check=False).error is None
    assert world.clock == 9.75
    world = served(Late())
    world.after = 11.0  # type: ignore[attr-defined]
    assert "15 of 16 partitions are visible" in str(
        change(world, replace(CPX4, memory=None), check=False).error
    )
    assert world.clock == 10.0


def test_a_reload_that_frees_nothing() -> None:
    class Leaking(World):
        def run(self, command: Any, timeout: float) -> Any:
            ran = super().run(command, timeout)
            self.stranded = 46 * GIB
            return ran

    world = Leaking()
    world.stranded = 46 * GIB
    outcome = change(world, PartitionRequest(clean=True, backend="sysfs"), check=False)
    text = "VRAM is still in use on 2 GPUs after a reload of the driver: reboot the node. No GPU was changed."
    assert outcome.error == text
    assert not outcome.changed
    world = Leaking()
    world.stranded, world.faults = 46 * GIB, {"refused"}
    outcome = change(world, PartitionRequest(clean=True, backend="sysfs"), check=False)
    assert outcome.error == (
        "modprobe -r amdgpu: modprobe: FATAL: Module amdgpu is in use. No GPU was changed."
    )


def test_stranded_vram_goes_with_a_new_memory_mode_in_one_reload() -> None:
    world = World()
    world.stranded = 46 * GIB
    outcome = change(world, PartitionRequest("CPX", "NPS4", clean=True, backend="sysfs"), check=False)
    assert outcome.error is None, outcome
    assert (modes(world), world.stranded) == (NEW, 0)
    assert outcome.actions.count("modprobe -r amdgpu") == 1
    # And by itself with a new compute mode.
    world = World()
    world.stranded = 46 * GIB
    outcome = change(world, PartitionRequest("CPX", clean=True, backend="sysfs"), check=False)
    assert outcome.error is None, outcome
    assert (world.modes, world.stranded) == (["CPX", "CPX"], 0)
    assert outcome.actions[:2] == ["modprobe -r amdgpu", "modprobe amdgpu"]


def test_gpus_that_come_late_after_a_reload_for_vram_are_waited_for() -> None:
    class Late(World):
        def run(self, command: Any, timeout: float) -> Any:
            ran = super().run(command, timeout)
            self.shown_at = self.clock + 20.0
            return ran

    world = Late()
    world.stranded = 46 * GIB
    outcome = change(world, PartitionRequest(clean=True, backend="sysfs"), check=False)
    assert outcome.error is None, outcome
    assert world.clock == 20.0


# --- what is told ------------------------------------------------------------------------------------------


def test_what_an_outcome_says() -> None:
    world = served(World())
    outcome = change(world, CPX4, check=False)
    assert [item["compute_partition"] for item in outcome.before] == ["SPX", "SPX"]
    assert [item["compute_partition"] for item in outcome.after] == ["CPX", "CPX"]
    assert outcome.backend == "sysfs"
    assert set(outcome.stopped) == ALL
    assert outcome.warnings == []
    world = World()
    world.faults = {"einval 0", "einval 1"}
    outcome = change(world, PartitionRequest("CPX", backend="sysfs"), check=False)
    assert not outcome.changed  # nothing is otherwise than it was
    assert str(outcome.error).endswith("No GPU was changed.")
    world = served(World())
    world.faults = {"einval 0", "einval 1"}
    outcome = change(world, PartitionRequest("CPX", backend="sysfs", servers=INSTANCES), check=False)
    assert outcome.changed  # services were interrupted
    assert str(outcome.error).endswith(
        "No GPU was changed. Started again: gpuagent.service, exporter, instinct-llama-1, instinct-llama-0."
    )
    ended_well(world, outcome)


def test_warnings_about_tools_are_told_only_where_one_is_used() -> None:
    assert change(World(), PartitionRequest("CPX"), check=False).warnings == [
        "rocm-smi and amd-smi not installed; using sysfs."
    ]
    world = World()
    world.stranded = 46 * GIB
    assert change(world, PartitionRequest(clean=True), check=False).warnings == []


def test_a_reload_that_is_refused_is_carried_out_one_day() -> None:
    world = served(World())
    world.faults = {"refused"}
    outcome = change(world, CPX4, check=False)
    assert (
        "No GPU was changed. The driver keeps the request for NPS4 and carries it out when it is next "
        "unloaded. Started again: " in str(outcome.error)
    )
    # Modes that were set back say so, and the request that was overtaken is not told.
    world = served(World())
    world.faults = {"lost"}
    outcome = change(world, CPX4, check=False)
    assert "keeps the request" not in str(outcome.error)
    assert "Set back to the earlier modes: SPX/NPS1. Started again: " in str(outcome.error)


def test_neither_there_nor_back() -> None:
    """Every GPU that is in another mode is named, and what stays stopped."""

    class Stubborn(World):
        def write(self, step: Any) -> None:
            if step.value in ("SPX", "NPS1"):
                raise OSError(5, "Input/output error")
            super().write(step)

    world = served(Stubborn(3))
    world.faults = {"einval 2"}
    outcome = change(world, replace(CPX4, memory=None), check=False)
    error = str(outcome.error)
    assert "Could not set back: GPU 0 (0000:00:00.0), GPU 1 (0000:01:00.0): Input/output error" in str(
        outcome.error
    )
    assert (
        "GPU 0 (0000:00:00.0) is CPX, was SPX; GPU 1 (0000:01:00.0) is CPX, was SPX. Still stopped: " in error
    )
    assert "memory mode was" not in error
    assert error.endswith("Fix the cause and run again; the change continues from here.")
    assert "see dmesg. GPU 0" in error
    assert outcome.changed
    assert journal_of(world)["step"] == "undo"
    stubborn = Stubborn()
    stubborn.faults = {"lost"}
    outcome = change(stubborn, replace(CPX4, servers=()), check=False)
    assert "is CPX, was SPX; the memory mode was NPS1. Fix the cause and run again" in str(outcome.error)
    assert "Still stopped" not in str(outcome.error)
    assert outcome.changed  # nothing was stopped, and the modes are others
    assert outcome.stopped == []


def test_a_bug_is_undone_too_and_told() -> None:
    class Buggy(World):
        def write(self, step: Any) -> None:
            if step.value == "CPX":
                raise ZeroDivisionError("so")
            super().write(step)

    world = served(Buggy())
    outcome = change(world, replace(CPX4, memory=None), check=False)
    assert str(outcome.error).startswith("Internal error, please report it: ZeroDivisionError: so")
    ended_well(world, outcome)

    class Worse(World):
        def write(self, step: Any) -> None:
            raise ZeroDivisionError("so")

        def sleep(self, seconds: float) -> None:
            raise ZeroDivisionError("so")

        def loaded(self, module: str) -> bool:
            if self.operations and "undo" in self.operations[-1]:
                raise ZeroDivisionError("in the undo")
            return super().loaded(module)

    outcome = change(Worse(), PartitionRequest("CPX", backend="sysfs"), check=False)
    assert "Could not set back: Internal error, please report it: ZeroDivisionError: in the undo" in str(
        outcome.error
    )


def test_the_undo_has_its_own_time() -> None:
    class Slow(World):
        """The change takes nearly all of its time; then the driver is busy for a moment."""

        once = True

        def write(self, step: Any) -> None:
            if step.value == "CPX":
                self.clock += 49.5
            elif self.once:
                self.once = False
                raise OSError(errno.EBUSY, "busy")
            super().write(step)

    world = served(Slow())
    world.faults = {"einval 1"}
    outcome = change(world, replace(CPX4, memory=None), check=False)
    assert "Set back to the earlier mode: GPU 0" in str(outcome.error)
    ended_well(world, outcome)


# --- the journal -------------------------------------------------------------------------------------------


def test_the_journal_of_a_change_that_was_cut_off_is_carried_on() -> None:
    world = crashed(6)
    first = journal_of(world)
    assert first["started"].endswith("Z")
    first["started"] = "2001-02-03T04:05:06Z"
    world.text = json.dumps(first)
    later = crashed(2, world=world)
    assert journal_of(later)["started"] == "2001-02-03T04:05:06Z"
    assert journal_of(later)["before"] == {
        "memory": "NPS1",
        "compute": {"0000:00:00.0": "SPX", "0000:01:00.0": "SPX"},
    }
    assert journal_of(later)["wanted"] == {
        "memory": "NPS4",
        "compute": {"0000:00:00.0": "CPX", "0000:01:00.0": "CPX"},
    }
    assert {item["name"] for item in journal_of(later)["stopped"]} == ALL


def test_a_change_that_lacked_only_its_end_is_verified_and_nobody_is_stopped_for_it() -> None:
    world = crashed(operation_names().index("journal restore"))
    outcome = change(world, CPX4, check=False)
    assert outcome.error is None, outcome
    assert world.operations[:3] == ["reserve", "journal verify", "journal restore"]
    assert not any(text.startswith("stop") for text in outcome.actions)
    ended_well(world, outcome)


def test_a_change_that_was_cut_off_and_fails_later_is_undone_to_what_was_before_it() -> None:
    world = crashed(operation_names().index("journal verify"))
    assert modes(world) == NEW
    world.faults = {"lost"}
    outcome = change(world, CPX4, check=False)
    assert "15 of 16 partitions are visible" in str(outcome.error)
    assert "Set back to the earlier modes: SPX/NPS1. Started again: " in str(outcome.error)
    ended_well(world, outcome)


def test_what_is_stopped_later_is_remembered_beside_what_was() -> None:
    """Names are on disk before, each once, in the order in which they were stopped."""
    world = served(World())
    at = next(number for number, text in enumerate(operation_names()) if text.startswith("stop"))
    assert journal_of(crashed(at))["stopped"] == journal_of(crashed(at + 1))["stopped"]
    assert [item["name"] for item in journal_of(crashed(at))["stopped"]][:3] == [
        "instinct-llama-0", "instinct-llama-1", "exporter",
    ]  # fmt: skip
    assert world.text is None


def operation_names() -> list[str]:
    world = served(World())
    change(world, CPX4, check=False)
    return world.operations


def test_without_a_unit_among_them_no_other_unit_is_remembered() -> None:
    world = World()
    world.running[Service("container", "exporter")] = 200
    world.running[Service("unit", "rdc.service")] = 0
    outcome = change(world, PartitionRequest("CPX", backend="sysfs"), check=False)
    assert outcome.stopped == ["exporter"]
    world = World()
    outcome = change(world, PartitionRequest("CPX", backend="sysfs"), check=False)
    assert (outcome.stopped, [text for text in outcome.actions if "start" in text or "stop" in text]) == (
        [],
        [],
    )
