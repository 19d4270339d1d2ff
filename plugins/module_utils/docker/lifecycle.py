# SPDX-License-Identifier: Apache-2.0
"""Stop containers gracefully, and start them again, so that both last over a restart of Docker and a boot.

A container on AMD GPUs gets a chance to stop before it is killed: SIGKILL during HIP work strands GPU memory
(ROCm/mori#473, ROCm/rocm-systems#8263). An instance's restart policy follows what was asked of it:
engines/restart_policy.py.
"""

from __future__ import annotations

import contextlib
from urllib.parse import quote

from ..engines.restart_policy import NEVER, RESTART_LABEL, docker_policy, policy_word
from .client import DockerClient, DockerError, DockerUnavailable, Json, NotFound


def present_policy(container: Json) -> str:
    """Return a container's restart policy, from its inspection."""
    return policy_word((container.get("HostConfig") or {}).get("RestartPolicy"))


def own_policy(container: Json) -> str:
    """Return the policy that an instance's container has while it is to run; "" if its policy is not ours to change."""
    return str((container["Config"].get("Labels") or {}).get(RESTART_LABEL) or "")


def comes_back(container: Json) -> bool:
    """Return whether Docker would start an instance's container again after it was stopped."""
    return own_policy(container) != "" and present_policy(container) != NEVER


def policy_action(container: str, policy: str) -> str:
    """Return the request of set_policy() as results list it."""
    return f"POST /containers/{container}/update (restart policy {policy})"


def set_policy(client: DockerClient, container: str, policy: str) -> None:
    """Change a container's restart policy, whether it runs or not."""
    body = {"RestartPolicy": docker_policy(policy)}
    client.json("POST", f"/containers/{quote(container)}/update", body=body)


def stop_gracefully(client: DockerClient, container: str, seconds: int) -> str:
    """Ask a container to stop, and Docker not to start it again. Return a warning, or "".

    There is one if Docker had to kill it after `seconds`, or keeps its restart policy.
    """
    before = client.container(container)
    if before is None:
        return ""
    found = ""
    if comes_back(before):
        try:
            set_policy(client, container, NEVER)
        except NotFound:
            return ""
        except DockerUnavailable:
            raise
        except DockerError as error:  # to stop it is what counts
            found = f"{container} keeps its restart policy, and Docker starts it again when its daemon starts: {error}"
    if not before["State"]["Running"]:
        return found
    with contextlib.suppress(NotFound):
        client.stop(container, seconds)
    after = client.container(container)
    if after is not None and after["State"]["ExitCode"] == 137 and not after["State"].get("OOMKilled"):
        return (
            f"{container} did not stop within {seconds} s and was killed: GPU memory may stay occupied. "
            "Check that it is free (amd-smi process; mem_info_vram_used), and raise runtime.stop_timeout."
        )
    return found


def start_again(client: DockerClient, container: str) -> None:
    """Start a container that was stopped, with its own restart policy."""
    found = client.container(container)
    policy = own_policy(found) if found else ""
    if found and policy not in ("", present_policy(found)):
        set_policy(client, container, policy)
    client.start(container)
