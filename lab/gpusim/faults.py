# SPDX-License-Identifier: Apache-2.0
"""Faults that a test switches on: `python3 -m gpusim fault NAME[=VALUE]`, `… fault clear [NAME]`.

A fault is data in the node's state; the place where it shows looks it up here. A value may name GPUs:
`compute-errno=EBUSY@5` concerns GPU 5 only, `compute-errno=EBUSY` all.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Any

from .state import Holder, Node, StateError, nearest


@dataclass(frozen=True)
class Fault:
    """What a fault takes and what it does."""

    kind: str  # flag, count, seconds, choice, errno, holder, gpus, mib
    text: str
    choices: tuple[str, ...] = ()


FAULTS: dict[str, Fault] = {
    "holder": Fault("holder", "PID:NAME[:MINOR,…]: a foreign process holds /dev/kfd (may be repeated)"),
    "busy-transient": Fault("count", "the next N compute mode changes of idle GPUs answer EBUSY"),
    "compute-errno": Fault("errno", "ERRNO[@GPU,…]: writing current_compute_partition answers this"),
    "memory-errno": Fault("errno", "ERRNO[@GPU,…]: writing current_memory_partition answers this"),
    "read-errno": Fault("errno", "ERRNO[@GPU,…]: reading current_compute_partition answers this"),
    "set-ignored": Fault("flag", "changing the compute mode reports success and changes nothing"),
    "slow": Fault("seconds", "each compute mode change takes this long"),
    "reload": Fault("choice", "driver reload: refused (module in use), fail (load fails), fail-once, hang",
                    ("refused", "fail", "fail-once", "hang")),
    "slow-reload": Fault("seconds", "a driver reload takes this long, and the driver is not loaded meanwhile"),
    "nps-change-fails": Fault("flag", "the reload does not carry out the requested memory mode"),
    "stranded": Fault("mib", "MIB[@GPU,…]: VRAM in use that no process owns, until the driver is reloaded"),
    "gpu-reset": Fault("gpus", "GPU,…: these GPUs are in reset, their partition files answer EPERM"),
    "tool-hang": Fault("choice", "this tool never returns", ("rocm-smi", "amd-smi", "all")),
    "tool-missing": Fault("choice", "this tool is not installed", ("rocm-smi", "amd-smi", "all")),
    "warning-first": Fault("flag", "amd-smi prints the missing-groups warning before its output"),
    "split-json": Fault("flag", "amd-smi partition --json prints several documents, as before 7.0"),
    "all-render-nodes": Fault("flag", "/dev/dri shows the device nodes of idle partitions too; they "
                                      "cannot be opened"),
}  # fmt: skip


def value(node: Node, name: str) -> Any:
    """The value of a fault, None when it is off."""
    return node.faults.get(name)


def _gpus(text: str, node: Node, name: str) -> list[int]:
    try:
        chosen = [int(item) for item in text.split(",")]
    except ValueError:
        raise StateError(f"fault {name}: GPUs are numbers separated by commas, not {text!r}") from None
    bad = [i for i in chosen if not 0 <= i < len(node.gpus)]
    if bad:
        raise StateError(f"fault {name}: no GPU {bad[0]} in this node of {len(node.gpus)}")
    return chosen


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
    head, _, rest = text.partition("@")
    where = _gpus(rest, node, name) if rest else list(range(len(node.gpus)))
    if spec.kind == "errno":
        if not isinstance(getattr(errno, head, None), int):
            raise StateError(f"fault {name}: {head!r} is no errno name such as EBUSY")
        return {"errno": getattr(errno, head), "gpus": where}
    try:
        number = float(head) if spec.kind == "seconds" else int(head)
    except ValueError:
        raise StateError(f"fault {name}: a number is needed, not {head!r}") from None
    return {"mib": number, "gpus": where} if spec.kind == "mib" else number


def _holder(text: str | None) -> Holder:
    pid, _, rest = (text or "").partition(":")
    name, _, minors = rest.partition(":")
    if not pid.isdigit() or not name:
        raise StateError(f"fault holder: PID:NAME[:MINOR,…] is needed, not {text!r}")
    return Holder(int(pid), name, tuple(int(m) for m in minors.split(",") if m))


def add(node: Node, text: str) -> Node:
    """The node with the fault `NAME[=VALUE]` on. Raises StateError naming the nearest known fault."""
    name, _, given = text.partition("=")
    if name not in FAULTS:
        raise StateError(f"no fault {name!r}{nearest(name, FAULTS)}")
    if name == "holder":
        return replace(node, holders=(*node.holders, _holder(given)))
    parsed = _parse(node, name, given if "=" in text else None)
    node = replace(node, faults={**node.faults, name: parsed})
    if name == "stranded":
        for i in parsed["gpus"]:
            node = node.gpu_set(i, stranded=parsed["mib"] * 1024 * 1024)
    elif name == "gpu-reset":
        for i in parsed:
            node = node.gpu_set(i, reset=True)
    return node


def clear(node: Node, name: str | None = None) -> Node:
    """The node with one fault off, or all."""
    if name is not None and name not in FAULTS:
        raise StateError(f"no fault {name!r}{nearest(name, FAULTS)}")
    keep = {key: v for key, v in node.faults.items() if name is not None and key != name}
    node = replace(node, faults=keep)
    if name in (None, "holder"):
        node = replace(node, holders=())
    for i in range(len(node.gpus)):
        if name in (None, "stranded"):
            node = node.gpu_set(i, stranded=0)
        if name in (None, "gpu-reset"):
            node = node.gpu_set(i, reset=False)
    return node


def errno_for(node: Node, name: str, index: int) -> int:
    """The errno that a fault forces for GPU `index`, 0 for none."""
    fault = node.faults.get(name)
    return int(fault["errno"]) if fault and index in fault["gpus"] else 0


def transient(node: Node) -> tuple[Node, bool]:
    """Whether a change of the compute mode meets a passing EBUSY, and the node with that used up."""
    left = node.faults.get("busy-transient", 0)
    if left <= 0:
        return node, False
    return replace(node, faults={**node.faults, "busy-transient": left - 1}), True


def delay(node: Node) -> float:
    """Seconds that a change of the compute mode takes."""
    return float(node.faults.get("slow", 0))


def tool_state(node: Node, tool: str) -> str | None:
    """'hang', 'missing' or None for rocm-smi or amd-smi."""
    for name, answer in (("tool-missing", "missing"), ("tool-hang", "hang")):
        if node.faults.get(name) in (tool, "all"):
            return answer
    return None
