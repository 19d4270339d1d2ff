# SPDX-License-Identifier: Apache-2.0
"""Build the flags that combine several GPUs, servers and hosts into one engine, for a vLLM release.

It also builds the options of the servers' supervisors, which start and end as a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....module_utils.common.errors import Problem
from ....module_utils.common.hashing import canonical, text_hash
from ....module_utils.content.urls import with_brackets
from ...knowledge.vllm.flags import FlagTable, absence_finding
from ..desired.deployment import Deployment
from ..desired.reasons import Reason, deployment_key
from ..placement.ranks import Rank, has_external_ranks
from ..placement.slots import Slot
from .tune import TunedSettings

LAUNCH = "vllm-source"
RAY = "vllm-issue-5567"
RAY_DEVICES = "vllm-docker"
"""Sources; keys of catalog/sources.yml."""


@dataclass(frozen=True)
class Argument:
    """A flag as in engine_args, with its value and the reason; True is a flag without a value."""

    flag: str
    value: str | int | bool | list[str]
    reason: str
    source: str


def uses_ray(deployment: Deployment, table: FlagTable) -> bool:
    """Return whether Ray connects the hosts of an instance: if requested, or if vLLM has no launcher of its own yet.

    On ROCm vLLM never chooses Ray by itself, so the flags must name it.
    """
    if deployment.nodes == 1 or deployment.data_parallel_size > 1:
        return False
    asked = (
        dict(deployment.engine_args).get("distributed_executor_backend"),
        dict(deployment.settings).get("executor"),
    )
    return "ray" in asked or table.get("nnodes") is None


def parallel_args(deployment: Deployment, slot: Slot, table: FlagTable) -> tuple[Argument, ...]:
    """Return the flags of one server. A Ray worker gets its head's flags, but its supervisor does not run vLLM."""
    ray = uses_ray(deployment, table)
    rank = slot.rank
    found = list(_sizes(deployment))
    if rank is None:
        return tuple(found)
    if ray:
        reason = "the engine spans hosts, and vLLM on ROCm uses Ray only when it is named"
        found.append(Argument("distributed_executor_backend", "ray", reason, RAY))
    elif deployment.data_parallel_size > 1:
        found += _data_parallel(deployment, rank)
    else:
        found += _nodes(deployment, rank)
    return tuple(found)


def launcher_since(table: FlagTable) -> str:
    """Return the first release with a launcher for several hosts."""
    return str(table.ever["--nnodes"]["present"][0][0])


def parallel_problems(deployment: Deployment, table: FlagTable) -> tuple[Problem, ...]:
    """Return the features of the deployment that a release does not have, with the release that introduced them."""
    if uses_ray(deployment, table):
        return _other_executor(deployment, table)
    wanted = {}
    if deployment.data_parallel_size > 1:
        wanted["data_parallel_size"] = "data_parallel_size"
        if has_external_ranks(deployment):
            wanted["data_parallel_rank"] = "data_parallel_balancing"
        elif deployment.nodes > 1:
            wanted["data_parallel_size_local"] = "nodes"
            if deployment.data_parallel_balancing == "hybrid":
                wanted["data_parallel_hybrid_lb"] = "data_parallel_balancing"
    found = []
    for flag, key in wanted.items():
        finding = None if table.get(flag) else absence_finding(table, "--" + flag.replace("_", "-"))
        if finding is not None and finding.is_error:
            what = f"needs {finding.subject}, which {finding.what}."
            found.append(Problem((*deployment.path, key), what, "Use an image with a newer vLLM."))
    return tuple(found)


def _other_executor(deployment: Deployment, table: FlagTable) -> tuple[Problem, ...]:
    """Return a problem if the operator configured another executor than Ray, and the release needs Ray over hosts."""
    for where, key, values in (
        ("engine_args", "distributed_executor_backend", deployment.engine_args),
        ("settings", "executor", deployment.settings),
    ):
        asked = dict(values).get(key)
        if asked not in (None, "ray"):
            since = launcher_since(table)
            what = (
                f"{asked} cannot span hosts in vLLM {table.release.requested}; {since} is the first that can."
            )
            fix = "Use a newer vLLM, or leave it out: older releases join hosts with Ray."
            return (Problem((*deployment.path, where, key), what, fix),)
    return ()


def ray_env(slot: Slot, table: FlagTable) -> tuple[Reason, ...]:
    """Return the variables of engines that use Ray; the engine uses every GPU of a container."""
    if slot.rank is None or not uses_ray(slot.deployment, table):
        return ()
    reason = (
        "keeps Ray from setting visible devices: HIP reads them only once, before Ray would narrow them down"
    )
    names = ("HIP", "ROCR")
    return tuple(
        Reason(f"RAY_EXPERIMENTAL_NOSET_{name}_VISIBLE_DEVICES", "1", reason, RAY_DEVICES) for name in names
    )


def group_args(slot: Slot, tuned: TunedSettings, image: str, commit: str) -> tuple[tuple[str, ...], ...]:
    """Return the options by which the supervisors of an engine's servers find each other, one line each.

    There are none for a single server. Servers with another image, model, configuration or group of hosts do not belong
    to the engine: during an upgrade, a new server waits until the others are new too.
    """
    rank = slot.rank
    if rank is None:
        return ()
    deployment = slot.deployment
    first = slot.index - rank.number % (rank.servers // rank.nodes)
    own = [f"{deployment.name}-{first + place}" for place in range(rank.servers // rank.nodes)]
    names = [f"{host}/{name}" if len(own) > 1 else host for host in rank.hosts for name in own] or own
    sizes = [(item.flag, item.value) for item in _sizes(deployment)]
    what = [image, commit, deployment.model, sizes, dict(tuned.args), dict(tuned.env), names]
    engine = f"{deployment.name}-{first}@{text_hash(canonical(what))[:12]}"
    found: list[tuple[str, ...]] = [
        ("--engine", engine),
        ("--group", f"{with_brackets(rank.master)}:{rank.group_port}"),
        ("--hosts", ",".join(names)),
        ("--rank", str(rank.number)),
    ]
    if uses_ray(deployment, tuned.table):
        head = rank.number == 0
        meet = str(rank.master_port) if head else f"{with_brackets(rank.master)}:{rank.master_port}"
        found.append(("--ray-head" if head else "--ray-worker", meet))
        if slot.network:
            found.append(("--ray-ip", slot.network.place.address))
        found.append(("--ray-gpus", str(len(slot.gpus))))
        # Any free ports: Ray's own range, 10002 to 19999, may contain ports of instances.
        found += [(f"--ray-arg=--{end}-worker-port=0",) for end in ("min", "max")]
    return tuple(found)


def _sizes(deployment: Deployment) -> Iterator[Argument]:
    for key, size, reason in (
        (
            "tensor_parallel_size",
            deployment.tensor_parallel_size,
            "every layer is divided over this many GPUs",
        ),
        (
            "pipeline_parallel_size",
            deployment.pipeline_parallel_size,
            "the layers are divided over this many groups of GPUs",
        ),
        (
            "data_parallel_size",
            deployment.data_parallel_size,
            "this many replicas of everything but the experts, with a KV cache each",
        ),
    ):
        if size > 1:
            yield Argument(key, size, reason, deployment_key(deployment, key))


def _nodes(deployment: Deployment, rank: Rank) -> Iterator[Argument]:
    """Yield the flags of vLLM's own launcher: tensor and pipeline groups over hosts."""
    together = f"{', '.join(rank.hosts)} run one engine"
    yield Argument("nnodes", rank.nodes, together, deployment_key(deployment, "nodes"))
    yield Argument("node_rank", rank.node_rank, "the host's place in the group, in natural order", LAUNCH)
    yield Argument("master_addr", rank.master, f"the address of {rank.hosts[0]}, the first host", LAUNCH)
    yield Argument("master_port", rank.master_port, "follows from the deployment's port", LAUNCH)
    if rank.headless:
        yield _headless(rank)


def _data_parallel(deployment: Deployment, rank: Rank) -> Iterator[Argument]:
    balancing = deployment_key(deployment, "data_parallel_balancing")
    where = f"the address of {rank.hosts[0]}, the first host" if rank.hosts else "all ranks are on this host"
    if has_external_ranks(deployment):
        reason = "each rank is a server of its own, and the proxy in front of them balances"
        yield Argument("data_parallel_rank", rank.data_rank, reason, balancing)
    else:
        local = deployment.data_parallel_size // rank.nodes
        reason = f"the ranks are divided over {rank.nodes} hosts"
        yield Argument("data_parallel_size_local", local, reason, deployment_key(deployment, "nodes"))
        if rank.data_rank:
            reason = "the first of this host's ranks"
            yield Argument("data_parallel_start_rank", rank.data_rank, reason, LAUNCH)
        if deployment.data_parallel_balancing == "hybrid":
            reason = "each host serves, and balances over its own ranks"
            yield Argument("data_parallel_hybrid_lb", True, reason, balancing)
    yield Argument("data_parallel_address", rank.master, where, LAUNCH)
    yield Argument("data_parallel_rpc_port", rank.master_port, "follows from the deployment's port", LAUNCH)
    if rank.headless:
        yield _headless(rank)


def _headless(rank: Rank) -> Argument:
    return Argument("headless", True, f"{rank.hosts[0]} answers for the whole group", LAUNCH)
