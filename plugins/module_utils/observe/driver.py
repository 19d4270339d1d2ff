# SPDX-License-Identifier: Apache-2.0
"""The amdgpu driver and ROCm."""

from __future__ import annotations

from .source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def read_driver(source: Source) -> dict[str, Any]:
    """Read the amdgpu module; the kernel's own driver has no version file."""
    loaded = source.exists("/sys/module/amdgpu")
    return {"loaded": loaded, "version": source.text("/sys/module/amdgpu/version") if loaded else None}


def read_rocm(source: Source) -> dict[str, Any]:
    """Return ROCm's release ("6.4.0-47" → "6.4.0") and the paths of its tools."""
    # Packages of 7.14 and later install into /opt/rocm/core-<release> (ROCm/TheRock#5475).
    version = source.text("/opt/rocm/.info/version") or source.text("/opt/rocm/core/.info/version")
    tools: dict[str, str | None] = {}
    for tool in ("amd-smi", "rocm-smi"):
        paths = [f"{directory}/{tool}" for directory in ("/opt/rocm/bin", "/usr/local/bin", "/usr/bin")]
        tools[tool] = next((path for path in paths if source.exists(path)), None)
    return {"version": version.split("-")[0] if version else None, "tools": tools}
