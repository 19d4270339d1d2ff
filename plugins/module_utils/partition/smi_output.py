# SPDX-License-Identifier: Apache-2.0
"""Understand the output of rocm-smi and amd-smi. What is not known is an error, never a guess.

Wording and shapes follow captured output of ROCm 6.0 to 10.0 (tests/data/rocm_samples): amd-smi prints
warnings before JSON, and several JSON documents in a row. What the tools say when they set a mode is in
smi_set.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MODE = re.compile(r"[SDTQC]PX")
_NPS = re.compile(r"NPS[1248]")
_ROCM_LINE = re.compile(r"GPU\[(\d+)\]\s*: (.*)")
_ROCM_TITLE = re.compile(r"=+ ([^=]+) =+")
_AMD_GPU = re.compile(r"GPU: (\d+)")
_JSON_START = re.compile(r'[\[{](?=[\s\[\]{}"]|$)')


class SmiError(ValueError):
    """Output that cannot be understood; the text shows the place."""


@dataclass(frozen=True)
class Modes:
    """Partition modes of one device as a tool shows them; None where the tool has none."""

    compute: str | None
    memory: str | None


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
