# SPDX-License-Identifier: Apache-2.0
"""Faults that a test switches on: `python3 -m gpusim fault NAME[=VALUE]`, `… fault clear [NAME]`.

A fault is data in the node's state; the code that it affects looks it up here. A value may name GPUs:
`compute-errno=EBUSY@5` concerns GPU 5 only, `compute-errno=EBUSY` all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..machine.models import MIB
from ..machine.state import Gpu, Holder, Node, StateError, nearest


@dataclass(frozen=True)
class Fault:
    """A fault's kind of value, and its effect."""

    kind: str  # flag, count, seconds, choice, errno, field, gpus, nics, holder, zombie
    text: str
    choices: tuple[str, ...] = ()


FAULTS: dict[str, Fault] = {
    "holder": Fault("holder", "PID:NAME[:MINOR,…]: a foreign process holds /dev/kfd (may be repeated)"),
    "zombie": Fault("zombie", "NAME: a process of this name ended, nobody reaps it, it still holds /dev/kfd"),
    "busy-transient": Fault("count", "the next N compute mode changes of idle GPUs answer EBUSY"),
    "busy-after-exit": Fault("seconds", "the driver stays busy this long after the last process that used KFD"),
    "compute-errno": Fault("errno", "ERRNO[@GPU,…]: writing current_compute_partition answers this"),
    "memory-errno": Fault("errno", "ERRNO[@GPU,…]: writing current_memory_partition answers this"),
    "read-errno": Fault("errno", "ERRNO[@GPU,…]: reading current_compute_partition answers this"),
    "set-ignored": Fault("flag", "changing the compute mode reports success and changes nothing"),
    "slow": Fault("seconds", "each compute mode change takes this long"),
    "reload": Fault("choice", "driver reload: refused (module in use), fail (load fails), fail-once, hang",
                    ("refused", "fail", "fail-once", "hang")),
    "slow-reload": Fault("seconds", "a driver reload takes this long, and the driver is not loaded meanwhile"),
    "nps-change-fails": Fault("flag", "the reload does not carry out the requested memory mode"),
    "stranded": Fault("field", "MIB[@GPU,…]: VRAM in use that no process owns, until the driver is reloaded"),
    "gpu-reset": Fault("gpus", "GPU,…: these GPUs are in reset, their partition files answer EPERM"),
    "link-speed": Fault("field", "GT/S[@GPU,…]: the PCIe link came up slower, such as 16.0",
                        ("2.5", "5.0", "8.0", "16.0", "32.0")),
    "link-width": Fault("field", "LANES[@GPU,…]: the PCIe link came up narrower, such as 8",
                        ("1", "2", "4", "8", "16")),
    "ecc": Fault("field", "COUNT[@GPU,…]: uncorrectable memory errors"),
    "thermal": Fault("gpus", "GPU,…: memory temperature throttles these GPUs a quarter of the time"),
    "kernel-error": Fault("gpus", "GPU,…: errors of amdgpu about these GPUs in the kernel log"),
    "nic-down": Fault("nics", "NIC,…: the ports of these RDMA NICs are down"),
    "tool-hang": Fault("choice", "this tool never returns", ("rocm-smi", "amd-smi", "all")),
    "tool-missing": Fault("choice", "this tool is not installed", ("rocm-smi", "amd-smi", "all")),
    "warning-first": Fault("flag", "amd-smi prints the missing-groups warning before its output"),
    "split-json": Fault("flag", "amd-smi partition --json prints several documents, as before 7.0"),
    "all-render-nodes": Fault("flag", "/dev/dri shows the device nodes of idle partitions too; they "
                                      "cannot be opened"),
}  # fmt: skip
# Faults that set a value of a GPU: name of the field, and the parser of its text.
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "stranded": ("stranded", lambda text: int(text) * MIB),
    "link-speed": ("link_speed", float),
    "link-width": ("link_width", int),
    "ecc": ("sensors.uncorrectable", int),
}
# Faults that a reboot ends.
PASSING = ("holder", "zombie", "busy-transient", "stranded", "gpu-reset", "kernel-error")


def value(node: Node, name: str) -> Any:
    """Return the value of a fault, None if it is off."""
    return node.faults.get(name)


def _numbers(text: str, count: int, what: str, name: str) -> list[int]:
    try:
        chosen = [int(item) for item in text.split(",")]
    except ValueError:
        raise StateError(f"fault {name}: {what}s are numbers separated by commas, not {text!r}") from None
    bad = [i for i in chosen if not 0 <= i < count]
    if bad:
        raise StateError(f"fault {name}: no {what} {bad[0]} in this node of {count}")
    return chosen


def _gpus(text: str, node: Node, name: str) -> list[int]:
    return _numbers(text, len(node.gpus), "GPU", name)


def _parse(node: Node, name: str, text: str | None) -> Any:
    spec = FAULTS[name]
    if spec.kind == "flag":
        if text not in (None, "", "1"):
            raise StateError(f"fault {name} takes no value, not {text!r}")
        return True
    if not text:
        raise StateError(f"fault {name} needs a value: {spec.text}")
    if spec.kind == "choice":
        if text not in spec.choices:
            raise StateError(f"fault {name}: one of {', '.join(spec.choices)}, not {text!r}")
        return text
    if spec.kind == "gpus":
        return _gpus(text, node, name)
    if spec.kind == "nics":
        return _numbers(text, len(node.host.nics), "NIC", name)
    if spec.kind == "zombie":
        return _zombie(text)
    head, _, rest = text.partition("@")
    where = _gpus(rest, node, name) if rest else list(range(len(node.gpus)))
    if spec.kind == "errno":
        if not isinstance(getattr(errno, head, None), int):
            raise StateError(f"fault {name}: {head!r} is not an errno name such as EBUSY")
        return {"errno": getattr(errno, head), "gpus": where}
    if spec.choices and head not in spec.choices:
        raise StateError(f"fault {name}: one of {', '.join(spec.choices)}, not {head!r}")
    try:
        if spec.kind == "field":
            return {"value": _FIELDS[name][1](head), "gpus": where}
        return float(head) if spec.kind == "seconds" else int(head)
    except ValueError:
        raise StateError(f"fault {name}: a number is needed, not {head!r}") from None


def _holder(text: str | None) -> Holder:
    pid, _, rest = (text or "").partition(":")
    name, _, minors = rest.partition(":")
    if not pid.isdigit() or not name:
        raise StateError(f"fault holder: PID:NAME[:MINOR,…] is needed, not {text!r}")
    return Holder(int(pid), name, tuple(int(m) for m in minors.split(",") if m))


def _zombie(text: str) -> dict[str, Any]:
    pid, _, rest = text.partition(":")
    keeper, _, name = rest.partition(":")
    if not pid.isdigit() or not keeper.isdigit() or not name:
        raise StateError(f"fault zombie: PID:KEEPER:NAME is needed here, not {text!r}")
    return {"pid": int(pid), "keeper": int(keeper), "name": name}


def _gpu_field(node: Node, index: int, field: str, new: Any) -> Node:
    """Return the node with one field of a GPU, or of its sensors, changed."""
    section, _, name = field.rpartition(".")
    if section:
        return node.gpu_set(index, sensors=replace(node.gpus[index].sensors, **{name: new}))
    return node.gpu_set(index, **{name: new})


def _nics(node: Node, chosen: Iterable[int], up: bool) -> Node:
    nics = tuple(replace(nic, up=up) if i in chosen else nic for i, nic in enumerate(node.host.nics))
    return replace(node, host=replace(node.host, nics=nics))


def add(node: Node, text: str) -> Node:
    """Return the node with the fault `NAME[=VALUE]` on.

    Raise StateError with the nearest known name for an unknown fault.
    """
    name, _, given = text.partition("=")
    if name not in FAULTS:
        raise StateError(f"no fault {name!r}{nearest(name, FAULTS)}")
    if name == "holder":
        return replace(node, holders=(*node.holders, _holder(given)))
    parsed = _parse(node, name, given if "=" in text else None)
    node = replace(node, faults={**node.faults, name: parsed})
    if name in _FIELDS:
        for i in parsed["gpus"]:
            node = _gpu_field(node, i, _FIELDS[name][0], parsed["value"])
    elif name == "gpu-reset":
        for i in parsed:
            node = node.gpu_set(i, reset=True)
    elif name == "nic-down":
        node = _nics(node, parsed, up=False)
    elif name == "zombie":
        node = replace(node, holders=(*node.holders, Holder(parsed["pid"], parsed["name"], vram=None)))
    return node


def clear(node: Node, name: str | None = None) -> Node:
    """Return the node with one fault off, or all."""
    if name is not None and name not in FAULTS:
        raise StateError(f"no fault {name!r}{nearest(name, FAULTS)}")
    zombie = node.faults.get("zombie", {}).get("pid")
    keep = {key: v for key, v in node.faults.items() if name is not None and key != name}
    node = replace(node, faults=keep)
    if name in (None, "holder"):
        node = replace(node, holders=tuple(h for h in node.holders if h.pid == zombie))
    if name in (None, "zombie"):
        node = replace(node, holders=tuple(h for h in node.holders if h.pid != zombie))
    if name in (None, "busy-after-exit"):
        node = replace(node, driver=replace(node.driver, lingers=False))
    if name in (None, "nic-down"):
        node = _nics(node, range(len(node.host.nics)), up=True)
    for i, gpu in enumerate(node.gpus):
        fresh = Gpu(gpu.bdf, gpu.unique_id, gpu.oam, gpu.numa_node)
        for fault, (field, _) in _FIELDS.items():
            if name in (None, fault):
                section, _, last = field.rpartition(".")
                node = _gpu_field(node, i, field, getattr(fresh.sensors if section else fresh, last))
        if name in (None, "gpu-reset"):
            node = node.gpu_set(i, reset=False)
    return node


def errno_for(node: Node, name: str, index: int) -> int:
    """Return the errno that a fault forces for GPU `index`, 0 for none."""
    fault = node.faults.get(name)
    return int(fault["errno"]) if fault and index in fault["gpus"] else 0


def transient(node: Node) -> tuple[Node, bool]:
    """Return the node, and whether a change of the compute mode meets a transient EBUSY, which is then used up."""
    left = node.faults.get("busy-transient", 0)
    if left <= 0:
        return node, False
    return replace(node, faults={**node.faults, "busy-transient": left - 1}), True


def delay(node: Node) -> float:
    """Return the seconds that a change of the compute mode takes."""
    return float(node.faults.get("slow", 0))


def tool_state(node: Node, tool: str) -> str | None:
    """Return 'hang', 'missing' or None for rocm-smi or amd-smi."""
    for name, answer in (("tool-missing", "missing"), ("tool-hang", "hang")):
        if node.faults.get(name) in (tool, "all"):
            return answer
    return None
