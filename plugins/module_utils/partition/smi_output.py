# SPDX-License-Identifier: Apache-2.0
"""Parse the output of rocm-smi and amd-smi. Unknown output is an error, never a guess.

Wording and shapes follow captured output of ROCm 6.0 to 10.0 (tests/data/rocm_samples). Modes are read from sysfs; the
tools' answers to setting a mode are parsed in smi_set_output.py.
"""

from __future__ import annotations

import re

_ROCM_LINE = re.compile(r"GPU\[(\d+)\]\s*: (.*)")
_ROCM_TITLE = re.compile(r"=+ ([^=]+) =+")
_AMD_GPU = re.compile(r"GPU: (\d+)")


class SmiError(ValueError):
    """Output that cannot be parsed; the text shows the place."""


def excerpt(text: str) -> str:
    """Return the last line that has a word in it (JSON ends with brackets), short enough for a message."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    return lines[-1][:200] if lines else "no output"


def rocm_smi_lines(text: str) -> tuple[list[str], list[tuple[int, str]]]:
    """Return (titles, (device, message) lines) of a complete log. Raise SmiError for anything else."""
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


def amd_smi_blocks(text: str) -> tuple[dict[int, dict[str, str]], list[str]]:
    """Return ({GPU: {KEY: value}}, other lines) of amd-smi's text; a dot joins the keys of nested sections."""
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
            block[".".join([*(name for _unused, name in sections), key])] = value.strip()
            sections.append((indent, key))
        elif line.strip():
            others.append(line.strip())
            block = None if not indent else block
    return blocks, others
