# SPDX-License-Identifier: Apache-2.0
"""Find the repositories of the hub that a deployment needs besides its model: drafts, adapters, tokenizers. Pure.

A server has no network and a read-only cache, so everything that vLLM would download must be present before it starts,
and is pinned like the model. Sources: vllm/config/speculative.py, vllm/lora/utils.py (get_adapter_absolute_path),
vllm/config/model.py (tokenizer_revision), of 0.6.3 to 0.32.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import Path, Problem
from ....module_utils.engines.mounts import HF_MOUNT
from ...knowledge.vllm.flag_values import Value
from ..desired.deployment import LOCAL, REPO, Deployment
from ..desired.weights_formats import ANY, without_pickles
from ..pins.lockfile import ModelPin

MODEL, DRAFT, ADAPTER, TOKENIZER = "model", "draft", "adapter", "tokenizer"
"""Roles of a repository in its deployment."""
MAIN = "main"

WITHOUT_WEIGHTS = frozenset(
    ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class")
)
"""Methods of speculation without weights; some are also valid as the model."""
WEIGHTS = tuple(
    f"*.{end}"
    for end in ("safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx", "onnx_data", "ckpt")
)
"""Files of a repository that a tokenizer does not need."""


@dataclass(frozen=True)
class ModelRepository:
    """A repository of the hub, or those of its files that match the patterns.

    use: its role in the deployment. path: the key that names it. any_format: pickles may be downloaded and loaded.
    """

    use: str
    repo: str
    revision: str
    path: Path
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    any_format: bool = False

    def excluded(self, pin: ModelPin) -> tuple[str, ...]:
        """Return the patterns of what is not downloaded of a commit."""
        return self.exclude if self.any_format else without_pickles(pin, self.exclude, self.include)

    def files(self, pin: ModelPin) -> dict[str, int]:
        """Return the files that are downloaded of a commit, with their sizes in bytes."""
        return pin.selection(self.excluded(pin), self.include)


def required_repositories(deployment: Deployment) -> tuple[ModelRepository, ...]:
    """Return all repositories of the deployment: the model, unless that is a path, and its companions."""
    if deployment.local_model:
        return companions(deployment)
    path = (*deployment.path, "model")
    return (_of_model(deployment, MODEL, deployment.revision, path), *companions(deployment))


def companions(deployment: Deployment) -> tuple[ModelRepository, ...]:
    """Return the repositories that the deployment needs besides its model."""
    named = (name for name in _named(deployment) if re.fullmatch(REPO, name.value))
    return tuple(_repository(deployment, name) for name in named)


def unmounted_paths(deployment: Deployment) -> tuple[str, ...]:
    """Return warnings about paths that no mount puts into the container, so the image would need to contain them."""
    places = [mount.split(":")[1] for mount in deployment.runtime.extra_mounts]
    places.append(deployment.model if deployment.local_model else HF_MOUNT)
    found = []
    for name in _named(deployment):
        key = ".".join(str(part) for part in name.path[2:])
        if re.fullmatch(LOCAL, name.value):
            inside = any(f"{name.value}/".startswith(place.rstrip("/") + "/") for place in places)
            if not inside:
                found.append(
                    f"{key}: {name.value} is mounted by no entry of runtime.extra_mounts; unless the image has it, "
                    "vLLM stops"
                )
    return tuple(dict.fromkeys(found))


def unnamed_repositories(deployment: Deployment) -> tuple[Problem, ...]:
    """Return a problem for each companion that is named without its organisation, or by a relative path."""
    return tuple(
        Problem(
            name.path,
            f"{name.value} is neither a repository of the hub nor an absolute path.",
            "Write organisation/name, as on the hub, or the absolute path that it has in the container.",
        )
        for name in _named(deployment)
        if not re.fullmatch(f"{REPO}|{LOCAL}", name.value)
    )


def draft_of(deployment: Deployment) -> tuple[ModelRepository, int | None] | None:
    """Return the draft with weights of its own, and its number of GPUs (None: as the model); None without a draft."""
    draft = next((item for item in companions(deployment) if item.use == DRAFT), None)
    if draft is None or draft.repo == deployment.model:
        return None
    size = str(_speculation(deployment).get("draft_tensor_parallel_size"))
    return draft, int(size) if re.fullmatch("[1-9][0-9]{0,8}", size) else None


def drafts_for_itself(deployment: Deployment) -> bool:
    """Return whether layers of the model's own checkpoint draft (multi-token prediction)."""
    given = _speculation(deployment)
    method, model = str(given.get("method") or ""), str(given.get("model") or deployment.model)
    return bool(given) and method not in WITHOUT_WEIGHTS and model == deployment.model


@dataclass(frozen=True)
class _ModelName:
    """What a key names: a repository or a path. same: it is the deployment's own model."""

    use: str
    value: str
    revision: str
    path: Path
    same: bool = False


def _repository(deployment: Deployment, name: _ModelName) -> ModelRepository:
    if name.same:
        return _of_model(deployment, name.use, name.revision or deployment.revision, name.path)
    exclude = WEIGHTS if name.use == TOKENIZER else ()
    return ModelRepository(
        name.use, name.value, name.revision or MAIN, name.path, exclude, any_format=_any_format(deployment)
    )


def _of_model(deployment: Deployment, use: str, revision: str, path: Path) -> ModelRepository:
    patterns = deployment.exclude, deployment.include
    return ModelRepository(use, deployment.model, revision, path, *patterns, _any_format(deployment))


def _any_format(deployment: Deployment) -> bool:
    return deployment.weights_formats == ANY


def _named(deployment: Deployment) -> Iterator[_ModelName]:
    """Yield what the deployment's flags and settings name."""
    flags, path = dict(deployment.engine_args), (*deployment.path, "engine_args")
    model, revision = _speculative_model(deployment)
    if model:
        yield _ModelName(DRAFT, model, revision, _place_of_draft(deployment), model == deployment.model)
    modules = flags.get("lora_modules")
    many = isinstance(modules, (list, tuple))
    for index, item in enumerate(modules if isinstance(modules, (list, tuple)) else (modules,)):
        adapter = adapter_of(item)
        if adapter:
            place: Path = (*path, "lora_modules", index) if many else (*path, "lora_modules")
            yield _ModelName(ADAPTER, adapter, "", place)
    own = "" if deployment.local_model else deployment.model
    tokenizer, given = str(flags.get("tokenizer") or own), str(flags.get("tokenizer_revision") or "")
    if tokenizer and (tokenizer != deployment.model or given):
        key = "tokenizer" if flags.get("tokenizer") else "tokenizer_revision"
        yield _ModelName(TOKENIZER, tokenizer, given, (*path, key), tokenizer == deployment.model)


def _speculation(deployment: Deployment) -> dict[str, Any]:
    """Return the configuration of speculation in any spelling, by the keys of --speculative-config."""
    flags = dict(deployment.engine_args)
    found = {
        **map_or_empty(dict(deployment.settings).get("speculative")),
        **map_or_empty(flags.get("speculative_config")),
    }
    for key in ("model", "draft_tensor_parallel_size"):
        old = flags.get("speculative_model" if key == "model" else f"speculative_{key}")
        if old is not None:
            found.setdefault(key, old)
    return found


def _speculative_model(deployment: Deployment) -> tuple[str, str]:
    """Return the draft and its revision; without a name, the model drafts for itself (multi-token prediction)."""
    given = _speculation(deployment)
    method, model = str(given.get("method") or ""), str(given.get("model") or "")
    revision = str(given.get("revision") or "")
    if not given or method in WITHOUT_WEIGHTS or model in WITHOUT_WEIGHTS:
        return "", ""
    if not model:
        return ("" if deployment.local_model else deployment.model), revision
    if not method and re.fullmatch(
        r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", model
    ):  # a class in the image that proposes tokens
        return "", ""
    return model, revision


def _place_of_draft(deployment: Deployment) -> Path:
    """Return the path of the key that names the draft, or else of the one that enables speculation."""
    flags, path = dict(deployment.engine_args), deployment.path
    for key in ("speculative_config", "speculative_model"):
        value = flags.get(key)
        if isinstance(value, Mapping) and "model" in value:
            return (*path, "engine_args", key, "model")
        if value is not None and not isinstance(value, Mapping):
            return (*path, "engine_args", key)
    asked = dict(deployment.settings).get("speculative")
    if isinstance(asked, Mapping):
        return (*path, "settings", "speculative", *(("model",) if "model" in asked else ()))
    return (*path, "engine_args", "speculative_config")


def adapter_of(item: Value) -> str:
    """Return the path in an entry of lora_modules: {"name": …, "path": …}, or name=path."""
    entry = map_or_empty(item)
    if entry:
        return str(entry.get("path") or "")
    return item.partition("=")[2] if isinstance(item, str) else ""


def map_or_empty(value: Value) -> Mapping[str, Any]:
    """Return a map; empty for anything else."""
    return value if isinstance(value, Mapping) else {}
