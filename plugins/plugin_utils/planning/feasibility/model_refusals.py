# SPDX-License-Identifier: Apache-2.0
"""Refuse what a model cannot do: options of other kinds of models, inputs besides text, adapters. Pure.

Sources: ModelConfig, MultiModalConfig and VllmConfig of vllm/config, the registry of models, and what the server does
with --lora-modules (OpenAIServingModels.init_static_loras); since when, from the sources of vLLM's releases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ....module_utils.common.errors import Problem, nearest
from ...knowledge.catalog.load import Knowledge
from ..desired.deployment import Deployment
from ..tuning.companion_models import adapter_of, mapping
from ..tuning.tune import SIZES, TunedSettings

Found = Iterator[tuple[str, str, str]]
"""The flag, what is wrong with it, and what to do."""
_SUFFIXES = (
    "ForCausalLM", "ForConditionalGeneration", "ForSequenceClassification", "ForTextEncoding", "ForRewardModeling",
    "ChatModel", "LMHeadModel", "EmbeddingModel", "RewardModel", "Model",
)  # fmt: skip
"""What vLLM exchanges at the end of an architecture's name before it looks for it."""
_ONE_STAGE = ("eagle", "eagle3", "medusa")
"""Methods of speculation whose drafts are one stage, though vLLM gave them as many as the model has."""
_ENGRAM = ("DeepseekV41", "Qwen4Exp")
"""Architectures with n-gram embeddings; vllm/config/engram.py."""


def model_refusals(
    deployment: Deployment, tuned: TunedSettings, config: Mapping[str, Any] | None, knowledge: Knowledge
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return problems, and warnings where it is not certain; config None: the model's config.json is not known."""
    if tuned.problems:
        return (), ()
    found = [
        *_inputs(tuned),
        *_profiled(tuned),
        *_adapters(tuned),
        *_pooling(tuned),
        *_stages(deployment, tuned),
        *_architecture(tuned, knowledge),
    ]
    if config is not None:
        names = tuple(str(name) for name in config.get("architectures") or ())
        found += [
            *_other_kinds(tuned, config, names),
            *_multimodal(deployment, tuned, config),
            *_sliding(tuned, config),
        ]
    version = tuned.release.requested
    problems = tuple(
        Problem(deployment.path, f"{flag}: vLLM {version} stops at its start: {what}.", fix)
        for flag, what, fix in found
    )
    return problems, tuple(_unknown(tuned, config, knowledge))


def _map(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return mapping(value)


def _inputs(tuned: TunedSettings) -> Found:
    """Yield values of the wrong type in flags about images, videos and sounds; typed since 0.9.1."""
    if not tuned.inside("0.9.1"):
        return
    for name, options in _map(tuned.args.get("--media-io-kwargs")).items():
        if not isinstance(options, Mapping):
            what = f"{name} is {options!r}, and no map"
            yield "--media-io-kwargs", what, f'Write its options as a map, such as {{"{name}": {{}}}}.'
    for name, limit in _map(tuned.args.get("--limit-mm-per-prompt")).items():
        if not _count(limit) and not (isinstance(limit, Mapping) and all(map(_count, limit.values()))):
            yield "--limit-mm-per-prompt", f"{name} is {limit!r}, and no number", "Write a number."
    domains = tuned.args.get("--allowed-media-domains")
    if isinstance(domains, (list, tuple)) and any(item in ("", None, "None") for item in domains):
        yield "--allowed-media-domains", "one of them is empty", "Write names of hosts, or leave it out."


def _count(value: Any) -> bool:
    """Whether a value is a whole number, or a text or a fraction that says the same."""
    if isinstance(value, str):
        return value.strip().lstrip("+-").isdigit()
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _multimodal(deployment: Deployment, tuned: TunedSettings, config: Mapping[str, Any]) -> Found:
    """Yield what only models with images, videos or sounds are asked."""
    if not any(key in config for key in ("vision_config", "audio_config")):
        return
    for name, limit in _map(tuned.args.get("--limit-mm-per-prompt")).items():
        count = mapping(limit).get("count", 0) if isinstance(limit, Mapping) else limit
        if tuned.inside("0.11.1") and _count(count) and int(count) < 0:
            yield "--limit-mm-per-prompt", f"{name} is {count}", "Write a number that is not below 0."
    shared, usual = "--mm-shm-cache-max-object-size-mb", 128
    other = tuned.args.get("--mm-processor-cache-type", "lru") != "shm"
    if tuned.inside("0.11.1") and other and tuned.args.get(shared, usual) not in (usual, str(usual)):
        yield shared, "only a cache of type shm has it", "Set mm_processor_cache_type: shm, or leave it out."
    sizes = [getattr(deployment, name) for name in SIZES]
    if tuned.args.get("--mm-tensor-ipc") == "torch_shm" and max(sizes) > 1:
        what = "torch_shm works on one GPU alone"
        yield "--mm-tensor-ipc", what, "Use direct_rpc, or leave it out."


def _profiled(tuned: TunedSettings) -> Found:
    flag, backend = "--ray-workers-use-nsight", tuned.args.get("--distributed-executor-backend")
    if tuned.args.get(flag) is True and backend != "ray":
        yield flag, "it profiles workers of Ray, and there are none", "Leave it out."


def _adapters(tuned: TunedSettings) -> Found:
    flag = "--lora-modules"
    given = tuned.args.get(flag)
    if given and not tuned.args.get("--enable-lora"):
        yield flag, "adapters are loaded only with enable_lora", "Set enable_lora: true, or leave it out."
    for item in given if isinstance(given, (list, tuple)) else (given,):
        if item and not adapter_of(item):
            yield (
                flag,
                f"{item} names no adapter",
                "Write NAME=ORGANISATION/NAME, or the path in the container.",
            )


def _pooling(tuned: TunedSettings) -> Found:
    """Yield that two releases ask a pooling model's configuration for its type."""
    flag = "--pooler-config"
    given = tuned.args.get(flag)
    if given is not None and tuned.inside("0.12.0", "0.14.0") and not _map(given).get("pooling_type"):
        yield flag, "it has no pooling_type", "Add pooling_type, such as LAST, or leave pooler_config out."


def _stages(deployment: Deployment, tuned: TunedSettings) -> Found:
    """Yield that a draft would be split into stages, which its class cannot be."""
    flag, stages = "--speculative-config", deployment.pipeline_parallel_size
    method = _map(tuned.args.get(flag)).get("method")
    if stages > 1 and method in _ONE_STAGE and tuned.inside("0.9.0", "0.30.0"):
        what = f"a draft of method {method} cannot be split into {stages} pipeline stages"
        yield flag, what, "Set pipeline_parallel_size: 1, or use method ngram."


def _other_kinds(tuned: TunedSettings, config: Mapping[str, Any], names: tuple[str, ...]) -> Found:
    """Yield options of kinds of models that this one is not."""
    if tuned.args.get("--model-impl") == "terratorch" and not any("Terratorch" in name for name in names):
        yield "--model-impl", "terratorch runs models of TerraTorch only", "Leave it out."
    if tuned.args.get("--use-replayssm") is True and not any("NemotronH" in name for name in names):
        yield "--use-replayssm", "it is for Nemotron-H models only", "Leave it out."
    routed, experts = "--enable-return-routed-experts", any("expert" in key for key in config)
    if tuned.args.get(routed) is True and not experts and tuned.inside("0.31.0"):
        yield routed, "the model has no experts", "Leave it out."
    if tuned.args.get("--engram-config") is not None and not any(name.startswith(_ENGRAM) for name in names):
        yield "--engram-config", "the model has no n-gram embeddings", "Leave it out."


def _sliding(tuned: TunedSettings, config: Mapping[str, Any]) -> Found:
    flag, scaling = "--disable-sliding-window", mapping(config.get("rope_scaling"))
    kind = scaling.get("rope_type") or scaling.get("type")
    usable = (None, "su", "longrope", "llama3")
    if tuned.args.get(flag) is True and tuned.inside("0.6.3", "0.12.0") and kind not in usable:
        what = f"it cannot do that where positions are scaled ({kind})"
        yield flag, what, "Leave it out, or use an image with vLLM 0.12.0."


def _architecture(tuned: TunedSettings, knowledge: Knowledge) -> Found:
    """Yield that no release has an architecture that the operator names."""
    named = _map(tuned.args.get("--hf-overrides")).get("architectures")
    known = knowledge.architectures
    bases = {_base(name) for name in known}
    if isinstance(named, list) and named and not any(_base(str(name)) in bases for name in named):
        what = f"no architecture is named {', '.join(map(str, named))}"
        near = nearest(str(named[0]), known)
        yield "--hf-overrides", what, f"Did you mean {near}?" if near else "Leave architectures out."


def _unknown(tuned: TunedSettings, config: Mapping[str, Any] | None, knowledge: Knowledge) -> Iterator[str]:
    """Yield that only other releases have the model's architecture; Transformers' own class may run it."""
    names = [str(name) for name in (config or {}).get("architectures") or ()]
    spans = {
        name: knowledge.architectures[name]["present"] for name in names if name in knowledge.architectures
    }
    line, index = tuned.table.line, tuned.release.index
    if not spans or len(spans) < len(names) or any(line.within(span, index) for span in spans.values()):
        return
    name = names[0]
    present = spans[name]
    when = f"from {present[0][0]} on" if line.order[present[0][0]] > index else f"until {present[-1][1]}"
    yield (
        f"vLLM {tuned.release.requested} has no {name}, which others have {when}; it stops at its start unless its "
        "Transformers library can run the model"
    )


def _base(name: str) -> str:
    end = next((item for item in _SUFFIXES if name.endswith(item)), "")
    return name.removesuffix(end) if end else name
