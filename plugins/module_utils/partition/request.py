# SPDX-License-Identifier: Apache-2.0
"""A request to change a node's partition modes, its plan, and the reasons to refuse it: step 1 of the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from . import checks
from .backends import LOAD, UNLOAD, Command, backends, expected_steps
from .gpus import PartitionedGpu, PartitionError, TargetModes, gpu_entries, predicted_gpus, present, select
from .holders import GpuHolder, Service, foreign_message, services, unmanaged_holders
from .journal import Journal
from .modes import LOAD_SETTLE, DriverInterface, ModeChange

GRACE = 2.0  # seconds until a process in the way is checked again: it may be short-lived
ANSWER = 20.0  # seconds for a tool that only shows something
QUERIES = {"rocm-smi": ("--showcomputepartition",), "amd-smi": ("list",)}


@dataclass(frozen=True)
class PartitionRequest:
    """The module's parameters. Times are seconds.

    Without compute and memory, an interrupted change is undone. `servers`: containers of instances to stop. `clean`:
    reload the driver if VRAM is in use that no process holds.
    """

    compute: str | None = None
    memory: str | None = None
    gpus: tuple[str, ...] = ("all",)
    backend: str = "auto"
    timeout: float = 300.0
    retries: int = 5
    servers: tuple[Service, ...] = ()
    clean: bool = False


@dataclass(frozen=True)
class PartitionResult:
    """The result of a change; `error` is None if every GPU was verified to be in its mode."""

    changed: bool
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    backend: str | None
    actions: list[str]
    warnings: list[str]
    stopped: list[str]
    error: str | None = None


class NodeInterface(DriverInterface, Protocol):
    """The node to change."""

    def tools(self) -> tuple[dict[str, str | None], str | None]:
        """Return (paths of the management tools, ROCm's release)."""

    def euid(self) -> int:
        """Return the effective user id of this process."""

    def virtual(self) -> bool:
        """Return whether the CPU reports a hypervisor."""

    def module_users(self) -> int:
        """Return amdgpu's reference count: while it is not 0, the driver cannot be unloaded."""

    def alive(self, service: Service) -> bool:
        """Return whether a service runs."""

    def monitors(self) -> list[Service]:
        """Return the known monitors that run as systemd units."""

    def stop(self, wanted: Sequence[Service]) -> list[str]:
        """Stop services gracefully, containers in parallel, then units. Return warnings."""

    def start(self, service: Service) -> None:
        """Start a service. Raise PartitionError if it does not start."""

    def refresh_cdi(self, *, check: bool = False) -> tuple[list[str], list[str]]:
        """Rewrite existing Container Device Interface specs; return (commands run, warnings).

        A spec lists render nodes, so it is out of date after every change of modes. `check`: run nothing.
        """

    def load_journal(self) -> Journal | None:
        """Return the journal of an interrupted change."""

    def reserve_journal(self) -> None:
        """Reserve the journal's disk space. Raise PartitionError if there is none."""

    def save_journal(self, journal: Journal) -> None:
        """Write the journal to disk. Raise PartitionError if that fails."""

    def drop_journal(self) -> None:
        """Remove the journal. Raise PartitionError if that fails."""


@dataclass
class PartitionPlan:
    """A planned change. `target`: all GPUs' modes; `journal`: of an interrupted change."""

    gpus: tuple[PartitionedGpu, ...]
    target: TargetModes
    backends: tuple[str, ...]
    tools: dict[str, str | None]
    release: str | None
    warnings: tuple[str, ...]
    holders: list[GpuHolder]
    journal: Journal | None
    stranded: tuple[PartitionedGpu, ...]

    @property
    def needed(self) -> bool:
        """Return whether the plan changes anything."""
        return bool(self.journal or self.stranded or not self.target.reached(self.gpus))

    @property
    def reloads(self) -> bool:
        """Return whether the plan reloads the driver."""
        return bool(self.stranded) or self.target.memory_differs(self.gpus)


def make_plan(node: NodeInterface, request: PartitionRequest) -> PartitionPlan:
    """Inspect the node and return a plan (step 1). Raise PartitionError, with nothing touched, if it cannot work."""
    journal = node.load_journal()
    gpus = node.gpus()
    if not gpus and journal and not node.loaded("amdgpu") and node.euid() == 0:
        # A change was interrupted between unloading and loading the driver: load it.
        ModeChange(node, (), {}, 0, node.now() + LOAD_SETTLE).ensure_loaded()
        gpus = node.gpus()
    if not gpus:
        hint = "shows no GPU" if node.loaded("amdgpu") else "is not loaded (modprobe amdgpu)"
        raise PartitionError(f"No AMD GPU on this node: the amdgpu driver {hint}.")
    chosen = select(gpus, request.gpus)
    target = _target(gpus, request, chosen, journal)
    tools, release = node.tools()
    ways, warnings = backends(request.backend, tools)
    found: list[GpuHolder] = []
    stranded: tuple[PartitionedGpu, ...] = ()
    if request.clean or not target.reached(gpus) or journal:
        found = node.holders()
        if request.clean and not found:
            stranded = checks.stranded_gpus(gpus)
    plan = PartitionPlan(gpus, target, ways, tools, release, warnings, found, journal, stranded)
    if not target.reached(gpus) or stranded:
        checks.check_possible(gpus, target, chosen, euid=node.euid(), virtual=node.virtual())
        if unmanaged_holders(found):
            node.sleep(GRACE)
            plan.holders = node.holders()
            if unmanaged_holders(plan.holders):
                raise PartitionError(foreign_message(unmanaged_holders(plan.holders)))
        silent = _silent(node, plan, min(ANSWER, request.timeout / 4))
        plan.backends, plan.warnings = ways[len(silent) :], (*warnings, *silent)
    return plan


def _silent(node: NodeInterface, plan: PartitionPlan, timeout: float) -> tuple[str, ...]:
    """Return warnings about the tools that do not answer, up to the first that does. Raise PartitionError if none does.

    Whatever it answers: what it makes of a change is judged then. Before anything is stopped, nothing has to be undone.
    """
    found: list[str] = []
    for number, way in enumerate(plan.backends, 1):
        if way not in QUERIES:  # sysfs: the modes were read there
            break
        try:
            node.run(Command((str(plan.tools[way]), *QUERIES[way])), timeout)
            break
        except PartitionError as error:
            if number == len(plan.backends):
                raise PartitionError(
                    f"{way} does not answer: {error}. Nothing was stopped or changed. See dmesg | grep amdgpu; with "
                    "backend sysfs no tool is needed."
                ) from None
            found.append(f"{way} does not answer: {error}. Using {plan.backends[number]}.")
    return tuple(found)


def _target(
    gpus: Sequence[PartitionedGpu], request: PartitionRequest, chosen: Sequence[int], journal: Journal | None
) -> TargetModes:
    now = present(gpus)
    if request.compute is None and request.memory is None:
        return earlier(gpus, journal) if journal else now
    compute = dict(now.compute)
    if request.compute is not None:
        compute.update(dict.fromkeys(chosen, request.compute))
    return TargetModes(request.memory, compute)


def earlier(gpus: Sequence[PartitionedGpu], journal: Journal) -> TargetModes:
    """Return the GPUs' modes before an interrupted change."""
    compute = {
        gpu.index: journal.before_compute[gpu.bdf] for gpu in gpus if gpu.bdf in journal.before_compute
    }
    return TargetModes(journal.before_memory, compute)


def predict(node: NodeInterface, plan: PartitionPlan, request: PartitionRequest) -> PartitionResult:
    """Predict the outcome of `Transaction.run`, for check mode."""
    actions: list[str] = []
    changing = not plan.target.reached(plan.gpus)
    error = None
    if plan.needed:
        stops = stops_of(node, plan, request) if changing or plan.stranded else ()
        actions += [f"stop {item.text}" for item in stops]
        if plan.stranded and not plan.target.memory_differs(plan.gpus):
            actions += [" ".join(UNLOAD), " ".join(LOAD)]
        way = plan.backends[0]
        actions += expected_steps(way, plan.tools.get(way), plan.release, plan.gpus, plan.target)
        actions += node.refresh_cdi(check=True)[0]
        cut_off = plan.journal.stopped if plan.journal else ()
        restored = [item for item in dict.fromkeys((*cut_off, *stops)) if item.kind != "instance"]
        actions += [f"start {item.text}" for item in reversed(restored)]
    else:
        error = checks.verify(plan.gpus, plan.target, node.loaded("ast"))
    return PartitionResult(
        changed=plan.needed,
        before=gpu_entries(plan.gpus),
        after=gpu_entries(predicted_gpus(plan.gpus, plan.target)),
        backend=plan.backends[0] if changing else None,
        actions=actions,
        warnings=list(plan.warnings) if changing else [],
        stopped=[],
        error=error,
    )


def stops_of(node: NodeInterface, plan: PartitionPlan, request: PartitionRequest) -> tuple[Service, ...]:
    """Return the services to stop: the requested instances that run, and the holders that may be stopped."""
    named = [item for item in request.servers if node.alive(item)]
    return tuple(dict.fromkeys((*named, *services(plan.holders))))
