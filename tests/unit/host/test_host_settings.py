# SPDX-License-Identifier: Apache-2.0
"""The modules host_settings and kernel_cmdline on a tree of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.host import (
    kernel_settings,
    persistent_files,
    system_files,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe import kernel_cmdline as bootline

GOVERNOR = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
PATTERN = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
FILTER = "proc/sys/net/ipv4/conf/all/rp_filter"
OURS = "etc/sysctl.d/60-instinct-fleet.conf"

Run = Callable[..., tuple[dict[str, Any], bool]]


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def settings(tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    from ansible_collections.instinct.fleet.plugins.modules import host_settings

    monkeypatch.setattr(system_files, "ROOT", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def run(**args: Any) -> tuple[dict[str, Any], bool]:
        flags = {name: args.pop(name, False) for name in ("check", "diff")}
        result: tuple[dict[str, Any], bool] = run_module(host_settings.main, args, **flags)
        return result

    return run


def test_sysfs_now_and_at_boot(tmp_path: Path, settings: Run) -> None:
    write(tmp_path, {GOVERNOR.format(0): "schedutil\n", GOVERNOR.format(1): "performance\n"})
    before = tree(tmp_path)
    wanted = {"sysfs": {PATTERN: "performance"}}
    predicted, failed = settings(**wanted, check=True, diff=True)
    assert not failed
    assert tree(tmp_path) == before
    done, failed = settings(**wanted, diff=True)
    assert not failed, done
    assert done["actions"] == predicted["actions"]
    assert done["diff"] == predicted["diff"]
    assert done["actions"][-1] == f"write performance > {PATTERN}"
    after = tree(tmp_path)
    assert after[GOVERNOR.format(0)] == "performance\n"
    assert f"w {PATTERN} - - - - performance\n" in after[persistent_files.TMPFILES[1:]]
    assert persistent_files.TMPFILES in after[persistent_files.UNIT[1:]]
    assert (tmp_path / persistent_files.WANTED_BY[1:]).readlink() == Path(persistent_files.UNIT)
    assert settings(**wanted)[0]["changed"] is False
    assert tree(tmp_path) == after


def test_a_word_in_brackets_is_the_value(tmp_path: Path, settings: Run) -> None:
    huge = "sys/kernel/mm/transparent_hugepage/enabled"
    write(tmp_path, {huge: "[always] madvise never\n"})
    result, failed = settings(sysfs={f"/{huge}": "always"})
    assert not failed
    assert not [action for action in result["actions"] if action.endswith(huge)]


def test_sysctl_and_what_would_win_over_it(tmp_path: Path, settings: Run) -> None:
    write(tmp_path, {
        FILTER: "1\n", "etc/sysctl.d/99-site.conf": "# ours\nnet.ipv4.conf.all.rp_filter=1\n",
        OURS: "kernel.numa_balancing = 0\n",
    })  # fmt: skip
    result, failed = settings(sysctl={"net.ipv4.conf.all.rp_filter": "2"})
    assert not failed, result
    after = tree(tmp_path)
    assert after[OURS] == "kernel.numa_balancing = 0\nnet.ipv4.conf.all.rp_filter = 2\n"
    assert after["etc/sysctl.d/99-site.conf"].endswith(
        "# turned off by instinct-fleet: net.ipv4.conf.all.rp_filter=1\n"
    )
    assert after[FILTER] == "2\n"
    assert settings(sysctl={"net.ipv4.conf.all.rp_filter": "2"})[0]["changed"] is False


def test_two_sysctls_in_one_file(tmp_path: Path, settings: Run) -> None:
    write(tmp_path, {FILTER: "0\n", "proc/sys/kernel/numa_balancing": "1\n"})
    result, failed = settings(sysctl={"net.ipv4.conf.all.rp_filter": "2", "kernel.numa_balancing": "0"})
    assert not failed, result
    lines = tree(tmp_path)[OURS].splitlines()
    assert lines[1:] == ["net.ipv4.conf.all.rp_filter = 2", "kernel.numa_balancing = 0"]


def test_a_package_that_would_win_is_an_error(tmp_path: Path, settings: Run) -> None:
    write(tmp_path, {FILTER: "1\n", "usr/lib/sysctl.d/99-vendor.conf": "net.ipv4.conf.all.rp_filter = 1\n"})
    result, failed = settings(sysctl={"net.ipv4.conf.all.rp_filter": "2"})
    assert failed
    assert "/usr/lib/sysctl.d/99-vendor.conf, line 1" in result["msg"]


def test_limits(tmp_path: Path, settings: Run) -> None:
    write(tmp_path, {persistent_files.LIMITS[1:]: "# mine\n* - nofile 1024\n* - nproc 1\n"})
    result, failed = settings(limits={"memlock": "unlimited", "nofile": "1048576"})
    assert not failed, result
    assert tree(tmp_path)[persistent_files.LIMITS[1:]] == (
        "# mine\n* - nofile 1048576\n* - nproc 1\n"
        "* - memlock unlimited\nroot - memlock unlimited\nroot - nofile 1048576\n"
    )
    assert settings(limits={"memlock": "unlimited", "nofile": "1048576"})[0]["changed"] is False


def test_settings_of_a_unit(tmp_path: Path, settings: Run) -> None:
    wanted = {"units": {"docker.service": {"TimeoutStopSec": "15min"}}}
    result, failed = settings(**wanted)
    assert not failed, result
    path = "/etc/systemd/system/docker.service.d/60-instinct-fleet.conf"
    assert result["actions"] == [f"write TimeoutStopSec=15min > {path}"]
    text = "# Written by instinct-fleet.\n[Service]\nTimeoutStopSec=15min\n"
    assert tree(tmp_path)[path[1:]] == text
    assert settings(**wanted)[0]["changed"] is False
    more, failed = settings(units={"docker.service": {"TimeoutStopSec": "1h"}}, diff=True)
    assert not failed
    assert tree(tmp_path)[path[1:]] == text.replace("15min", "1h")
    assert more["diff"][0]["before"] == text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"units": {"../x.service": {"A": "b"}}}, "../x.service is not the name of a service"),
        ({"sysfs": {"/etc/passwd": "x"}}, "/etc/passwd is not a file below /sys"),
        ({"sysfs": {"/sys/../etc/passwd": "x"}}, "is not a file below /sys"),
        ({"sysfs": {"/sys/nothing*": "x"}}, "No file on this host matches /sys/nothing*"),
        ({"sysctl": {"no.such": "1"}}, "has no sysctl no.such"),
    ],
)
def test_refusals(tmp_path: Path, settings: Run, args: dict[str, Any], message: str) -> None:
    result, failed = settings(**args)
    assert failed
    assert message in result["msg"]
    assert tree(tmp_path) == {}


def test_what_does_not_read_back_is_an_error(
    tmp_path: Path, settings: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {FILTER: "1\n"})
    monkeypatch.setattr(kernel_settings, "apply", lambda *_: None)
    result, failed = settings(sysctl={"net.ipv4.conf.all.rp_filter": "2"})
    assert failed
    assert "reads back as 1 instead of 2" in result["msg"]


# --- kernel_cmdline ------------------------------------------------------------------------------------

UPDATE_GRUB = """#!/bin/sh
# Sources the configuration as grub-mkconfig does, and writes the entries.
for file in {root}/etc/default/grub {root}/etc/default/grub.d/*.cfg; do [ -e "$file" ] && . "$file"; done
mkdir -p {root}/boot/grub
echo "linux /vmlinuz root=/dev/sda1 ro $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT" > {root}/boot/grub/grub.cfg
"""
GRUBBY = """#!/bin/sh
[ "$1" = --update-kernel=ALL ] || exit 1
for entry in {root}/boot/loader/entries/*.conf; do sed -i "s|^options .*|& ${{2#--args=}}|" "$entry"; done
"""


@pytest.fixture
def cmdline(tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    from ansible_collections.instinct.fleet.plugins.modules import kernel_cmdline

    monkeypatch.setattr(system_files, "ROOT", str(tmp_path / "root"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    write(tmp_path / "root", {"proc/cmdline": "root=/dev/sda1 ro quiet\n"})

    def run(
        words: list[str], program: str = "", text: str = "", **flags: bool
    ) -> tuple[dict[str, Any], bool]:
        if program:
            (programs / program).write_text(text.format(root=tmp_path / "root"))
            (programs / program).chmod(0o755)
        result: tuple[dict[str, Any], bool] = run_module(kernel_cmdline.main, {"words": words}, **flags)
        return result

    return run


def test_grub(tmp_path: Path, cmdline: Run) -> None:
    root = tmp_path / "root"
    write(root, {
        "etc/default/grub": 'GRUB_CMDLINE_LINUX="pci=bfsort"\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
        "etc/default/grub.d/50-cloudimg.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="console=ttyS0"\n',
        "boot/grub/grub.cfg": "linux /vmlinuz root=/dev/sda1 ro pci=bfsort quiet\n",
    })  # fmt: skip
    before = tree(root)
    words = ["pci=realloc=off", "pci=bfsort", "iommu=pt"]
    predicted, failed = cmdline(words, "update-grub", UPDATE_GRUB, check=True, diff=True)
    assert not failed, predicted
    assert tree(root) == before
    done, failed = cmdline(words)
    assert not failed, done
    assert done["actions"] == predicted["actions"]
    assert done["actions"][0] == f"write pci=realloc=off iommu=pt > {bootline.DROP_IN}"
    assert done["after"] == [
        "root=/dev/sda1",
        "ro",
        "pci=bfsort",
        "pci=realloc=off",
        "iommu=pt",
        "console=ttyS0",
    ]
    assert done["reboot_required"]
    assert tree(root)["etc/default/grub"] == before["etc/default/grub"]
    again, _ = cmdline(words)
    assert (again["changed"], again["actions"], again["reboot_required"]) == (False, [], True)
    more, _ = cmdline(["nokaslr"])
    assert more["after"][3:6] == ["pci=realloc=off", "iommu=pt", "nokaslr"]


def test_grubby(tmp_path: Path, cmdline: Run) -> None:
    entry = "boot/loader/entries/{}.conf"
    write(tmp_path / "root", {
        entry.format("a-5.14"): "title a\noptions root=/dev/a ro iommu=pt\n",
        entry.format("a-5.15"): "title b\noptions root=/dev/a ro\n",
        entry.format("a-0-rescue"): "title r\noptions root=/dev/a ro\n",
    })  # fmt: skip
    done, failed = cmdline(["iommu=pt", "pci=bfsort"], "grubby", GRUBBY)
    assert not failed, done
    assert done["actions"][0].endswith("grubby --update-kernel=ALL --args=iommu=pt pci=bfsort")
    assert set(done["after"]) >= {"iommu=pt", "pci=bfsort"}
    assert cmdline(["iommu=pt", "pci=bfsort"])[0]["changed"] is False


@pytest.mark.parametrize(
    ("words", "program", "text", "message"),
    [
        (["iommu=pt quiet"], "", "", "is not one parameter"),
        (['a="b"'], "", "", "is not one parameter"),
        (["iommu=pt"], "", "", "neither grubby nor update-grub"),
        (
            ["iommu=pt"],
            "update-grub",
            "#!/bin/sh\necho no device >&2\nexit 1\n",
            "ended with exit code 1: no device",
        ),
        (["iommu=pt"], "update-grub", "#!/bin/sh\n", "does not have iommu=pt although"),
    ],
)
def test_cmdline_refusals(cmdline: Run, words: list[str], program: str, text: str, message: str) -> None:
    result, failed = cmdline(words, program, text)
    assert failed
    assert message in result["msg"]
