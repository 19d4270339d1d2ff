# SPDX-License-Identifier: Apache-2.0
"""Read the facts from which a quantization is planned: source, calibration data, free GPUs, memory, disk, earlier
outputs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ..common.disk_space import free_bytes
from ..common.files import read_text
from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError
from ..content.model_manifest import (
    MANIFEST,
    SIGNATURE,
    BadManifest,
    commit_of,
    hash_directory,
    parse_statement,
)
from ..docker.client import DockerClient, Json
from ..docker.image_api import image
from ..observe.gpu_users import read_users
from ..observe.gpus import kfd_processes, read_gpus
from ..observe.source import Source
from . import paths
from .source_files import source_of

_SNAPSHOT = re.compile(r"/models--([^/]+)/snapshots/([0-9a-f]{40})/?$")
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_FRONT_LINE = re.compile(
    r"^(license|license_name|license_link|base_model): *['\"]?([^'\"\n]+?)['\"]? *$", re.MULTILINE
)
_LICENCES = re.compile(r"(LICENSE|LICENCE|USE_POLICY|NOTICE)[^/]*", re.IGNORECASE)
_CARD_LIMIT = 2**20


def read_facts(client: DockerClient, params: Mapping[str, Any], check: bool = False, root: str = "/") -> Json:
    """Return everything that the plan of a quantization depends on. Raise NodeError if the source is not there.

    check: a file of the control node is not copied in check mode.
    """
    source = Source(root)
    calibration = params["calibration"] or ""
    found = image(client, params["image"])
    return {
        "source": read_source(params["source"]),
        "calibration": read_calibration(calibration, check) if calibration else None,
        "outputs": read_outputs(),
        "disk_free": free_bytes(paths.MODELS),
        "memory_available": memory_available(source),
        "gpus": free_gpus(source),
        "image": str(found["Id"]) if found else "",
    }


def read_source(path: str) -> Json:
    """Return what a model's directory holds, and its identity: repository and commit, or the hash of its files."""
    source = source_of(path)
    try:
        config = json.loads(source.read("config.json") or "null")
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise NodeError(f"The directory {path} holds no model: it has no config.json.")
    sizes = source.sizes()
    weights = {
        name: size for name, size in sizes.items() if name.endswith(".safetensors") and "/" not in name
    }
    card = (source.read("README.md") or "")[:_CARD_LIMIT]
    front = _FRONT.match(card)
    return {
        "path": path,
        **_identity(path),
        "config": config,
        "bytes": sum(weights.values()),
        "largest": max(weights.values(), default=0),
        "files": len(weights),
        "card": dict(_FRONT_LINE.findall(front.group(1))) if front else {},
        "licences": sorted(name for name in sizes if _LICENCES.fullmatch(name)),
        "code": sorted(name for name in sizes if name.endswith(".py")),
    }


def _identity(path: str) -> Json:
    """Return repository and commit of a snapshot in the hub's cache, or those of a directory by its content."""
    snapshot = _SNAPSHOT.search(os.path.abspath(path))
    if snapshot:
        return {"repo": snapshot.group(1).replace("--", "/"), "commit": snapshot.group(2), "local": False}
    text = read_text(os.path.join(path, MANIFEST))
    try:
        files = (
            parse_statement(text)
            if text
            else hash_directory(path, f"{paths.HASHES}/{text_hash(path)[:16]}.json")
        )
    except BadManifest as error:
        raise NodeError(f"{path}/{MANIFEST} cannot be used: {error}.") from error
    return {"repo": path, "commit": commit_of(files), "local": True}


def read_calibration(path: str, check: bool = False) -> Json:
    """Return the path of the calibration data and the hash of its content."""
    if check and os.path.dirname(path) == paths.CALIBRATION and not os.path.exists(path):
        return {
            "path": path,
            "mount": path,
            "inside": os.path.basename(path),
            "sha256": "not copied yet",
        }
    if os.path.isfile(path):
        with open(path, "rb") as stream:
            digest = text_hash(stream.read().decode("utf-8", "replace"))
        return {"path": path, "mount": path, "inside": os.path.basename(path), "sha256": digest}
    if not os.path.isdir(path):
        raise NodeError(
            f"The calibration data {path} is not on this node: copy a .txt, .jsonl, .json or .parquet file there, or a "
            "directory of them, or give a file of the control node as quantize_calibration_file."
        )
    files = hash_directory(path, f"{paths.HASHES}/{text_hash(path)[:16]}.json")
    return {"path": path, "mount": path, "inside": "", "sha256": text_hash(canonical(files))}


def read_outputs() -> list[Json]:
    """Return all finished outputs, each with the key of the job that made it, its statement and its signature."""
    found = []
    for name in _names(paths.MODELS, r"[A-Za-z0-9].*"):
        for commit in _names(paths.model_dir(name), r"[0-9a-f]{40}"):
            path = paths.model_dir(name, commit)
            record, statement = (
                _json(os.path.join(path, paths.RECORD)),
                read_text(os.path.join(path, MANIFEST)),
            )
            if record and statement:
                signature = read_text(os.path.join(path, SIGNATURE)) or ""
                about = {"name": name, "commit": commit, "key": str(record.get("key") or "")}
                found.append({**about, "path": path, "statement": statement, "signature": signature})
    return found


def free_gpus(source: Source) -> list[Json]:
    """Return the logical GPUs that no process uses, with their free memory, and those in use with theirs."""
    gpus = read_gpus(source)
    read_users(source, gpus, kfd_processes(source))
    found = []
    for gpu in gpus:
        parts = gpu["partitions"]
        used = (gpu["vram_used"] or 0) / max(1, len(parts))
        for part in parts:
            total = part["memory_bytes"] or (gpu["vram_total"] or 0) // len(parts)
            found.append(
                {
                    "index": gpu["index"],
                    "gfx": gpu["gfx"],
                    "render_node": part["render_node"],
                    "free": max(0, int(total - used)),
                    "users": gpu["users"],
                }
            )
    return [gpu for gpu in found if gpu["render_node"]]


def memory_available(source: Source) -> int:
    """Return the bytes of memory that programs may still take."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", source.text("/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def _names(directory: str, pattern: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if re.fullmatch(pattern, name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _json(path: str) -> Any:
    try:
        found = json.loads(read_text(path) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
