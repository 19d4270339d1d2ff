# SPDX-License-Identifier: Apache-2.0
"""Say where the model to quantize is on a host, and what must be downloaded first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ...planning.pins.lockfile import ModelPin

NOT_QUANTIZED = (
    "original/*",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.gguf",
    "*.onnx",
    "onnx/*",
)
"""Other formats of the weights, which a repository may have in addition to its safetensors."""
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


def find_source(
    options: Mapping[str, Any],
    cache_dir: str,
    endpoint: str,
    pin: Callable[[str, str, str], ModelPin],
    there: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return path and models, as the module quantize_source does. Raise FleetError.

    pin: queries the hub. there: the snapshots observed on the host; one that a deployment uses is left as it is.
    """
    source, path = str(options["source"]), ("quantize_source",)
    if source.startswith("/"):
        if ".." in source.split("/") or ":" in source:
            raise FleetError(
                [Problem(path, f"{source!r} is not a plain path.", "Give it without .. and without a colon.")]
            )
        return {"changed": False, "path": source.rstrip("/") or "/", "models": []}
    if not _REPO.fullmatch(source) or ".." in source:
        what = f"{source!r} is neither a repository on the hub (org/name) nor an absolute path on the host."
        raise FleetError([Problem(path, what, "Name one of these.")])
    found = pin(source, options["revision"], endpoint)
    include = tuple(options["include"])
    files = found.selection(NOT_QUANTIZED, include)
    if not any(name.endswith(".safetensors") for name in files):
        what = f"{source} has no *.safetensors at {found.commit[:12]}."
        raise FleetError(
            [Problem(path, what, "Name a repository that has them, or convert it: pickles are not loaded.")]
        )
    hashes = {name: text for name, text in found.hashes if name in files}
    model = {
        "repo": source,
        "revision": options["revision"],
        "commit": found.commit,
        "image": options["image"],
        "cache_dir": cache_dir,
        "files": files,
        **({"hashes": hashes} if hashes else {}),
        "include": list(include),
        "exclude": list(NOT_QUANTIZED),
    }
    complete = any(
        item.get("complete")
        and (item.get("repo"), item.get("commit")) == (source, found.commit)
        and str(item.get("cache_dir")).rstrip("/") == cache_dir.rstrip("/")
        for item in there
    )
    folder = f"models--{source.replace('/', '--')}"
    return {
        "changed": False,
        "path": f"{cache_dir.rstrip('/')}/hub/{folder}/snapshots/{found.commit}",
        "models": [] if complete else [model],
    }
