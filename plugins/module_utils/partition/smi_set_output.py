# SPDX-License-Identifier: Apache-2.0
"""Parse the answers of rocm-smi and amd-smi to setting a partition mode, ROCm 6.0 to 10.0.

rocm-smi exits with 0 even if every GPU failed, so its text decides. Modes that begin with NPS are memory modes: the
tools print a warning, a question and a progress bar before their answer. An unknown answer is BROKEN.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .smi_output import SmiError, amd_smi_blocks, excerpt, rocm_smi_lines

DONE = "done"  # the tool reports that the mode is set or, for a memory mode, at least requested
PENDING = "pending"  # a memory mode is requested, and the driver could not be reloaded
BUSY = "busy"  # the driver has users; the same command may work later
REFUSED = "refused"  # the driver refuses this; another tool would get the same answer
UNEXPLAINED = "unexplained"  # the tool dropped the driver's reason: worth a retry, then another tool
BROKEN = "broken"  # the tool did not reach the driver, or its answer is unknown; another may work

_ROCM_VERDICTS = {
    "Device is currently busy, try again later": BUSY,
    "Permission denied": REFUSED,
    "set_compute_partition, Invalid arguments provided": REFUSED,
    "Issue reloading driver, please check dmsg for errors": PENDING,
}
# NOT_SUPPORTED is absent on purpose: both libraries also map EPERM to it, which the driver returns while a GPU is in
# reset, and sysfs can tell the two apart.
_AMD_VERDICTS = {
    "BUSY": BUSY,
    "NO_PERM": REFUSED,
    "SETTING_UNAVAILABLE": REFUSED,
    "INVAL": REFUSED,
    "AMDGPU_RESTART_ERR": PENDING,
}
_AMD_STATUS = re.compile(r"\bAMDSMI_STATUS_([A-Z_]+)")
_AMD_ERROR = re.compile(r"\d+ \| (AMDSMI_STATUS_[A-Z_]+ - .*)")
# amd-smi 6.4 drops the status of a memory mode that the driver refused, EBUSY among them.
_UNABLE = "Unable to set memory partition to"
_AMD_FAILED_GPU = re.compile(r"on GPU ID: (\d+) BDF:")
_AMD_KEYS = {
    "compute": ("ACCELERATOR_PARTITION", "COMPUTEPARTITION"),
    "memory": ("MEMORY_PARTITION", "MEMORYPARTITION"),
}
_WARNING = re.compile(r"\*{6} ?WARNING ?\*{6}")
_BAR = re.compile(r"(Trying again - )?Updating memory partition( for gpu \d+)?: \[")


@dataclass(frozen=True)
class SetResult:
    """A tool's answer to setting a mode.

    `verdicts`: (verdict, message) by the tool's device index. `failure`: what stopped the command as a whole.
    """

    verdicts: dict[int, tuple[str, str]]
    failure: tuple[str, str] | None = None


def kind_of(mode: str) -> str:
    """Return "memory" for NPS modes, else "compute"."""
    return "memory" if mode.startswith("NPS") else "compute"


def rocm_smi_set(stdout: str, stderr: str, mode: str) -> SetResult:
    """Judge `rocm-smi --setcomputepartition MODE` or `--setmemorypartition MODE`."""
    kind = kind_of(mode)
    reason = f" ({excerpt(stderr)})" if stderr.strip() else ""
    try:
        titles, lines = rocm_smi_lines(_rocm_answer(stdout) if kind == "memory" else stdout)
    except SmiError as error:
        silent = stderr.strip() and not stdout.strip()
        return SetResult({}, (BROKEN, excerpt(stderr) if silent else f"{error}{reason}"))
    if f"Set {kind} partition to {mode}" not in titles:
        what = ", ".join(titles[1:-1]) or "nothing"
        return SetResult({}, (BROKEN, f"rocm-smi did something else: {what}{reason}"))
    known = {
        **_ROCM_VERDICTS,
        f"Successfully set {kind} partition to {mode}": DONE,
        f"Requested setting ({mode}) is unavailable for current device": REFUSED,
        f"Device does not support setting to {mode}": REFUSED,
    }
    verdicts: dict[int, tuple[str, str]] = {}
    for device, message in lines:
        if kind == "memory" and message.startswith("Available memory partition modes: "):
            continue  # details about the line before it
        verdict = known.get(message, BROKEN)
        if device in verdicts and verdicts[device][0] != verdict:
            return SetResult({}, (BROKEN, f"rocm-smi gave two answers for device {device}"))
        verdicts[device] = (verdict, message)
    return SetResult(verdicts, None if verdicts else (BROKEN, f"rocm-smi named no device{reason}"))


def _rocm_answer(text: str) -> str:
    """Return the log without the warning, up to the first device's line, and without the progress bar."""
    kept: list[str] = []
    warned = False
    for line in re.split(r"[\r\n]+", text):
        if _WARNING.fullmatch(line.strip()):
            warned = True
        elif warned and (line.startswith(("GPU[", "====")) or "GPU[" in line):
            warned = False
        if not warned and not _BAR.match(line):
            kept.append(line)
    return "\n".join(kept)


def amd_smi_set(stdout: str, stderr: str, mode: str) -> SetResult:
    """Judge `amd-smi set --compute-partition MODE` or `--memory-partition MODE`, text output.

    Up to 6.4 a failing GPU raises and ends the command, later releases report each GPU; usage errors are plain text,
    with exit code 0 before 10.
    """
    kind = kind_of(mode)
    try:
        blocks, others = amd_smi_blocks(stdout)
    except SmiError as error:
        return SetResult({}, (BROKEN, str(error)))
    done = re.compile(rf"Successfully set (compute|accelerator) partition to {mode}( \(profile #\d+\))?")
    if kind == "memory":
        done = re.compile(rf"Successfully set memory partition to {mode}(, .*)?")
        others = others if not blocks else []  # the warning, the question and the bar
    verdicts: dict[int, tuple[str, str]] = {}
    for index, block in blocks.items():
        message = next((block[key] for key in _AMD_KEYS[kind] if key in block), "")
        verdicts[index] = (
            DONE if done.fullmatch(message) else _amd_verdict(message),
            message or "said nothing",
        )
    failure: tuple[str, str] | None = None
    complaint = "\n".join([*others, stderr])
    if complaint.strip():
        status = _AMD_ERROR.search(complaint)
        failure = (_amd_verdict(complaint), status.group(1).strip() if status else excerpt(complaint))
        gpu = _AMD_FAILED_GPU.search(complaint)
        if gpu:
            verdicts.setdefault(int(gpu.group(1)), failure)
    elif not verdicts:
        failure = (BROKEN, "amd-smi said nothing")
    return SetResult(verdicts, failure)


def _amd_verdict(text: str) -> str:
    """Return the verdict for amd-smi's status; several different ones count as BROKEN."""
    if _UNABLE in text and not _AMD_STATUS.search(text):
        return UNEXPLAINED
    verdicts = {_AMD_VERDICTS.get(status, BROKEN) for status in _AMD_STATUS.findall(text)}
    return verdicts.pop() if len(verdicts) == 1 else BROKEN
