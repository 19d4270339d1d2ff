# SPDX-License-Identifier: Apache-2.0
"""Check a host's kernel settings: now, and after the next boot. Pure functions, named in host_items.yml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....module_utils.observe.audit_facts import CPUS, HUGE_PAGES
from ....module_utils.observe.sysctl import same
from .items import ELSEWHERE, OK, UNKNOWN, WRONG, CheckResult, HostView

Rule = Mapping[str, Any]


def cmdline(rule: Rule, view: HostView) -> CheckResult:
    """Check the kernel's command line: it has `word`, or one of `same`, and none of `against`."""
    line = view.facts.get("cmdline")
    if not line or not line["now"]:
        return CheckResult(UNKNOWN, "/proc/cmdline was not read", rule["word"])
    good = {rule["word"], *rule.get("same", ())}
    contrary = [word for word in line["now"] if word in rule.get("against", ())]
    if contrary:
        hand = {"hand": f"remove {contrary[0]} from the boot loader's configuration, and reboot"}
        return CheckResult(WRONG, f"{contrary[0]} is set", rule["word"], fix=hand)
    now = bool(good & set(line["now"]))
    boot = None if line["next"] is None else bool(good & set(line["next"]))
    if now and boot is False:
        note = f"{line['file']} does not have it: the next boot loses it"
        return CheckResult(WRONG, "set until the next boot", rule["word"], note, now=True)
    if now:
        return CheckResult(OK, "set", rule["word"])
    if boot:
        note = f"{line['file']} has it"
        return CheckResult(WRONG, "missing until a reboot", rule["word"], note, pending=True)
    return CheckResult(WRONG, "missing", rule["word"])


def sysctl(rule: Rule, view: HostView) -> CheckResult:
    """Check a sysctl's value now and after a boot; `word` on the kernel command line counts like a file."""
    key, value = rule["key"], rule["value"]
    wanted = f"{key} = {value}"
    found = (view.facts.get("sysctls") or {}).get(key)
    if found is None:
        return CheckResult(UNKNOWN, "sysctl files were not read", wanted)
    if found["now"] is None:
        return CheckResult(OK, "this kernel has no such setting", wanted)
    words = (
        (view.facts.get("cmdline") or {}).get("next") or (view.facts.get("cmdline") or {}).get("now") or ()
    )
    boot, place = found["boot"], f"{found['file']}, line {found['line']}"
    if boot is None and rule.get("word") in words:
        boot, place = value, f"{rule['word']} on the kernel command line"
    right_now, right_boot = same(found["now"], value), boot is not None and same(boot, value)
    now = f"{key.rpartition('.')[2]} = {found['now']}"
    if right_now and right_boot:
        return CheckResult(OK, now, wanted)
    if right_now and boot is None:
        return CheckResult(WRONG, f"{now}, not kept at boot", wanted, "no file sets it at boot")
    if right_now:
        return CheckResult(
            WRONG, f"{now}, {boot} after a boot", wanted, f"{place}, sets {boot} at every boot"
        )
    if right_boot:
        note = f"{place}, sets {value} at boot: changed since" + _tuned(view)
        return CheckResult(WRONG, f"{now}, {value} after a boot", wanted, note)
    return CheckResult(WRONG, now, wanted, f"{place}, sets {boot}" if boot is not None else _tuned(view)[2:])


def _tuned(view: HostView) -> str:
    """Return what may have changed a setting after boot; "" if nothing is known."""
    profile = view.facts.get("tuned")
    return f"; tuned applies its profile {profile}" if profile else ""


def governor(rule: Rule, view: HostView) -> CheckResult:
    """Check that every CPU has the frequency governor `value`."""
    cpu = view.facts.get("cpu")
    if cpu is None:
        return CheckResult(UNKNOWN, "the CPUs were not read", rule["value"])
    found = cpu["governors"]
    if not found:
        return CheckResult(ELSEWHERE, "the kernel does not scale frequencies here", rule["value"])
    others = {name: count for name, count in found.items() if name != rule["value"]}
    path = f"{CPUS}/cpu*/cpufreq/scaling_governor"
    total = sum(found.values())
    text = ", ".join(
        f"{name} on {count}" + (f" of {total}" if count < total else "") for name, count in others.items()
    )
    return _written(rule["value"], path, not others, f"{text} CPUs", view)


def idle_state(rule: Rule, view: HostView) -> CheckResult:
    """Check that no CPU may enter the idle state `name`."""
    cpu = view.facts.get("cpu")
    if cpu is None:
        return CheckResult(UNKNOWN, "the CPUs were not read", f"{rule['name']} off")
    found = cpu["idle"].get(rule["name"])
    if not found:
        return CheckResult(OK, f"the CPUs have no {rule['name']}", f"{rule['name']} off")
    path = f"{CPUS}/cpu*/cpuidle/{found['state']}/disable"
    fix = {"sysfs": {path: "1"}}
    verdict = _written("1", path, not found["enabled"], f"on for {found['enabled']} CPUs", view, fix)
    return replace(verdict, found="off") if verdict.status == OK else verdict


def huge_pages(rule: Rule, view: HostView) -> CheckResult:
    """Check that transparent huge pages are `value`."""
    found = view.facts.get("huge_pages")
    if not found:
        return CheckResult(ELSEWHERE, "this kernel has no transparent huge pages", rule["value"])
    words = (view.facts.get("cmdline") or {}).get("now") or ()
    said = next((word for word in words if word.startswith("transparent_hugepage=")), "")
    verdict = _written(rule["value"], HUGE_PAGES, found == rule["value"], found, view)
    if verdict.status == WRONG and said and not verdict.note:
        return CheckResult(WRONG, found, rule["value"], f"{said} is on the kernel command line")
    return verdict


def _written(
    value: str, path: str, right: bool, found: str, view: HostView, fix: Mapping[str, Any] | None = None
) -> CheckResult:
    """Judge a file of sysfs: its current value, and whether something sets it differently at boot."""
    file, boot = (view.facts.get("boot_settings") or {}).get(path, (None, None))
    if right and boot in (None, value):
        return CheckResult(OK, value, value)
    if right:
        return CheckResult(
            WRONG, f"{value}, {boot} after a boot", value, f"{file} sets {boot} at every boot", fix=fix
        )
    if boot == value:
        return CheckResult(
            WRONG, found, value, f"{file} sets {value} at boot: changed since{_tuned(view)}", fix=fix
        )
    return CheckResult(WRONG, found, value, _tuned(view)[2:], fix=fix)


_SPAN = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS = {"": 1, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60} | {
    "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip


def stop_limit(rule: Rule, view: HostView) -> CheckResult:
    """Check that systemd waits at least `value` (a time span) until Docker has stopped its containers."""
    wanted = f"TimeoutStopSec={rule['value']}"
    found = view.facts.get("docker_stop")
    if found is None:
        return CheckResult(ELSEWHERE, "no unit docker.service", wanted)
    value = found["value"]
    seconds, least = span_seconds(value) if value else 90.0, span_seconds(rule["value"])
    if seconds is None:
        return CheckResult(UNKNOWN, f"TimeoutStopSec={value} is not understood", wanted, found["file"])
    text = value if value else "systemd's default of 90 s"
    if seconds >= (least or 0):
        return CheckResult(OK, text, wanted)
    return CheckResult(WRONG, text, wanted, f"{found['file']} sets it" if value else "")


def span_seconds(text: str) -> float | None:
    """Return a time span of systemd.time(7) in seconds, infinity included; None for one that is not understood."""
    text = text.strip()
    if text in ("infinity", "0"):
        return float("inf")  # 0 also switches a time-out off
    parts = _SPAN.findall(text)
    if not parts or _SPAN.sub("", text).strip() or any(unit not in _UNITS for _count, unit in parts):
        return None
    return float(sum(int(count) * _UNITS[unit] for count, unit in parts))


def limit(rule: Rule, view: HostView) -> CheckResult:
    """Check a resource limit of logins, for ordinary users and root: at least `value`."""
    limits = view.facts.get("limits")
    if limits is None:
        return CheckResult(UNKNOWN, "limits.conf was not read", rule["value"])
    file, value = limits.get(rule["name"], (None, None))
    if value is None:
        return CheckResult(WRONG, "not set for all users", rule["value"])
    if value in ("unlimited", "infinity", "-1"):
        return CheckResult(OK, value, rule["value"])
    enough = rule["value"].isdigit() and value.isdigit() and int(value) >= int(rule["value"])
    if enough:
        return CheckResult(OK, value, rule["value"])
    return CheckResult(WRONG, value, rule["value"], f"{file} sets it")
