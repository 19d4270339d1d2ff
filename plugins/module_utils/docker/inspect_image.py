# SPDX-License-Identifier: Apache-2.0
"""Probe an image for its software, once per image and node, in a short-lived container without GPU or network."""

from __future__ import annotations

import json
import os
import re

from ..common import paths
from ..common.files import read_text, write_atomic
from ..common.hashing import text_hash
from ..common.module_main import NodeError
from ..content.image_ref import ImageSoftware
from ..content.probe_output import MARK, kind
from ..engines.failures import tail
from .client import DockerClient, DockerError, Json, NotFound
from .containers import create_container, remove_container, wait_container
from .logs import container_log

LABEL = "instinct-fleet.ask"
TIMEOUT = 300.0
"""Seconds to wait for an answer. It takes a second or two, longer only for `vllm --version` from a cold disk."""
SIGNALS = 128  # exit codes above this one mean that a signal ended the program

# Run by the Python that runs vLLM, which need not be the first in PATH; without any Python, by vLLM itself.
SCRIPT = """
python=
vllm=$(command -v vllm) && read -r python < "$vllm"
python=${python#\\#!}
case $python in */python*) ;; *) python=$(command -v python3);; esac
[ -x "$python" ] || python=$(command -v python3)
if [ -n "$python" ]; then exec "$python" -c "$1"; fi
exec vllm --version
"""
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?[A-Za-z0-9.+_-]*")


def container_of(name: str) -> str:
    """Return the name of the container that probes the image `name` (repository@digest, or the tag of a build)."""
    return f"instinct-ask-{text_hash(name)[:12]}"


def describe_request(name: str) -> str:
    """Return the description of the probe for the list of actions."""
    return f"POST /containers/create?name={container_of(name)} (probe {name})"


def cached_software(image_id: str) -> ImageSoftware | None:
    """Return the facts from an earlier probe on this node; None if there was none, or they cannot be read."""
    text = read_text(paths.software_file(image_id))
    try:
        return ImageSoftware.from_json(json.loads(text)) if text else None
    except (ValueError, KeyError, TypeError):
        return None


def inspect_image(client: DockerClient, name: str, image_id: str, program: str) -> ImageSoftware:
    """Probe the image and store the result on the node. program: programs/inspect_image.py.

    Raise NodeError on failure.
    """
    container = container_of(name)
    _remove(client, container)  # left by a run that was killed
    try:
        create_container(client, container, container_body(image_id, program))
        client.start(container)
        code = wait_container(client, container, TIMEOUT)
        log = container_log(client, container)
    except NotFound as error:
        raise NodeError(
            f"Image {name}, or the container that probed it, was removed in the meantime. Run again.",
            changed=True,
        ) from error
    except DockerError as error:
        raise NodeError(f"Image {name} cannot be probed: {error}", changed=True) from error
    finally:
        _remove(client, container)
    if code is None or code > SIGNALS:
        why = f"did not finish within {TIMEOUT:.0f} s" if code is None else f"was killed (exit code {code})"
        raise NodeError(
            f"The probe of image {name} {why}. Check the node's load, memory and disk, and run again.",
            changed=True,
            log=tail(log),
        )
    found = parse_answer(log)
    path = paths.software_file(image_id)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    write_atomic(path, json.dumps(found.to_json(), sort_keys=True) + "\n", 0o644)
    return found


def container_body(image_id: str, program: str) -> Json:
    """Return the spec of the probing container: it can only read the image and write to memory."""
    return {
        "Image": image_id,
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": ["/bin/sh", "-c", SCRIPT, "ask", program],
        "Cmd": [],
        "Env": ["HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"],
        "Labels": {LABEL: image_id},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "size=64m"},
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 512,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        },
    }


def no_answer(name: str) -> str:
    """Return the warning for an image in which no vLLM was found."""
    return f"No vLLM was found in image {name}. If it has one, set vllm_version in the deployment."


def parse_answer(log: str) -> ImageSoftware:
    """Return the answer in the container's output, without a vLLM version if there is none."""
    for line in reversed(log.splitlines()):
        if line.startswith(MARK):
            return ImageSoftware.from_json(json.loads(line[len(MARK) :]))
    words = log.split()
    version = words[-1] if words and _VERSION.fullmatch(words[-1]) else ""  # `vllm --version`
    return ImageSoftware(version, kind(version, "", ""))


def _remove(client: DockerClient, name: str) -> None:
    container = client.container(name)
    if container is None:
        return
    if container["State"]["Running"]:
        client.stop(name, 0)
    remove_container(client, name)
