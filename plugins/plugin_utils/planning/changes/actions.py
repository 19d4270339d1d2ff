# SPDX-License-Identifier: Apache-2.0
"""Compare a host's desired state with what exists, one function per resource."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.content.image_ref import parse_ref
from ....module_utils.content.transfer_names import image_name
from ....module_utils.credentials.instance_key import InstanceKey
from ...base.json_record import JsonRecord
from ..desired.actions import ALIVE, Action, Kind, has_build, has_image, size
from ..desired.deployment import Deployment
from ..desired.deployment_parts import Build
from ..desired.fleet import Host
from ..desired.weights_formats import same_patterns
from ..instances.planned import Serving, running_member
from ..observed.gpu_health import needs_reload
from ..observed.node_state import CachedWeights, NodeState, ObservedInstance
from ..observed.packages import build_packages
from ..pins.lockfile import Lock, ModelPin
from ..pins.registry_override import pulled_name
from ..tuning.companion_models import ADAPTER, DRAFT, MODEL, TOKENIZER, ModelRepository, required_repositories
from .downloads import Download

RCCL = "ROCm/rccl src/init.cc (its warning at start); ROCm/system-acceptance-docs os-tuning.md"
PARTITIONING = "ROCm/amdgpu-docs docs/gpu-partitioning"
HUB = "huggingface_hub documentation: guides/download"
IMAGE_CATALOG = "catalog/images.yml"
PARTITION_KINDS = frozenset(("memory_partition", "compute_partition", "partition_change", "gpu_clean"))


@dataclass(frozen=True)
class ImageStep:
    """An image to pull or build."""

    ref: str
    pull: str
    digest: str
    bytes: int | None
    registry: str
    build: Build | None
    offered: bool = False  # other hosts get it from here
    source: str = ""  # the host that has or builds it for this one
    image_id: str = ""  # of a build: the id of the image that all hosts have
    of_build: bool = False  # pulled from the registry to which a host has pushed its build

    @property
    def awaited(self) -> bool:
        """Return whether another host pushes it in this run; the pull is planned afterwards."""
        return bool(self.source and self.build and self.build.push_to)

    def to_json(self) -> dict[str, Any]:
        """Return the arguments of the role vllm_image; pull and digest are null for an image that is built."""
        return {
            "ref": self.ref,
            "pull": self.pull or None,
            "digest": self.digest or None,
            "bytes": self.bytes,
            "registry": self.registry,
            "build": {**self.build.to_json(), **self._received} if self.build else None,
            **({"offered": True} if self.offered else {}),
        }

    @property
    def _received(self) -> dict[str, Any]:
        """Return the arguments of an image that another host builds."""
        found = {"image_id": self.image_id} if self.image_id else {}
        return {"from_store": True, **found} if self.source else {}


@dataclass(frozen=True)
class ModelStep(JsonRecord, omit=("hashes", "verify", "offered", "offline"), add=("bytes",)):
    """Weights to download or, if they are present, to verify by their content: the arguments of the role hf_model.

    commit: empty in a plan made without network and pin. image: in which they are fetched. hashes: of the files'
    content; none for files whose hash is not known. verify: the weights are present, and their content is compared.
    """

    repo: str
    revision: str
    commit: str
    cache_dir: str
    endpoint: str
    files: Mapping[str, int]
    exclude: tuple[str, ...]
    include: tuple[str, ...]
    image: str
    hashes: Mapping[str, str]
    verify: bool = False
    offered: bool = False  # other hosts get it from here
    offline: bool = False  # no hub is contacted

    @property
    def bytes(self) -> int:
        """Return the size of what is downloaded."""
        return 0 if self.verify else sum(self.files.values())

    @property
    def called(self) -> str:
        """Return its name in messages: the repository at its commit."""
        return f"{self.repo}@{self.commit[:12]}"


def docker_engine(host: Host) -> Action | None:
    """Return the action that installs the distribution's Docker, if needed."""
    state = host.state
    if not host.deployments or (state and (state.docker_available or state.docker_installed)):
        return None
    reason = "instances run in containers"
    return Action(
        "docker_engine", "host_prep", "docker.io", "absent", "installed", reason, "the distribution's package"
    )


def build_tools(host: Host, images: Iterable[ImageStep]) -> tuple[Action, tuple[str, ...]] | None:
    """Return the action and the packages that the host is missing to build its images; None if it has all of them."""
    if not any(image.build for image in images):
        return None
    packages = build_packages(host.state)
    if not packages:
        return None
    reason = "an image is built on this host"
    names = ", ".join(packages)
    return (
        Action(
            "build_tools", "host_prep", names, "absent", "installed", reason, "vLLM's docker/Dockerfile.rocm"
        ),
        packages,
    )


def numa_balancing(host: Host) -> Action | None:
    """Return the action that sets automatic NUMA balancing as configured, now and after a reboot."""
    wanted, state = host.settings.numa_balancing, host.state
    if wanted is None or (state is None and wanted):  # the kernel's default is on
        return None
    before = "on, as is assumed"
    if state is not None:
        if state.numa_runtime is None or _numa_matches(state, wanted):
            return None
        boot = "as the kernel decides" if state.numa_persisted is None else _on(bool(state.numa_persisted))
        before = f"{_on(bool(state.numa_runtime))} now, {boot} after a reboot"
    reason = (
        "host_prep_numa_balancing is true"
        if wanted
        else "moving pages between sockets makes transfers between CPU, GPU and network vary"
    )
    after = f"{_on(wanted)} now and after a reboot"
    return Action("numa_balancing", "host_prep", "kernel.numa_balancing", before, after, reason, RCCL)


def instance_key(host: Host, key: InstanceKey, stored: bool = False) -> Action | None:
    """Return the action that installs the load balancers' key, if the host has instances behind them.

    A running instance accepts the new key in addition to its own, including one that this run stops, as it serves until
    then. With load_balancer_instance_auth: false, new instances do not ask for a key; but those started earlier do, so
    a host that has a key is kept in step with the load balancers'. stored: the host gets such instances as recorded.
    """
    before = host.state.instance_key if host.state else "unknown"
    balanced = stored or any(item.endpoint for item in host.deployments) or _balanced_at_present(host)
    followed = bool(key.mark) or (key.sent and bool(before))
    if not balanced or not followed or before == key.sent_mark:
        return None
    reason = "instances accept only requests with the load balancers' key"
    target, source = "of the load balancers", "load_balancer_instance_auth"
    return Action("instance_key", "instance_key", target, before or "absent", key.sent_mark, reason, source)


def _balanced_at_present(host: Host) -> bool:
    state = host.state
    running = (
        [running_member(state, item) for item in state.instances if item.state in ALIVE] if state else []
    )
    return any(item.backend.endpoint for item in running if item)


def _numa_matches(state: NodeState, wanted: bool) -> bool:
    if wanted:
        return bool(state.numa_runtime) and state.numa_persisted != 0
    return state.numa_runtime == 0 and state.numa_persisted == 0


def _on(value: bool) -> str:
    return "on" if value else "off"


def partition(host: Host, assumed: tuple[str, str] = ("", "")) -> tuple[Action, ...]:
    """Return the changes of the host's partition modes; only called if there is one, or a reload is needed.

    assumed: the compute and memory modes of a host that was not contacted.
    """
    settings, state = host.settings, host.state
    count = len(state.gpus) if state else host.settings.gpu_count
    compute, memory = ([mode] * count for mode in assumed)
    if state is not None:
        compute, memory = [gpu.compute or "" for gpu in state.gpus], [gpu.memory or "" for gpu in state.gpus]
    found = []
    if settings.memory and any(mode != settings.memory for mode in memory):
        after = f"{settings.memory}, which reloads the driver"
        variable = "gpu_partition_memory"
        found.append(
            _partition(host, "memory_partition", _modes(host, memory), after, variable, settings.memory)
        )
    if settings.compute and any(mode != settings.compute for mode in compute):
        wanted, variable = settings.compute, "gpu_partition_compute"
        found.append(_partition(host, "compute_partition", _modes(host, compute), wanted, variable, wanted))
    if state is not None and state.partition_change and not found:
        reason = "an earlier partition change was interrupted"
        before = f"interrupted at step {state.partition_change}"
        found.append(_gpu_action(host, "partition_change", before, "finished", reason))
    if settings.clean and needs_reload(state):
        reason = "gpu_clean is true"
        before = "VRAM in use that no process holds"
        found.append(_gpu_action(host, "gpu_clean", before, "free, the driver reloaded", reason))
    return tuple(found)


def unfinished_partition(
    host: Host, modes: str, wanted: Iterable[Serving], left: Collection[str]
) -> tuple[Action, ...]:
    """Return the action that finishes a change of modes after which instances of the earlier modes came back.

    They are recognised by the record of what they run: it was made for other modes than the GPUs have, and differs
    from what the host is to run. modes: of the host's GPUs. left: instances that stay as they are.
    """
    if host.state is None or not (host.settings.compute or host.settings.memory):
        return ()
    specs = {item.name: item.spec_hash for item in wanted}
    found: dict[str, list[str]] = {}
    for running in host.state.instances:
        known = running_member(host.state, running)
        made = known.generation.modes if known else ""
        if (
            made
            and made != modes
            and running.name not in left
            and specs.get(running.name) != running.spec_hash
        ):
            found.setdefault(made, []).append(running.name)
    if not found:
        return ()
    before = "; ".join(f"{', '.join(names)} as in {made}" for made, names in found.items())
    reason = "an earlier partition change was interrupted before its instances had started"
    return (_gpu_action(host, "partition_change", before, "finished", reason),)


def _partition(host: Host, kind: Kind, before: str, after: str, variable: str, wanted: str) -> Action:
    return _gpu_action(host, kind, before, after, f"{variable} is {wanted}")


def _gpu_action(host: Host, kind: Kind, before: str, after: str, reason: str) -> Action:
    count = len(host.state.gpus) if host.state else host.settings.gpu_count
    return Action(kind, "gpu_partition", f"{count} GPUs", before, after, reason, PARTITIONING)


def _modes(host: Host, values: Iterable[str]) -> str:
    modes = [mode or "none" for mode in values]
    counts = {mode: modes.count(mode) for mode in sorted(set(modes))}
    text = ", ".join(f"{mode} on {count}" if len(counts) > 1 else mode for mode, count in counts.items())
    return text if host.state else f"{text}, as is assumed"


def stop_servers(host: Host) -> tuple[ObservedInstance, ...]:
    """Return instances of this toolkit that use the GPUs whose mode changes."""
    return tuple(item for item in host.state.instances if item.state in ALIVE) if host.state else ()


def stop_action(running: ObservedInstance) -> Action:
    """Return the action that stops an instance before the mode changes."""
    reason = "the driver refuses to partition a GPU that is in use"
    return Action("stop_server", "gpu_partition", running.name, "running", "stopped", reason, PARTITIONING)


def images(host: Host, lock: Lock, unknown: Collection[str] = ()) -> tuple[tuple[ImageStep, Action], ...]:
    """Return the images that the host's deployments need and its Docker does not have, each once.

    `unknown` are references of images that must be probed; pulling an image also probes it.
    """
    found: dict[str, tuple[ImageStep, Action]] = {}
    for deployment in host.deployments:
        step = _image_step(host, deployment, lock)
        wanted = step.pull or step.ref
        if wanted in found:
            continue
        if step.build or step.of_build:
            there = has_build(host.state, step.ref, step.image_id)
        else:
            there = has_image(host.state, wanted)
        if there:
            if deployment.image_ref in unknown:
                reason = "its name does not show which vLLM it contains"
                action = Action("image", "vllm_image", step.ref, "present", "probed", reason, IMAGE_CATALOG)
                found[wanted] = step, action
            continue
        if step.build:
            after = f"built from {step.build.repo} at {step.build.ref}, {step.build.dockerfile}"
        else:
            after = "pulled" + (f" as {step.digest[:19]}" if step.digest else "")
            after += f", {size(step.bytes)}" if step.bytes is not None else ""
            after += f", from {step.registry}" if step.registry != parse_ref(step.ref).registry else ""
        after += ", and probed for its vLLM version" if deployment.image_ref in unknown else ""
        by = f"deployment {deployment.name} uses it"
        source = "fleet.lock.json" if step.digest else "the deployment"
        found[wanted] = step, Action("image", "vllm_image", step.ref, "absent", after, by, source)
    return tuple(found[key] for key in sorted(found))


def _image_step(host: Host, deployment: Deployment, lock: Lock) -> ImageStep:
    if deployment.build:
        built = lock.builds.get(deployment.build.tag)
        pushed = built.pushed_at(deployment.build.push_to) if built else ""
        if built and pushed:
            return replace(
                _pull_step(host, deployment.build.tag, pushed, built.pushed_bytes),
                image_id=built.image_id,
                of_build=True,
            )
        amount, image_id = (built.bytes, built.image_id) if built else (None, "")
        return ImageStep(deployment.build.tag, "", "", amount, "", deployment.build, image_id=image_id)
    ref, pin = parse_ref(deployment.image), lock.image(deployment.image)
    if pin is None:
        return ImageStep(deployment.image, deployment.image, "", None, ref.registry, None)
    return _pull_step(host, deployment.image, f"{ref.repository}@{pin.digest}", pin.bytes)


def _pull_step(host: Host, called: str, name: str, amount: int | None) -> ImageStep:
    """Return the pull of repository@digest, from where this host pulls it. called: its name in messages."""
    ref = parse_ref(name)
    pull = pulled_name(ref, ref.digest, host.settings.overrides, host.state)
    # What came in a bundle stays in the content store, for hosts that join later.
    kept = host.settings.air_gap and host.state is not None and image_name(ref.digest) in host.state.stored
    return ImageStep(called, pull, ref.digest, amount, parse_ref(pull).registry, None, kept)


def has_weights(host: Host, wanted: ModelRepository, pin: ModelPin) -> bool:
    """Return whether a complete snapshot of the pinned commit contains the wanted files."""
    for found in _snapshots(host, wanted, pin):
        if not found.exclude and not found.include:
            return True  # all files of the repository
        if (found.exclude, found.include) == (wanted.exclude, wanted.include):
            return True
        if pin.files is None:
            if not wanted.any_format and same_patterns(found.exclude, wanted.exclude):
                return found.include == wanted.include
        elif wanted.files(pin).keys() <= pin.selection(found.exclude, found.include).keys():
            return True
    return False


def _snapshots(host: Host, wanted: ModelRepository, pin: ModelPin) -> Iterator[CachedWeights]:
    """Yield the complete snapshots of the pinned commit in the host's cache."""
    for found in host.state.models if host.state else ():
        place = (found.cache_dir.rstrip("/"), found.repo, found.commit)
        if found.complete and place == (host.settings.cache_dir, wanted.repo, pin.commit):
            yield found


def downloads(host: Host, lock: Lock) -> Iterator[Download]:
    """Yield the downloads that models() plans, for each deployment that needs one."""
    for deployment in host.deployments:
        for wanted in required_repositories(deployment):
            pin = lock.model(host.settings.endpoint, wanted.repo, wanted.revision)
            if pin is None or not has_weights(host, wanted, pin):
                yield Download(host, deployment, wanted, pin)


def models(host: Host, lock: Lock, image_of: Mapping[str, str]) -> tuple[tuple[ModelStep, Action], ...]:
    """Return the weights that the host's deployments need and its cache does not have; one download per commit.

    Deployments that need different files of one commit share one download of all of them, as a snapshot has one marker.
    `image_of` names the image that downloads a deployment's weights.
    """
    groups: dict[tuple[str, str], list[tuple[Deployment, ModelRepository]]] = {}
    pins: dict[tuple[str, str], ModelPin] = {}
    for deployment in host.deployments:
        for wanted in required_repositories(deployment):
            pin = lock.model(host.settings.endpoint, wanted.repo, wanted.revision)
            key = (wanted.repo, pin.commit if pin else wanted.revision)
            groups.setdefault(key, []).append((deployment, wanted))
            pins[key] = pin or ModelPin("")
    found: list[tuple[ModelStep, Action]] = []
    for key, users in sorted(groups.items()):
        pin = pins[key]
        image = image_of[users[0][0].name]
        if all(has_weights(host, wanted, pin) for _unused, wanted in users):
            found += _verification(host, users[0][1], pin, image)
            continue
        step = _model_step(host, [wanted for _unused, wanted in users], pin, image)
        amount = f", {size(step.bytes)} in {len(step.files)} files" if pin.files is not None else ""
        action = Action(
            "model",
            "hf_model",
            _model_name(step),
            _weights_before(host, step.repo, pin),
            f"commit {pin.commit[:12]}{amount}"
            if pin.commit
            else "its current commit, pinned on the first online run",
            _users(users),
            HUB,
        )
        found.append((step, action))
    return tuple(found)


_VERBS = {
    MODEL: ("serves it", "serve it"),
    DRAFT: ("uses it as draft model", "use it as draft model"),
    ADAPTER: ("serves it as an adapter", "serve it as an adapter"),
    TOKENIZER: ("uses its tokenizer", "use its tokenizer"),
}


def _users(users: Iterable[tuple[Deployment, ModelRepository]]) -> str:
    """Return which deployments need a repository, and for what."""
    names: dict[str, dict[str, None]] = {}
    for deployment, wanted in users:
        names.setdefault(wanted.use, {})[deployment.name] = None
    parts = []
    for use, found in names.items():
        one, many = _VERBS[use]
        parts.append(
            f"deployment {next(iter(found))} {one}"
            if len(found) == 1
            else f"deployments {', '.join(found)} {many}"
        )
    return "; ".join(parts)


def _model_step(host: Host, users: Sequence[ModelRepository], pin: ModelPin, image: str) -> ModelStep:
    """Return one download for all users; if their patterns differ, file names are used instead."""
    first = users[0]
    exclude, include = first.excluded(pin), first.include
    files: dict[str, int] = {}
    for user in users:
        files.update(user.files(pin))
    if any((user.excluded(pin), user.include) != (exclude, include) for user in users):
        exclude, include = (), tuple(_literal(name) for name in sorted(files))
    return _step(host, first, pin, image, files, exclude, include)


def _verification(
    host: Host, wanted: ModelRepository, pin: ModelPin, image: str
) -> Iterator[tuple[ModelStep, Action]]:
    """Yield the step that verifies the content of complete weights: if requested, or if it was never verified."""
    there = next(iter(_snapshots(host, wanted, pin)), None)
    if there is None or not pin.files or (there.verified and not host.settings.verify):
        return
    files = pin.selection(there.exclude, there.include)
    step = _step(host, wanted, pin, image, files, there.exclude, there.include)
    before = (
        "verified when it was fetched" if there.verified else "fetched, but its content was never verified"
    )
    after = f"verified by content, {size(sum(files.values()))} to read"
    reason = (
        "verify is true"
        if host.settings.verify
        else "an earlier release compared only the sizes of the files"
    )
    action = Action("verify_model", "hf_model", _model_name(step), before, after, reason, HUB)
    yield replace(step, verify=True), action


def _model_name(step: ModelStep) -> str:
    return f"{step.repo}@{step.revision}" if step.revision != step.commit else step.repo


def _step(
    host: Host,
    wanted: ModelRepository,
    pin: ModelPin,
    image: str,
    files: Mapping[str, int],
    exclude: tuple[str, ...],
    include: tuple[str, ...],
) -> ModelStep:
    return ModelStep(
        repo=wanted.repo,
        revision=wanted.revision,
        commit=pin.commit,
        cache_dir=host.settings.cache_dir,
        endpoint=host.settings.endpoint,
        files=dict(sorted(files.items())),
        exclude=exclude,
        include=include,
        image=image,
        hashes={name: text for name, text in pin.hashes if name in files},
        offline=host.settings.air_gap,
    )


def _literal(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _weights_before(host: Host, repo: str, pin: ModelPin) -> str:
    if host.state is None:
        return "unknown"
    there = [item for item in host.state.models if item.repo == repo]
    if any(item.commit == pin.commit and item.complete for item in there):
        return "other files of this commit"
    if any(item.commit == pin.commit for item in there):
        return "incomplete"
    others = sorted({item.commit[:12] for item in there if item.complete})
    return f"commit {', '.join(others)}" if others else "absent"


def remove(running: ObservedInstance) -> Action:
    """Return the action that removes an instance of this toolkit that no deployment defines."""
    before = running.state or "stopped"
    reason = f"no deployment on this host defines {running.name}"
    return Action("remove_server", "vllm_serve", running.name, before, "removed", reason, "vllm_deployments")


def server(
    name: str, spec: str, file_hashes: Mapping[str, str], running: ObservedInstance | None, repartition: bool
) -> Action | None:
    """Return the action that starts, restarts or replaces an instance; None if it runs as configured."""
    after = f"running, spec {spec[:12]}"
    source = "vllm_deployments"
    if running is None:
        return Action("server", "vllm_serve", name, "absent", after, "not deployed yet", source)
    before = _container_state(running)
    if running.spec_hash != spec:
        return Action(
            "server", "vllm_serve", name, before, after, _difference(file_hashes, running, spec), source
        )
    if running.artefact_hash != spec:
        reason = (
            "its files are missing from the node"
            if running.artefact_hash is None
            else f"its files were changed on the node{_changed_files(file_hashes, running)}"
        )
        return Action("server", "vllm_serve", name, before, after, reason, source)
    if running.state != "running" or _gave_up(running):
        reason = _why_down(running)
        return Action("server", "vllm_serve", name, before, after, reason, source)
    if not running.ready:
        reason = "it was started but has not generated tokens yet"
        return Action("server", "vllm_serve", name, before, f"{after}, ready", reason, source)
    if repartition:
        reason = "it is stopped while the compute partition changes"
        return Action("server", "vllm_serve", name, before, after, reason, source)
    return None


def restart_policy(running: ObservedInstance | None) -> Action | None:
    """Return the action that restores a running instance's restart policy; None if it has it."""
    if running is None or running.policy is None or running.own_policy in ("", running.policy):
        return None
    reason = "a run that was to stop it was interrupted, so Docker would not restart it"
    before, after = running.policy, running.own_policy
    return Action("restart_policy", "vllm_serve", running.name, before, after, reason, "runtime.restart")


def _gave_up(running: ObservedInstance) -> bool:
    return running.supervisor is not None and running.supervisor.gave_up


def _why_down(running: ObservedInstance) -> str:
    """Return why an instance does not serve, with the first failure that its supervisor recorded."""
    said = running.supervisor
    cause = f"{said.cause.kind}: {said.cause.line}" if said and said.cause else ""
    if said and _gave_up(running):
        return f"it gave up after {said.failures} failures: {cause}"
    if running.state == "restarting":
        return "it fails and is being restarted" + (f": {cause}" if cause else "")
    return "it is not running" + (f"; it failed: {cause}" if cause else "")


def _container_state(running: ObservedInstance) -> str:
    text = "gave up" if _gave_up(running) else running.state or "unknown"
    if running.state == "exited" and running.exit_code is not None:
        text += f" with code {running.exit_code}"
    return f"{text}, spec {running.spec_hash[:12]}" if running.spec_hash else text


def _difference(file_hashes: Mapping[str, str], running: ObservedInstance, spec: str) -> str:
    if running.spec_hash is None:
        return "its container was created by an older version of instinct-fleet"
    if running.artefact_hash == spec:
        return "its files are current, but its container was created from older ones"
    return f"its specification changed{_changed_files(file_hashes, running)}"


def _changed_files(file_hashes: Mapping[str, str], running: ObservedInstance) -> str:
    there = dict(running.file_hashes)
    meaning = {"serve.sh": "command", "env": "environment", "container.json": "container"}
    names = [meaning.get(name, name) for name, text in sorted(file_hashes.items()) if there.get(name) != text]
    return f": {', '.join(names)}" if there and names else ""


def unique(items: Iterable[str]) -> tuple[str, ...]:
    """Return each item once, in the order of first appearance."""
    return tuple(dict.fromkeys(items))
