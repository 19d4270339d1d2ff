# SPDX-License-Identifier: Apache-2.0
"""Explain why Docker cannot create or start an instance's container, and what to do about it. Pure."""

from __future__ import annotations

from .instance import ServerSpec

NO_DEVICE = (
    "A device of the instance is not available. Check that the amdgpu driver is loaded; after a change of the "
    "partition mode, run playbooks/plan.yml and deploy again."
)


def explain_refusal(message: str, server: ServerSpec) -> tuple[str, str]:
    """Return (kind, next step) for a container that Docker cannot create or start."""
    image = server.body.get("Image")
    known = (
        ("No such image", "image_missing", f"Pull the image {image} first: run the vllm_image role."),
        ("/dev/", "no_device", NO_DEVICE),
        (
            "bind source path does not exist",
            "mount_missing",
            "A directory that the deployment mounts (extra_mounts) does not exist on this node. Create it.",
        ),
        (
            "executable file not found",
            "command_missing",
            f"The image {image} has no /bin/bash. Use a vLLM image.",
        ),
        (
            "rlimit",
            "ulimits",
            "Docker may not raise a limit as runtime.ulimits requests. Lower it there, or "
            "raise Docker's own (LimitMEMLOCK=infinity in its systemd unit).",
        ),
        (
            "no space left on device",
            "disk_full",
            "Docker's disk is full: remove what nothing uses (playbooks/prune.yml).",
        ),
        (
            "OCI runtime",
            "container_refused",
            "The container runtime refuses the container; the line says why.",
        ),
    )
    for text, kind, next_step in known:
        if text in message:
            return kind, next_step
    return "container_refused", "Docker refuses the container; the line says why."
