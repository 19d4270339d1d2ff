# SPDX-License-Identifier: Apache-2.0
"""Settings of a node for `serve` and `config`: KEY=VALUE, checked before anything changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from .host import HUGE_PAGES, Cpu, Host, make_nics
from .models import MEMORY_MODES, MODELS
from .processors import PROCESSORS
from .state import (
    DKMS_VERSION,
    INBOX_VERSION,
    PLATFORMS,
    Driver,
    Node,
    StateError,
    fitted,
    make_node,
    nearest,
)

RELEASES = (
    "6.0.0", "6.1.1", "6.2.2", "6.2.4", "6.3.0", "6.3.2", "6.4.0", "6.4.1", "7.0.0", "7.0.2", "7.2.0", "10.0.0",
)  # fmt: skip


def split(words: Iterable[str]) -> dict[str, str]:
    """Return KEY=VALUE words as a dict."""
    found = {}
    for word in words:
        key, sep, value = word.partition("=")
        if not sep or not value:
            raise StateError(f"{word!r}: KEY=VALUE is needed")
        found[key] = value
    return found


def _choice(key: str, value: str, allowed: Iterable[str]) -> str:
    allowed = list(allowed)
    if value not in allowed:
        raise StateError(f"{key}={value}: one of {', '.join(allowed)} is needed")
    return value


def _release(node: Node, value: str) -> Node:
    return replace(node, release=_choice("release", value, RELEASES))


def _driver(node: Node, value: str) -> Node:
    """Set the driver. inbox: the kernel's amdgpu, no version file or compute_partition_config. none: not loaded."""
    kind = _choice("driver", value, ("dkms", "inbox", "old", "none"))
    if kind == "inbox":
        driver = Driver(kind="inbox", version=INBOX_VERSION, partition_config=False)
    elif kind == "old":  # before partitioning
        driver = Driver(version="6.3.6", partition_files=False, partition_config=False)
    else:
        driver = Driver(loaded=kind != "none")
    return replace(node, driver=driver)


def _version(node: Node, value: str) -> Node:
    if not re.fullmatch(r"\d+\.\d+\.\d+", value):
        raise StateError(f"driver_version={value}: a version such as {DKMS_VERSION} is needed")
    return replace(node, driver=replace(node.driver, version=value))


def _platform(node: Node, value: str) -> Node:
    return replace(node, platform=_choice("platform", value, PLATFORMS))


def _ast(node: Node, value: str) -> Node:
    """Set whether a BMC's VGA driver is loaded before amdgpu, at each boot."""
    there = _choice("ast", value, ("0", "1")) == "1"
    return replace(node, bmc=there, ast=there, first_minor=int(there))


def _memory_modes(node: Node, value: str) -> Node:
    return replace(
        node, memory_modes=tuple(_choice("memory_modes", m, MEMORY_MODES) for m in value.split(","))
    )


def _busy(node: Node, value: str) -> Node:
    per_device = _choice("busy", value, ("node", "device")) == "device"
    return replace(node, driver=replace(node.driver, busy_per_device=per_device))


def _model(node: Node, value: str) -> Node:
    """Replace the node's GPUs by new ones of another model, four for an APU."""
    model = MODELS[_choice("model", value, MODELS)]
    count = 4 if model.apu else 8 if node.spec.apu else len(node.gpus)
    fresh = make_node(count, model.name)
    return fitted(replace(
        node, model=fresh.model, gpus=fresh.gpus, cpu_nodes=fresh.cpu_nodes, memory=fresh.memory,
        boot_memory=fresh.memory, memory_requested=None, memory_modes=(), generation=node.generation + 2,
    ))  # fmt: skip


def _gpus(node: Node, value: str) -> Node:
    """Change the number of GPUs of the same model, as after a start with that number."""
    most = 4 if node.spec.apu else 8
    fresh = make_node(int(_choice("gpus", value, [str(n) for n in range(1, most + 1)])), node.model)
    mode = node.spec.auto_compute(node.memory)
    gpus = tuple(replace(gpu, compute=mode, boot_compute=mode) for gpu in fresh.gpus)
    return fitted(replace(node, gpus=gpus, cpu_nodes=fresh.cpu_nodes, generation=node.generation + 2))


def _memory_at_boot(node: Node, value: str) -> Node:
    mode = _choice("memory_at_boot", value, ("keep", *MEMORY_MODES))
    return replace(node, memory_at_boot=None if mode == "keep" else mode)


def _vbios(node: Node, value: str) -> Node:
    return replace(node, vbios=value)


def _ifwi(node: Node, value: str) -> Node:
    return replace(node, ifwi=value)


def _host(change: Callable[[Host, str], Host]) -> Callable[[Node, str], Node]:
    """Return a setter for the host, now and after each boot."""

    def setting(node: Node, value: str) -> Node:
        boot_host = change(node.boot_host, value)
        return replace(node, host=change(node.host, value), boot_host=boot_host)

    return setting


def _cpu(node: Node, value: str) -> Node:
    """Replace the server's processors and everything that depends on them; the CPUs' settings get their defaults."""
    cpu = _choice("cpu", value, PROCESSORS)
    if node.spec.apu:
        raise StateError(f"cpu={value}: an {node.model} is its own processor")
    if cpu == node.cpu:
        return node
    bare = replace(node, host=replace(node.host, cpus=()), boot_host=replace(node.boot_host, cpus=()))
    return fitted(replace(bare, cpu=cpu))


def _smt(node: Node, value: str) -> Node:
    return fitted(replace(node, smt=_choice("smt", value, ("on", "off")) == "on"))


def _cpus(node: Node, change: Callable[[Cpu], Cpu]) -> Node:
    """Change a setting of all CPUs, now and after each boot."""

    def changed(host: Host) -> Host:
        known = {cpu: change(cpu) for cpu in set(host.cpus)}
        return replace(host, cpus=tuple(known[cpu] for cpu in host.cpus))

    return replace(node, host=changed(node.host), boot_host=changed(node.boot_host))


def _governor(node: Node, value: str) -> Node:
    governor = _choice("governor", value, node.processor.governors)
    return _cpus(node, lambda cpu: replace(cpu, governor=governor))


def _c2(node: Node, value: str) -> Node:
    off = _choice("c2", value, ("on", "off")) == "off"
    names = [state.name for state in node.processor.idle]
    if "C2" not in names:
        raise StateError(f"c2={value}: this processor has {', '.join(names)}")
    return _cpus(node, lambda cpu: replace(cpu, disabled=(names.index("C2"),) if off else ()))


def _huge_pages(host: Host, value: str) -> Host:
    chosen = _choice("huge_pages", value, HUGE_PAGES["enabled"])
    return replace(host, huge_pages={**host.huge_pages, "enabled": chosen})


def _nics(host: Host, value: str) -> Host:
    return replace(host, nics=make_nics(int(_choice("nics", value, [str(n) for n in range(9)]))))


SETTINGS: dict[str, Callable[[Node, str], Node]] = {
    "release": _release,
    "driver": _driver,
    "driver_version": _version,
    "platform": _platform,
    "ast": _ast,
    "memory_modes": _memory_modes,
    "busy": _busy,
    "model": _model,
    "gpus": _gpus,
    "memory_at_boot": _memory_at_boot,
    "vbios": _vbios,
    "ifwi": _ifwi,
    "cpu": _cpu,
    "smt": _smt,
    "governor": _governor,
    "c2": _c2,
    "huge_pages": _host(_huge_pages),
    "nics": _host(_nics),
}


def apply(node: Node, settings: dict[str, str]) -> Node:
    """Return the node with the settings applied. Raise StateError for an unknown key or value."""
    for key, value in settings.items():
        if key not in SETTINGS:
            raise StateError(f"no setting {key!r}{nearest(key, SETTINGS)}")
        node = SETTINGS[key](node, value)
    return node
