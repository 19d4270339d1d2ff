# SPDX-License-Identifier: Apache-2.0
"""Push an image that this node has built to a registry, and read back there what other nodes will pull."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..common.module_main import NodeError
from ..content.image_ref import ImageRef, parse_ref
from ..docker import image_api, registry_answers
from ..docker.client import DockerClient, DockerError, DockerUnavailable, Json
from .registry_client import RegistryClient, RegistryError

_NOT_SHOWN = (401, 403, 404)  # some registries do not reveal to strangers that there is nothing


@dataclass(frozen=True)
class ImagePush:
    """The image `tag` of the engine, and the repository that it goes to. image_id: the one to push, "" for any."""

    tag: ImageRef
    repository: str
    image_id: str
    auth: Mapping[str, str] | None

    @property
    def local(self) -> str:
        """Return the image's name in the engine."""
        return f"{self.tag.repository}:{self.tag.tag}"

    @property
    def pushed(self) -> str:
        """Return the image's name in the registry."""
        return f"{self.repository}:{self.tag.tag}"


@dataclass(frozen=True)
class PushedImage:
    """What a registry has of an image: its digest, and the bytes of a pull."""

    digest: str
    bytes: int


def parse_push(
    ref: str, push_to: str, image_id: str | None, username: str | None, password: str | None
) -> ImagePush:
    """Check and combine the parameters of a push. Raise NodeError if they are invalid."""
    if bool(username) != bool(password):
        raise NodeError("username and password belong together: give both, or none.")
    there = parse_ref(push_to)
    if there.digest or push_to.rpartition("/")[2].count(":"):
        raise NodeError(f"push_to: {push_to!r} has a tag or a digest. Give the repository alone.")
    auth = (
        {"username": username, "password": password, "serveraddress": there.registry}
        if username and password
        else None
    )
    return ImagePush(parse_ref(ref), there.repository, image_id or "", auth)


def converge_push(
    client: DockerClient, registry: RegistryClient, want: ImagePush, check: bool
) -> dict[str, Any]:
    """Push the image unless the registry has it by a digest that the engine knows. Return the module's result."""
    image = image_api.image(client, want.local)
    if image is None and check:
        return _result(want, None, False)  # it is built first
    image_id = _checked(want, image)
    names = _digests(image, want.repository)
    there = {name: _answer(registry, name, image_id) for name in names}
    known = next((found for found in there.values() if found), None)
    if known or check:
        return _result(want, known, bool(known))
    # A registry that cannot be reached, or to which the account may not be sent, is named before anything is sent.
    _answer(registry, want.tag.tag, image_id)
    digest = _push(client, want)
    found = _answer(registry, digest, image_id)
    after = image_api.image(client, want.local)
    if found is None or f"{want.repository}@{digest}" not in _names(after):
        seen = "has another image there" if found is None else "has it, but the engine does not list it"
        raise NodeError(
            f"The engine pushed {want.local} to {want.repository} as {digest or 'an unknown digest'}, and the registry "
            f'{seen}. Where Docker keeps images in containerd, set "features": {{"containerd-snapshotter": false}} in '
            "/etc/docker/daemon.json and restart Docker; where another process pushes to this tag, let only one do so. "
            "Then run again.",
            changed=True,
        )
    for name in names:  # of what the registry no longer has
        if name != digest:
            client.json("DELETE", f"/images/{quote(f'{want.repository}@{name}', safe='/:@')}")
    return _result(want, found, False)


def _checked(want: ImagePush, image: Json | None) -> str:
    """Return the id of the engine's image. Raise NodeError if it is not the one to push."""
    if image is None:
        raise NodeError(f"The engine has no image {want.local} to push. Run again to build it.")
    if want.image_id not in ("", image["Id"]):
        raise NodeError(
            f"{want.local} is {str(image['Id'])[:19]} here, and {want.image_id[:19]} should be pushed. Run "
            "again, which "
            "plans again."
        )
    return str(image["Id"])


def _names(image: Json | None) -> list[str]:
    return [str(name) for name in (image or {}).get("RepoDigests") or ()]


def _digests(image: Json | None, repository: str) -> list[str]:
    found = (name.partition("@") for name in _names(image))
    return [digest for name, _at, digest in found if name == repository]


def _answer(registry: RegistryClient, name: str, image_id: str) -> PushedImage | None:
    """Return what the registry has by a digest or tag; None if that is not this image. Raise RegistryError."""
    try:
        content = registry.manifest(name)
    except RegistryError as error:
        if error.status in _NOT_SHOWN:
            return None
        raise
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if name.startswith("sha256:") and digest != name:
        return None
    try:
        manifest = json.loads(content)
        sizes = [int(item["size"]) for item in (manifest["config"], *manifest["layers"])]
        same = manifest["config"]["digest"] == image_id
    except (KeyError, TypeError, ValueError):
        return None
    return PushedImage(digest, sum(sizes)) if same else None


def _push(client: DockerClient, want: ImagePush) -> str:
    """Push, and return the digest that the engine reports. Raise NodeError."""
    try:
        image_api.tag(client, want.local, want.repository, want.tag.tag)
        digest = ""
        path = f"/images/{quote(want.repository, safe='/:')}/push"
        # The engine requires the header also of a push without a login.
        for event in image_api.progress(client, path, {"tag": want.tag.tag}, want.auth or {}):
            digest = str((event.get("aux") or {}).get("Digest") or digest)
        return digest
    except DockerUnavailable as error:
        raise NodeError(
            f"The push of {want.local} to {want.repository} was interrupted: {error} The image is kept, and complete "
            "layers are in the registry: run again to continue."
        ) from error
    except DockerError as error:
        raise NodeError(explain_push(str(error), want)) from error


def explain_push(message: str, want: ImagePush) -> str:
    """Explain a registry's refusal: what, why, and what to do next."""
    registry, what = parse_ref(want.repository).registry, f"Cannot push {want.local} to {want.repository}"
    who = f"the account {want.auth['username']!r}" if want.auth else "a push without a login"
    where = f"vllm_image_registries: {{{registry}: …}}"
    known: tuple[tuple[str, str], ...] = (
        (
            registry_answers.PLAIN_HTTP,
            f"registry {registry} speaks plain HTTP, and this node's Docker requires TLS. Give it a certificate or add "
            f'"insecure-registries": ["{registry}"] to /etc/docker/daemon.json, and reload docker (systemctl), which '
            "stops no container.",
        ),
        (
            registry_answers.UNTRUSTED,
            f"the certificate of registry {registry} is not trusted here. Put its CA into "
            f"/etc/docker/certs.d/{registry}/ca.crt on this node.",
        ),
        (
            r"no space left on device|insufficient storage|quota|\b507\b",
            f"registry {registry} has no space for it. Remove images there, or raise its quota.",
        ),
        (
            r"too large|\b413\b",
            f"registry {registry}, or a proxy before it, refuses layers of this size. Raise its limit on a request's "
            "body (client_max_body_size of nginx).",
        ),
        (
            r"read.?only|unsupported|method not allowed|\b405\b",
            f"registry {registry} does not accept pushes: it is read-only, or a mirror. Name another one "
            "in build.push_to.",
        ),
        (
            r"immutable|already exists|\b409\b",
            f"registry {registry} has another image by this tag and does not let it be replaced. Remove it there, or "
            "change build.tag.",
        ),
        (registry_answers.LIMITED, f"registry {registry} limits requests. Wait."),
        (
            registry_answers.DENIED + "|insufficient_scope",
            f"registry {registry} refuses {who}. Give an account that may write there: username and password in "
            f"{where}.",
        ),
        (
            r"name unknown|repository .* not found|not found|\b404\b",
            f"registry {registry} has no such repository, and does not create it. Create it there, or "
            "correct build.push_to.",
        ),
        (
            registry_answers.UNREACHABLE,
            f"registry {registry} cannot be reached from this node. Check name resolution, the firewall, and Docker's "
            "proxy (systemctl show docker -p Environment).",
        ),
        (r"\b50[0-9]\b|internal server error|unknown: ", f"registry {registry} failed; its log says why."),
    )
    for pattern, plain in known:
        if re.search(pattern, message, re.IGNORECASE):
            return f"{what}: {plain} The built image is kept: run again, which only pushes. (Docker says: {message})"
    return f"{what}: {message} The built image is kept: run again, which only pushes."


def _result(want: ImagePush, found: PushedImage | None, known: bool) -> dict[str, Any]:
    actions: Iterable[str] = [] if known else [f"POST /images/{want.repository}/push?tag={want.tag.tag}"]
    return {
        "changed": not known,
        "actions": list(actions),
        "image": f"{want.repository}@{found.digest}" if found else None,
        "bytes": found.bytes if found else None,
        "diff": {
            "before": {"pushed": known},
            "after": {"pushed": True},
            "before_header": f"image {want.pushed}",
            "after_header": f"image {want.pushed}",
        },
    }
