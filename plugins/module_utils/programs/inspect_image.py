# SPDX-License-Identifier: Apache-2.0
"""Print one line of JSON with the vLLM, PyTorch, Python and ROCm versions of the image in which it runs.

Its text is sent into the container; only the standard library of Python 3.8 is available, and no GPU. It imports
neither vLLM nor PyTorch: that takes long, and fails without their driver. It reads the metadata of their packages and
the files that their builds write.
"""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from typing import Any

from ..content.probe_output import MARK, assigned_string, kind


def version(package: str) -> str:
    """Return the version of an installed package, "" for none."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def file_text(package: str, name: str) -> str:
    """Return the text of a package's file, "" if it does not exist."""
    try:
        found = importlib.util.find_spec(package)
        places = found.submodule_search_locations if found else None
        with open(os.path.join(next(iter(places or [""])), name), encoding="utf-8") as stream:
            return stream.read()
    except (OSError, ValueError, ImportError):
        return ""


def vllm_version() -> str:
    """Return vLLM's version: from its package, from its build, or from its command, which loads all of vLLM."""
    known = version("vllm") or assigned_string(file_text("vllm", "_version.py"), "__version__")
    if known:
        return known
    try:
        done = subprocess.run(
            ["vllm", "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
        )
    except OSError:
        return ""
    words = done.stdout.split() if done.returncode == 0 else []
    return words[-1] if words and re.match(r"\d+\.\d", words[-1]) else ""


def rocm(torch: str) -> str | None:
    """Return ROCm's release: from its packages, from its wheels, or the one for which PyTorch was built.

    Since 7.14 packages install into /opt/rocm/core-<release>, and wheels leave /opt/rocm out (ROCm/TheRock#5475).
    """
    found = ""
    for place in ("/opt/rocm", "/opt/rocm/core", "/opt/rocm/core-*", "/opt/rocm-*"):
        for path in sorted(glob.glob(f"{place}/.info/version")):
            with open(path, encoding="utf-8") as stream:
                found = found or stream.read()
    found = found or version("rocm") or version("rocm-sdk-core") or torch.partition("+rocm")[2]
    number = re.match(r"\d+(\.\d+)+", found)  # 7.0.0-38, 7.15.0a20260716: without the build
    return number.group() if number else None


def software() -> dict[str, Any]:
    """Return all facts about the image's software."""
    torch_text = file_text("torch", "version.py")
    torch = version("torch") or assigned_string(torch_text, "__version__")
    vllm = vllm_version()
    # vLLM's and PyTorch's Dockerfiles leave the targets that they compiled for in the image's environment.
    gfx = re.findall(r"gfx[0-9a-f]+", os.environ.get("PYTORCH_ROCM_ARCH", ""))
    return {
        "vllm": vllm,
        "platform": kind(vllm, torch, torch_text),
        "rocm": rocm(torch),
        "pytorch": torch or None,
        "python": platform.python_version(),
        "gfx": list(dict.fromkeys(gfx)) or None,
        # AITER's setup.py calls its package amd-aiter; its former name was aiter.
        "aiter": version("amd-aiter") or version("aiter") or None,
    }


if __name__ == "__main__":
    sys.stdout.write(f"{MARK}{json.dumps(software())}\n")
