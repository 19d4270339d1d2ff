# SPDX-License-Identifier: Apache-2.0
"""The collection, built in a checkout in use: whole, without anything private, and its modules find their Python."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.helpers.some import some
from tests.worlds.plan_world import deployment

BIN = Path(sys.executable).parent
OWN = {"MANIFEST.json", "FILES.json"}
"""What ansible-galaxy adds."""
CANARY = "canary-9c41-nobody-else-may-read-this"
# What a checkout gathers while it is used, tracked by nobody.
PRIVATE = (
    ".ansible/tmp/facts.json",
    ".cache/collection/instinct-fleet-0.0.9.tar.gz",
    ".env",
    ".git/config",
    ".lab/id_ed25519",
    ".mypy_cache/3.11/cache.json",
    ".venv/lib/python3.11/site-packages/ansible/config/base.yml",
    ".venv/lib/python3.11/site-packages/plugin.py",
    ".vscode/settings.json",
    "ansible.log",
    "build/notes.md",
    "docs/.secrets/api-keys.yml",
    "group_vars/all.yml",
    "host_vars/mi300x-01.yml",
    "instinct-fleet-0.0.9.tar.gz",
    "inventory/example/.secrets/api-keys.yml",
    "inventory/example/.secrets/endpoint.pem",
    "inventory/example/fleet.lock.json",
    "inventory/example/group_vars/instinct/ours.yml",
    "inventory/example/host_vars/mi300x-01.yml",
    "inventory/lab/hosts.yml",
    "inventory/mine/.secrets/api-keys.yml",
    "inventory/mine/.secrets/endpoint.pem",
    "inventory/mine/.secrets/instance-key",
    "inventory/mine/fleet.lock.json",
    "inventory/mine/group_vars/instinct/secrets.yml",
    "inventory/mine/hosts.yml",
    "plan.json",
    "playbooks/.site.yml.swp",
    "playbooks/group_vars/all.yml",
    "playbooks/host_vars/mi300x-01.yml",
    "playbooks/site.retry",
    "plugins/modules/__pycache__/vllm_image.cpython-311.pyc",
    "results/latest/summary.json",
    "roles/vllm_image/defaults/main.yml.orig",
    "tests/output/junit/sanity.xml",
    "vault-password.txt",
)
# Folders that users of the collection need as they are. Of the catalogue, the tools that write it stay in the checkout.
WHOLE = ("meta/", "playbooks/", "plugins/", "roles/", "templates/")
ALSO = (
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "requirements.txt",
    "inventory/example/hosts.yml",
    "tests/config.yml",
)


def run(*command: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(cwd), **env}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tracked() -> list[str]:
    """The files of this checkout, links included."""
    return run("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection as it is built in a used checkout: what git tracks, and PRIVATE beside it."""
    tmp = tmp_path_factory.mktemp("collection")
    used = tmp / "used"
    used.mkdir()
    tar = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], input="\0".join(tracked()).encode(), cwd=ROOT, capture_output=True,
        check=True,
    )  # fmt: skip
    subprocess.run(["tar", "-x", "-C", str(used)], input=tar.stdout, check=True)
    for name in PRIVATE:
        path = used / name
        assert not path.exists(), f"{name} is tracked, so it is nothing private"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CANARY)
    with (used / "README.md").open("a") as readme:
        readme.write(CANARY)  # the search finds it where it is
    run(str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(tmp), cwd=used)
    (found,) = tmp.glob("instinct-fleet-*.tar.gz")
    return found


@pytest.fixture(scope="module")
def contents(archive: Path) -> dict[str, bytes]:
    """The archive's files by name."""
    with tarfile.open(archive) as opened:
        return {
            member.name: stream.read()
            for member in opened.getmembers()
            if (stream := opened.extractfile(member)) is not None
        }


@pytest.fixture(scope="module")
def collections(archive: Path) -> Path:
    """The collection, installed."""
    installed = archive.parent / "installed"
    run(
        str(BIN / "ansible-galaxy"), "collection", "install", "--offline", "-p", str(installed), str(archive),
        cwd=archive.parent,
    )  # fmt: skip
    return installed


def test_nothing_private_is_published(contents: dict[str, bytes]) -> None:
    assert [name for name, data in contents.items() if CANARY.encode() in data] == ["README.md"]
    assert set(contents) - OWN <= set(tracked())


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("inventory/mine/.secrets/api-keys.yml", True),
        ("sites/berlin/.secrets/endpoint.pem", True),
        (".secrets/instance-key", True),
        ("inventory/mine/fleet.lock.json", False),
        ("inventory/mine/group_vars/instinct/secrets.yml", False),
        ("inventory/lab/fleet.lock.json", True),  # of a lab that is gone tomorrow
    ],
)
def test_git_ignores_secrets_and_keeps_pins_as_the_readme_says(path: str, ignored: bool) -> None:
    done = subprocess.run(["git", "check-ignore", "--no-index", "-q", path], cwd=ROOT, check=False)
    assert (done.returncode == 0) is ignored
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "written to `fleet.lock.json` next to the inventory. Keep that file under version control" in text
    assert "`ansible-vault encrypt`, then `git add -f`" in text


def test_it_is_whole(contents: dict[str, bytes]) -> None:
    needed = [name for name in tracked() if name.startswith(WHOLE)]
    needed += [
        name for name in tracked() if name.startswith(("catalog/", "docs/")) and not name.endswith(".py")
    ]
    assert set(some(needed, 300)) | set(ALSO) <= set(contents)


def test_tests_lab_and_links_stay_in_the_checkout(contents: dict[str, bytes]) -> None:
    assert not [
        name
        for name in contents
        if name.startswith(("lab/", "library/", "action_plugins/", ".", "inventory/lab/"))
    ]
    assert {name for name in contents if name.startswith("tests/")} == {
        "tests/config.yml",
        "tests/sanity/ignore-2.19.txt",
    }


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
    assert "docker_socket" in out  # of the fragment


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
    text = run(
        *command, "-e", f"plan_file={installed}", "instinct.fleet.plan",
        cwd=empty, ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    run(*command, "-e", f"plan_file={clone}", str(ROOT / "playbooks/plan.yml"), cwd=ROOT)
    assert "[WARNING]" not in text
    assert json.loads(installed.read_text())["hosts"].keys() == {"n1", "n2"}
    assert installed.read_text() == clone.read_text()


def test_no_playbook_names_a_group_that_is_not_there(collections: Path, empty: Path) -> None:
    """Groups that a plan fills are empty in most runs, and most fleets have no load balancer.

    Two playbooks are refused without one, before hosts are listed, and one without --limit.
    """
    names = {path.stem for path in (ROOT / "playbooks").glob("*.yml")} - {"drain", "undrain", "forget"}
    playbooks = [f"instinct.fleet.{name}" for name in sorted(names)]
    text = run(
        str(BIN / "ansible-playbook"), "-i", str(empty / "inventory"), "--list-hosts", "-e", "reboot=true", *playbooks,
        cwd=empty, ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    assert text.count("playbook: ") == len(playbooks) >= 14
    assert "Could not match" not in text
