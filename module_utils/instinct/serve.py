# SPDX-License-Identifier: Apache-2.0
"""From a deployment and a host's GPUs to an instance: command, environment, container, with reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .deployment import Deployment
from .deployment_parts import Flag
from .lock import ImagePin, ModelPin, parse_ref
from .places import CACHE_MOUNT, HF_MOUNT, INSTANCE_MOUNT, cache_dir, container_name, instance_dir
from .topology import LogicalGpu

# Sources, named once.
VLLM_CLI = "vLLM documentation: cli/serve"
VLLM_ENV = "vLLM documentation: configuration/env_vars"
VLLM_ROCM = "vLLM documentation: getting_started/installation/gpu (ROCm)"
HUB_ENV = "huggingface_hub documentation: package_reference/environment_variables"
ISOLATION = "ROCm documentation: conceptual/gpu-isolation"


@dataclass(frozen=True)
class Reason:
    """Why a setting has its value."""

    setting: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True)
class Instance:
    """One vLLM server, complete but for its rendered files; hosts of one kind share it."""

    name: str
    deployment: Deployment
    index: int
    port: int
    gpus: tuple[LogicalGpu, ...]
    image: str
    commit: str
    argv: tuple[tuple[str, ...], ...]
    env: tuple[tuple[str, str], ...]
    binds: tuple[str, ...]
    group_ids: tuple[int, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Device files that the container gets: the driver's one, and a render node per GPU."""
        return ("/dev/kfd", *(f"/dev/dri/{gpu.render_node}" for gpu in self.gpus))

    @property
    def probe_host(self) -> str:
        """The address at which the node itself reaches the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.deployment.listen, self.deployment.listen)

    def to_json(self, spec_hash: str) -> dict[str, Any]:
        """INSTANCE of the plan, but for its host."""
        deployment = self.deployment
        return {
            "name": self.name,
            "deployment": deployment.name,
            "index": self.index,
            "model": deployment.model,
            "revision": None if deployment.local_model else deployment.revision,
            "commit": self.commit or None,
            "served_model": deployment.served_model_name,
            "image": self.image,
            "port": self.port,
            "gpus": [gpu.index for gpu in self.gpus],
            "render_nodes": [gpu.render_node for gpu in self.gpus],
            "argv": [word for group in self.argv for word in group],
            "env": dict(self.env),
            "devices": list(self.devices),
            "ports": [self.port],
            "spec_hash": spec_hash,
            "reasons": [dict(vars(reason)) for reason in self.reasons],
            "warnings": list(self.warnings),
            "fit": None,
        }


def compose(
    deployment: Deployment,
    index: int,
    gpus: Sequence[LogicalGpu],
    hub_dir: str,
    group_ids: Sequence[int],
    image: ImagePin | None,
    model: ModelPin | None,
) -> Instance:
    """Instance number `index` of a deployment, on exactly these GPUs."""
    name = f"{deployment.name}-{index}"
    port = deployment.port + index
    commit = model.commit if model else ""
    argv, argv_reasons = _command(deployment, port, commit)
    env, env_reasons = _environment(deployment)
    nodes = ", ".join(gpu.render_node for gpu in gpus)
    devices = Reason(
        "devices",
        f"/dev/kfd, {nodes}",
        "the instance sees exactly its GPUs; no visibility variable is set, as two of them (ROCR_, "
        "HIP_VISIBLE_DEVICES) filter one after the other and can leave no device",
        ISOLATION,
    )
    return Instance(
        name=name,
        deployment=deployment,
        index=index,
        port=port,
        gpus=tuple(gpus),
        image=pull_ref(deployment, image),
        commit=commit,
        argv=argv,
        env=env,
        binds=_binds(deployment, name, hub_dir),
        group_ids=tuple(group_ids),
        reasons=(*argv_reasons, *env_reasons, devices, *_container_reasons(deployment, group_ids)),
    )


def pull_ref(deployment: Deployment, pin: ImagePin | None) -> str:
    """The reference by which the engine knows the image: by digest when it is pulled, by tag when built."""
    if deployment.build or pin is None:
        return deployment.image_ref
    return f"{parse_ref(deployment.image).repository}@{pin.digest}"


def _command(
    deployment: Deployment, port: int, commit: str
) -> tuple[tuple[tuple[str, ...], ...], tuple[Reason, ...]]:
    groups: list[tuple[str, ...]] = [("vllm", "serve", deployment.model)]
    source = _key(deployment, "model")
    reasons = [Reason("model", deployment.model, "the deployment's model", source)]

    def add(flag: str, value: str, reason: str, source: str) -> None:
        groups.append((flag, value))
        reasons.append(Reason(flag, value, reason, source))

    if not deployment.local_model:
        revision = commit or deployment.revision
        add(
            "--revision",
            revision,
            f"what {deployment.revision} was when it was pinned: every node serves the same weights",
            "fleet.lock.json",
        )
    add("--served-model-name", deployment.served_model_name, "the name that clients ask for", VLLM_CLI)
    add("--host", deployment.listen, "the address to listen at", _key(deployment, "listen"))
    add("--port", str(port), "the deployment's port plus the instance's index", _key(deployment, "port"))
    if deployment.tensor_parallel_size > 1:
        size = str(deployment.tensor_parallel_size)
        key = _key(deployment, "tensor_parallel_size")
        add("--tensor-parallel-size", size, "one shard of the model per GPU of the instance", key)
    for name, value in deployment.engine_args:
        words = flag_words(name, value)
        if words:
            groups.append(words)
            asked = _key(deployment, "engine_args", name)
            reasons.append(Reason(words[0], " ".join(words[1:]), "set by the deployment", asked))
    return tuple(groups), tuple(reasons)


def flag_words(name: str, value: Flag) -> tuple[str, ...]:
    """A vLLM flag's words: true → --x, false → --no-x, None → none, list → --x a b, map → --x '{…}'."""
    flag = "--" + name.replace("_", "-")
    if value is None:
        return ()
    if isinstance(value, bool):
        return (flag,) if value else ("--no-" + flag[2:],)
    if isinstance(value, Mapping):
        return (flag, json.dumps(value, sort_keys=True, separators=(",", ":")))
    if isinstance(value, tuple):
        return (flag, *(str(item) for item in value))
    return (flag, str(value))


def _environment(deployment: Deployment) -> tuple[tuple[tuple[str, str], ...], tuple[Reason, ...]]:
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
        Reason(
            "VLLM_NO_USAGE_STATS",
            "1",
            "vLLM reports usage to its authors unless told not to; a fleet's operator decides that",
            VLLM_ENV,
        ),
    ]
    asked = dict(deployment.env)
    env = {**{rule.setting: rule.value for rule in rules}, **asked}
    reasons = [rule for rule in rules if rule.setting not in asked]
    reasons += [
        Reason(key, value, "set by the deployment", _key(deployment, "env", key))
        for key, value in deployment.env
    ]
    return tuple(sorted(env.items())), tuple(reasons)


def _binds(deployment: Deployment, name: str, hub_dir: str) -> tuple[str, ...]:
    binds = [f"{instance_dir(name)}:{INSTANCE_MOUNT}:ro", f"{cache_dir(name)}:{CACHE_MOUNT}:rw"]
    if deployment.local_model:
        binds.append(f"{deployment.model}:{deployment.model}:ro")
    else:
        binds.append(f"{hub_dir}:{HF_MOUNT}:ro")
    return (*binds, *deployment.runtime.extra_mounts)


def _container_reasons(deployment: Deployment, group_ids: Sequence[int]) -> tuple[Reason, ...]:
    runtime = deployment.runtime
    found = []
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
    found.append(
        Reason(
            "capabilities",
            "SYS_PTRACE, seccomp unconfined",
            "HIP's IPC between workers needs them",
            VLLM_ROCM,
        )
    )
    if runtime.privileged:
        asked = _key(deployment, "runtime", "privileged")
        found.append(Reason("privileged", "true", "set by the deployment; not needed for serving", asked))
    return tuple(found)


def container(instance: Instance) -> dict[str, Any]:
    """The Docker Engine API's create body, but for the label that holds the artefact's hash."""
    deployment, runtime = instance.deployment, instance.deployment.runtime
    host: dict[str, Any] = {
        "Binds": list(instance.binds),
        "CapAdd": ["SYS_PTRACE"],
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
            for path in instance.devices
        ],
        "GroupAdd": [str(gid) for gid in instance.group_ids],
        "Init": True,
        "IpcMode": runtime.ipc,
        "LogConfig": {"Type": "json-file", "Config": {"max-file": "3", "max-size": "50m"}},
        "NetworkMode": "host",
        "RestartPolicy": {"Name": runtime.restart},
        "SecurityOpt": ["seccomp=unconfined"],
        "Ulimits": [{"Name": name, "Soft": soft, "Hard": hard} for name, soft, hard in runtime.ulimits],
    }
    if runtime.restart == "on-failure":
        host["RestartPolicy"]["MaximumRetryCount"] = 3
    if runtime.ipc != "host":
        host["ShmSize"] = runtime.shm_size
    if runtime.memory is not None:
        host["Memory"] = runtime.memory
    if runtime.privileged:
        host["Privileged"] = True
    return {
        "Image": instance.image,
        "Entrypoint": ["/bin/bash", f"{INSTANCE_MOUNT}/serve.sh"],
        "Labels": {
            "instinct-fleet.instance": instance.name,
            "instinct-fleet.deployment": deployment.name,
        },
        "StopTimeout": runtime.stop_timeout,
        "HostConfig": host,
    }


def server(instance: Instance, files: Mapping[str, str], spec_hash: str) -> dict[str, Any]:
    """SERVER of the plan: what the module vllm_server converges."""
    runtime = instance.deployment.runtime
    modes = {"serve.sh": "0755", "env": "0600", "container.json": "0600"}
    return {
        "name": instance.name,
        "deployment": instance.deployment.name,
        "container_name": container_name(instance.name),
        "directory": instance_dir(instance.name),
        "cache_directory": cache_dir(instance.name),
        "files": {name: {"text": text, "mode": modes[name]} for name, text in sorted(files.items())},
        "spec_hash": spec_hash,
        "container": container(instance),
        "image": instance.image,
        "port": instance.port,
        "host": instance.probe_host,
        "served_model": instance.deployment.served_model_name,
        "ready_timeout": runtime.ready_timeout,
        "stop_timeout": runtime.stop_timeout,
    }


def _key(deployment: Deployment, *keys: str) -> str:
    # By name, not by place in the list: a plan does not depend on the order of its input.
    return f"deployment {deployment.name}: {'.'.join(keys)}"
