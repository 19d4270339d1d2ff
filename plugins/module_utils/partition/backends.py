# SPDX-License-Identifier: Apache-2.0
"""The backends that can set a partition mode: their order, their commands, and how their answers are judged."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from .gpus import AUTO, PartitionedGpu, PartitionError, TargetModes, differing, gpu_names, predicted_gpus
from .smi_set_output import BROKEN, BUSY, DONE, PENDING, REFUSED, UNEXPLAINED, SetResult, kind_of

# Reasons for this order: rocm-smi's command and its line per GPU are the same from ROCm 6.0 to 7.x, and it continues
# after a GPU that fails. amd-smi stops at the first failing GPU up to 6.4, rejects every mode in 7.0.2 if the driver
# shows no profiles (ROCm/amdsmi#132), fails with an AttributeError before 7.2.1, and does not have this option in
# virtual machines. Both of them write to sysfs, which is always available and therefore the last resort.
BACKENDS = ("rocm-smi", "amd-smi", "sysfs")
TOOLS = ("rocm-smi", "amd-smi")
UNLOAD = ("modprobe", "-r", "amdgpu")
LOAD = ("modprobe", "amdgpu")
# amd-smi reloads the driver after a change of the memory mode up to 6.4 (its changelog of 7.0).
AMD_SMI_RELOADS_BEFORE = 7


@dataclass(frozen=True)
class Command:
    """A program to run for some GPUs (`covers`, by their index here), and its standard input."""

    argv: tuple[str, ...]
    covers: tuple[int, ...] = ()
    stdin: str = ""

    @property
    def text(self) -> str:
        """Return the command in shell syntax."""
        words = " ".join(shlex.quote(word) for word in self.argv)
        return f"echo {self.stdin.strip()} | {words}" if self.stdin else words


@dataclass(frozen=True)
class SysfsWrite:
    """A mode to write into one GPU's sysfs file."""

    path: str
    value: str
    covers: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return the text for `actions`."""
        return f"write {self.value} > {self.path}"


Step = Union[Command, SysfsWrite]


@dataclass(frozen=True)
class AttemptResult:
    """The result of an attempt: one of smi_set_output's verdicts, and a sentence that explains it."""

    verdict: str
    message: str = ""


def backends(wanted: str, tools: Mapping[str, str | None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (backends to try in order, warnings). Raise PartitionError if the requested one is not installed."""
    if wanted != "auto":
        if wanted in TOOLS and not tools.get(wanted):
            raise PartitionError(
                f"backend: {wanted} is not installed (looked in /opt/rocm/bin, /usr/local/bin, /usr/bin). "
                "Install it, or set backend to auto or sysfs."
            )
        return (wanted,), ()
    usable = tuple(name for name in BACKENDS if name not in TOOLS or tools.get(name))
    missing = BACKENDS[: BACKENDS.index(usable[0])]
    return usable, (f"{' and '.join(missing)} not installed; using {usable[0]}.",) if missing else ()


def tool_indices(gpus: Sequence[PartitionedGpu]) -> dict[int, int]:
    """Map each GPU index to the index of its first partition in the list of rocm-smi and amd-smi.

    Both tools list partitions GPU by GPU in PCI order: in CPX eight per GPU, of which only the first accepts a mode.
    """
    found, number = {}, 0
    for gpu in gpus:
        found[gpu.index] = number
        number += max(gpu.partitions, 1)
    return found


def steps(
    backend: str,
    tool: str | None,
    gpus: Sequence[PartitionedGpu],
    targets: Sequence[PartitionedGpu],
    mode: str,
) -> tuple[Step, ...]:
    """Return the steps that set the compute or memory mode of `targets`, some or all of `gpus`."""
    kind = kind_of(mode)
    covers = tuple(gpu.index for gpu in targets)
    plain = len(targets) == len(gpus) and all(gpu.partitions == 1 for gpu in gpus)
    if backend == "rocm-smi":
        # Only a GPU's first partition accepts a mode. For a compute mode, rocm-smi reports that and continues; a memory
        # mode reloads the driver, which invalidates rocm-smi's list of devices.
        everything = len(targets) == len(gpus) and (plain or kind == "compute")
        places = tool_indices(gpus)
        chosen = [] if everything else ["-d", *(str(places[index]) for index in covers)]
        answer = ["--autorespond", "y"] if kind == "memory" else []
        return (Command((str(tool), *chosen, f"--set{kind}partition", mode, *answer), covers),)
    if backend == "amd-smi":
        # With partitions, "all" includes those that accept no mode, and older releases stop there.
        chosen = ["all"] if plain else [gpu.bdf for gpu in targets]
        answer_y = "Y\n" if kind == "memory" else ""
        return (Command((str(tool), "set", "--gpu", *chosen, f"--{kind}-partition", mode), covers, answer_y),)
    return tuple(
        SysfsWrite(f"{gpu.sysfs_path}/current_{kind}_partition", mode, (gpu.index,)) for gpu in targets
    )


def reloads_itself(backend: str, release: str | None) -> bool:
    """Return whether a tool should reload the driver after setting a memory mode.

    A prediction: reading back decides.
    """
    if backend == "rocm-smi":
        return True
    major = (release or "").partition(".")[0]
    return backend == "amd-smi" and major.isdigit() and int(major) < AMD_SMI_RELOADS_BEFORE


def expected_steps(
    backend: str, tool: str | None, release: str | None, gpus: Sequence[PartitionedGpu], target: TargetModes
) -> list[str]:
    """Return the steps that run if all goes well, for check mode."""
    found: list[str] = []
    if target.memory is not None and target.memory_differs(gpus):
        if backend != "sysfs" and (first := memory_first_steps(gpus)):
            found += [step.text for step in steps(backend, tool, gpus, first, "SPX")]
            gpus = predicted_gpus(gpus, TargetModes(None, {gpu.index: "SPX" for gpu in first}))
        found += [step.text for step in steps(backend, tool, gpus, gpus, target.memory)]
        if not reloads_itself(backend, release):
            found += [" ".join(UNLOAD), " ".join(LOAD)]
        automatic = AUTO.get(target.memory)
        modes = {gpu.index: automatic for gpu in gpus if automatic}
        gpus = predicted_gpus(gpus, TargetModes(target.memory, modes))
    for mode in dict.fromkeys(target.compute.values()):
        targets = [gpu for gpu in differing(gpus, target.compute) if target.compute[gpu.index] == mode]
        if targets:
            found += [step.text for step in steps(backend, tool, gpus, targets, mode)]
    return found


def memory_first_steps(gpus: Sequence[PartitionedGpu]) -> tuple[PartitionedGpu, ...]:
    """Return the GPUs to put into SPX before a tool changes the memory mode.

    With partitions, the tools' reload failed (ROCm/legacy-rocm-build#4439). SPX exists in NPS1 only.
    """
    partitioned = tuple(gpu for gpu in gpus if gpu.mode not in (None, "SPX"))
    return partitioned if all("SPX" in gpu.available for gpu in partitioned) else ()


def judge_attempt(
    results: Sequence[SetResult],
    places: Mapping[int, int],
    left: Sequence[PartitionedGpu],
    kind: str = "compute",
) -> AttemptResult:
    """Judge an attempt that left some GPUs in another mode than the desired one.

    PENDING: a memory mode waits for the driver to be reloaded.

    Args:
        results: the tools' answers, by device index
        places: GPU index → device index in `results`
        left: the GPUs that read back another mode; reading back decides, the tools' messages only explain

    Lines about other devices do not count: partitions other than a GPU's first always answer "not supported".
    """
    said: dict[str, dict[str, list[PartitionedGpu]]] = {
        BUSY: {},
        REFUSED: {},
        UNEXPLAINED: {},
        BROKEN: {},
        DONE: {},
        PENDING: {},
    }
    for result in results:
        for gpu in left:
            if places[gpu.index] in result.verdicts:
                verdict, message = result.verdicts[places[gpu.index]]
                said[verdict].setdefault(message, []).append(gpu)
        if result.failure:
            said[result.failure[0]].setdefault(result.failure[1], [])
    for verdict in (REFUSED, BUSY, UNEXPLAINED, PENDING, BROKEN):
        if said[verdict]:
            parts = [
                f"{gpu_names(gpus)}: {message}" if gpus else message
                for message, gpus in said[verdict].items()
            ]
            return AttemptResult(verdict, "; ".join(parts))
    claim = "reported success" if said[DONE] else "said nothing"
    verdict = PENDING if said[DONE] and kind == "memory" else BROKEN
    text = f"it {claim} for {gpu_names(left)}, but the driver still shows the earlier mode"
    return AttemptResult(verdict, text)
