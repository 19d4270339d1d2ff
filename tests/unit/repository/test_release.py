# SPDX-License-Identifier: Apache-2.0
"""`make release` tags what is committed, and nothing else; versions and packages are written in one way everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = "1.2.3"
FOR_THE_LAB = {"docker", "paramiko"}
"""Packages that only lab/ imports, so that a collection's users do not need them."""
ME = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


class Tree:
    """A checkout with only what `make release` looks at, all of it committed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copy(ROOT / "Makefile", path)
        self.write("galaxy.yml", f"namespace: instinct\nversion: {VERSION}\n")
        self.write("pyproject.toml", f'[project]\nversion = "{VERSION}"\n')
        self.write("changelogs/changelog.yaml", f"releases:\n  {VERSION}:\n    changes: {{}}\n")
        self.write(".gitignore", ".cache/\n")
        (path / "changelogs/fragments").mkdir()
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(text)

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=self.path,
            env={**os.environ, **ME},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")

    def release(self, sanity: str = "true") -> subprocess.CompletedProcess[str]:
        """make release, with a command in place of the make that builds and checks the collection."""
        return subprocess.run(
            ["make", "release", f"MAKE={sanity} #"], cwd=self.path, env={**os.environ, **ME}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_clean_tree_is_tagged(tree: Tree) -> None:
    done = tree.release()
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree.git("rev-list", "-n", "1", VERSION) == tree.git("rev-parse", "HEAD")
    assert tree.git("cat-file", "-t", VERSION) == "tag\n"  # with who made it, and when


REFUSED = {
    "a change that is not committed": (
        "galaxy.yml",
        f"namespace: other\nversion: {VERSION}\n",
        False,
        "commit these",
    ),
    "a file that nobody tracks": ("roles/mine.yml", "x", False, "roles/"),
    "another version in pyproject.toml": ("pyproject.toml", 'version = "1.2.2"\n', True, "another version"),
    "no entry in the changelog": (
        "changelogs/changelog.yaml",
        "releases:\n  1.2.2:\n",
        True,
        "make changelog",
    ),
    "a fragment that is not in the changelog": ("changelogs/fragments/x.yml", "x", True, "make changelog"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_released(tree: Tree, case: str) -> None:
    name, text, committed, said = REFUSED[case]
    tree.write(name, text)
    if committed:
        tree.commit()
    done = tree.release()
    assert done.returncode != 0
    assert said in done.stdout
    assert tree.git("tag") == ""


def test_a_version_is_released_once(tree: Tree) -> None:
    tree.git("tag", VERSION)
    assert "tagged already" in tree.release().stdout


def test_no_tag_without_the_checks(tree: Tree) -> None:
    assert tree.release(sanity="false").returncode != 0
    assert tree.git("tag") == ""


def name_of(requirement: str) -> str:
    return re.split(r"[~<>=! ]", requirement, maxsplit=1)[0]


def requirements(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(("#", " "))]


def test_one_version() -> None:
    assert yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"] == PROJECT["project"]["version"]


def test_the_collections_packages_are_the_projects() -> None:
    packages = [
        each
        for each in PROJECT["project"]["dependencies"]
        if name_of(each) not in {"ansible-core", *FOR_THE_LAB}
    ]
    assert requirements((ROOT / "requirements.txt").read_text()) == packages
    imports = re.compile(rf"^\s*(?:import|from) ({'|'.join(FOR_THE_LAB)})\b", re.MULTILINE)
    for path in (ROOT / "plugins").rglob("*.py"):
        assert not imports.search(path.read_text(encoding="utf-8")), path


def test_the_execution_environment_has_the_locked_ansible() -> None:
    core = yaml.safe_load((ROOT / "execution-environment.yml").read_text())["dependencies"]["ansible_core"]
    assert core["package_pip"] in requirements((ROOT / "requirements.lock").read_text())
