# SPDX-License-Identifier: Apache-2.0
"""make sanity: what pip is told in ansible-test's environments, and that testing nothing is no success."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import ansible_test

LISTED = """\
:env:.cert='/of/the/environment.pem'
:env:.disable-pip-version-check='1'
global.cert='/of/the/machine.pem'
global.extra-index-url='https://one.example/simple https://two.example/simple'
global.timeout='60'
user.index-url='https://three.example/simple'
"""


def test_pip_reaches_packages_as_it_does_here() -> None:
    assert ansible_test.pip_settings(LISTED) == {
        "cert": "/of/the/environment.pem",
        "extra-index-url": "https://one.example/simple https://two.example/simple",
        "index-url": "https://three.example/simple",
    }


def test_a_python_that_is_not_switched_on_is_not_found(tmp_path: Path) -> None:
    for folder, code in (("shims", 127), ("bin", 0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "python3.9").write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / folder / "python3.9").chmod(0o755)
    (tmp_path / "bin/python3.9-config").write_text("not asked")
    path = f"{tmp_path}/shims:{tmp_path}/bin:{tmp_path}/none"
    assert ansible_test.without_broken_pythons(path) == f"{tmp_path}/bin:{tmp_path}/none"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 2", 2),
        ("echo 'WARNING: All targets skipped.' >&2", 1),
        ('test "$HOME" = "$PWD/home" && test "$*" = "sanity --list-tests"', 0),
    ],
)
def test_exit_code(script: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ansible-test").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ansible-test").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(ansible_test, "prepare", lambda home: None)
    assert ansible_test.main(tmp_path / "home", tmp_path, "sanity", "--list-tests") == code
