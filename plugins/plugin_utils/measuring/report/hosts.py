# SPDX-License-Identifier: Apache-2.0
"""Describe how to repeat a measurement: commands, environment, and the nodes' facts."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import natural
from ..summary.tables import EN_DASH, TIMES

Row = Mapping[str, Any]

GIB = 1 << 30
_SOFTWARE = (("vLLM", "vllm"), ("PyTorch", "torch"), ("ROCm in the image", "rocm"))
# Words of the kernel command line that name a node's own disks, which do not affect its speed.
_OWN_WORDS = ("BOOT_IMAGE=", "root=", "resume=", "initrd=")


def reproduction(name: str, shared: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Return how to serve and measure a deployment again: facts, commands, environment, reasons."""
    served = [row for row in rows if row["kind"] == "serve"] or list(rows)
    first = served[0]
    facts = [
        ("Image", first["image"]),
        ("Image digest", _joined(row["digest"] for row in rows)),
        *((label, _joined(row["versions"][key] for row in rows)) for label, key in _SOFTWARE),
        ("Model", _joined(row["model"] for row in rows)),
        ("Model commit", _joined(row["commit"] for row in rows)),
        ("Revision asked for", shared.get("revision")),
        ("Served as", shared.get("served_model")),
        ("Ports", _numbers(row["port"] for row in served)),
        ("GPUs of each instance", _gpus(served)),
    ]
    commands = []
    for kind in ("serve", "throughput", "latency"):
        cells = {row["cell"]: row["command"] for row in rows if row["kind"] == kind and row["command"]}
        commands += [
            {
                "kind": kind,
                "title": f"Measured with ({kind}{', ' + cell if len(cells) > 1 else ''})",
                "lines": command_lines(command),
            }
            for cell, command in sorted(cells.items(), key=lambda item: natural(item[0]))
        ]
    return {
        "name": name,
        "facts": [(label, str(value)) for label, value in facts if value],
        "example": f"{first['instance']} on {first['host']}",
        "only": len(served) == 1,
        "serve": command_lines(first["serve_command"]) if first["serve_command"] else "",
        "variants": _variants(served),
        "env": "\n".join(f"{key}={shlex.quote(str(value))}" for key, value in sorted(first["env"].items())),
        "commands": commands,
        "reasons_of": shared.get("reasons_of"),
        "reasons": [{**reason, "value": _value(reason["value"])} for reason in shared.get("reasons") or []],
    }


def command_lines(command: str) -> str:
    """Return a shell line with one option per line."""
    try:
        words = shlex.split(command)
    except ValueError:  # not a shell line: unchanged
        return command
    lines = [""]
    for word in words:
        if word.startswith("--"):
            lines.append("    ")
        lines[-1] += ("" if lines[-1].endswith((" ", "")) and not lines[-1].strip() else " ") + shlex.quote(
            word
        )
    return " \\\n".join(lines)


def hosts_view(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all nodes have in common, and how nodes differ."""
    described = {name: describe_host(facts) for name, facts in hosts.items()}
    labels = list(dict.fromkeys(label for facts in described.values() for label in facts))
    common, different = [], []
    for label in labels:
        values = {facts.get(label, "") for facts in described.values()}
        if len(values) == 1:
            common.append((label, values.pop()))
        else:
            different.append(label)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(described, key=natural):
        key = tuple(described[name].get(label, "") or "unknown" for label in different)
        groups.setdefault(key, []).append(name)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    usual = [
        Counter(described[name].get(label, "") for name in described).most_common(1)[0][0]
        for label in different
    ]
    return {
        "count": len(hosts),
        "names": host_names(sorted(hosts, key=natural)),
        "common": [(label, value or "unknown") for label, value in common],
        "different": different,
        "groups": [
            {
                "names": host_names(names),
                "count": len(names),
                "cells": [
                    {"text": value, "odd": value != (most or "unknown")} for value, most in zip(values, usual)
                ],
            }
            for values, names in ordered
        ],
    }


def describe_host(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a node as text; unknown ones are empty."""
    cpu = facts.get("cpu") or {}
    balancing = facts.get("numa_balancing")
    partition = "/".join(
        part for part in (facts.get("compute_partition"), facts.get("memory_partition")) if part
    )
    memory, virtual = facts.get("memory_bytes"), facts.get("virtual_machine")
    return {
        "GPUs": _gpu_text(facts.get("gpus") or []),
        "Partition": partition,
        "GPU link": _joined(_link(gpu) for gpu in facts.get("gpus") or []),
        "ROCm": facts.get("rocm") or "",
        "amdgpu driver": facts.get("driver") or "",
        "CPU": _cpu_text(cpu),
        "Memory": f"{memory / GIB:,.0f} GiB" if memory else "",
        "NUMA nodes": str(facts.get("numa_nodes") or ""),
        "NUMA balancing": "" if balancing is None else "on" if balancing else "off",
        "OS": facts.get("os") or "",
        "Kernel": facts.get("kernel") or "",
        "Kernel command line": " ".join(
            word for word in facts.get("cmdline") or [] if not word.startswith(_OWN_WORDS)
        ),
        "Docker": facts.get("docker") or "",
        "Virtual machine": "" if virtual is None else "yes" if virtual else "no",
    }


def host_names(names: Sequence[str]) -> str:
    """Return names (in natural order) as text, with consecutive numbers joined by a dash."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}{EN_DASH}{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _follows(before: str, name: str) -> bool:
    first, second = (re.fullmatch(r"(.*?)([0-9]+)", text) for text in (before, name))
    return bool(first and second and first[1] == second[1] and int(second[2]) == int(first[2]) + 1)


def _variants(served: Sequence[Row]) -> list[dict[str, Any]]:
    """Return instances whose command line or environment differs from the first's in more than port and GPUs."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in served:
        command = re.sub(r"(--port[= ])[0-9]+", r"\1PORT", row["serve_command"] or "")
        env = [
            "GPUS" if key.endswith("VISIBLE_DEVICES") else f"{key}={value}"
            for key, value in row["env"].items()
        ]
        groups.setdefault((command, "\n".join(sorted(env))), []).append(row)
    return [
        {
            "who": ", ".join(f"{row['instance']} on {row['host']}" for row in rows[:6])
            + (f" and {len(rows) - 6} more" if len(rows) > 6 else ""),
            "serve": command_lines(rows[0]["serve_command"] or ""),
            "env": "\n".join(
                f"{key}={shlex.quote(str(value))}" for key, value in sorted(rows[0]["env"].items())
            ),
        }
        for rows in list(groups.values())[1:]
    ]


def _gpus(served: Sequence[Row]) -> str:
    found = list(dict.fromkeys(",".join(map(str, row["gpus"])) for row in served if row["gpus"]))
    return " · ".join(found[:8]) + (f" and {len(found) - 8} more sets" if len(found) > 8 else "")


def _numbers(values: Any) -> str:
    found = sorted({value for value in values if value is not None})
    return host_names([str(value) for value in found])


def _joined(values: Any) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value))


def _gpu_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    kinds: Counter[str] = Counter()
    for gpu in gpus:
        name = gpu.get("model") or gpu.get("pci_id") or "GPU"
        vram = gpu.get("vram_total")
        details = [str(gpu["gfx"])] if gpu.get("gfx") else []
        details += [f"{vram / GIB:,.0f} GiB"] if vram else []
        kinds[f"{name} ({', '.join(details)})" if details else str(name)] += 1
    return ", ".join(f"{count} {TIMES} {kind}" for kind, count in kinds.items())


def _link(gpu: Mapping[str, Any]) -> str:
    speed, width = gpu.get("link_speed"), gpu.get("link_width")
    return f"{speed} {TIMES}{width}" if speed and width else str(speed or "")


def _cpu_text(cpu: Mapping[str, Any]) -> str:
    if not cpu.get("model"):
        return ""
    sockets = f"{cpu['sockets']} {TIMES} " if cpu.get("sockets") else ""
    threads = f", {cpu['threads']} threads" if cpu.get("threads") else ""
    return f"{sockets}{cpu['model']}{threads}"


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
