# SPDX-License-Identifier: Apache-2.0
"""Build instances. What is equal on several hosts is decided, composed and rendered once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.common.hashing import canonical, spec_hash, text_hash
from ....module_utils.content.image_ref import parse_ref
from ....module_utils.credentials.instance_key import NO_KEY, InstanceKey
from ...knowledge.catalog.facts import model_facts
from ...knowledge.catalog.gpus import GpuCatalog, GpuModel
from ...knowledge.catalog.images import CUDA, ImageFacts
from ...knowledge.catalog.load import Knowledge
from ...knowledge.catalog.models import NamedModel, named_model, nearest_names
from ...knowledge.sizing.fit import CATALOGUE, GIVEN, HUB
from ..desired.deployment import VERSION_EXAMPLE, Deployment
from ..desired.fleet import LOOPBACK, Host
from ..feasibility.drafts import Draft
from ..feasibility.feasibility import Feasibility, KnownModel, check_feasibility
from ..feasibility.start_refusals import start_refusals
from ..pins.lockfile import Lock, ModelPin
from ..pins.registry_override import pulled_name
from ..placement.layout import Layout
from ..placement.slots import Slot
from ..tuning import parallel
from ..tuning.companion_args import with_pins
from ..tuning.companion_models import (
    ModelRepository,
    draft_of,
    drafts_for_itself,
    required_repositories,
    unmounted_paths,
    unnamed_repositories,
)
from ..tuning.image_software import software_of, wrong_dockerfile
from ..tuning.shared_memory import shared_memory
from ..tuning.tune import TargetGpu, TunedSettings, tune
from .compose import Pins, Surroundings, compose
from .load_strategy import weights_file_system
from .measured_starts import StartRecord, measured_start, recorded_starts, start_key
from .planned import PlannedInstance
from .render import Render
from .secret_variables import secrets_mark


@dataclass(frozen=True)
class ModelSource:
    """A model on the control node: its config.json, and its files with their sizes in bytes if it is a directory."""

    config: Mapping[str, Any]
    files: tuple[tuple[str, int], ...] | None = None


ModelSources = Mapping[str, ModelSource]
"""Models by the text of a deployment's model_config."""


@dataclass(frozen=True)
class DeploymentDecision:
    """What a deployment runs on one kind of GPU; tuned is None if that is impossible."""

    tuned: TunedSettings | None
    verdict: Feasibility
    problems: tuple[Problem, ...]


DecidedSlot = tuple[Slot, DeploymentDecision | None]
"""A slot, and what is decided for it; None where the software of its image is not known."""
Node = tuple[str, str, tuple[int, ...], str, tuple[tuple[str, str, str], ...]]
"""What instances have from their host: the hub's endpoint and cache, the groups of its devices, the file system of that
cache, and for each deployment the address where it listens and the name of its image at a mirror."""


class InstanceFactory:
    """Builds instances from one run's knowledge and pins, and caches the results."""

    def __init__(
        self,
        knowledge: Knowledge,
        lock: Lock,
        render: Render,
        models: ModelSources,
        key: InstanceKey = NO_KEY,
        toolkit: str = "",
    ) -> None:
        self.knowledge = knowledge
        self.lock = lock
        self.render = render
        self.models = models
        self.key = key
        self.toolkit = toolkit
        self._made: dict[tuple[Any, ...], PlannedInstance] = {}
        self._alike: dict[tuple[Any, ...], tuple[PlannedInstance, ...]] = {}
        self._by_layout: dict[tuple[Any, ...], tuple[Layout, tuple[DecidedSlot, ...]]] = {}
        self._slots: dict[Slot, Slot] = {}
        self._decided: dict[tuple[Any, ...], DeploymentDecision] = {}
        self._software: dict[tuple[Any, ...], ImageFacts | None] = {}
        self._starts: dict[str, StartRecord] = {}

    def use_starts(self, hosts: Iterable[Host]) -> None:
        """Use what instances on these hosts measured when they started instead of estimates, for all hosts alike."""
        self._starts = {**recorded_starts(hosts), **self._starts}

    @property
    def cited_sources(self) -> dict[str, Mapping[str, Any]]:
        """Return the documents that the reasons of all instances so far refer to."""
        cited: set[str] = set()
        for made in self._made.values():
            cited.update(item.source for item in made.instance.reasons)
            cited.update(item.source for item in (*made.instance.verdict.advice, *made.instance.hints))
        named = {source.partition("#")[0] for source in cited}
        return {name: self.knowledge.sources[name] for name in named if name in self.knowledge.sources}

    def software(self, deployment: Deployment, host: Host) -> ImageFacts | None:
        """Return the software of the deployment's image, or None if it must be probed."""
        pin = self.lock.image(deployment.image) if deployment.image else None
        own = () if pin and pin.software else (host.name,)
        # Deployments are parsed once per distinct list, and their hosts keep them as long as this object exists.
        key = (id(deployment), *own)
        if key not in self._software:
            self._software[key] = software_of(deployment, host, self.lock, self.knowledge)
        return self._software[key]

    def unknown_images(self, host: Host) -> tuple[str, ...]:
        """Return the references of the host's images that must be probed."""
        if host.state is None:
            return ()  # probing is impossible, which is a problem of each deployment
        refs = {item.image_ref for item in host.deployments if self.software(item, host) is None}
        return tuple(sorted(refs))

    def instances(
        self, host: Host, layout: Layout, catalog: GpuCatalog
    ) -> tuple[tuple[PlannedInstance, ...], tuple[Problem, ...]]:
        """Return the host's instances, and the problems of their deployments."""
        decided = self._decided_slots(host, layout, catalog)
        node = self._node(host)
        key = id(decided), node
        if key in self._alike:
            return self._alike[key], ()
        found: list[PlannedInstance] = []
        problems: dict[Problem, None] = {}
        for slot, decision in decided:
            if decision is None:
                problems[_unknown(slot.deployment, host)] = None
                continue
            problems.update(dict.fromkeys(replace(item, hosts=(host.name,)) for item in decision.problems))
            if decision.tuned is not None and not decision.problems:
                found.append(self._make(slot, node, decision.tuned, decision.verdict))
        if not problems:
            self._alike[key] = tuple(found)
        return tuple(found), tuple(problems)

    def _decided_slots(self, host: Host, layout: Layout, catalog: GpuCatalog) -> tuple[DecidedSlot, ...]:
        """Return the slots of a layout, which hosts of one kind share, with what was decided for each."""
        driver = host.state.driver_version if host.state else ""
        settings = host.settings.endpoint, host.settings.compute, host.settings.gpu_model
        images = (id(self.software(item, host)) for item in host.deployments)
        key = id(layout), driver, settings, *images
        if key not in self._by_layout:
            decided: list[DecidedSlot] = []
            for slot in layout.slots:
                machine, software = gpu_of_slot(host, slot, catalog), self.software(slot.deployment, host)
                decision = self._decide(slot.deployment, host, machine, software) if software else None
                decided.append((self._slots.setdefault(slot, slot), decision))
            self._by_layout[key] = layout, tuple(decided)
        return self._by_layout[key][1]

    def _node(self, host: Host) -> Node:
        """Return what a host's instances have from it."""
        settings, state = host.settings, host.state
        return (
            settings.endpoint,
            settings.cache_dir,
            state.device_gids if state else (),
            weights_file_system(state, settings.cache_dir),
            tuple(
                (item.name, listen_address(item, host), mirrored_image(item, self.lock, host))
                for item in host.deployments
            ),
        )

    def _model(self, deployment: Deployment, endpoint: str) -> ModelPin | None:
        if deployment.local_model:
            return None
        return self.lock.model(endpoint, deployment.model, deployment.revision)

    def _weights(self, deployment: Deployment, endpoint: str) -> tuple[tuple[str, str], ...]:
        """Return the commits that an instance loads, as far as they are pinned."""
        pins = (
            (item.repo, self.lock.model(endpoint, item.repo, item.revision))
            for item in required_repositories(deployment)
        )
        return tuple(dict.fromkeys((repo, pin.commit) for repo, pin in pins if pin))

    def _decide(
        self, deployment: Deployment, host: Host, machine: TargetGpu, software: ImageFacts
    ) -> DeploymentDecision:
        key = (id(deployment), machine, software.vllm, software.platform, host.settings.endpoint)
        if key not in self._decided:
            self._decided[key] = self._decision(deployment, machine, software, host.settings.endpoint)
        return self._decided[key]

    def _decision(
        self, deployment: Deployment, machine: TargetGpu, software: ImageFacts, endpoint: str
    ) -> DeploymentDecision:
        pin = self._model(deployment, endpoint)
        given = self.models.get(deployment.model_config)
        config, origin = (given.config, GIVEN) if given else (pin.config if pin else None, HUB)
        named: NamedModel | None = None
        near: tuple[str, ...] = ()
        if config is None:
            named = named_model(self.knowledge.models, deployment.model, quantization_flag(deployment))
            near = nearest_names(self.knowledge.models, deployment.model)
            config, origin = named.config, CATALOGUE
        files = given.files if given else None
        if files is None and pin and pin.files:
            files = tuple(pin.selection(deployment.exclude, deployment.include).items())
        facts = model_facts(deployment.model, config, named.quantization if named else None)
        if software.platform == CUDA:
            path = (*deployment.path, "build" if deployment.build else "image")
            what = software.notes[0] if software.notes else "its vLLM is built for NVIDIA's GPUs"
            problem = Problem(path, f"{what}.", "Use an image for ROCm.")
            return DeploymentDecision(None, Feasibility(), (problem,))
        try:
            tuned = tune(deployment, machine, software, facts, self.knowledge)
        except ValueError as error:
            key = "vllm_version" if deployment.vllm_version else "image"
            what = f"{error}." if software.vllm else "contains no vLLM that could be found."
            fix = f"Use an image with vLLM {self.knowledge.line.releases[0]} or newer."
            if not software.vllm:
                fix += f" If it contains one, set vllm_version: {VERSION_EXAMPLE} in the deployment."
            problem = Problem((*deployment.path, key), what, fix)
            return DeploymentDecision(None, Feasibility(), (problem,))

        def commit_of(wanted: ModelRepository) -> str:
            found = self.lock.model(endpoint, wanted.repo, wanted.revision)
            return found.commit if found else ""

        tuned = with_pins(tuned, deployment, commit_of)
        image = self.lock.image(deployment.image) if deployment.image else None
        key = start_key(
            deployment,
            image.digest if image else deployment.image_ref,
            pin.commit if pin else deployment.revision,
            machine,
            tuned,
        )
        seen = measured_start(self._starts, key, tuned.args.get("--block-size"))
        draft = self._draft(deployment, endpoint)
        model = KnownModel(facts, config, origin, files, draft, near, seen)
        verdict = check_feasibility(deployment, machine, software, tuned, model, self.knowledge)
        more = (*unmounted_paths(deployment), *shared_memory(deployment, self.knowledge.recipes))
        verdict = replace(verdict, start_key=key, warnings=(*verdict.warnings, *more))
        wrong = (*tuned.problems, *parallel.parallel_problems(deployment, tuned.table), *verdict.problems)
        wrong += (*unnamed_repositories(deployment), *wrong_dockerfile(deployment, self.knowledge.forks))
        stops, doubts = start_refusals(deployment, tuned, config, self.knowledge)
        wrong, verdict = (*wrong, *stops), replace(verdict, warnings=(*verdict.warnings, *doubts))
        return DeploymentDecision(tuned, verdict, wrong)

    def _draft(self, deployment: Deployment, endpoint: str) -> Draft | None:
        """Return the draft, with its configuration and files as far as they are known."""
        found = draft_of(deployment)
        if found is None:
            return Draft() if drafts_for_itself(deployment) else None
        draft, tp = found
        pin = self.lock.model(endpoint, draft.repo, draft.revision)
        config = pin.config if pin else None
        if not config:
            config = named_model(self.knowledge.models, draft.repo).config
        return Draft(draft.repo, config, pin.files if pin else None, tp)

    def _make(self, slot: Slot, node: Node, tuned: TunedSettings, verdict: Feasibility) -> PlannedInstance:
        deployment = slot.deployment
        endpoint, cache_dir, group_ids, file_system, own = node
        listen, name = next(rest for one, *rest in own if one == deployment.name)
        key = id(tuned), id(slot), endpoint, cache_dir, group_ids, file_system, listen, name
        if key not in self._made:
            image = self.lock.image(deployment.image) if deployment.image else None
            model = self._model(deployment, endpoint)
            mark = self.key.mark if deployment.endpoint and not (slot.rank and slot.rank.headless) else ""
            secrets = secrets_mark(deployment, self.key)
            keys = bool(deployment.endpoint and self.key.mark)
            around = Surroundings(listen, cache_dir, group_ids, mark, secrets, keys, file_system, name)
            instance = compose(slot, around, Pins(image, model), tuned, verdict)
            files = self.render(instance)
            weights = self._weights(deployment, endpoint)
            given = self._definition(deployment, around) if self.toolkit else ""
            self._made[key] = PlannedInstance(instance, files, spec_hash(files), weights, self.toolkit, given)
        return self._made[key]

    def _definition(self, deployment: Deployment, node: Surroundings) -> str:
        """Return a hash of what an instance gets from the inventory and its host; pins are recorded separately."""
        model = self.models.get(deployment.model_config)
        config = canonical(dict(model.config)) if model else ""
        return text_hash(canonical([deployment.definition, config, astuple(node)]))[:16]


def mirrored_image(deployment: Deployment, lock: Lock, host: Host) -> str:
    """Return the name of a deployment's image on a host that pulls it from a mirror; "" on others."""
    overrides = host.settings.overrides
    pin = lock.image(deployment.image) if deployment.image and overrides else None
    return pulled_name(parse_ref(deployment.image), pin.digest, overrides, host.state) if pin else ""


def quantization_flag(deployment: Deployment) -> str:
    """Return the quantization that the operator names, as a flag or as a setting; "" if none."""
    flags = dict(deployment.engine_args)
    given = (
        *(flags.get(key) for key in ("quantization", "q")),
        dict(deployment.settings).get("quantization"),
    )
    return next((item for item in given if isinstance(item, str)), "")


def listen_address(deployment: Deployment, host: Host) -> str:
    """Return the address where a deployment's instances listen.

    Instances without an endpoint listen on loopback, as no load balancer needs to reach them.
    """
    return deployment.listen or (host.listen if deployment.endpoint else LOOPBACK)


def gpu_of_slot(host: Host, slot: Slot, catalog: GpuCatalog) -> TargetGpu:
    """Return the GPU of a slot, as it will be after the plan is applied."""
    first = slot.gpus[0]
    compute = host.settings.compute
    if host.state is None:
        model = catalog.by_name(host.settings.gpu_model or "")
        return _machine(model, compute or (model.modes[0] if model else ""), "NPS1", first.memory_bytes)
    gpu = next(item for item in host.state.gpus if item.index == first.gpu)
    model = catalog.by_pci_id(gpu.pci_id)
    found = _machine(model, compute or gpu.compute or "", gpu.memory or "", first.memory_bytes)
    return replace(
        found, gfx=gpu.gfx or found.gfx, gpu_bytes=gpu.vram_total, driver=host.state.driver_version
    )


def _machine(model: GpuModel | None, compute: str, memory: str, size: int) -> TargetGpu:
    return TargetGpu(
        gfx=model.gfx if model else "",
        name=model.name if model else "",
        compute=compute,
        memory=memory,
        memory_bytes=size,
        gpu_bytes=model.memory_bytes if model else size,
        peak=model.peak_of(compute) if model else None,
    )


def _unknown(deployment: Deployment, host: Host) -> Problem:
    key = "build" if deployment.build else "image"
    what = (
        f"the vLLM version in {deployment.image_ref} is unknown: the tag moves, or is not in the catalogue."
    )
    fix = (
        f"Set vllm_version ({VERSION_EXAMPLE}) in the deployment, or plan with a node on which the image can be "
        "probed."
    )
    return Problem((*deployment.path, key), what, fix, (host.name,))
