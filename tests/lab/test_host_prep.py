# SPDX-License-Identifier: Apache-2.0
"""A host that is wrong in many ways is named right, prepared, and stays so; the commands are those of the runbook."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

from .conftest import Lab, Run, node_address
from .helpers import completion, deployment, node_state, wait_for

RUNBOOK = (ROOT / "docs/runbooks/host.md").read_text(encoding="utf-8")
# Hosts that stay; what takes a host apart is run by test_forget.py.
STAYING = RUNBOOK[: RUNBOOK.index("## Take a host apart")] + RUNBOOK[RUNBOOK.index("## Undo") :]
COMMANDS = re.findall(r"^\$ ansible-playbook -i inventory/mine playbooks/(.+)$", STAYING, re.MULTILINE)
ON_HOST = re.findall(
    r"^# (.+)$", "".join(re.findall(r"```console\n(.+?)```", STAYING, re.DOTALL)), re.MULTILINE
)
BREAK = """
set -e
sed -i 's/ pci=bfsort iommu=pt//' /etc/default/grub && update-grub 2> /dev/null
gpusim config governor=powersave c2=on huge_pages=madvise
"""
SPOIL = """
set -e
echo 'kernel.numa_balancing = 1' > /etc/sysctl.d/99-tuning.conf
echo 1 > /proc/sys/kernel/numa_balancing
gpusim fault link-speed=16.0@3 kernel-error=2 nic-down=5
"""
# Files that prepare.yml writes, and the values that it sets.
SETTINGS = r"""
cat /etc/default/grub.d/* /boot/grub/grub.cfg /etc/sysctl.d/*.conf 2> /dev/null
cat /etc/tmpfiles.d/* /etc/security/limits.d/* 2> /dev/null
cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor /sys/devices/system/cpu/cpu*/cpuidle/state2/disable
cat /proc/sys/kernel/numa_balancing /sys/kernel/mm/transparent_hugepage/enabled
ls -l /etc/systemd/system/multi-user.target.wants 2> /dev/null | grep -o 'instinct.*'
"""


class Book:
    """Runs the runbook's commands, and knows which were run."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ran: set[str] = set()

    def play(self, command: str) -> Run:
        assert command in COMMANDS, f"not in the runbook: {command}"
        self.ran.add(command)
        playbook, *args = shlex.split(command.replace("=audit.json", f"={self.lab.tmp}/audit.json"))
        return self.lab.play(playbook.removesuffix(".yml"), *args)

    def audit(self) -> tuple[Run, dict[str, Any]]:
        run = self.play("audit.yml -e audit_file=audit.json")
        return run, json.loads((self.lab.tmp / "audit.json").read_text())


def wrong(audit: dict[str, Any], host: str, *levels: str) -> set[str]:
    """Ids of what is wrong on a host."""
    return {
        finding["id"]
        for finding in audit["hosts"][host]["findings"]
        if finding["status"] == "wrong" and finding["level"] in (levels or ("required", "recommended"))
    }


def note(audit: dict[str, Any], host: str, item: str) -> str:
    return next(finding["note"] for finding in audit["hosts"][host]["findings"] if finding["id"] == item)


def serves(lab: Lab, host: str) -> bool:
    """Whether its first instance generates tokens."""
    try:
        return completion(lab, host, 8000)["usage"]["completion_tokens"] == 4
    except (AssertionError, ValueError):
        return False


def settings(lab: Lab) -> dict[str, str]:
    return {host: lab.on(host, SETTINGS, check=False) for host in lab.hosts}


def table(run: Run) -> list[str]:
    """Lines of the audit in a run's output."""
    return run.out[run.out.index("Audit: ") :].partition("\n\nTASK")[0].splitlines()


DRIFT = """
echo 1 > /proc/sys/kernel/numa_balancing
mkdir -p /run/tuned /etc/tuned && echo balanced > /etc/tuned/active_profile
"""
BY_HAND = {"gpu-link", "kernel-log", "rdma-ports"}
LIMITS = {"limit-memlock", "limit-nofile", "docker-stop"}


@pytest.mark.deep  # five minutes; in every run, test_fleet prepares a host and reboots it
def test_hosts_are_audited_prepared_and_stay_so(fresh_lab: Lab) -> None:
    lab, book = fresh_lab, Book(fresh_lab)
    n1, n2 = lab.hosts[:2]
    # A reboot brings the GPUs back whole: the mode is set again before the instance serves.
    lab.write_vars(vllm_deployments=[deployment()], gpu_partition_compute="CPX")
    lab.on(n1, BREAK)
    lab.reboot(n1)
    deployed = lab.play("site", "--skip-tags", "benchmark")
    assert deployed.rc == 0, deployed.out
    lab.on(n1, SPOIL)
    before = {**node_state(lab), **settings(lab)}

    # Looking: everything is named, nothing is changed.
    run, audit = book.audit()
    assert run.rc == 2, run.out
    assert wrong(audit, n1) == {
        "pci-bfsort", "iommu-pt", "numa-balancing", "cpu-governor", "cpu-c2", *LIMITS, *BY_HAND,
    }  # fmt: skip
    assert wrong(audit, n2) == LIMITS
    assert "huge-pages" in wrong(audit, n1, "advisory")
    assert "/etc/sysctl.d/99-tuning.conf, line 1, sets 1" in note(audit, n1, "numa-balancing")
    assert audit["results"] == {"fails": [n1], "could be better": [n2], "fine": [], "not reached": []}
    assert {**node_state(lab), **settings(lab)} == before
    assert max(map(len, table(run))) <= 100
    assert f"Failed: {n1}" in run.out
    assert book.play("audit.yml").rc == 2
    explained = book.play("audit.yml -e explain=true")
    assert "cTDP" in explained.out
    assert "source: amd-acceptance#kernel-parameters" in explained.out

    # Check mode tells what the run does, and does nothing.
    predicted = book.play("prepare.yml --check --diff")
    assert predicted.rc == 0, predicted.out
    assert {**node_state(lab), **settings(lab)} == before
    assert "+GRUB" in predicted.out or "+root=" in predicted.out
    done = book.play("prepare.yml")
    assert done.actions() == predicted.actions()
    assert done.rc == 2  # the link is still slow, and the command line waits for a reboot
    run, audit = book.audit()
    assert wrong(audit, n1) == {"pci-bfsort", "iommu-pt", *BY_HAND}
    assert note(audit, n1, "iommu-pt") == "/boot/grub/grub.cfg has it"
    assert wrong(audit, n2) == set()
    assert completion(lab, n1, 8000)["usage"]["completion_tokens"] == 4

    # Again: nothing to change.
    again = book.play("prepare.yml")
    assert again.changed() == []

    # A reboot, when it is asked for; the instance serves again.
    booted = lab.on(n1, "cat /proc/sys/kernel/random/boot_id")
    other = lab.on(n2, "cat /proc/sys/kernel/random/boot_id")
    run = book.play("prepare.yml -e reboot=true")
    assert lab.on(n1, "cat /proc/sys/kernel/random/boot_id") != booted, run.out
    assert lab.on(n2, "cat /proc/sys/kernel/random/boot_id") == other
    assert completion(lab, n1, 8000)["usage"]["completion_tokens"] == 4
    modes = lab.on(n1, "cat /sys/class/drm/renderD128/device/current_compute_partition")
    assert modes.strip() == "CPX"
    stops = [action for action in run.actions()[n1] if "/stop" in action]
    assert stops, "the instance was not stopped before the reboot"
    lab.on(n1, "gpusim fault clear")
    run, audit = book.audit()
    assert run.rc == 0, run.out
    assert wrong(audit, n1) == wrong(audit, n2) == set()
    assert book.play("prepare.yml -e reboot=true -e host_prep_serial=4").changed() == []

    # A reboot by somebody else keeps all of it, partition modes too, so that the instance serves again by itself; drift
    # is named with what set it.
    lab.reboot(n1)
    assert "GPUs are CPX, memory NPS1." in lab.on(n1, "cat /var/log/instinct-partition.service.log")
    wait_for("the instance after a reboot", lambda: serves(lab, n1))
    assert book.audit()[0].rc == 0
    lab.on(n1, DRIFT)
    run, audit = book.audit()
    assert run.rc == 2
    assert note(audit, n1, "numa-balancing") == (
        "/etc/sysctl.d/60-instinct-fleet.conf, line 2, sets 0 at boot: changed since; "
        "tuned applies its profile balanced"
    )
    assert book.play("prepare.yml").rc == 0

    # The way back.
    for command in ON_HOST:
        lab.on(n1, command)
    lab.reboot(n1)
    _, audit = book.audit()
    assert wrong(audit, n1) >= {"pci-bfsort", "iommu-pt", "cpu-governor", "cpu-c2", *LIMITS}
    assert book.ran == set(COMMANDS), "commands of the runbook that no test runs"


def came_back(lab: Lab, host: str, boots: dict[str, str]) -> bool:
    """It has booted since, and can be reached."""
    up = "pgrep -x sshd > /dev/null && docker version > /dev/null 2>&1"
    now = lab.on(host, f"{up} && cat /proc/sys/kernel/random/boot_id", check=False)
    return re.fullmatch(r"[0-9a-f-]{36}\n", now) is not None and now != boots[host]


@pytest.mark.deep
def test_a_host_that_does_not_come_back_ends_the_reboots(fresh_lab: Lab) -> None:
    lab = fresh_lab
    lab.write_vars(vllm_deployments=[])
    for host in lab.hosts:
        lab.on(host, BREAK)
        lab.reboot(host)
    boots = {host: lab.on(host, "cat /proc/sys/kernel/random/boot_id") for host in lab.hosts}
    never = ("-e", "host_prep_reboot_test=false", "-e", "host_prep_reboot_timeout=8")
    run = lab.play("prepare", "-e", "reboot=true", *never)
    assert run.rc == 2, run.out
    # After its eight seconds the host may be anywhere between its end and its start.
    wait_for("its boot", lambda: came_back(lab, lab.hosts[0], boots))
    after = {host: lab.on(host, "cat /proc/sys/kernel/random/boot_id") for host in lab.hosts}
    assert [host for host in lab.hosts if after[host] != boots[host]] == lab.hosts[:1]
    assert f"Failed: {lab.hosts[0]}, at: instinct.fleet.host_prep : Reboot" in run.out
    # The same command goes on with the others.
    run = lab.play("prepare", "-e", "reboot=true")
    assert run.rc == 0, run.out
    assert lab.on(lab.hosts[1], "cat /proc/sys/kernel/random/boot_id") != boots[lab.hosts[1]]
    assert "iommu=pt" in lab.on(lab.hosts[1], "cat /proc/cmdline")


# ---- a host with other processors ---------------------------------------------------------------------


OF_PROCESSORS = {
    "intel-iommu",
    "bios-iommu",
    "bios-smt",
    "bios-numa",
    "cpu-c2",
    "cpu-governor",
    "memory",
    "acs",
}


def audited(lab: Lab) -> tuple[dict[str, set[str]], dict[str, Any], dict[str, Any]]:
    """Ids of what the audit finds wrong with the hosts' processors, its report, and what the hosts' module read."""
    run = lab.play("audit", "-e", f"audit_file={lab.tmp}/audit.json")
    audit = json.loads((lab.tmp / "audit.json").read_text())
    found = {host: wrong(audit, host, "required", "recommended", "advisory") for host in lab.hosts}
    read = {record["host"]: record["result"] for record in run.records if record["module"] == "host_facts"}
    return {host: ids & OF_PROCESSORS for host, ids in found.items()}, audit, read


@pytest.fixture
def intel(lab: Lab) -> Iterator[str]:
    """The first host, with Intel's processors for one test."""
    lab.write_vars(vllm_deployments=[])
    lab.on(lab.hosts[0], "gpusim config cpu=xeon")
    yield lab.hosts[0]
    lab.on(lab.hosts[0], "gpusim config cpu=epyc")


def test_an_intel_server_is_read_and_judged_as_one(lab: Lab, intel: str) -> None:
    """Nothing of the machine below shows in what was read, whatever that is."""
    other = lab.hosts[1]
    found, _, read = audited(lab)
    for host, vendor, model, cpus in (
        (intel, "GenuineIntel", "INTEL(R) XEON(R) PLATINUM 8592+", 128),
        (other, "AuthenticAMD", "AMD EPYC 9654 96-Core Processor", 192),
    ):
        state, facts = read[host]["node_state"], read[host]["host_facts"]
        assert state["cpu"] == {"model": model, "sockets": 2, "threads": cpus}
        numa = [(node["cpus"], node["memory_bytes"]) for node in state["numa_nodes"]]
        assert numa == [(f"0-{cpus // 2 - 1}", 1082331758592), (f"{cpus // 2}-{cpus - 1}", 1082331758592)]
        assert (state["memory_bytes"], state["virtual_machine"]) == (2164663517184, False)
        assert (facts["cpu"]["vendor"], facts["cpu"]["smt"]) == (vendor, "0")
        assert facts["cpu"]["governors"] == {"performance": cpus}
        assert facts["acs"] == {"able": 0, "on": []}
    assert [read[host]["host_facts"]["iommus"] for host in (intel, other)] == [0, 8]
    assert found == {intel: {"intel-iommu", "bios-iommu"}, other: set()}


@pytest.mark.deep
def test_an_intel_server_gets_what_it_needs_and_amds_does_not(lab: Lab, intel: str) -> None:
    other = lab.hosts[1]
    booted = lab.on(intel, "cat /proc/sys/kernel/random/boot_id")
    try:
        # Prepared, without a reboot, as none was asked for.
        assert lab.play("prepare").rc == 2
        found, audit, _ = audited(lab)
        assert note(audit, intel, "intel-iommu") == "/boot/grub/grub.cfg has it"
        assert found == {intel: {"intel-iommu", "bios-iommu"}, other: set()}
        for host, times in ((intel, "1"), (other, "0")):
            assert lab.on(host, "grep -c intel_iommu=on /boot/grub/grub.cfg; true").strip() == times
        assert lab.on(intel, "cat /proc/sys/kernel/random/boot_id") == booted

        lab.reboot(intel)
        found, _, read = audited(lab)
        assert (found, read[intel]["host_facts"]["iommus"]) == ({intel: set(), other: set()}, 16)
    finally:
        lab.on(intel, "gpusim config cpu=epyc")
        for host in (intel, other):
            for command in ON_HOST:
                lab.on(host, command, check=False)  # some of it was not needed here
            lab.reboot(host)


def test_a_host_that_cannot_be_reached_is_told(lab: Lab) -> None:
    path = lab.inventory / "hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    inventory["instinct"]["hosts"]["lab-gone"] = {"ansible_host": node_address(239), "ansible_ssh_timeout": 3}
    path.write_text(yaml.safe_dump(inventory))
    run = lab.play("audit", "-e", f"audit_file={lab.tmp}/audit.json")
    audit = json.loads(Path(f"{lab.tmp}/audit.json").read_text())
    assert audit["results"]["not reached"] == ["lab-gone"]
    assert run.rc in (4, 6), run.out


@pytest.mark.parametrize(
    "variable", ["host_prep_skip", pytest.param("host_prep_also", marks=pytest.mark.deep)]
)
def test_an_id_that_does_not_exist_is_named(lab: Lab, variable: str) -> None:
    lab.write_vars(**{variable: ["huge-page"]})
    run = lab.play("audit")
    assert run.rc == 2
    assert "there is no item huge-page. Did you mean huge-pages?" in run.out
