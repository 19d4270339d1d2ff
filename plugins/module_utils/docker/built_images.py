# SPDX-License-Identifier: Apache-2.0
"""Images that one node builds: build there, or take from the content store what another node has built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..common.module_main import NodeError
from ..content.image_ref import BUILD_LABEL, parse_ref
from . import image_api
from .build import build_image
from .build_plan import BuildInputs, BuildPlan
from .client import DockerClient, Json
from .images import describe_software, image_diff, vllm_of
from .inspect_image import cached_software, describe_request, inspect_image


class StoredBuild(Protocol):
    """The content of an image that another node has built."""

    @property
    def action(self) -> str:
        """Return what is done to load it."""

    def load(self, client: DockerClient) -> None:
        """Load it, and give it its tag. Raise NodeError if it is not there."""


def converge_build(
    client: DockerClient,
    plan: BuildPlan,
    data_dir: str,
    timeout: int,
    check: bool,
    program: str,
    run_build: Callable[[BuildPlan, str, int], BuildInputs] = build_image,
) -> dict[str, Any]:
    """Build an image unless one with the same inputs exists, tag it, and probe its software."""
    built = image_api.images_labelled(client, f"{BUILD_LABEL}={plan.hash}")
    named = image_api.image(client, plan.tag)
    tagged = named is not None and named["Id"] in {image["Id"] for image in built}
    image = named if tagged else next(iter(built), None)
    before = _before(named, bool(built), image)
    reference = parse_ref(plan.tag)
    actions: list[str] = []
    made = None
    if not built:
        actions = plan.commands(data_dir)
        if not check:
            made = run_build(plan, data_dir, timeout)
    elif not tagged:
        actions = [f"POST /images/{built[0]['Id']}/tag?repo={reference.repository}&tag={reference.tag}"]
        if not check:
            image_api.tag(client, str(built[0]["Id"]), reference.repository, reference.tag)
    if actions and not check:
        image = image_api.image(client, plan.tag)
    result = _finish(client, plan, image, actions, before, check, program, made.warnings if made else ())
    return {
        **result,
        "commit": made.commit if made else None,
        "inputs": made.inputs if made else None,
        "bases": dict(made.bases) if made else {},
    }


def converge_received(
    client: DockerClient, plan: BuildPlan, stored: StoredBuild, image_id: str, check: bool, program: str
) -> dict[str, Any]:
    """Load an image that another node has built, and probe its software. image_id: the one to have, "" for any."""
    named = image_api.image(client, plan.tag)
    image = named if named and image_id in ("", named["Id"]) else None
    before = _before(named, image is not None, image)
    actions = [] if image else [stored.action]
    if actions and not check:
        stored.load(client)
        image = image_api.image(client, plan.tag)
    result = _finish(client, plan, image, actions, before, check, program)
    return {**result, "commit": None, "inputs": None, "bases": {}}


def _before(named: Json | None, built: bool, image: Json | None) -> dict[str, Any]:
    software = cached_software(image["Id"]) if image else None
    return {"built": built, "tag": (named or {}).get("Id"), "vllm": vllm_of(software)}


def _finish(
    client: DockerClient,
    plan: BuildPlan,
    image: Json | None,
    actions: list[str],
    before: dict[str, Any],
    check: bool,
    program: str,
    warnings: Iterable[str] = (),
) -> dict[str, Any]:
    software = cached_software(image["Id"]) if image else None
    if software is None:
        actions = [*actions, describe_request(plan.tag)]
    if not check:
        if image is None:
            raise NodeError(
                f"docker build succeeded, but the engine has no image {plan.tag}. Run again.", changed=True
            )
        software = software or inspect_image(client, plan.tag, image["Id"], program)
    after_id = (image or {}).get("Id")
    after = {
        "built": True,
        "tag": after_id or "the built image",
        "vllm": vllm_of(software) or "what the image has",
    }
    return {
        "changed": bool(actions),
        "actions": actions,
        "image_id": after_id,
        "digest": None,
        "bytes": (image or {}).get("Size"),
        **describe_software(plan.tag, software, warnings),
        "diff": image_diff(plan.tag, before, after if actions else before),
    }
