# SPDX-License-Identifier: Apache-2.0
"""Ask an image what is in it, once in its life on a node: in a short-lived container without GPU or network."""

from __future__ import annotations

import json
import os
import re

from ..common import paths
from ..common.container_answers import MARK, kind
from ..common.failures import tail
from ..common.files import read_text, write_atomic
from ..common.hashing import text_hash
from ..common.image_ref import ImageSoftware
from ..common.module_main import NodeError
from .client import Engine, EngineError, Json, NotFound

LABEL = "instinct-fleet.ask"
TIMEOUT = 300.0
"""Seconds for an answer: a second or two, but for `vllm --version` from a cold disk."""
SIGNALS = 128  # a program that a signal ended has a code above this one

# Asked of the Python that runs vLLM, which need not be the first in PATH; without any Python, of vLLM itself.
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
    """The container that asks the image of this name (repository@digest, or the tag of a build)."""
    return f"instinct-ask-{text_hash(name)[:12]}"


def request_of(name: str) -> str:
    """What is told of asking."""
    return f"POST /containers/create?name={container_of(name)} (ask {name} what is in it)"


def known(image_id: str) -> ImageSoftware | None:
    """What the image answered earlier on this node; None when it was not asked, or its answer cannot be read."""
    text = read_text(paths.software_file(image_id))
    try:
        return ImageSoftware.from_json(json.loads(text)) if text else None
    except (ValueError, KeyError, TypeError):
        return None


def ask(engine: Engine, name: str, image_id: str, program: str) -> ImageSoftware:
    """Ask the image and keep its answer on the node. program: programs/inspect_image.py. Raises NodeError."""
    container = container_of(name)
    _remove(engine, container)  # left by a run that was killed
    try:
        engine.create(container, container_body(image_id, program))
        engine.start(container)
        code = engine.wait(container, TIMEOUT)
        log = engine.logs(container)
    except NotFound as error:
        raise NodeError(
            f"Image {name}, or the container that asked it, was removed meanwhile. Run again.", changed=True
        ) from error
    except EngineError as error:
        raise NodeError(f"Image {name} cannot be asked what is in it: {error}", changed=True) from error
    finally:
        _remove(engine, container)
    if code is None or code > SIGNALS:
        why = (
            f"did not say within {TIMEOUT:.0f} s"
            if code is None
            else f"was killed (exit code {code}) before it said"
        )
        raise NodeError(
            f"Image {name} {why} what is in it. Look at the node's load, memory and disk, and run again.",
            changed=True,
            log=tail(log),
        )
    found = parse_answer(log)
    path = paths.software_file(image_id)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    write_atomic(path, json.dumps(found.to_json(), sort_keys=True) + "\n", 0o644)
    return found


def container_body(image_id: str, program: str) -> Json:
    """The container that asks: it can read the image and write to memory, and nothing else."""
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


def unanswered(name: str) -> str:
    """The warning for an image that has no vLLM, or one that cannot be found."""
    return (
        f"Image {name} was asked what is in it, and no vLLM was found. If it has one, say which in the deployment's "
        "vllm_version."
    )


def parse_answer(log: str) -> ImageSoftware:
    """The answer in what the container printed; one without vLLM when there is none."""
    for line in reversed(log.splitlines()):
        if line.startswith(MARK):
            return ImageSoftware.from_json(json.loads(line[len(MARK) :]))
    words = log.split()
    version = words[-1] if words and _VERSION.fullmatch(words[-1]) else ""  # `vllm --version`
    return ImageSoftware(version, kind(version, "", ""))


def _remove(engine: Engine, name: str) -> None:
    container = engine.container(name)
    if container is None:
        return
    if container["State"]["Running"]:
        engine.stop(name, 0)
    engine.remove(name)
