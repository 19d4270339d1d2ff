# SPDX-License-Identifier: Apache-2.0
"""Prepare the caches that outlive the container, so that vLLM finds what earlier starts compiled.

AITER builds kernels into its package, in the container's own layer, which is removed with the container. AITER_JIT_DIR
moves them, but then modules are imported from there alone: a directory without the image's prebuilt ones would build
these again. So it gets links to all of them first, and without that the variable stays unset. Source: ROCm/aiter at
e404860, aiter/jit/core.py, get_user_jit_dir() and get_module_custom_op().
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence

from ...engines.start_command import without_addresses

AITER = "AITER_JIT_DIR"
CACHE_ROOT, STARTUP_PLAN = "VLLM_CACHE_ROOT", "VLLM_ENABLE_STARTUP_PLAN"
CACHE = "/cache"
_COMMAND = "command.sha256"
Find = Callable[[str], "str | None"]


def cache_variables(
    argv: Sequence[str], env: Mapping[str, str], cache: str = CACHE, find: Find | None = None
) -> dict[str, str]:
    """Return the variables to add to vLLM's environment. find: the directory of a Python package."""
    with contextlib.suppress(OSError):
        if env.get(STARTUP_PLAN) == "1" and env.get(CACHE_ROOT):
            _drop_other_plan(argv, env, os.path.join(env[CACHE_ROOT], "startup_plan"))
    if AITER in env:
        return {}
    try:
        target = _aiter(os.path.join(cache, "aiter"), find or _package)
    except (OSError, ValueError, ImportError):
        return {}
    return {AITER: target} if target else {}


def _drop_other_plan(argv: Sequence[str], env: Mapping[str, str], directory: str) -> None:
    """Remove what another command measured: vLLM's own key leaves out gpu_memory_utilization, and variables."""
    settings = sorted(f"{name}={value}" for name, value in env.items() if name.startswith(_MEMORY))
    own = hashlib.sha256("\0".join([*without_addresses(argv), "", *settings]).encode()).hexdigest()
    path = os.path.join(directory, _COMMAND)
    with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii", errors="replace") as file:
        if file.read(len(own)) == own:
            return
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory, exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(own)


_MEMORY = ("VLLM_ROCM_", "VLLM_USE_", "VLLM_ALLREDUCE_", "NCCL_", "RCCL_", "PYTORCH_", "HIP_", "HSA_")
"""Variables that may change how much memory is in use in addition to the cache."""


def _package(name: str) -> str | None:
    found = importlib.util.find_spec(name)
    places = list(found.submodule_search_locations or ()) if found else []
    return places[0] if places else None


def _aiter(cache: str, find: Find) -> str:
    """Return AITER's directory below the cache, with the image's modules in it; "" if the image has no AITER."""
    package = find("aiter")
    source = os.path.join(package, "jit") if package else ""
    if not source or not os.path.isfile(os.path.join(source, "core.py")):
        return ""
    modules = sorted(name for name in os.listdir(source) if name.endswith(".so"))
    # Another image has another key: modules of one AITER do not fit another one, and their names do not show it.
    key = hashlib.sha256(source.encode())
    for name in ("core.py", *modules):
        found = os.stat(os.path.join(source, name))
        key.update(f"\0{name}\0{found.st_size}\0{int(found.st_mtime)}".encode())
    target = os.path.join(cache, key.hexdigest()[:16])
    os.makedirs(target, exist_ok=True)
    # Objects of builds, and locks: one that a killed container left would be waited for.
    shutil.rmtree(os.path.join(target, "build"), ignore_errors=True)
    for name in modules:
        with contextlib.suppress(FileExistsError):
            os.symlink(os.path.join(source, name), os.path.join(target, name))
    return target
