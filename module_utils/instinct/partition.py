# SPDX-License-Identifier: Apache-2.0
"""Decide how GPUs get to a compute partition mode: which ones change, by what commands, and if it worked.

Pure functions over dataclasses; partition_set.py does the reading, running and writing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from .smi import BROKEN, BUSY, DONE, REFUSED, SetResult

COMPUTE_MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")

# Why this order: rocm-smi's command and its line per GPU are the same from ROCm 6.0 to 7.x, and it goes on
# after a GPU that fails. amd-smi stops at the first failing GPU up to 6.4, rejects every mode in 7.0.2 where
# the driver shows no profiles (ROCm/amdsmi#132), fails with an AttributeError before 7.2.1, and has no such
# option in virtual machines. sysfs is what both of them write to: always there, and the last word.
BACKENDS = ("rocm-smi", "amd-smi", "sysfs")
TOOLS = ("rocm-smi", "amd-smi")

# Accelerator dies (XCC) by PCI device id: kernel's aqua_vanjaram, AMD's product pages.
XCC = {0x74A0: 6, 0x74A1: 8, 0x74A2: 4, 0x74A5: 8, 0x75A0: 8, 0x75A3: 8}
PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}


class PartitionError(Exception):
    """Partitioning cannot be done or went wrong; the text says why and what to do."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver shows it. `partitions` counts KFD nodes.

    `mode` is None if there is none or it cannot be read; `unread` then says why.
    """

    index: int
    bdf: str
    sysfs_path: str
    device_id: int | None
    mode: str | None
    memory_mode: str | None
    available: tuple[str, ...]
    writable: bool
    partitions: int
    xcc: int | None
    missing_nodes: tuple[str, ...] = ()
    unread: str | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"GPU {self.index} ({self.bdf})"


def named(gpus: Sequence[Gpu]) -> str:
    """Up to three GPUs by name, more as ranges of indices: "GPUs 0-4, 6"."""
    if len(gpus) <= 3:
        return ", ".join(gpu.name for gpu in gpus)
    ranges: list[list[int]] = []
    for index in sorted(gpu.index for gpu in gpus):
        if ranges and ranges[-1][-1] == index - 1:
            ranges[-1].append(index)
        else:
            ranges.append([index])
    return "GPUs " + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ranges)


@dataclass(frozen=True)
class Holder:
    """A process that has the GPUs open; `container` is its Docker name."""

    pid: int
    command: str
    container: str | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"pid {self.pid} {self.command}" + (
            f" in container {self.container}" if self.container else ""
        )


@dataclass(frozen=True)
class Command:
    """A program to run for some GPUs (`covers`, by our index)."""

    argv: tuple[str, ...]
    covers: tuple[int, ...]

    @property
    def text(self) -> str:
        """As a shell would take it."""
        return " ".join(shlex.quote(word) for word in self.argv)


@dataclass(frozen=True)
class Write:
    """A mode to write into one GPU's sysfs file."""

    path: str
    value: str
    covers: tuple[int, ...]

    @property
    def text(self) -> str:
        """As `actions` shows it."""
        return f"write {self.value} > {self.path}"


Step = Union[Command, Write]


@dataclass(frozen=True)
class Judgement:
    """What an attempt came to: DONE, BUSY, REFUSED or BROKEN, and the sentence for people."""

    verdict: str
    message: str = ""


def gpus_of(
    state: Sequence[Mapping[str, Any]],
    writable: Mapping[str, bool],
    render_nodes: frozenset[str],
    unread: Mapping[str, str],
) -> tuple[Gpu, ...]:
    """GPUs from node_state's list.

    `writable` and `unread` (why the mode could not be read) by sysfs_path, `render_nodes`: names in /dev/dri.
    """
    sums: dict[int | None, int] = {}
    for entry in state:
        counts = [part["num_xcc"] or 0 for part in entry["partitions"]]
        sums[entry["device_id"]] = max(sums.get(entry["device_id"], 0), sum(counts))
    return tuple(
        Gpu(
            index=entry["index"],
            bdf=entry["bdf"],
            sysfs_path=entry["sysfs_path"],
            device_id=entry["device_id"],
            mode=entry["compute_partition"],
            memory_mode=entry["memory_partition"],
            available=tuple(entry["available_compute_partitions"]),
            writable=writable.get(entry["sysfs_path"], False),
            partitions=len(entry["partitions"]),
            # A missing partition would make a GPU's own sum too small: an equal GPU's sum is as good.
            xcc=XCC.get(entry["device_id"] or 0) or sums[entry["device_id"]] or None,
            missing_nodes=tuple(
                part["render_node"]
                for part in entry["partitions"]
                if part["render_node"] and part["render_node"] not in render_nodes
            ),
            unread=unread.get(entry["sysfs_path"]),
        )
        for entry in state
    )


def select(gpus: Sequence[Gpu], wanted: Sequence[str]) -> tuple[int, ...]:
    """Indices of the GPUs that `wanted` names: "all", indices or PCI addresses. Raises PartitionError."""
    if list(wanted) == ["all"]:
        return tuple(gpu.index for gpu in gpus)
    names = {**{str(gpu.index): gpu.index for gpu in gpus}, **{gpu.bdf: gpu.index for gpu in gpus}}
    unknown = [name for name in wanted if name.lower() not in names]
    if unknown or not wanted:
        raise PartitionError(
            f"gpus: {', '.join(unknown) or 'the list is empty'}: no such GPU. This node has "
            + ", ".join(f"{gpu.index} ({gpu.bdf})" for gpu in gpus)
            + "; or write all."
        )
    return tuple(sorted({names[name.lower()] for name in wanted}))


def differing(gpus: Sequence[Gpu], modes: Mapping[int, str]) -> tuple[Gpu, ...]:
    """GPUs that are not in the mode that `modes` wants for them."""
    return tuple(gpu for gpu in gpus if gpu.index in modes and gpu.mode != modes[gpu.index])


def expected_partitions(mode: str | None, xcc: int | None) -> int | None:
    """Logical GPUs of a GPU in this mode; None when unknown."""
    return xcc if mode == "CPX" else PARTITIONS.get(mode or "")


def refuse(
    gpus: Sequence[Gpu], targets: Sequence[Gpu], compute: str, *, euid: int, virtual: bool | None
) -> None:
    """Raise PartitionError when the change cannot work, before anything is touched."""
    unread = [gpu for gpu in targets if gpu.unread]
    if unread:
        raise PartitionError(
            f"{named(unread)}: the current mode cannot be read: {unread[0].unread}. Look at "
            "dmesg | grep amdgpu, wait for a reset to end, and run again."
        )
    lacking = [gpu for gpu in targets if gpu.mode is None or not gpu.available]
    if lacking:
        raise PartitionError(
            f"{named(lacking)}: the amdgpu driver offers no compute partition modes. The kernel's own "
            "driver may lack them, and so do virtual functions; install AMD's Instinct driver (amdgpu-dkms) "
            "on the bare-metal host."
        )
    offered = sorted({gpu.available for gpu in targets if compute not in gpu.available})
    if offered:
        refusing = [gpu for gpu in targets if compute not in gpu.available]
        raise PartitionError(
            f"{named(refusing)}: mode {compute} is not offered in memory partition "
            f"mode {refusing[0].memory_mode or 'unknown'}. "
            f"Offered: {'; '.join(', '.join(modes) for modes in offered)}."
        )
    if euid != 0:
        raise PartitionError("Setting a partition mode needs root: use become: true (-b).")
    fixed = [gpu for gpu in targets if not gpu.writable]
    if fixed:
        where = "inside this virtual machine" if virtual else "here"
        raise PartitionError(
            f"{named(fixed)}: the driver does not let the mode be changed {where} "
            "(current_compute_partition is read-only). Set it on the bare-metal host."
        )


def backends(wanted: str, tools: Mapping[str, str | None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(ways to try in order, warnings). Raises PartitionError when the one asked for is not installed."""
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


def tool_indices(gpus: Sequence[Gpu]) -> dict[int, int]:
    """Our GPU index → index of its first partition in rocm-smi's and amd-smi's list.

    Both list partitions GPU by GPU in PCI order: in CPX eight per GPU, of which only the first takes a mode.
    """
    found, number = {}, 0
    for gpu in gpus:
        found[gpu.index] = number
        number += max(gpu.partitions, 1)
    return found


def steps(
    backend: str, tool: str | None, gpus: Sequence[Gpu], targets: Sequence[Gpu], compute: str
) -> tuple[Step, ...]:
    """What to run or write so that `targets`, some or all of `gpus`, get the mode."""
    covers = tuple(gpu.index for gpu in targets)
    everything = len(targets) == len(gpus)
    if backend == "rocm-smi":
        places = tool_indices(gpus)
        chosen = [] if everything else ["-d", *(str(places[index]) for index in covers)]
        return (Command((str(tool), *chosen, "--setcomputepartition", compute), covers),)
    if backend == "amd-smi":
        # Where there are partitions, "all" includes those that take no mode, and older releases stop there.
        plain = everything and all(gpu.partitions == 1 for gpu in gpus)
        chosen = ["all"] if plain else [gpu.bdf for gpu in targets]
        return (Command((str(tool), "set", "--gpu", *chosen, "--compute-partition", compute), covers),)
    return tuple(
        Write(f"{gpu.sysfs_path}/current_compute_partition", compute, (gpu.index,)) for gpu in targets
    )


def judge(
    results: Sequence[SetResult],
    places: Mapping[int, int],
    left: Sequence[Gpu],
) -> Judgement:
    """What an attempt came to.

    `places`: our GPU index → device index in `results`. `left`: GPUs that read back a mode other than the
    wanted one; reading back decides, the tools' words only say why. Lines about other devices do not count:
    partitions other than a GPU's first answer "not supported" always.
    """
    if not left:
        return Judgement(DONE)
    said: dict[str, dict[str, list[Gpu]]] = {BUSY: {}, REFUSED: {}, BROKEN: {}, DONE: {}}
    for result in results:
        for gpu in left:
            if places[gpu.index] in result.verdicts:
                verdict, message = result.verdicts[places[gpu.index]]
                said[verdict].setdefault(message, []).append(gpu)
        if result.failure:
            said[result.failure[0]].setdefault(result.failure[1], [])
    for verdict in (REFUSED, BUSY, BROKEN):
        if said[verdict]:
            parts = [
                f"{named(gpus)}: {message}" if gpus else message for message, gpus in said[verdict].items()
            ]
            return Judgement(verdict, "; ".join(parts))
    claim = "reported success" if said[DONE] else "said nothing"
    return Judgement(BROKEN, f"it {claim} for {named(left)}, but the driver still shows the earlier mode")


def verify(gpus: Sequence[Gpu], modes: Mapping[int, str], ast_loaded: bool) -> str | None:
    """What is wrong with the GPUs that should be in `modes`, read back; None when all is as it should be.

    Counts KFD nodes and render nodes: the mode can read back right while a partition is missing.
    """
    wrong = [
        f"{gpu.name} is {gpu.mode or 'unreadable'}, not {modes[gpu.index]}" for gpu in differing(gpus, modes)
    ]
    if wrong:
        return "; ".join(wrong)
    problems, have, want = [], 0, 0
    for gpu in (gpu for gpu in gpus if gpu.index in modes):
        expected = expected_partitions(gpu.mode, gpu.xcc)
        if expected is None:
            continue
        have, want = have + gpu.partitions, want + expected
        if gpu.partitions != expected:
            problems.append(f"{gpu.name} shows {gpu.partitions} of {expected} partitions")
        elif gpu.missing_nodes:
            problems.append(f"{gpu.name} lacks /dev/dri/{', /dev/dri/'.join(gpu.missing_nodes)}")
    if not problems:
        return None
    text = f"{have} of {want} partitions are visible: {'; '.join(problems)}."
    if have < want:
        state = "is loaded here" if ast_loaded else "is not loaded now, but may have been when amdgpu was"
        text += (
            " A display driver that takes one of the 64 DRM minor numbers has this effect; ast, the BMC's "
            f"graphics, {state}. Cure: modprobe -r ast; modprobe -r amdgpu; modprobe amdgpu; blacklist ast."
        )
    return text


def busy_message(message: str, holders: Sequence[Holder], attempts: int) -> str:
    """Who keeps the GPUs busy, and what to do."""
    tries = f"after {attempts} attempts" if attempts > 1 else "at the only attempt"
    if holders:
        names = "; ".join(holder.name for holder in holders)
        return f"The GPUs are busy {tries} ({message}). They are held by {names}. Stop them and run again."
    return (
        f"The GPUs are busy {tries} ({message}), but no process holds /dev/kfd. The driver may still be "
        "cleaning up after one that ended: raise retries and timeout, or reload amdgpu."
    )


def listed(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """GPUs as the module returns them."""
    return [
        {"index": gpu.index, "bdf": gpu.bdf, "compute_partition": gpu.mode, "partitions": gpu.partitions}
        for gpu in gpus
    ]


def predicted(gpus: Sequence[Gpu], modes: Mapping[int, str]) -> list[dict[str, Any]]:
    """`listed` as it will be in `modes`."""
    found = listed(gpus)
    for gpu, entry in zip(gpus, found):
        if gpu.index in modes and gpu.mode != modes[gpu.index]:
            entry["compute_partition"] = modes[gpu.index]
            entry["partitions"] = expected_partitions(modes[gpu.index], gpu.xcc)
    return found


def diff_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """One line per GPU, for --diff."""
    return "".join(
        f"GPU {entry['index']} {entry['bdf']}: {entry['compute_partition']} x {entry['partitions']}\n"
        for entry in entries
    )
