# SPDX-License-Identifier: Apache-2.0
"""The module numa_balancing on a tree of files, and its decisions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.host import numa, numa_setting, system_files
from ansible_collections.instinct.fleet.plugins.module_utils.observe.sysctl import with_setting

RUNTIME = "proc/sys/kernel/numa_balancing"
OURS = "etc/sysctl.d/60-instinct-fleet.conf"
WRITE_0 = "write 0 > /proc/sys/kernel/numa_balancing"
PERSIST_0 = "write kernel.numa_balancing = 0 > /etc/sysctl.d/60-instinct-fleet.conf"
TEXT_0 = "# Written by instinct-fleet.\nkernel.numa_balancing = 0\n"

Run = Callable[..., tuple[dict[str, Any], bool]]


@pytest.fixture
def module(tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Make the files, then run the module on them. It is run as root, whoever runs the tests."""
    from ansible_collections.instinct.fleet.plugins.modules import numa_balancing

    monkeypatch.setattr(system_files, "ROOT", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def run(files: dict[str, str] | None = None, **args: Any) -> tuple[dict[str, Any], bool]:
        for path, text in (files or {}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        flags = {name: args.pop(name, False) for name in ("check", "diff")}
        result: tuple[dict[str, Any], bool] = run_module(numa_balancing.main, args, **flags)
        return result

    return run


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize(
    ("files", "args", "actions", "after"),
    [
        pytest.param(
            {RUNTIME: "1\n"}, {}, [PERSIST_0, WRITE_0], {RUNTIME: "0\n", OURS: TEXT_0}, id="fresh"
        ),
        pytest.param({RUNTIME: "2\n"}, {"persist": False}, [WRITE_0], {RUNTIME: "0\n"}, id="tiering"),
        pytest.param({RUNTIME: "0\n"}, {}, [PERSIST_0], {RUNTIME: "0\n", OURS: TEXT_0}, id="off till reboot"),
        pytest.param(
            {RUNTIME: "1\n", OURS: TEXT_0}, {}, [WRITE_0], {RUNTIME: "0\n", OURS: TEXT_0}, id="drifted"
        ),
        pytest.param({RUNTIME: "0\n", OURS: TEXT_0}, {}, [], None, id="done"),
        pytest.param({"proc/cmdline": "quiet\n"}, {}, [], None, id="kernel without it"),
        pytest.param(
            {RUNTIME: "0\n", "proc/cmdline": "quiet numa_balancing=disable\n"},
            {}, [], None, id="kernel command line"
        ),
        pytest.param(
            {RUNTIME: "0\n", "etc/sysctl.d/99-admin.conf": "kernel/numa_balancing=0\n"},
            {}, [], None, id="somebody else did it",
        ),
        pytest.param(
            {RUNTIME: "0\n",
             OURS: "vm.swappiness = 1\nkernel.numa_balancing=1\n# a\nkernel.numa_balancing = 1\n"},
            {}, [PERSIST_0],
            {RUNTIME: "0\n", OURS: "vm.swappiness = 1\nkernel.numa_balancing = 0\n# a\n"},
            id="other lines kept",
        ),
        pytest.param(
            {RUNTIME: "0\n", "etc/sysctl.d/10-early.conf": "kernel.numa_balancing = 1\n"}, {}, [PERSIST_0],
            {RUNTIME: "0\n", "etc/sysctl.d/10-early.conf": "kernel.numa_balancing = 1\n", OURS: TEXT_0},
            id="an earlier file does not matter",
        ),
        pytest.param(
            {RUNTIME: "0\n", OURS: TEXT_0, "etc/sysctl.d/99-a.conf": "a = 1\n-kernel.numa_balancing = 1\n"},
            {}, ["comment out line 2 (kernel.numa_balancing = 1) in /etc/sysctl.d/99-a.conf"],
            {RUNTIME: "0\n", OURS: TEXT_0,
             "etc/sysctl.d/99-a.conf": "a = 1\n# turned off by instinct-fleet: -kernel.numa_balancing = 1\n"},
            id="a later file",
        ),
        pytest.param(
            {RUNTIME: "0\n", OURS: TEXT_0, "etc/sysctl.conf": "kernel.numa_balancing = 1\n"},
            {}, ["comment out line 1 (kernel.numa_balancing = 1) in /etc/sysctl.conf"],
            {RUNTIME: "0\n", OURS: TEXT_0,
             "etc/sysctl.conf": "# turned off by instinct-fleet: kernel.numa_balancing = 1\n"},
            id="sysctl.conf comes last",
        ),
        pytest.param(
            {RUNTIME: "0\n", OURS: TEXT_0}, {"enabled": True},
            ["write kernel.numa_balancing = 1 > /etc/sysctl.d/60-instinct-fleet.conf",
             "write 1 > /proc/sys/kernel/numa_balancing"],
            {RUNTIME: "1\n", OURS: "# Written by instinct-fleet.\nkernel.numa_balancing = 1\n"},
            id="on again",
        ),
        pytest.param({RUNTIME: "1\n"}, {"enabled": True}, [], None, id="on by itself"),
        pytest.param(
            {RUNTIME: "2\n", OURS: "kernel.numa_balancing = 2\n"}, {"enabled": True}, [], None,
            id="on, tiering",
        ),
        pytest.param(
            {RUNTIME: "0\n", "etc/sysctl.d/60-instinct-fleet.conf": TEXT_0,
             "run/sysctl.d/60-instinct-fleet.conf": "kernel.numa_balancing = 1\n"}, {}, [], None,
            id="a file of the same name in a lower directory is not read",
        ),
    ],
)  # fmt: skip
def test_module(
    module: Run, tmp_path: Path, files: dict[str, str], args: dict[str, Any], actions: list[str],
    after: dict[str, str] | None,
) -> None:  # fmt: skip
    files = {"proc/cmdline": "quiet\n", **files}
    predicted, failed = module(files, **args, check=True, diff=True)
    assert not failed, predicted
    assert tree(tmp_path) == files
    result, failed = module(**args, diff=True)
    assert not failed, result
    assert result["actions"] == actions
    assert result["changed"] == bool(actions)
    assert tree(tmp_path) == {"proc/cmdline": "quiet\n", **(after or files)}
    for key in ("actions", "changed", "diff", "before", "after"):
        assert predicted[key] == result[key], key
    again, failed = module(**args)
    assert not failed
    assert not again["changed"]
    assert again["before"] == result["after"]


def test_kernel_without_the_feature_says_so(module: Run) -> None:
    result, _ = module({"proc/cmdline": "quiet\n"})
    assert result["message"] == "This kernel has no automatic NUMA balancing; nothing to do."
    assert result["after"] == {"runtime": None, "persisted": None, "file": None}


def test_diff_shows_kernel_and_file(module: Run) -> None:
    result, _ = module({RUNTIME: "1\n"}, diff=True)
    assert result["diff"] == [
        {
            "before_header": "/etc/sysctl.d/60-instinct-fleet.conf", "before": "",
            "after_header": "/etc/sysctl.d/60-instinct-fleet.conf", "after": TEXT_0,
        },
        {
            "before_header": "/proc/sys/kernel/numa_balancing", "before": "1\n",
            "after_header": "/proc/sys/kernel/numa_balancing", "after": "0\n",
        },
    ]  # fmt: skip


def test_link_to_sysctl_conf_is_edited_where_it_leads(module: Run, tmp_path: Path) -> None:
    """Debian reads /etc/sysctl.conf through /etc/sysctl.d/99-sysctl.conf."""
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    result, failed = module({RUNTIME: "0\n", "etc/sysctl.conf": "kernel.numa_balancing = 1\n"})
    assert not failed, result
    assert (tmp_path / "etc/sysctl.d/99-sysctl.conf").is_symlink()
    assert (tmp_path / "etc/sysctl.conf").read_text().startswith("# turned off by instinct-fleet: kernel.")
    assert len(result["actions"]) == 2


def test_a_packages_later_file_is_an_error_that_names_the_way_out(module: Run, tmp_path: Path) -> None:
    files = {RUNTIME: "1\n", "usr/lib/sysctl.d/90-tuned.conf": "kernel.numa_balancing = 1\n"}
    result, failed = module(files)
    assert failed
    assert "/usr/lib/sysctl.d/90-tuned.conf, line 1, sets kernel.numa_balancing = 1 after" in result["msg"]
    assert "/etc/sysctl.d/zz-instinct-fleet.conf" in result["msg"]
    assert tree(tmp_path) == files
    result, failed = module(sysctl_file="/etc/sysctl.d/zz-instinct-fleet.conf")
    assert not failed
    assert result["after"]["file"] == "/etc/sysctl.d/zz-instinct-fleet.conf"


@pytest.mark.parametrize("path", ["/etc/numa.conf", "/etc/sysctl.d/numa", "/etc/sysctl.d/sub/numa.conf"])
def test_a_file_that_no_boot_reads_is_refused(module: Run, tmp_path: Path, path: str) -> None:
    result, failed = module({RUNTIME: "1\n"}, sysctl_file=path)
    assert failed
    assert f"sysctl_file: {path} is not read at boot" in result["msg"]
    assert tree(tmp_path) == {RUNTIME: "1\n"}


def test_not_root(module: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result, failed = module({RUNTIME: "1\n"})
    assert failed
    assert "needs root" in result["msg"]
    assert tree(tmp_path) == {RUNTIME: "1\n"}


def test_a_kernel_that_does_not_take_the_value(module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa_setting, "apply", lambda *_: None)
    result, failed = module({RUNTIME: "1\n"})
    assert failed
    assert "does not read back as written: now 1, after a boot None" in result["msg"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "# Written by instinct-fleet.\nkernel.numa_balancing = 0\n"),
        ("a = 1", "a = 1\nkernel.numa_balancing = 0\n"),
        ("#kernel.numa_balancing = 1\n", "#kernel.numa_balancing = 1\nkernel.numa_balancing = 0\n"),
        ("kernel.numa_balancing_x = 1\n", "kernel.numa_balancing_x = 1\nkernel.numa_balancing = 0\n"),
    ],
)
def test_with_setting(text: str, expected: str) -> None:
    assert with_setting(text, numa.KEY, "0") == expected
    assert with_setting(expected, numa.KEY, "0") == expected
