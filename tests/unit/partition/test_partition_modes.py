# SPDX-License-Identifier: Apache-2.0
"""Setting modes: which way is tried for how long, how often, and when the driver is loaded again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.partition.backends import (
    AttemptResult,
    Command,
    SysfsWrite,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import (
    AUTO,
    PartitionedGpu,
    PartitionError,
    TargetModes,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.holders import GpuHolder
from ansible_collections.instinct.fleet.plugins.module_utils.partition.modes import CommandResult, ModeChange
from ansible_collections.instinct.fleet.plugins.module_utils.partition.smi_set_output import (
    BUSY,
    DONE,
    REFUSED,
)

from tests.worlds.partition_world import World

TOOLS = {"rocm-smi": "/rocm-smi", "amd-smi": "/amd-smi"}
ALL = ("rocm-smi", "amd-smi", "sysfs")


def rocm(message: str, mode: str = "CPX", count: int = 2) -> CommandResult:
    """What rocm-smi prints when it says the same of all GPUs."""
    lines = [f"GPU[{number}]\t\t: {message}" for number in range(count)]
    titles = ["ROCm System Management Interface", f"Set compute partition to {mode}", "End of ROCm SMI Log"]
    first, second, last = (f" {title} ".center(90, "=") for title in titles)
    return CommandResult(0, "\n".join([first, second, *lines, last, ""]), "")


class Tooled(World):
    """A node with tools. `answers`: what each call of a tool does, and says; the last one for ever."""

    def __init__(self, count: int = 2, memory: str = "NPS1", mode: str = "SPX") -> None:
        super().__init__(count, memory, mode)
        self.answers: list[Callable[[], CommandResult]] = []
        self.given: list[tuple[str, float]] = []
        self.pauses: list[float] = []
        self.answer_of_modprobe: CommandResult | None = None

    def run(self, command: Command, timeout: float) -> CommandResult:
        self.given.append((command.argv[0], timeout))
        if command.argv[0] == "modprobe":
            return self.answer_of_modprobe or super().run(command, timeout)
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)

    def becomes(self, *modes: str, says: CommandResult) -> Callable[[], CommandResult]:
        """A tool that sets modes, and says something."""

        def act() -> CommandResult:
            self.modes = list(modes)
            return says

        return act


def says(ran: CommandResult) -> Callable[[], CommandResult]:
    return lambda: ran


def made(world: World, *, retries: int = 5, end: float = 100.0) -> ModeChange:
    return ModeChange(world, world.gpus(), TOOLS, retries, end)


CPX = TargetModes(None, {0: "CPX", 1: "CPX"})
WELL = rocm("Successfully set compute partition to CPX")
NOISE = CommandResult(1, "", "Segmentation fault")


# ---- ways -------------------------------------------------------------------------------------------


def test_what_is_as_wanted_is_not_touched() -> None:
    for target in (CPX, TargetModes("NPS4", {0: "CPX", 1: "CPX"}), TargetModes("NPS4", {})):
        world = Tooled(memory="NPS4", mode="CPX")
        modes = made(world)
        modes.reach(target, ALL)
        assert (modes.backend, modes.actions, world.operations, world.given) == (None, [], [], [])
    # Nor is it put into SPX for a memory mode that it has.
    world = Tooled(mode="CPX")
    modes = made(world)
    modes.reach(TargetModes("NPS1", {0: "CPX", 1: "CPX"}), ALL)
    assert (modes.backend, world.given) == (None, [])


@pytest.mark.parametrize(
    ("ways", "given"),
    [
        # Half of what is left, while there is another way; the last one has all of it.
        (ALL, [("/rocm-smi", 50.0), ("/amd-smi", 25.0)]),
        (("rocm-smi", "amd-smi"), [("/rocm-smi", 50.0), ("/amd-smi", 50.0)]),
        (("rocm-smi",), [("/rocm-smi", 100.0)]),
    ],
)
def test_how_long_a_tool_may_take(ways: tuple[str, ...], given: list[tuple[str, float]]) -> None:
    world = Tooled()

    def hangs() -> CommandResult:
        seconds = world.given[-1][1]
        world.clock += seconds
        raise PartitionError(f"it did not end within {seconds:.0f} s")

    world.answers = [hangs]
    modes = made(world)
    if ways[-1] == "sysfs":
        modes.reach(CPX, ways)
        assert world.modes == ["CPX", "CPX"]
        assert modes.warnings == [
            "rocm-smi does not work: it did not end within 50 s. Using amd-smi.",
            "amd-smi does not work: it did not end within 25 s. Using sysfs.",
        ]
    else:
        with pytest.raises(PartitionError, match=f"{ways[-1]} did not set the mode: it did not end within"):
            modes.reach(CPX, ways)
        assert len(modes.warnings) == len(ways) - 1
    assert world.given == given
    assert modes.backend == ways[-1]


def test_a_tool_has_a_second_at_least() -> None:
    world = Tooled()
    world.clock = 500.0
    world.answers = [world.becomes("CPX", "CPX", says=WELL)]
    made(world).reach(CPX, ("rocm-smi",))
    assert world.given == [("/rocm-smi", 1.0)]


def test_a_tool_that_did_it_and_says_otherwise_is_believed_to_have_done_it() -> None:
    world = Tooled()
    world.answers = [world.becomes("CPX", "CPX", says=NOISE)]
    modes = made(world)
    modes.reach(CPX, ALL)
    assert modes.warnings == ["rocm-smi set the mode, but reported: Segmentation fault"]
    assert modes.backend == "rocm-smi"
    assert [program for program, _ in world.given] == ["/rocm-smi"]
    quiet = Tooled()
    quiet.answers = [quiet.becomes("CPX", "CPX", says=WELL)]
    modes = made(quiet)
    modes.reach(CPX, ALL)
    assert modes.warnings == []


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Requested setting (CPX) is unavailable for current device", "is unavailable for current device."),
        ("Permission denied", "GPU 0 (0000:00:00.0), GPU 1 (0000:01:00.0): Permission denied."),
    ],
)
def test_what_the_driver_refuses_is_not_tried_another_way(said: str, error: str) -> None:
    world = Tooled()
    world.answers = [says(rocm(said))]
    with pytest.raises(PartitionError) as refused:
        made(world).reach(CPX, ALL)
    assert str(refused.value).endswith(error)
    assert not str(refused.value).endswith("..")
    assert len(world.given) == 1


def test_a_gpu_that_was_not_meant_ends_it() -> None:
    world = Tooled(3)
    world.answers = [world.becomes("CPX", "CPX", "SPX", says=WELL)]
    with pytest.raises(
        PartitionError, match=r"rocm-smi changed GPU 1 \(0000:01:00.0\), which was not requested\."
    ):
        made(world).reach(TargetModes(None, {0: "CPX"}), ALL)
    # One that could not be read before is no stray.
    world = Tooled(2)
    gpus = world.gpus

    def some(_self: Any = None) -> tuple[PartitionedGpu, ...]:
        first, second = gpus()
        return (first, second if world.given else unreadable(second))

    world.gpus = some  # type: ignore[method-assign]
    world.answers = [world.becomes("CPX", "DPX", says=WELL)]
    made(world).reach(TargetModes(None, {0: "CPX"}), ("rocm-smi",))


def unreadable(gpu: PartitionedGpu) -> PartitionedGpu:
    return PartitionedGpu(**{**vars(gpu), "mode": None})


def test_modes_are_set_one_after_the_other_and_by_another_way_only_what_is_left() -> None:
    world = Tooled(4)
    world.answers = [world.becomes("CPX", "SPX", "SPX", "SPX", says=WELL), says(NOISE)]
    modes = made(world)
    modes.reach(TargetModes(None, {0: "CPX", 1: "DPX", 2: "CPX", 3: "SPX"}), ("rocm-smi", "sysfs"))
    assert world.modes == ["CPX", "DPX", "CPX", "SPX"]
    assert world.operations == [
        "write CPX > /gpu2/current_compute_partition",
        "write DPX > /gpu1/current_compute_partition",
    ]


def test_tools_change_the_memory_mode_from_spx_and_sysfs_from_any() -> None:
    for ways, first in ((("sysfs",), []), (("rocm-smi", "sysfs"), ["/rocm-smi", "/rocm-smi"])):
        world = Tooled(mode="CPX")
        world.answers = [world.becomes("SPX", "SPX", says=rocm("Successfully set compute partition to SPX", "SPX")),
                         says(NOISE)]  # fmt: skip
        modes = made(world)
        modes.reach(TargetModes("NPS4", {}), ways)
        assert [program for program, _ in world.given if program != "modprobe"] == first
        assert world.memory == "NPS4"
        assert any("--setcomputepartition SPX" in action for action in modes.actions) == bool(first)


# ---- busy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "retries", "end", "pauses", "works"),
    [
        (1, 0, 100.0, [], False),
        (1, 1, 100.0, [1.0], True),
        (2, 1, 100.0, [1.0], False),
        (6, 9, 100.0, [1.0, 2.0, 4.0, 8.0, 16.0, 16.0], True),
        (9, 9, 15.0, [1.0, 2.0, 4.0], False),  # eight more would be as long as it has
        (9, 9, 15.5, [1.0, 2.0, 4.0, 8.0], False),
    ],
)
def test_how_often_a_busy_driver_is_asked(
    busy: int, retries: int, end: float, pauses: list[float], works: bool
) -> None:
    world = Tooled()
    world.answers = [says(rocm("Device is currently busy, try again later"))] * busy
    world.answers.append(world.becomes("CPX", "CPX", says=WELL))
    modes = made(world, retries=retries, end=end)
    ways: list[int] = []
    modes.make_way = lambda: ways.append(len(world.pauses))
    if works:
        modes.reach(CPX, ALL)
    else:
        tries = len(pauses) + 1
        text = f"after {tries} attempts" if tries > 1 else "at the only attempt"
        with pytest.raises(
            PartitionError, match=rf"^The GPUs are busy {text} \(GPU 0 .*: Device is currently busy"
        ):
            modes.reach(CPX, ALL)
    assert world.pauses == pauses
    assert ways == list(range(len(pauses)))  # who is in the way goes before each pause


def test_who_keeps_it_busy_is_named() -> None:
    world = Tooled()
    world.answers = [says(rocm("Device is currently busy, try again later"))]
    world.strangers = [GpuHolder(77, "train")]
    with pytest.raises(PartitionError, match=r"They are held by pid 77 train\. Stop them and run again\.$"):
        made(world, retries=0).reach(CPX, ALL)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EINVAL, "Invalid argument: the driver does not accept this mode for this GPU."),
        (errno.EPERM, "the GPU is being reset; wait for the end of the reset and run again."),
        (errno.EACCES, "no permission to write."),
        (errno.EIO, "KFD did not start in the new mode; see dmesg."),
        (errno.ENODEV, "sysfs did not set the mode: GPU 0 (0000:00:00.0): No such device: unexpected."),
        (errno.EBUSY, "the driver has users), but no process holds /dev/kfd."),
    ],
)
def test_what_a_write_says(number: int, text: str) -> None:
    class Refusing(World):
        def write(self, step: SysfsWrite) -> None:
            raise OSError(number, os.strerror(number))

    world = Refusing(1)
    with pytest.raises(PartitionError) as refused:
        made(world, retries=0).reach(TargetModes(None, {0: "CPX"}), ("sysfs",))
    assert text in str(refused.value)


# ---- the driver -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "unload", "load"),
    [
        (300.0, 250.0, 40.0),  # unloading may take what there is …
        (20.0, 25.0, 40.0),  # … and half a minute at least, loading a minute
        (-1000.0, 29.0, 59.0),
        (300.0, 10.0, 250.0),
    ],
)
def test_modprobe_has_its_time_however_late_it_is(end: float, unload: float, load: float) -> None:
    world = World()
    world.takes = {"unload": unload, "load": load}
    modes = made(world, end=end)
    assert modes.load_again("NPS1") == AttemptResult(DONE)
    assert world.driver
    assert modes.actions == ["modprobe -r amdgpu", "modprobe amdgpu"]


def test_unloading_that_takes_too_long_ends() -> None:
    world = World()
    world.takes["unload"] = 31.0
    found = made(world, end=10.0).reload()
    assert (found.verdict, found.message) == (
        REFUSED,
        "modprobe did not end within 30 s and was killed; the driver is still loaded. If that happens again, reboot "
        "the node",
    )  # fmt: skip

    class Vanishes(World):
        def run(self, command: Command, timeout: float) -> CommandResult:
            self.driver = False
            raise PartitionError("modprobe is gone")

    assert "modprobe is gone; the driver is gone." in made(Vanishes()).reload().message


@pytest.mark.parametrize(
    ("ran", "verdict", "message"),
    [
        (CommandResult(1, "x", "warning\nmodprobe: FATAL: Module amdgpu is in use.\n"), BUSY,
         "FATAL: Module amdgpu is in use."),
        (CommandResult(1, "a\nno such thing\n", ""), REFUSED, "modprobe -r amdgpu: no such thing"),
        (CommandResult(3, "", ""), REFUSED, "modprobe -r amdgpu: exit code 3"),
    ],
)  # fmt: skip
def test_a_driver_that_stays(ran: CommandResult, verdict: str, message: str) -> None:
    world = Tooled()
    world.answer_of_modprobe = ran
    modes = made(world)
    found = modes.load_again("NPS4")
    assert found.verdict == verdict
    assert found.message.endswith(message)
    assert modes.requested == "NPS4"  # and it is carried out one day


def test_a_driver_that_does_not_load_is_tried_three_times() -> None:
    world = Tooled()
    world.driver = False
    world.answer_of_modprobe = CommandResult(1, "x\ny", "a\nmodprobe: no\n")
    modes = made(world, end=200.0)
    with pytest.raises(PartitionError, match=r"does not load \(modprobe: no\), and without it") as failed:
        modes.ensure_loaded()
    assert "reboot the node" in str(failed.value)
    assert modes.actions == ["modprobe amdgpu"] * 3
    given = [seconds for _, seconds in world.given]
    world.answer_of_modprobe = CommandResult(1, "x\nsaid elsewhere\n", "")
    with pytest.raises(PartitionError, match=r"does not load \(said elsewhere\)"):
        modes.ensure_loaded()
    assert world.pauses == [2.0, 4.0] * 2
    assert given == [200.0, 198.0, 194.0]


@pytest.mark.parametrize("succeeds", [1, 2, 3])
def test_a_driver_that_loads_at_last(succeeds: int) -> None:
    class Slow(Tooled):
        def run(self, command: Command, timeout: float) -> CommandResult:
            self.driver = len(self.given) + 1 >= succeeds
            self.given.append((command.argv[0], timeout))
            return CommandResult(0, "", "")

    world = Slow()
    modes = made(world)
    world.driver = False
    modes.ensure_loaded()
    assert len(world.given) == succeeds
    modes.ensure_loaded()
    assert len(world.given) == succeeds


@pytest.mark.parametrize(("shown", "there"), [(0.0, True), (59.0, True), (60.0, True), (61.0, False)])
def test_gpus_have_a_minute_to_come_back(shown: float, there: bool) -> None:
    world = Tooled()
    modes = made(world)
    world.shown_at = shown
    if there:
        assert len(modes.settled()) == 2
        assert world.clock == shown
    else:
        with pytest.raises(PartitionError, match="The list of GPUs changed in the meantime"):
            modes.settled()
        assert world.clock == 60.0
    assert set(world.pauses) <= {0.25}


def test_a_memory_mode_is_read_back_after_the_reload() -> None:
    class Late(World):
        """Its GPUs are there half a minute after the driver is."""

        def run(self, command: Command, timeout: float) -> CommandResult:
            ran = super().run(command, timeout)
            self.shown_at = self.clock + 30.0
            return ran

    world = Late()
    modes = made(world)
    modes.reach(TargetModes("NPS4", {}), ("sysfs",))
    assert (world.memory, world.modes, modes.requested) == ("NPS4", [AUTO["NPS4"]] * 2, None)
    kept = World()
    kept.faults = {"kept"}
    stubborn = made(kept)
    with pytest.raises(PartitionError, match=r"did not change to NPS4; look at dmesg \| grep 'NPS mode'\.$"):
        stubborn.reach(TargetModes("NPS4", {}), ("sysfs",))
    assert stubborn.requested is None  # the driver was reloaded: it has forgotten it
