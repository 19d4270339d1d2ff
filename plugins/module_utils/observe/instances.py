# SPDX-License-Identifier: Apache-2.0
"""Containers of instances, with the files from which they were created."""

from __future__ import annotations

import json
import os

from ..engines.restart_policy import RESTART_LABEL, policy_word
from .docker_root import root_dir
from .engine import DockerRequest
from .hashes import sha256
from .source import Source
from .supervisor_file import read_supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
ARTEFACT_FILES = ("serve.sh", "env", "container.json")


def artefact(directory: str) -> tuple[str | None, dict[str, str]]:
    """Return (hash of an instance's files, None if one is missing; {file name: sha256 of its text}).

    The hash is the SHA-256 of the canonical JSON of {file name: text}, like hashing.spec_hash.
    """
    texts = {}
    for name in ARTEFACT_FILES:
        try:
            with open(os.path.join(directory, name), encoding="utf-8", newline="") as file:
                texts[name] = file.read()
        except FileNotFoundError:
            continue
    whole = json.dumps(texts, sort_keys=True, separators=(",", ":")).encode()
    files = {name: sha256(text.encode()) for name, text in texts.items()}
    return sha256(whole) if len(texts) == len(ARTEFACT_FILES) else None, files


def read_instances(
    source: Source,
    docker: dict[str, Any],
    socket_path: str,
    state_dir: str,
    data_dir: str,
    containers: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the instances' containers with the details that need an inspection: start, exit code, restarts.

    They tell where Docker keeps its files, which is noted in `docker`.
    """
    found = []
    pending = [(entry, DockerRequest(socket_path, f"/containers/{entry['Id']}/json")) for entry in containers]
    for entry, request in pending:
        labels = entry.get("Labels") or {}
        name = labels["instinct-fleet.instance"]
        try:
            details = request.answer()
        except (OSError, ValueError) as error:
            source.problem(f"container of {name}", error)
            details = {}
        try:
            whole, files = artefact(os.path.join(state_dir, "instances", name))
        except (OSError, ValueError) as error:
            source.problem(f"files of {name}", error)
            whole, files = None, {}
        docker["root_dir"] = docker["root_dir"] or root_dir(entry["Id"], details)
        state = details.get("State") or {}
        found.append({
            "name": name,
            "deployment": labels.get("instinct-fleet.deployment"),
            "container": (details.get("Name") or (entry.get("Names") or [""])[0]).lstrip("/") or None,
            "container_id": entry["Id"],
            "state": state.get("Status") or entry.get("State"),
            "spec_hash": labels.get("instinct-fleet.spec"),
            "artefact_hash": whole,
            "files": files,
            "image_id": details.get("Image") or entry.get("ImageID"),
            "started_at": state.get("StartedAt"),
            "exit_code": state.get("ExitCode"),
            "restart_count": details.get("RestartCount"),
            "restart_policy": policy_word(details["HostConfig"].get("RestartPolicy")) if details else None,
            "own_restart_policy": labels.get(RESTART_LABEL),
            "ready": ready_container(state_dir, name) == entry["Id"],
            "supervisor": read_supervisor(os.path.join(data_dir, "cache", name)),
            "start": read_start(state_dir, name),
        })  # fmt: skip
    return sorted(found, key=lambda instance: str(instance["name"]))


def ready_container(state_dir: str, name: str) -> str | None:
    """Return the container of an instance that has generated tokens since its start, as recorded by vllm_server."""
    try:
        with open(os.path.join(state_dir, "instances", name, "ready"), encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None


def read_start(state_dir: str, name: str) -> dict[str, Any] | None:
    """Return what an instance's vLLM measured when it started, as recorded by vllm_server."""
    try:
        with open(os.path.join(state_dir, "instances", name, "start.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read_instance_key(state_dir: str) -> str | None:
    """Return the mark of the instances' key, by the rule of credentials/instance_key.py; None if there is no key."""
    try:
        with open(os.path.join(state_dir, "keys", "instances"), encoding="ascii") as file:
            name, _unused, key = file.read().strip().partition("=")
    except (OSError, ValueError):
        return None
    return sha256(key.encode())[:12] if name == "VLLM_API_KEY" else None
