# SPDX-License-Identifier: Apache-2.0
"""Caches that outlive the container, as the supervisor prepares them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.warm_start import (
    AITER,
    cache_variables,
)

ARGV = ["vllm", "serve", "m", "--host", "10.0.0.1", "--port", "8000", "--gpu-memory-utilization", "0.9"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An AITER as an image has it."""
    jit = tmp_path / "site-packages/aiter/jit"
    (jit / "build").mkdir(parents=True)
    for name in ("core.py", "module_norm.so", "module_gemm.so", "build/lock_module_norm"):
        (jit / name).write_text(name)
    return tmp_path / "site-packages/aiter"


def start(tmp_path: Path, package: Path | None, **env: str) -> dict[str, str]:
    return cache_variables(
        ARGV, env, str(tmp_path / "cache"), lambda _name: str(package) if package else None
    )


def test_aiter_builds_beside_the_modules_of_the_image(tmp_path: Path, package: Path) -> None:
    target = Path(start(tmp_path, package)[AITER])
    assert target.parent == tmp_path / "cache/aiter"
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        "module_norm.so": "module_norm.so",
        "module_gemm.so": "module_gemm.so",
    }


def test_what_a_start_built_is_there_for_the_next_and_locks_are_not(tmp_path: Path, package: Path) -> None:
    target = Path(start(tmp_path, package)[AITER])
    (target / "module_new.so").write_text("built")
    (target / "module_norm.so").unlink()
    (target / "module_norm.so").write_text("built again")
    (target / "build").mkdir()
    (target / "build/lock_module_x").touch()
    assert start(tmp_path, package)[AITER] == str(target)
    assert (target / "module_new.so").read_text() == "built"
    assert (target / "module_norm.so").read_text() == "built again"
    assert not (target / "build").exists()
    assert (package / "jit/module_norm.so").read_text() == "module_norm.so"


def test_modules_of_another_aiter_are_elsewhere(tmp_path: Path, package: Path) -> None:
    before = start(tmp_path, package)
    (package / "jit/core.py").write_text("another release")
    assert start(tmp_path, package) != before


def test_without_prebuilt_modules_builds_are_kept_all_the_same(tmp_path: Path, package: Path) -> None:
    for path in (package / "jit").glob("*.so"):
        path.unlink()
    assert list(Path(start(tmp_path, package)[AITER]).iterdir()) == []


def test_it_is_left_alone_where_it_is_not_known(tmp_path: Path, package: Path) -> None:
    assert start(tmp_path, None) == {}
    assert start(tmp_path, tmp_path / "nowhere") == {}
    assert start(tmp_path, package, AITER_JIT_DIR="/mine") == {}
    (tmp_path / "cache").write_text("not a directory")
    assert start(tmp_path, package) == {}


def test_the_plan_of_a_start_is_for_the_same_command(tmp_path: Path) -> None:
    """vLLM's own key leaves out gpu_memory_utilization: the plan of 0.9 would be taken for 0.7."""
    env = {"VLLM_ENABLE_STARTUP_PLAN": "1", "VLLM_CACHE_ROOT": str(tmp_path / "vllm")}
    plan = tmp_path / "vllm/startup_plan/startup_plan_1.json"

    def kept(argv: list[str], **more: str) -> bool:
        cache_variables(argv, {**env, **more}, str(tmp_path), lambda _name: None)
        found = plan.exists()
        plan.write_text("{}")
        return found

    assert not kept(ARGV)
    assert kept(ARGV)
    moved = [{"10.0.0.1": "10.0.0.2", "8000": "8001"}.get(word, word) for word in ARGV]
    assert kept(moved)
    assert not kept([word.replace("0.9", "0.7") for word in ARGV])
    assert kept([word.replace("0.9", "0.7") for word in ARGV])
    assert not kept([word.replace("0.9", "0.7") for word in ARGV], VLLM_ROCM_USE_AITER="1")


def test_without_the_variable_the_cache_is_not_touched(tmp_path: Path) -> None:
    cache_variables(ARGV, {"VLLM_CACHE_ROOT": str(tmp_path / "vllm")}, str(tmp_path), lambda _name: None)
    assert os.listdir(tmp_path) == []
