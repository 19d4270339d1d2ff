# SPDX-License-Identifier: Apache-2.0
"""The tree also builds as a collection, whose modules find their Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run(*command: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(cwd), **env}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, installed from what git tracks."""
    tmp = tmp_path_factory.mktemp("collection")
    source = tmp / "source"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    source.mkdir()
    tar = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], input=files, cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(source)], input=tar.stdout, check=True)
    run(str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(tmp), cwd=source)
    (archive,) = tmp.glob("instinct-fleet-*.tar.gz")
    run(
        str(BIN / "ansible-galaxy"),
        "collection",
        "install",
        "--offline",
        "-p",
        str(tmp / "installed"),
        str(archive),
        cwd=tmp,
    )
    return tmp / "installed"


def test_modules_run_from_the_collection(collections: Path) -> None:
    out = run(
        str(BIN / "ansible"), "localhost", "-m", "instinct.fleet.numa_balancing", "--check", "-e",
        f"ansible_python_interpreter={sys.executable}", cwd=collections.parent,
        ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    assert "SUCCESS" in out or "CHANGED" in out


def test_documentation_of_the_collection(collections: Path) -> None:
    out = run(
        str(BIN / "ansible-doc"), "-t", "module", "instinct.fleet.vllm_server", cwd=collections.parent,
        ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    assert "ready" in out
