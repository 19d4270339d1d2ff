# SPDX-License-Identifier: Apache-2.0
"""Markers that programs in containers print before their answers, and parsers for these answers.

Python 3.8, the oldest version in images.
"""

from __future__ import annotations

import re

MARK = "instinct-fleet software: "
"""Precedes the JSON, because the image's Python may print warnings of its own."""


def assigned_string(text: str, name: str) -> str:
    """Return the string that a module assigns to a name: hip: Optional[str] = '6.4.43482'."""
    found = re.search(rf"^{name}\b[^\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else ""


def kind(vllm: str, torch: str, torch_text: str) -> str:
    """Return rocm, cpu, cuda or "", by the local part (+…) of vLLM's or PyTorch's version, or by PyTorch's build."""
    for text in (vllm, torch):
        for part in text.partition("+")[2].split("."):
            for start, name in (("rocm", "rocm"), ("cpu", "cpu"), ("cu1", "cuda")):
                if part.startswith(start):
                    return name
    if assigned_string(torch_text, "hip"):
        return "rocm"
    return "cuda" if assigned_string(torch_text, "cuda") else ""


REPORT = "INSTINCT-FETCH "
