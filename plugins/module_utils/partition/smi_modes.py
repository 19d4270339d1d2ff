# SPDX-License-Identifier: Apache-2.0
"""The partition modes that rocm-smi and amd-smi show, as text or as JSON.

amd-smi prints warnings before JSON, and several JSON documents in a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .smi_output import SmiError, amd_smi_blocks, excerpt, rocm_smi_lines

_MODE = re.compile(r"[SDTQC]PX")
_NPS = re.compile(r"NPS[1248]")
_JSON_START = re.compile(r'[\[{](?=[\s\[\]{}"]|$)')


@dataclass(frozen=True)
class Modes:
    """Partition modes of one device as a tool shows them; None where the tool has none."""

    compute: str | None
    memory: str | None


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
