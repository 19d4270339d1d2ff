# SPDX-License-Identifier: Apache-2.0
"""The tree also builds as a collection, whose modules find their Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .plan_world import deployment

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run(*command: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(cwd), **env}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


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


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A directory without an ansible.cfg, with an inventory below it."""
    hosts = {"n1": None, "n2": None}
    variables = {
        "instinct_gpus": {"model": "MI300X"},
        "vllm_deployments": [deployment(vllm_version="0.33.0")],
    }
    (tmp_path / "inventory").mkdir()
    inventory = yaml.safe_dump({"instinct": {"hosts": hosts, "vars": variables}})
    (tmp_path / "inventory/hosts.yml").write_text(inventory, encoding="utf-8")
    return tmp_path


def test_the_plan_is_that_of_a_checkout(collections: Path, empty: Path) -> None:
    command = (str(BIN / "ansible-playbook"), "-i", str(empty / "inventory"), "-e", "offline=true")
    installed, clone = empty / "installed.json", empty / "clone.json"
    told = run(
        *command, "-e", f"plan_file={installed}", "instinct.fleet.plan",
        cwd=empty, ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    run(*command, "-e", f"plan_file={clone}", str(ROOT / "playbooks/plan.yml"), cwd=ROOT)
    assert "[WARNING]" not in told
    assert json.loads(installed.read_text())["hosts"].keys() == {"n1", "n2"}
    assert installed.read_text() == clone.read_text()


def test_no_playbook_names_a_group_that_is_not_there(collections: Path, empty: Path) -> None:
    """Groups that a plan fills are empty in most runs, and most fleets have no load balancer."""
    playbooks = [f"instinct.fleet.{path.stem}" for path in sorted((ROOT / "playbooks").glob("*.yml"))]
    told = run(
        str(BIN / "ansible-playbook"), "-i", str(empty / "inventory"), "--list-hosts", "-e", "reboot=true", *playbooks,
        cwd=empty, ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    assert told.count("playbook: ") == len(playbooks) > 15
    assert "Could not match" not in told
