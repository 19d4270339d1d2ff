# SPDX-License-Identifier: Apache-2.0
"""Understand the output of rocm-smi and amd-smi. What is not known is an error, never a guess.

Wording and shapes follow captured output of ROCm 6.0 to 7.x (tests/data/rocm_samples). Two habits of the
tools shape this file: rocm-smi exits with 0 when every GPU failed, so its text decides; amd-smi prints
warnings before JSON, and several JSON documents in a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DONE = "done"  # the tool says that the mode is set
BUSY = "busy"  # the driver has users; the same command may work later
REFUSED = "refused"  # the driver does not do this; another tool would hear the same
BROKEN = "broken"  # the tool did not get through to the driver, or cannot be understood; another one may

_MODE = re.compile(r"[SDTQC]PX")
_NPS = re.compile(r"NPS[1248]")
_ROCM_LINE = re.compile(r"GPU\[(\d+)\]\s*: (.*)")
_ROCM_TITLE = re.compile(r"=+ ([^=]+) =+")
_AMD_GPU = re.compile(r"GPU: (\d+)")
_AMD_STATUS = re.compile(r"\bAMDSMI_STATUS_([A-Z_]+)")
_AMD_ERROR = re.compile(r"\d+ \| (AMDSMI_STATUS_[A-Z_]+ - .*)")
_AMD_FAILED_GPU = re.compile(r"on GPU ID: (\d+) BDF:")
_AMD_SET_KEYS = ("ACCELERATOR_PARTITION", "COMPUTEPARTITION")
_JSON_START = re.compile(r'[\[{](?=[\s\[\]{}"]|$)')

_ROCM_VERDICTS = {
    "Device is currently busy, try again later": BUSY,
    "Permission denied": REFUSED,
    "set_compute_partition, Invalid arguments provided": REFUSED,
}
# NOT_SUPPORTED is absent on purpose: both libraries also make it of EPERM, which the driver gives while a
# GPU is in reset, and sysfs can tell the two apart.
_AMD_VERDICTS = {"BUSY": BUSY, "NO_PERM": REFUSED, "SETTING_UNAVAILABLE": REFUSED, "INVAL": REFUSED}


class SmiError(ValueError):
    """Output that cannot be understood; the text shows the place."""


@dataclass(frozen=True)
class Modes:
    """Partition modes of one device as a tool shows them; None where the tool has none."""

    compute: str | None
    memory: str | None


@dataclass(frozen=True)
class SetResult:
    """What a tool says about setting a mode.

    `verdicts`: (verdict, message) by the tool's device index. `failure`: what stopped the command as a whole.
    """

    verdicts: dict[int, tuple[str, str]]
    failure: tuple[str, str] | None = None


def excerpt(text: str) -> str:
    """The last line that says something, short enough for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


# --- rocm-smi ------------------------------------------------------------------------------------------


def rocm_smi_lines(text: str) -> tuple[list[str], list[tuple[int, str]]]:
    """(titles, (device, message) lines) of a complete log. Raises SmiError for anything else."""
    titles: list[str] = []
    lines: list[tuple[int, str]] = []
    for line in text.splitlines():
        title = _ROCM_TITLE.fullmatch(line.strip())
        found = _ROCM_LINE.fullmatch(line)
        if title:
            titles.append(title.group(1).strip())
        elif found:
            lines.append((int(found.group(1)), found.group(2).strip()))
        elif line.strip(" ="):
            raise SmiError(f"rocm-smi printed a line that is not known: {line.strip()[:200]!r}")
    if titles[:1] != ["ROCm System Management Interface"] or titles[-1:] != ["End of ROCm SMI Log"]:
        raise SmiError(f"rocm-smi printed no complete log: {excerpt(text)}")
    return titles, lines


def rocm_smi_set(stdout: str, stderr: str, mode: str) -> SetResult:
    """Judge `rocm-smi --setcomputepartition MODE`, whose exit code is 0 for success and failure alike."""
    try:
        titles, lines = rocm_smi_lines(stdout)
    except SmiError as error:
        message = excerpt(stderr) if stderr.strip() and not stdout.strip() else str(error)
        return SetResult({}, (BROKEN, message))
    if f"Set compute partition to {mode}" not in titles:
        return SetResult({}, (BROKEN, f"rocm-smi did something else: {', '.join(titles[1:-1]) or 'nothing'}"))
    known = {
        **_ROCM_VERDICTS,
        f"Successfully set compute partition to {mode}": DONE,
        f"Requested setting ({mode}) is unavailable for current device": REFUSED,
    }
    verdicts: dict[int, tuple[str, str]] = {}
    for device, message in lines:
        verdict = known.get(message, BROKEN)
        if device in verdicts and verdicts[device][0] != verdict:
            return SetResult({}, (BROKEN, f"rocm-smi said two things about device {device}"))
        verdicts[device] = (verdict, message)
    return SetResult(verdicts, None if verdicts else (BROKEN, "rocm-smi named no device"))


def rocm_smi_modes(text: str) -> dict[int, Modes]:
    """Modes from --showcomputepartition and --showmemorypartition, text or JSON, by device index.

    Devices without data (partitions other than a GPU's first one) are left out by JSON; here they have no
    modes.
    """
    found: dict[int, dict[str, str | None]] = {}
    if text.lstrip().startswith("{"):
        for card, values in _mapping(_only(json_documents(text))).items():
            number = re.fullmatch(r"card(\d+)", card)
            if not number:
                raise SmiError(f"rocm-smi's JSON has an unknown key {card[:40]!r}")
            entry = found.setdefault(int(number.group(1)), {})
            for key, value in _mapping(values).items():
                entry[key] = value
    else:
        for device, message in rocm_smi_lines(text)[1]:
            key, separator, value = message.partition(": ")
            entry = found.setdefault(device, {})
            if separator:
                entry[key] = value
            elif message != "Not supported on the given system":
                raise SmiError(f"rocm-smi on device {device}: {message}")
    return {
        device: Modes(_mode(values.get("Compute Partition")), _nps(values.get("Memory Partition")))
        for device, values in found.items()
    }


# --- amd-smi -------------------------------------------------------------------------------------------


def json_documents(text: str) -> list[Any]:
    """Every JSON document of the text, in order; lines before the first one (warnings, prompts) are skipped.

    Raises SmiError when there is none, when one is cut off, or when something else follows.
    """
    decoder = json.JSONDecoder()
    position, found = 0, list[Any]()
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif _JSON_START.match(text, position):
            try:
                document, position = decoder.raw_decode(text, position)
            except (ValueError, RecursionError) as error:
                raise SmiError(f"broken JSON: {error}") from None
            found.append(document)
        elif found:
            raise SmiError(f"text after JSON: {text[position : position + 200].strip()!r}")
        else:
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
    if not found:
        raise SmiError(f"no JSON: {excerpt(text)}")
    return found


def amd_smi_records(text: str) -> list[dict[str, Any]]:
    """Records per GPU of any amd-smi command's JSON: a list, an object with gpu_data, or one object.

    Raises SmiError, also with amd-smi's own message when it printed {"error": …}.
    """
    records: list[dict[str, Any]] = []
    for document in json_documents(text):
        entries = document
        if isinstance(document, dict):
            if "error" in document:
                raise SmiError(f"amd-smi: {str(document['error'])[:200]}")
            entries = document.get("gpu_data", [document])
        if not isinstance(entries, list):
            raise SmiError("amd-smi's JSON has no list of GPUs")
        records += [_mapping(entry) for entry in entries]
    return records


def amd_smi_blocks(text: str) -> tuple[dict[int, dict[str, str]], list[str]]:
    """({GPU: {KEY: value}}, other lines) of amd-smi's text; keys of nested sections are joined by a dot."""
    blocks: dict[int, dict[str, str]] = {}
    others: list[str] = []
    block: dict[str, str] | None = None
    sections: list[tuple[int, str]] = []
    for line in text.splitlines():
        header = _AMD_GPU.fullmatch(line.rstrip())
        indent = len(line) - len(line.lstrip(" "))
        key, separator, value = line.strip().partition(":")
        if header:
            if int(header.group(1)) in blocks:
                raise SmiError(f"amd-smi named GPU {header.group(1)} twice")
            block = blocks.setdefault(int(header.group(1)), {})
            sections = []
        elif block is not None and indent and separator and re.fullmatch(r"[A-Z][A-Z0-9_]*", key):
            sections = [section for section in sections if section[0] < indent]
            block[".".join([*(name for _, name in sections), key])] = value.strip()
            sections.append((indent, key))
        elif line.strip():
            others.append(line.strip())
            block = None if not indent else block
    return blocks, others


def amd_smi_modes(text: str) -> dict[int, Modes]:
    """Modes from `amd-smi static --partition` (text or JSON) or `amd-smi partition --json`, by GPU index."""
    values: dict[int, tuple[Any, Any]] = {}
    if any(_JSON_START.match(line.lstrip()) for line in text.splitlines()):
        for record in amd_smi_records(text):
            if "accelerator_type" in record and "memory" in record:  # the first document of `partition`
                index, modes = record.get("gpu_id"), (record["accelerator_type"], record["memory"])
            elif "partition" in record:
                part = _mapping(record["partition"])
                index, modes = record.get("gpu"), _both(part, "compute_partition", "memory_partition")
            else:
                continue
            if isinstance(index, bool) or not isinstance(index, int) or index in values:
                raise SmiError(f"amd-smi's JSON names no GPU, or one twice: {index!r}")
            values[index] = modes
    else:
        blocks, others = amd_smi_blocks(text)
        if others:
            raise SmiError(f"amd-smi: {others[0][:200]}")
        for index, block in blocks.items():
            values[index] = _both(block, "PARTITION.COMPUTE_PARTITION", "PARTITION.MEMORY_PARTITION")
    if not values:
        raise SmiError(f"amd-smi showed no partition modes: {excerpt(text)}")
    return {index: Modes(_mode(compute), _nps(memory)) for index, (compute, memory) in values.items()}


def amd_smi_set(stdout: str, stderr: str, mode: str) -> SetResult:
    """Judge `amd-smi set --compute-partition MODE`, text output of 6.2 to 7.x.

    Up to 6.4 a failing GPU raises and ends the command, later releases report each GPU; usage errors are
    plain text with exit code 0.
    """
    try:
        blocks, others = amd_smi_blocks(stdout)
    except SmiError as error:
        return SetResult({}, (BROKEN, str(error)))
    done = re.compile(rf"Successfully set (compute|accelerator) partition to {mode}( \(profile #\d+\))?")
    verdicts: dict[int, tuple[str, str]] = {}
    for index, block in blocks.items():
        message = next((block[key] for key in _AMD_SET_KEYS if key in block), "")
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
    """The verdict of the status that amd-smi names; several different ones are not understood."""
    verdicts = {_AMD_VERDICTS.get(status, BROKEN) for status in _AMD_STATUS.findall(text)}
    return verdicts.pop() if len(verdicts) == 1 else BROKEN


# --- checks --------------------------------------------------------------------------------------------


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SmiError(f"expected an object in JSON, not {str(value)[:80]!r}")
    return value


def _both(values: Mapping[str, Any], first: str, second: str) -> tuple[Any, Any]:
    if first not in values or second not in values:
        raise SmiError(f"amd-smi shows no {first.lower()} or no {second.lower()}")
    return values[first], values[second]


def _only(documents: list[Any]) -> Any:
    if len(documents) != 1:
        raise SmiError(f"expected one JSON document, not {len(documents)}")
    return documents[0]


def _known(value: Any, pattern: re.Pattern[str]) -> str | None:
    if value is None or value == "N/A":
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise SmiError(f"not a partition mode: {str(value)[:80]!r}")
    return value


def _mode(value: Any) -> str | None:
    # The current profile is marked with a star in some releases' tables.
    return _known(value[:-1] if isinstance(value, str) and value.endswith("*") else value, _MODE)


def _nps(value: Any) -> str | None:
    return _known(value, _NPS)
