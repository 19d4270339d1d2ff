# SPDX-License-Identifier: Apache-2.0
"""What Ansible sends to a node for each module keeps to its limit, and is counted as Ansible counts."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from ansible.executor.module_common import ModuleDepFinder
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.assemble import PLUGINS

from tests import payload
from tests.payload import main, payloads

PREFIX = "ansible_collections.instinct.fleet.plugins"


@pytest.mark.parametrize("one", payloads(), ids=lambda one: str(one.module))
def test_no_module_is_above_its_limit(one: payload.Payload) -> None:
    assert one.size <= one.limit, f"make payload MODULE={one.module} lists its files"


@cache
def imported(file: Path) -> list[list[Path]]:
    """What Ansible finds in a file to be sent with it: each a module, or that which has the name."""
    name = ".".join([PREFIX, *file.relative_to(PLUGINS).with_suffix("").parts])
    finder = ModuleDepFinder(name, ast.parse(file.read_bytes()))
    found = []
    for words in finder.submodules:
        if ".".join(words).startswith(PREFIX):
            whole = PLUGINS.joinpath(*words[PREFIX.count(".") + 1 :])
            files = [place.with_suffix(".py") for place in (whole, whole.parent)]
            found.append([place for place in files if place.is_file()])
    return found


def sent(path: Path) -> set[Path]:
    """A module's files as Ansible finds them."""
    found, left = set[Path](), [path]
    while left:
        file = left.pop()
        found.add(file)
        left += [one for files in imported(file) for one in [each for each in files if each not in found][:1]]
    return found


@pytest.mark.parametrize("one", payloads(), ids=lambda one: str(one.module))
def test_what_is_counted_is_what_ansible_sends(one: payload.Payload) -> None:
    assert {PLUGINS / path for path in one.sources} == sent(PLUGINS / f"modules/{one.module}.py")


def test_a_module_above_its_limit_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    assert "above" not in capsys.readouterr().out
    monkeypatch.setitem(payload.LIMITS, "vllm_watch", 30_000)
    assert main(["vllm_watch"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "above its limit" in line] == ["vllm_watch"]
    assert sum("module_utils/serving/soak.py" in line for line in lines) == 1
