# SPDX-License-Identifier: Apache-2.0
"""Images on a node: pull by digest and read back; then probe the software inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from ..common.disk_space import free_bytes, human_size
from ..common.module_main import NodeError
from ..common.paths import UNPACK_FACTOR
from ..content.image_ref import STORE_REGISTRY, ImageRef, ImageSoftware, parse_ref
from . import image_api, registry_answers
from .client import DockerClient, DockerError, DockerTimeout, DockerUnavailable, Json
from .inspect_image import cached_software, describe_request, inspect_image, no_answer

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImagePull:
    """The desired image: its digest (`pull`: repository@sha256:…) and its human-readable name (`ref`)."""

    pull: ImageRef
    ref: ImageRef | None
    bytes: int | None
    auth: Mapping[str, str] | None

    @property
    def pulled(self) -> str:
        """Return repository@digest."""
        return f"{self.pull.repository}@{self.pull.digest}"

    @property
    def name(self) -> str:
        """Return the repository:tag to give the image, "" for none."""
        return f"{self.ref.repository}:{self.ref.tag}" if self.ref is not None and self.ref.tag else ""


class NearLayers(Protocol):
    """An image's layers at a place that is nearer than its registry."""

    @property
    def action(self) -> str:
        """Return what is done before the pull by name."""

    def loaded(self, client: DockerClient) -> AbstractContextManager[list[str]]:
        """Have the layers in the engine during a block in which the image is pulled by name; give warnings."""


def parse_pull(
    pull: str, ref: str | None, size: int | None, username: str | None, password: str | None
) -> ImagePull:
    """Check and combine the parameters of a pull. Raise NodeError if they are invalid."""
    reference = parse_ref(pull)
    if not _DIGEST.fullmatch(reference.digest):
        raise NodeError(
            f"pull: {pull!r} does not end in @sha256:<64 hex digits>. An image is pulled by digest, so that "
            "every node runs the same bytes; the digest of a tag is in fleet.lock.json, written by "
            "playbooks/plan.yml."
        )
    if bool(username) != bool(password):
        raise NodeError("registry_username and registry_password belong together: give both, or none.")
    auth = (
        {"username": username, "password": password, "serveraddress": reference.registry}
        if username and password
        else None
    )
    return ImagePull(reference, parse_ref(ref) if ref else None, size, auth)


def converge_pull(
    client: DockerClient, want: ImagePull, check: bool, program: str, near: NearLayers | None = None
) -> dict[str, Any]:
    """Pull one image by digest, tag it, read it back, and probe its software."""
    image = image_api.image(client, want.pulled)
    named = image_api.image(client, want.name) if want.name else None
    software = cached_software(image["Id"]) if image else None
    before = {"pulled": image is not None, "tag": (named or {}).get("Id"), "vllm": vllm_of(software)}
    actions = []
    warnings: list[str] = []
    if image is None:
        actions += [near.action] if near else []
        actions.append(f"POST /images/create?fromImage={want.pull.repository}&tag={want.pull.digest}")
    if want.name and (image is None or named is None or named["Id"] != image["Id"]):
        actions.append(f"POST /images/{want.pulled}/tag?repo={_repo_of(want)}&tag={_tag_of(want)}")
    if software is None:
        actions.append(describe_request(want.pulled))
    if image is None:
        check_disk(client, want)
    if not check:
        if image is None:
            if near is None and want.pull.registry == STORE_REGISTRY:
                raise NodeError(
                    f"Image {want.name or want.pulled} is not in this node's content store, and with air_gap no "
                    "registry is asked. Load a bundle that has it (bundle_load.yml), or look above at why no "
                    "other host passed it on."
                )
            with near.loaded(client) if near else nullcontext(warnings) as warnings:
                _pull(client, want)
            image = _read_back(client, want)
        if want.name and (named is None or named["Id"] != image["Id"]):
            image_api.tag(client, want.pulled, _repo_of(want), _tag_of(want))
        software = software or inspect_image(client, want.pulled, image["Id"], program)
    after_id = (image or {}).get("Id")
    tag = (after_id or "the pulled image") if want.name else None
    after = {"pulled": True, "tag": tag, "vllm": vllm_of(software) or "what the image has"}
    if not actions:
        after = before
    return {
        "changed": bool(actions),
        "actions": actions,
        "image_id": after_id,
        "digest": want.pull.digest,
        "bytes": (image or {}).get("Size"),
        **describe_software(want.pulled, software, warnings),
        "diff": image_diff(want.pulled, before, after),
    }


def vllm_of(software: ImageSoftware | None) -> str | None:
    """Return the version of vLLM for a diff."""
    return (software.vllm or "none") if software else None


def describe_software(
    name: str, software: ImageSoftware | None, warnings: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the part of a result that says what is in the image."""
    return {
        "software": software.to_json() if software else None,
        "warnings": [*warnings, *([no_answer(name)] if software and not software.vllm else [])],
    }


def _repo_of(want: ImagePull) -> str:
    return want.ref.repository if want.ref else ""


def _tag_of(want: ImagePull) -> str:
    return want.ref.tag if want.ref else ""


def image_diff(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the diff of an image."""
    return {
        "before": dict(before),
        "after": dict(after),
        "before_header": f"image {name}",
        "after_header": f"image {name}",
    }


def check_disk(client: DockerClient, want: ImagePull) -> None:
    """Raise NodeError if Docker's directory has too little space for the image; do nothing if its size is unknown."""
    if not want.bytes:
        return
    root = str(client.info().get("DockerRootDir") or "/var/lib/docker")
    need = want.bytes * UNPACK_FACTOR
    have = free_bytes(root)
    if have < need:
        raise NodeError(
            f"Not enough disk for image {want.pulled}: {root} has {human_size(have)} free, and the pull needs "
            f"{human_size(need)} ({human_size(want.bytes)} compressed, {UNPACK_FACTOR} times that unpacked and while "
            "unpacking). Remove images that nothing refers to (playbooks/prune.yml), or move "
            "Docker's data-root to a larger disk."
        )


def _pull(client: DockerClient, want: ImagePull) -> None:
    try:
        for _progress in image_api.pull(client, want.pull.repository, want.pull.digest, want.auth):
            pass
    except (DockerUnavailable, DockerTimeout) as error:
        raise NodeError(
            f"The pull of {want.pulled} was interrupted: {error} Complete layers are kept: run again to resume."
        ) from error
    except DockerError as error:
        raise NodeError(explain_pull(str(error), want)) from error


def _read_back(client: DockerClient, want: ImagePull) -> Json:
    image = image_api.image(client, want.pulled)
    if image is None:
        raise NodeError(
            f"The engine reported a complete pull of {want.pulled}, but does not have it. Another process "
            "may have removed it. Run again.",
            changed=True,
        )
    digests = [str(digest).rpartition("@")[2] for digest in image.get("RepoDigests") or []]
    if want.pull.digest not in digests:
        raise NodeError(
            f"{want.pulled} was pulled, but the engine lists it with digest {', '.join(digests) or 'none'}. "
            "The registry or a mirror sent another image.",
            changed=True,
        )
    return image


def explain_pull(message: str, want: ImagePull) -> str:
    """Explain a registry's refusal: what, why, and what to do next."""
    registry, what = want.pull.registry, f"Cannot pull {want.pulled}"
    known: tuple[tuple[str, str], ...] = (
        (
            registry_answers.PLAIN_HTTP,
            f"registry {registry} speaks plain HTTP, and this node's Docker requires TLS. insecure in "
            "vllm_image_registries is for the control node alone, so configure each node's Docker as well: add "
            f'"insecure-registries": ["{registry}"] to /etc/docker/daemon.json (a file with only that is '
            f'{{"insecure-registries": ["{registry}"]}}), run systemctl reload docker, which stops no container, '
            "and run again. Better, give the registry a certificate.",
        ),
        (
            registry_answers.UNTRUSTED,
            f"the certificate of registry {registry} is not trusted here. Put its CA into "
            f"/etc/docker/certs.d/{registry}/ca.crt on the node.",
        ),
        (
            r"no space left on device",
            "the disk of Docker's directory is full. Remove images that nothing refers to "
            "(playbooks/prune.yml), then run again: complete layers are kept.",
        ),
        (
            registry_answers.LIMITED,
            f"registry {registry} limits the number of pulls. Set vllm_image_registries with an account for "
            "it, use a mirror, or wait and run again.",
        ),
        (
            r"no matching manifest|does not match the specified platform",
            "the image does not exist for this node's architecture.",
        ),
        (
            registry_answers.DENIED,
            (
                f"registry {registry} does not accept the account {want.auth['username']!r} for it. Check "
                "vllm_image_registries (name, password, the account's rights); a wrong repository name "
                "gives the same answer."
                if want.auth
                else f"registry {registry} requires a login, or has no such repository. Check the name; for a "
                "private repository set vllm_image_registries with username and password."
            ),
        ),
        (
            r"manifest unknown|not found: manifest|name unknown|repository .* not found|not found",
            f"registry {registry} has no such image or digest. It may have been deleted or replaced: run "
            "playbooks/plan.yml -e refresh=true to resolve the tag again.",
        ),
        (
            registry_answers.UNREACHABLE,
            f"registry {registry} cannot be reached from this node. Check name resolution, the firewall, "
            "and Docker's proxy (systemctl show docker -p Environment); run again to resume.",
        ),
        (r"invalid reference format", "that is not a valid image reference."),
    )
    for pattern, plain in known:
        if re.search(pattern, message, re.IGNORECASE):
            return f"{what}: {plain} (Docker says: {message})"
    return f"{what}: {message}"
