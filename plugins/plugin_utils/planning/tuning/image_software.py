# SPDX-License-Identifier: Apache-2.0
"""Determine an image's software from the deployment, the catalogue, and a probe of the image. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from ....module_utils.common.errors import Problem
from ....module_utils.content.image_ref import ImageSoftware, parse_ref
from ...knowledge.catalog.images import CUDA, ImageFacts, look_up
from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.forks import Fork, Forks
from ..desired.deployment import Deployment
from ..desired.fleet import Fleet, Host
from ..observed.node_state import NodeState
from ..pins.lockfile import ImagePin, Lock

DECLARED = "declared"
ASKED = "image"
SOURCES = "build"
ASSUMED = "assumed"
"""Values of ImageFacts.basis: vllm_version of the deployment; the probe of the image; the commit or branch that is
built; nothing but that the tag moves."""


def software_of(deployment: Deployment, host: Host, lock: Lock, knowledge: Knowledge) -> ImageFacts | None:
    """Return what is known of a deployment's image on a host, or None if the image must be probed first.

    The deployment's vllm_version takes precedence over an exact tag of the catalogue, and that over the probe; each
    source fills in what the ones before it leave open. Tags that move, and tags whose digest is not the documented one,
    are not trusted: they are asked, and without a node that could be asked the newest release is assumed. vllm is None
    if the probe found no vLLM in the image. A fork may be recognized by any of these sources.
    """
    pin = lock.image(deployment.image) if deployment.image else None
    asked = _probed(deployment, host, pin, lock)
    facts = look_up(knowledge.images, _exact(deployment, pin))
    moves = facts.floating or look_up(knowledge.images, deployment.image_ref).floating
    known = not facts.serves or facts.platform == CUDA or (facts.vllm is not None and not facts.floating)
    if not known:
        facts = replace(facts, vllm=None, rocm=None, pytorch=None, python=None, gfx=None, fork="")
    if not known and asked:
        facts = replace(facts, basis=ASKED, vllm=asked.vllm or None, floating=False)
    if asked:
        facts = _filled(facts, asked)
    fork = _fork(deployment, facts, knowledge.forks)
    if deployment.vllm_version:
        facts = replace(facts, basis=DECLARED, vllm=deployment.vllm_version)
        return _of_fork(facts, fork) if fork else _noted(facts, deployment, asked)
    if fork:
        return _of_fork(facts if known or asked else replace(facts, basis=SOURCES), fork)
    if known or asked:
        return facts
    return _newest(facts, knowledge) if moves and host.state is None else None


def _fork(deployment: Deployment, facts: ImageFacts, forks: Forks) -> Fork | None:
    """Return the fork of vLLM that an image has; a vllm_version that names another release takes precedence."""
    build, declared = deployment.build, deployment.vllm_version
    own = forks.named(facts.fork) or (forks.of_build(build.repo, build.ref) if build else None)
    own = own or forks.of_version(facts.vllm or "")
    if not declared or (own and own.called == declared):
        return own
    return forks.of_version(declared) or (None if own else forks.of_image(_repository(deployment), declared))


def _repository(deployment: Deployment) -> str:
    return parse_ref(deployment.image).repository if deployment.image else ""


def _of_fork(facts: ImageFacts, fork: Fork) -> ImageFacts:
    notes = (*facts.notes, f"{fork.note} [{fork.source}]")
    return replace(facts, vllm=fork.version, fork=fork.name, platform=facts.platform or "rocm", notes=notes)


def _newest(facts: ImageFacts, knowledge: Knowledge) -> ImageFacts:
    """Return the facts of a tag that moves and cannot be asked."""
    vllm = knowledge.line.releases[-1]
    note = (
        f"{facts.ref.partition('@')[0]} moves, and no node could be asked what it contains now: vLLM {vllm}, the "
        "newest in the catalogue, is assumed. Use a tag that does not move, or plan with a node that can be reached."
    )
    return replace(facts, basis=ASSUMED, vllm=vllm, notes=(*facts.notes, note))


def wrong_dockerfile(deployment: Deployment, forks: Forks) -> tuple[Problem, ...]:
    """Report a Dockerfile that the commit to be built has at another path."""
    build = deployment.build
    fork = forks.of_build(build.repo, build.ref) if build else None
    if not build or not fork or build.dockerfile == fork.dockerfile:
        return ()
    if PurePosixPath(build.dockerfile).name != PurePosixPath(fork.dockerfile).name:
        return ()
    what = f"{build.ref} of {build.repo} has no {build.dockerfile}."
    return (
        Problem((*deployment.path, "build", "dockerfile"), what, f"Write dockerfile: {fork.dockerfile}."),
    )


def _exact(deployment: Deployment, pin: ImagePin | None) -> str:
    """Return the reference with its digest, if it is pinned."""
    ref = deployment.image or (deployment.build.tag if deployment.build else "")
    return f"{ref}@{pin.digest}" if pin and "@" not in ref else ref


def _probed(deployment: Deployment, host: Host, pin: ImagePin | None, lock: Lock) -> ImageSoftware | None:
    if pin and pin.software:
        return pin.software
    name = deployment.build.tag if deployment.build else deployment.image
    built = lock.builds.get(name) if deployment.build else None
    if built and built.software:
        return built.software
    if pin:
        name = f"{parse_ref(deployment.image).repository}@{pin.digest}"
    return _on_node(host.state, name)


def _on_node(state: NodeState | None, name: str) -> ImageSoftware | None:
    for image in state.images if state else ():
        if name in image.digests or name in image.tags:
            return image.software
    return None


def _filled(facts: ImageFacts, asked: ImageSoftware) -> ImageFacts:
    return replace(
        facts,
        platform=asked.platform or facts.platform,
        rocm=facts.rocm or asked.rocm,
        pytorch=facts.pytorch or asked.pytorch,
        python=facts.python or asked.python,
        gfx=facts.gfx if facts.gfx is not None else asked.gfx,
    )


def _noted(facts: ImageFacts, deployment: Deployment, asked: ImageSoftware | None) -> ImageFacts:
    """Return the facts, with a note if the probe contradicts the operator."""
    if not asked or asked.vllm in ("", deployment.vllm_version):
        return facts
    note = f"vllm_version is {deployment.vllm_version}, but the image contains {asked.vllm}."
    return replace(facts, notes=(*facts.notes, note))


def merge_probed(fleet: Fleet, lock: Lock) -> Lock:
    """Return the lock with the results of probing its images on any host; the same object if there are no new ones.

    So an image is probed once for all hosts, and plans without hosts use the result too. Hosts that contradict each
    other about one digest leave it open: the result of one host does not stand for all.
    """
    wanted: dict[str, list[tuple[str, ImagePin]]] = {}
    for ref in {item.image for host in fleet.hosts for item in host.deployments if item.image}:
        pin = lock.image(ref)
        if pin and not pin.software:
            wanted.setdefault(f"{parse_ref(ref).repository}@{pin.digest}", []).append((ref, pin))
    probed: dict[str, set[ImageSoftware]] = {}
    for host in fleet.hosts if wanted else ():
        for image in host.state.images if host.state else ():
            # A probe without a result is repeated on another host, as the node may have been the cause.
            if image.software and image.software.vllm:
                for name in image.digests:
                    probed.setdefault(name, set()).add(image.software)
    found = {
        ref: replace(pin, software=next(iter(probed[name])))
        for name, pins in wanted.items()
        if len(probed.get(name, ())) == 1
        for ref, pin in pins
    }
    return lock.merged(Lock(found)) if found else lock
