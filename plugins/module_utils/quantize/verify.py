# SPDX-License-Identifier: Apache-2.0
"""Compare models that are directories of the node with their manifests, before they are served or copied."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..common.disk_space import human_size
from ..common.files import read_text
from ..common.module_main import NodeError
from ..content.model_manifest import (
    MANIFEST,
    REPAIR,
    REPOSITORY,
    SIGNATURE,
    BadManifest,
    difference,
    forget_hashes,
    hash_directory,
    hashes_file,
    parse_statement,
)
from ..docker.client import Json
from .paths import HASHES


def verify_models(params: Mapping[str, Any]) -> Json:
    """Verify each directory that has a manifest. Raise NodeError with the names of the files that differ."""
    wanted = [*params["paths"], *(str(target.get("model") or "") for target in params["targets"])]
    models: list[Json] = []
    unsigned: list[str] = []
    problems: list[str] = []
    for path in dict.fromkeys(path.rstrip("/") for path in wanted if path.startswith("/")):
        text = read_text(os.path.join(path, MANIFEST))
        if text is None:
            unsigned.append(path)
            if read_text(os.path.join(path, SIGNATURE)) is not None:
                problems.append(f"{path} has a signature but no {MANIFEST}: the manifest was removed.")
            elif params["required"]:
                problems.append(f"{path} has no {MANIFEST}, and models without one are refused.")
            continue
        try:
            models.append(_verified(path, text, params["reread"]))
        except (BadManifest, NodeError) as error:
            problems.append(f"{path}: {error}" if isinstance(error, BadManifest) else str(error))
    if problems:
        raise NodeError(f"{' '.join(problems)} Nothing was started from it. {REPAIR}")
    actions = [
        f"verify {model['path']} ({model['files']} files, {human_size(model['bytes'])})" for model in models
    ]
    return {"changed": False, "models": models, "unsigned": unsigned, "actions": actions}


def _verified(path: str, text: str, reread: bool) -> Json:
    files = parse_statement(text)
    # Unlike for a source, hashes are remembered by manifest too: a new manifest is compared with the bytes.
    cache = hashes_file(path, text, HASHES)
    if reread:
        forget_hashes(cache)
    different = difference(files, hash_directory(path, cache, links=not REPOSITORY.fullmatch(path)))
    if different:
        raise NodeError(f"{path} is not what its manifest says: {different}.")
    return {
        "path": path,
        "files": len(files),
        "bytes": sum(os.stat(os.path.join(path, name)).st_size for name in files),
        "statement": text,
        "signature": read_text(os.path.join(path, SIGNATURE)) or "",
    }
