# SPDX-License-Identifier: Apache-2.0
"""Compose an instance from a deployment and a host's GPUs: command, environment, container, with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.paths import KEYS_DIR, cache_dir, container_name, instance_dir, lib_dir
from ....module_utils.content.image_ref import parse_ref
from ....module_utils.credentials.secret_files import MOUNT as SECRETS_MOUNT
from ....module_utils.credentials.secret_files import secrets_dir
from ....module_utils.engines.mounts import CACHE_MOUNT, HF_MOUNT, INSTANCE_MOUNT, KEYS_MOUNT, LIB_MOUNT
from ....module_utils.engines.restart_policy import RESTART_LABEL, docker_policy
from ....module_utils.service.endpoint import local_address
from ...base.bundle import bundle
from ...knowledge.catalog.recipes import Advice
from ...knowledge.vllm.settings import flag_argv
from ..desired.deployment import Deployment
from ..desired.deployment_parts import Runtime
from ..desired.fleet import LOOPBACK
from ..desired.reasons import HUB_ENV, ISOLATION, VLLM_CLI, VLLM_ENV, VLLM_ROCM, Reason, deployment_key
from ..feasibility.feasibility import Feasibility
from ..pins.lockfile import ImagePin, ModelPin
from ..placement.network import VERBS as RDMA
from ..placement.slots import Slot
from ..tuning.companion_models import required_repositories
from ..tuning.parallel import Argument, group_args, parallel_args, ray_env
from ..tuning.tune import TunedSettings
from .cache_key import cache_key, warm_start_variables
from .capabilities import capabilities
from .load_strategy import load_args

LEAVING = 30
"""Seconds in addition to those for running requests, before Docker kills it: 8 for load balancers to leave (the
supervisor's Times.leave), 20 for vLLM to exit when its last request has ended or its time is over."""
CONTAINERS = "rocm-containers"
GUARD = "instinct_guard.Guard"
"""The middleware that closes what vLLM leaves open without a key, and with which load balancers leave in time."""


@dataclass(frozen=True)
class Instance:
    """One vLLM server, complete but for its rendered files; hosts of one kind share it, where they listen alike."""

    slot: Slot
    listen: str
    group: tuple[tuple[str, ...], ...]
    image: str
    commit: str
    argv: tuple[tuple[str, ...], ...]
    env: tuple[tuple[str, str], ...]
    binds: tuple[str, ...]
    group_ids: tuple[int, ...]
    reasons: tuple[Reason, ...]
    tuned: TunedSettings
    verdict: Feasibility
    key_mark: str = ""  # of the key that it asks for
    secrets_mark: str = ""  # of its secret variables

    @property
    def name(self) -> str:
        """<deployment>-<index>."""
        return self.slot.name

    @property
    def deployment(self) -> Deployment:
        """Return the deployment of which it is an instance."""
        return self.slot.deployment

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what vLLM would accept although it is probably not meant."""
        return (*self.tuned.warnings, *self.verdict.warnings)

    @property
    def hints(self) -> tuple[Advice, ...]:
        """Return what documents say of such a deployment."""
        return (*self.tuned.advice, *self.verdict.quotes)

    @property
    def not_taken(self) -> tuple[Reason, ...]:
        """Return the options with which documents start containers and that this one does not need."""
        runtime = self.slot.deployment.runtime
        found = []
        if not runtime.privileged:
            why = (
                "servers reach their GPUs through /dev/kfd and /dev/dri alone; /dev/mem is the host's memory"
            )
            found.append(Reason("device", "/dev/mem", why, CONTAINERS))
        if not runtime.privileged and "SYS_ADMIN" not in runtime.cap_add:
            why = "it is for profilers; a server that is profiled gets it by runtime.cap_add"
            found.append(Reason("capability", "CAP_SYS_ADMIN", why, CONTAINERS))
        return tuple(found)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the device files of the container: the driver's, a render node per GPU, and those of RDMA."""
        network = self.slot.network.devices if self.slot.network else ()
        return ("/dev/kfd", *(f"/dev/dri/{gpu.render_node}" for gpu in self.slot.gpus), *network)

    @property
    def headless(self) -> bool:
        """Return whether it works for another server of its group, and answers no requests."""
        return self.slot.rank is not None and self.slot.rank.headless

    @property
    def probe_host(self) -> str:
        """Return the address at which the node itself reaches the server."""
        return local_address(self.listen)

    def to_json(self, spec_hash: str) -> dict[str, Any]:
        """Return the plan's INSTANCE without its host."""
        deployment, slot, rank, fit = self.deployment, self.slot, self.slot.rank, self.verdict.fit
        return {
            "name": self.name,
            "deployment": deployment.name,
            "index": slot.index,
            "model": deployment.model,
            "revision": None if deployment.local_model else deployment.revision,
            "commit": self.commit or None,
            "served_model": deployment.served_model_name,
            "image": self.image,
            "vllm": self.tuned.release.requested,
            "objective": deployment.objective or None,
            "port": slot.port,
            "gpus": [gpu.index for gpu in slot.gpus],
            "render_nodes": [gpu.render_node for gpu in slot.gpus],
            "argv": [word for group in self.argv for word in group],
            "env": dict(self.env),
            "devices": list(self.devices),
            "ports": list(slot.ports),
            "cpus": slot.cpus or None,
            "rank": rank.to_json() if rank else None,
            "spec_hash": spec_hash,
            "reasons": [reason.to_json() for reason in self.reasons],
            "chosen": list(self.tuned.chosen),
            "advice": [item.to_json() for item in self.verdict.advice],
            "hints": [item.to_json() for item in self.hints],
            "notes": list(self.verdict.notes),
            "warnings": list(self.warnings),
            "fit": fit.to_json() if fit else None,
            "decode_step": step.to_json() if (step := self.verdict.step) else None,
        }


@dataclass(frozen=True)
class Surroundings:
    """What an instance has from its node.

    listen: the address to listen at. hub_dir: the hub's cache. group_ids: of the groups that own the GPUs' device
    files. key_mark: of the key that it asks for, secrets_mark: of its secret variables; "" for none. keys: it can read
    the node's key, with which the supervisors of an engine know each other. file_system: the network one that holds the
    hub's cache, "" for a local one. image: the name by which its Docker knows the image, where that is not its own.
    """

    listen: str
    hub_dir: str
    group_ids: tuple[int, ...] = ()
    key_mark: str = ""
    secrets_mark: str = ""
    keys: bool = False
    file_system: str = ""
    image: str = ""


@dataclass(frozen=True)
class Pins:
    """What the lock file says of a deployment's image and model; None where they are not pinned."""

    image: ImagePin | None = None
    model: ModelPin | None = None


def compose(
    slot: Slot, node: Surroundings, pins: Pins, tuned: TunedSettings, verdict: Feasibility
) -> Instance:
    """The instance of a slot: the toolkit's own flags and variables, and what was decided for its deployment."""
    deployment = slot.deployment
    commit = pins.model.commit if pins.model else ""
    image = pull_ref(deployment, pins.image)
    own = [
        item
        for item in (
            *_own_args(slot, node.listen, commit),
            *_stop_args(deployment, tuned),
            *load_args(deployment, tuned, node.file_system),
            *parallel_args(deployment, slot, tuned.table),
        )
        if f"--{item.flag.replace('_', '-')}" not in tuned.args  # the operator's own, with the same meaning
    ]
    argv: list[tuple[str, ...]] = [("vllm", "serve", deployment.model)]
    argv += [tuple(flag_argv(tuned.table, item.flag, item.value)) for item in own]
    argv += [tuple(flag_argv(tuned.table, name, value)) for name, value in sorted(tuned.args.items())]
    guard = _guard_args(slot, tuned)
    # After the operator's own ones: vLLM's last middleware is the first to see a request.
    argv += [tuple(flag_argv(tuned.table, item.flag, item.value)) for item in guard]
    env, env_reasons = _environment(slot, tuned)
    source = deployment_key(deployment, "model")
    return Instance(
        slot=slot,
        listen=node.listen,
        group=group_args(slot, tuned, image, commit),
        image=node.image or image,
        commit=commit,
        argv=tuple(group for group in argv if group),
        env=env,
        binds=_binds(deployment, slot.name, node.hub_dir, node.keys),
        group_ids=node.group_ids,
        reasons=(
            Reason("model", deployment.model, "the deployment's model", source),
            *(_reason(item) for item in (*own, *guard)),
            *sorted(
                (item for item in tuned.reasons if item.setting in tuned.args), key=lambda item: item.setting
            ),
            *env_reasons,
            *_key_reason(deployment, node.key_mark),
            *_secret_reasons(deployment, node.secrets_mark),
            *_container_reasons(slot, node.group_ids),
        ),
        tuned=tuned,
        verdict=verdict,
        key_mark=node.key_mark,
        secrets_mark=node.secrets_mark,
    )


def pull_ref(deployment: Deployment, pin: ImagePin | None) -> str:
    """The reference by which the engine knows the image: by digest when it is pulled, by tag when built."""
    if deployment.build or pin is None:
        return deployment.image_ref
    return f"{parse_ref(deployment.image).repository}@{pin.digest}"


def _own_args(slot: Slot, listen: str, commit: str) -> tuple[Argument, ...]:
    deployment = slot.deployment
    found = []
    if not deployment.local_model:
        found.append(
            Argument(
                "revision",
                commit or deployment.revision,
                f"the commit of {deployment.revision} when it was pinned: every node serves the same weights"
                if commit
                else "the deployment's revision; it is pinned to a commit by the first online run",
                "fleet.lock.json",
            )
        )
    names = [deployment.served_model_name, *deployment.other_names]
    reason = "the names that clients ask for" if deployment.other_names else "the name that clients ask for"
    found.append(
        Argument("served_model_name", names if deployment.other_names else names[0], reason, VLLM_CLI)
    )
    if not (slot.rank and slot.rank.headless):
        key = deployment_key(deployment, "listen")
        reason = "the address to listen at"
        if not deployment.listen:
            reason = "nothing outside the host needs to reach it"
            if listen != LOOPBACK:
                reason = (
                    "the host's own address, where the load balancer of another host reaches it, and no other"
                )
        found.append(Argument("host", listen, reason, key))
        key = deployment_key(deployment, "port")
        found.append(Argument("port", slot.port, "the deployment's port plus the instance's index", key))
    return tuple(found)


def _guard_args(slot: Slot, tuned: TunedSettings) -> tuple[Argument, ...]:
    if (slot.rank and slot.rank.headless) or not tuned.table.get("middleware"):
        return ()
    reason = "needs the instance's key for all but /health and /metrics, and lets load balancers leave before a stop"
    return (Argument("middleware", GUARD, reason, VLLM_CLI),)


def _stop_args(deployment: Deployment, tuned: TunedSettings) -> tuple[Argument, ...]:
    """Return the flags without which vLLM exits as soon as it is asked to stop, and cuts running streams off."""
    if "--shutdown-timeout" in tuned.args or not tuned.table.get("shutdown_timeout"):
        return ()
    seconds = max(1, deployment.runtime.stop_timeout - LEAVING)
    reason = "running requests can finish when it is stopped; Docker waits longer, runtime.stop_timeout"
    return (Argument("shutdown_timeout", seconds, reason, VLLM_CLI),)


def stop_seconds(instance: Instance) -> int:
    """Return how long Docker waits for it to stop: longer than vLLM waits for running requests."""
    shutdown = instance.tuned.args.get("--shutdown-timeout")
    own = shutdown + LEAVING if isinstance(shutdown, int) else 0
    return max(instance.deployment.runtime.stop_timeout, own)


def _environment(slot: Slot, tuned: TunedSettings) -> tuple[tuple[tuple[str, str], ...], tuple[Reason, ...]]:
    rules = [
        Reason(
            "HF_HOME",
            f"{CACHE_MOUNT}/hf",
            "a writable place for what libraries write there, such as a model's own code",
            HUB_ENV,
        ),
        Reason(
            "HF_HUB_CACHE",
            f"{HF_MOUNT}/hub",
            "weights are shared by the host's instances, and read-only for them",
            HUB_ENV,
        ),
        Reason(
            "HF_HUB_OFFLINE",
            "1",
            "weights are there before the server starts; a start must not depend on the hub",
            HUB_ENV,
        ),
        Reason(
            "VLLM_CACHE_ROOT",
            f"{CACHE_MOUNT}/vllm",
            "compiled graphs outlive the container, so that a restart is quick",
            VLLM_ENV,
        ),
        *warm_start_variables(tuned),
        Reason(
            "VLLM_NO_USAGE_STATS",
            "1",
            "vLLM reports usage to its authors by default; that is the operator's decision",
            VLLM_ENV,
        ),
        *(slot.network.env if slot.network else ()),
        *ray_env(slot, tuned.table),
    ]
    own = {rule.setting: rule.value for rule in rules}
    env = {**own, **tuned.env}
    reasons = [rule for rule in rules if rule.setting not in tuned.env]
    reasons += [item for item in tuned.reasons if item.setting in tuned.env]
    return tuple(sorted(env.items())), tuple(sorted(reasons, key=lambda item: item.setting))


def _reason(item: Argument) -> Reason:
    value = "on" if item.value is True else str(item.value)
    return Reason(f"--{item.flag.replace('_', '-')}", value, item.reason, item.source)


def _key_reason(deployment: Deployment, mark: str) -> tuple[Reason, ...]:
    if not mark:
        return ()
    reason = "requests under /v1 need the load balancers' key; load_balancer_instance_auth: false opts out"
    return (Reason("VLLM_API_KEY", f"the key {mark}", reason, VLLM_ENV),)


def _secret_reasons(deployment: Deployment, mark: str) -> tuple[Reason, ...]:
    reason = "its value is only in a file on the node that root alone reads, and in the engine's environment"
    return tuple(
        Reason(name, f"of the secrets {mark}", reason, deployment_key(deployment, "secrets", name))
        for name, _value in deployment.secrets
    )


def lib_bind() -> str:
    """Return the mount of the program around vLLM, in Docker's form.

    Its directory is named by its hash: another program is another specification, and a container keeps the program
    with which it was created.
    """
    return f"{lib_dir(bundle('supervisor').version)}:{LIB_MOUNT}:ro"


def _binds(deployment: Deployment, name: str, hub_dir: str, key: bool) -> tuple[str, ...]:
    binds = [
        f"{instance_dir(name)}:{INSTANCE_MOUNT}:ro",
        f"{cache_dir(name)}:{CACHE_MOUNT}:rw",
        lib_bind(),
    ]
    if key:
        binds.append(f"{KEYS_DIR}:{KEYS_MOUNT}:ro")
    if deployment.secrets:
        binds.append(f"{secrets_dir(deployment.name)}:{SECRETS_MOUNT}:ro")
    if deployment.local_model:
        binds.append(f"{deployment.model}:{deployment.model}:ro")
    if required_repositories(deployment):
        binds.append(f"{hub_dir}:{HF_MOUNT}:ro")
    return (*binds, *deployment.runtime.extra_mounts)


def _container_reasons(slot: Slot, group_ids: Sequence[int]) -> tuple[Reason, ...]:
    deployment, runtime = slot.deployment, slot.deployment.runtime
    nodes = ", ".join(gpu.render_node for gpu in slot.gpus)
    network = slot.network.devices if slot.network else ()
    found = [
        *(Reason("devices", path, "RCCL reaches other hosts through RDMA devices", RDMA) for path in network),
        Reason(
            "devices",
            f"/dev/kfd, {nodes}",
            "the instance sees exactly its GPUs; no visibility variable is set, as two of them (ROCR_, "
            "HIP_VISIBLE_DEVICES) filter one after the other and can leave no device",
            ISOLATION,
        ),
    ]
    if slot.cpus:
        reason = "the CPUs of its GPUs' NUMA node: transfers do not cross sockets"
        found.append(Reason("cpuset", slot.cpus, reason, deployment_key(deployment, "runtime", "numa")))
    if group_ids:
        found.append(
            Reason(
                "groups",
                ", ".join(str(gid) for gid in group_ids),
                "the node's own numbers: a name would be looked up in the image, and may be missing there",
                VLLM_ROCM,
            )
        )
    if runtime.ipc == "host":
        reason = "RCCL and vLLM's workers exchange data through shared memory"
        found.append(Reason("ipc", "host", reason, VLLM_ROCM))
    else:
        reason = "Docker's default of 64 MiB is too little for RCCL"
        found.append(Reason("shm_size", str(runtime.shm_size), reason, VLLM_ROCM))
    added, dropped = capabilities(runtime.cap_add, slot.ports)
    found.append(
        Reason(
            "capabilities",
            f"{', '.join(added)}, seccomp unconfined, no-new-privileges",
            "HIP's IPC between workers needs the first two; a setuid program in the image or a cache gains nothing",
            VLLM_ROCM,
        )
    )
    add_back = deployment_key(deployment, "runtime", "cap_add")
    found.append(
        Reason("dropped", ", ".join(dropped), "no engine uses them; runtime.cap_add adds one back", add_back)
    )
    if runtime.privileged:
        asked = deployment_key(deployment, "runtime", "privileged")
        found.append(Reason("privileged", "true", "set by the deployment; not needed for serving", asked))
    return tuple(found)


def supervise_args(slot: Slot) -> tuple[tuple[str, ...], ...]:
    """Return the options of the program around vLLM (programs/supervisor/main.py), a line of serve.sh each.

    It waits until GPUs are clean if the instance has them to itself. The driver counts memory in use per physical
    GPU: where that is partitioned or shared, others may use it.
    """
    alone = slot.share == 1 and all(gpu.whole for gpu in slot.gpus)
    limit = slot.deployment.runtime.hang_timeout
    hang = (("--time", f"hang={limit}"),) if limit != Runtime.hang_timeout else ()
    return (*(("--gpu", gpu.render_node) for gpu in slot.gpus if alone), *hang)


_POLICIES = {"unless-stopped": "always", "on-failure": "on-failure:3", "no": "no"}
"""Docker's restart policy by runtime.restart; docker/lifecycle.py changes it while an instance is stopped."""


def container(instance: Instance) -> dict[str, Any]:
    """Return the body of the Docker Engine API's create call, without the label that holds the artefact's hash."""
    deployment, runtime = instance.deployment, instance.deployment.runtime
    added, dropped = capabilities(runtime.cap_add, instance.slot.ports)
    host: dict[str, Any] = {
        "Binds": list(instance.binds),
        "CapAdd": added,
        "CapDrop": dropped,
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
            for path in instance.devices
        ],
        "GroupAdd": [str(gid) for gid in instance.group_ids],
        "Init": True,
        "IpcMode": runtime.ipc,
        "LogConfig": {"Type": "json-file", "Config": {"max-file": "3", "max-size": "50m"}},
        "NetworkMode": "host",
        "RestartPolicy": docker_policy(_POLICIES[runtime.restart]),
        "SecurityOpt": ["no-new-privileges", "seccomp=unconfined"],
        "Ulimits": [{"Name": name, "Soft": soft, "Hard": hard} for name, soft, hard in runtime.ulimits],
    }
    if runtime.ipc != "host":
        host["ShmSize"] = runtime.shm_size
    if runtime.memory is not None:
        host["Memory"] = runtime.memory
    if instance.slot.cpus:
        # Not CpusetMems: memory is taken from the CPU's own node first anyway, and may come from the other one
        # before the kernel kills a process when memory runs out.
        host["CpusetCpus"] = instance.slot.cpus
    if runtime.privileged:
        host["Privileged"] = True
    return {
        "Image": instance.image,
        "Entrypoint": ["/bin/bash", f"{INSTANCE_MOUNT}/serve.sh"],
        "Labels": {
            "instinct-fleet.instance": instance.name,
            "instinct-fleet.deployment": deployment.name,
            RESTART_LABEL: _POLICIES[runtime.restart],
        },
        "StopTimeout": stop_seconds(instance),
        "HostConfig": host,
    }


def server(instance: Instance, files: Mapping[str, str], spec_hash: str) -> dict[str, Any]:
    """Return SERVER of the plan: what the module vllm_server converges."""
    claim = instance.verdict.attention
    runtime = instance.deployment.runtime
    secrets = {"secrets": instance.secrets_mark} if instance.secrets_mark else {}
    fit = instance.verdict.fit
    predicted = fit.predicted.kv_cache_tokens if fit and fit.predicted else None
    modes = {"serve.sh": "0755", "env": "0600", "container.json": "0600"}
    return {
        "name": instance.name,
        "deployment": instance.deployment.name,
        "container_name": container_name(instance.name),
        "directory": instance_dir(instance.name),
        "cache_directory": cache_dir(instance.name),
        "cache_key": cache_key(instance.argv, instance.verdict.start_key),
        "files": {name: {"text": text, "mode": modes[name]} for name, text in sorted(files.items())},
        "spec_hash": spec_hash,
        "container": container(instance),
        "image": instance.image,
        "port": instance.slot.port,
        "host": instance.probe_host,
        "served_model": instance.deployment.served_model_name,
        "headless": instance.headless,
        "attention": claim.to_json() if claim else None,
        "memory": {
            "key": instance.verdict.start_key,
            "predicted_tokens": list(predicted) if predicted else None,
        },
        "ready_timeout": runtime.ready_timeout,
        "stop_timeout": stop_seconds(instance),
        **secrets,
    }
