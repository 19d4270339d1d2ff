# SPDX-License-Identifier: Apache-2.0
"""Judge hosts by the catalogue's items, and determine the work of prepare.yml. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from . import hardware_checks, kernel_checks, serving_checks
from .items import (
    ADVISORY,
    ELSEWHERE,
    RECOMMENDED,
    REQUIRED,
    SETTINGS,
    SKIPPED,
    UNKNOWN,
    WRONG,
    AuditFinding,
    CheckResult,
    HostItem,
    HostView,
)

Check = Callable[[Mapping[str, Any], HostView], CheckResult]
CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        kernel_checks.cmdline,
        kernel_checks.sysctl,
        kernel_checks.governor,
        kernel_checks.idle_state,
        kernel_checks.huge_pages,
        kernel_checks.limit,
        kernel_checks.stop_limit,
        hardware_checks.gpu_count,
        hardware_checks.gpu_driver,
        hardware_checks.gpu_link,
        hardware_checks.gpu_firmware,
        hardware_checks.driver_for_image,
        hardware_checks.rocm_for_gpu,
        hardware_checks.kernel_log,
        hardware_checks.memory,
        hardware_checks.acs,
        hardware_checks.rdma_ports,
        hardware_checks.clock,
        hardware_checks.shm,
        hardware_checks.disk,
        hardware_checks.docker,
        hardware_checks.numa_nodes_per_socket,
        hardware_checks.iommu,
        hardware_checks.large_bar,
        hardware_checks.smt,
        serving_checks.records,
    )
}
"""Checks that items may name as their kind."""
FAILS, IMPROVABLE, FINE, UNREACHED = "fails", "could be better", "fine", "not reached"
RESULTS = (FAILS, IMPROVABLE, FINE, UNREACHED)


def audit(
    items: Iterable[HostItem], view: HostView, skip: Collection[str] = (), also: Collection[str] = ()
) -> tuple[AuditFinding, ...]:
    """Return every item's finding on a host, in the catalogue's order.

    `skip` are ids that the operator excludes. Advisory items in `also` count as recommended.
    """
    found = []
    for item in items:
        if item.id in skip:
            verdict = CheckResult(SKIPPED, "host_prep_skip names it")
        elif not view.applies(item.when):
            verdict = CheckResult(ELSEWHERE, "not on this kind of host")
        else:
            verdict = CHECKS[item.check["kind"]](item.check, view)
        raised = item.id in also and item.level == ADVISORY
        found.append(AuditFinding(replace(item, level=RECOMMENDED) if raised else item, verdict))
    return tuple(found)


def findings_with_status(
    findings: Iterable[AuditFinding], level: str, status: str = WRONG
) -> list[AuditFinding]:
    """Return the findings of a level with this status."""
    return [finding for finding in findings if finding.item.level == level and finding.status == status]


def result(findings: Collection[AuditFinding]) -> str:
    """Return the overall result: FAILS if a required item is wrong, IMPROVABLE if a recommended one is."""
    if findings_with_status(findings, REQUIRED):
        return FAILS
    return IMPROVABLE if findings_with_status(findings, RECOMMENDED) else FINE


@dataclass(frozen=True)
class HostWork:
    """The work of prepare.yml on a host, as arguments of the modules kernel_cmdline and host_settings.

    `waiting` are ids of items that need a reboot.
    """

    cmdline: tuple[str, ...] = ()
    sysctl: Mapping[str, str] = field(default_factory=dict)
    sysfs: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()

    @property
    def reboot(self) -> bool:
        """Return whether some item needs a reboot, after these changes or after earlier ones."""
        return bool(self.waiting)

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of host_settings that are not empty."""
        named = {"sysctl": self.sysctl, "sysfs": self.sysfs, "limits": self.limits, "units": self.units}
        return {name: dict(value) for name, value in named.items() if value}

    @property
    def anything(self) -> bool:
        """Return whether there is something to write."""
        return bool(self.cmdline or self.settings)

    def to_json(self) -> dict[str, Any]:
        """Return the variables for add_host."""
        return {"cmdline": list(self.cmdline), "settings": self.settings, "waiting": list(self.waiting)}


def host_work(findings: Iterable[AuditFinding]) -> HostWork:
    """Return the fixes of wrong items: required and recommended ones, and requested advisory ones."""
    words: list[str] = []
    settings: dict[str, dict[str, Any]] = {"sysctl": {}, "sysfs": {}, "limits": {}, "units": {}}
    waiting = []
    for finding in findings:
        if finding.status != WRONG or finding.item.level == ADVISORY:
            continue
        how, what = next(iter(finding.fix.items()))
        if how == "kernel_cmdline":
            waiting += [finding.item.id] if finding.reboot else []
            words += [] if finding.verdict.pending else [what]
        elif how in settings:
            settings[how].update(what)
    return HostWork(tuple(words), **settings, waiting=tuple(waiting))


def fixed_by_prepare(finding: AuditFinding) -> bool:
    """Return whether prepare.yml fixes the finding, apart from a reboot."""
    return next(iter(finding.fix)) in SETTINGS


def unknown_findings(findings: Iterable[AuditFinding]) -> list[AuditFinding]:
    """Return the findings that could not be judged, except advisory ones."""
    return [finding for finding in findings if finding.status == UNKNOWN and finding.item.level != ADVISORY]


def differences(views: Mapping[str, HostView]) -> dict[str, dict[str, list[str]]]:
    """Return the versions that differ between hosts with the same GPUs: {what: {version: hosts}}.

    AMD recommends the same versions on all hosts.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for models in dict.fromkeys(view.models for view in views.values()):
        alike = {name: view for name, view in views.items() if view.models == models and models}
        prefix = (
            f"{', '.join(model.name for model in models)} "
            if len({v.models for v in views.values()}) > 1
            else ""
        )
        for what, read in _VERSIONS.items():
            versions: dict[str, list[str]] = {}
            for name, view in alike.items():
                value = read(view)
                if value:
                    versions.setdefault(value, []).append(name)
            if len(versions) > 1:
                found[f"{prefix}{what}"] = versions
    return found


_VERSIONS: dict[str, Callable[[HostView], str]] = {
    "operating system": lambda view: str(view.state["os"]["pretty_name"] or ""),
    "kernel": lambda view: str(view.state["kernel"] or ""),
    "amdgpu driver": lambda view: str(view.state["driver"]["version"] or ""),
    "ROCm": lambda view: str(view.state["rocm"]["version"] or ""),
    "Docker": lambda view: str(view.state["docker"]["version"] or ""),
    "VBIOS": lambda view: ", ".join(sorted({str(gpu["vbios"]) for gpu in view.gpus if gpu["vbios"]})),
}
