# SPDX-License-Identifier: Apache-2.0
"""Refuse configurations of speculative decoding that stop vLLM at its start. Pure. Source: vllm/config of the releases.

Each names the releases whose code was read: from the first one on, up to the one that no longer has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tuning.tune import TunedSettings
from .option_refusals import Found, as_map, speculation

SPECULATIVE = "--speculative-config"
ASYNC_SINCE, ASYNC_UNTIL = "0.11.1", "0.33.0"
SYNCHRONOUS: Mapping[str, str | None] = {
    "ngram": None, "suffix": None, "medusa": None, "mlp_speculator": None, "draft_model": "0.16.0",
    "ngram_gpu": "0.18.0",
}  # fmt: skip
"""Methods of speculation without asynchronous scheduling, and the release that brings it; vllm/config/vllm.py."""
NAMELESS = ("0.15.0", "0.17.0")
"""Releases that do not take a draft without a method for a whole model; vllm/config/speculative.py."""
HEADS = ("eagle-", "eagle3", "dflash", "medusa", "mlp_speculator", "mlp-speculator", "mtp", "ngram")
"""Words in the name of a draft by which these releases tell its method, or which say what its config.json has."""
NO_PIPELINE = ("eagle", "eagle3", "dflash")
"""Methods whose draft models cannot be split into stages."""
_FIRST = ("llama", "qwen", "minicpm", "gpt_oss")
_SECOND = (*_FIRST, "hunyuan_vl", "hunyuan_v1_dense", "afmoe")
_THIRD = (*_SECOND, "nemotron_h", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25")
TARGETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("0.10.1", _FIRST[:2]),
    ("0.11.0", _FIRST),
    ("0.16.0", _SECOND),
    ("0.17.0", _THIRD[:8]),
    ("0.18.0", _THIRD),
    ("0.19.1", (*_THIRD, "minimax_m2", "gemma4")),
    ("0.21.0", (*_THIRD, "minimax_m2", "gemma4", "laguna")),
    ("0.22.0", ()),
)
"""Parts of the types of models for which a release takes an EAGLE-3 draft; none: any; vllm/config/speculative.py."""
OWN_DRAFT = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "ngram", "[ngram]", "ngram_gpu")
"""Methods of --speculative-config for which the number of tokens is in no checkpoint."""
NEEDS_DRAFT = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model")
SLOTS_SINCE = "0.20.0"
"""The release that refuses drafts whose slots leave no token of a step; vllm/config/vllm.py."""


def speculative_refusals(tuned: TunedSettings, config: Mapping[str, Any] | None) -> Found:
    """Yield what stops the release. config None: the model's config.json is not known."""
    if SPECULATIVE in tuned.args and as_map(tuned.args[SPECULATIVE]) is None:
        return
    wanted = speculation(tuned)
    if not wanted and SPECULATIVE not in tuned.args:
        return
    if set(wanted) == {"num_speculative_tokens"}:
        yield (
            "--spec-tokens",
            "no method and no model is named",
            "Add spec_method or spec_model, or leave it out.",
        )
        return
    yield from _complete(tuned, wanted, config)
    yield from _asynchronous(tuned, wanted)
    yield from _drafting(tuned, wanted)
    yield from _target(tuned, wanted, config or {})
    yield from _slots(tuned, wanted)


def _complete(tuned: TunedSettings, wanted: Mapping[str, Any], config: Mapping[str, Any] | None) -> Found:
    method, draft = wanted.get("method"), wanted.get("model")
    mtp = isinstance(method, str) and (method == "mtp" or method.endswith("_mtp"))
    if wanted.get("num_speculative_tokens") is None and (
        method in OWN_DRAFT or (draft is None and (method is None or mtp))
    ):
        yield SPECULATIVE, "it has no num_speculative_tokens", "Add num_speculative_tokens, such as 3."
    elif draft is None and method in NEEDS_DRAFT:
        yield SPECULATIVE, f"method {method} drafts with a model, and none is named", "Name it as model."
    elif mtp and draft is None and config is not None and not speaks_of(config, "mtp", "nextn"):
        what = f"method {method} needs a model with layers that draft, and this one has none"
        yield SPECULATIVE, what, "Use method ngram, or a draft model."
    low, high = wanted.get("prompt_lookup_min"), wanted.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        what = f"prompt_lookup_min is {low}, and prompt_lookup_max {high}"
        yield SPECULATIVE, what, "Make it at least as large as prompt_lookup_min."
    size, target = wanted.get("draft_tensor_parallel_size"), tuned.context.tp
    if draft is not None and isinstance(size, int) and size not in (1, target):
        what = f"draft_tensor_parallel_size is {size}, and tensor_parallel_size {target}"
        yield SPECULATIVE, what, "Make them equal, or the draft's 1."


def _asynchronous(tuned: TunedSettings, given: Mapping[str, Any]) -> Found:
    if tuned.args.get("--async-scheduling") is not True or not tuned.inside(ASYNC_SINCE, ASYNC_UNTIL):
        return
    named = given.get("method") or ("ngram" if given.get("model") in ("ngram", "[ngram]") else "")
    method = str(named).strip("[]")
    until = SYNCHRONOUS.get(method)
    if method in SYNCHRONOUS and (until is None or not tuned.inside(until)):
        what = f"asynchronous scheduling does not work with speculative method {method}"
        yield "--async-scheduling", what, "Leave one of async_scheduling and speculative_config out."


def _drafting(tuned: TunedSettings, given: Mapping[str, Any]) -> Found:
    method, model = given.get("method"), str(given.get("model") or "").lower()
    if method is None and model and not any(word in model for word in HEADS) and tuned.inside(*NAMELESS):
        yield SPECULATIVE, "it names a draft and no method", "Add method, such as draft_model or eagle3."
    if method in NO_PIPELINE and model and tuned.context.pp > 1:
        what = f"a draft of method {method} cannot be split into the {tuned.context.pp} stages of the model"
        yield SPECULATIVE, what, "Set pipeline_parallel_size to 1, or leave speculative_config out."


def _target(tuned: TunedSettings, given: Mapping[str, Any], config: Mapping[str, Any]) -> Found:
    inner = config.get("text_config")
    kind = (inner if isinstance(inner, Mapping) else {}).get("model_type") or config.get("model_type")
    known = tuned.table.line.value(TARGETS, tuned.release.index, ())
    fits = not known or not isinstance(kind, str) or any(part in kind for part in known)
    if given.get("method") == "eagle3" and not fits:
        what = f"this release takes no EAGLE-3 draft for models of type {kind}"
        yield SPECULATIVE, what, "Use method ngram, or a later release."


def _slots(tuned: TunedSettings, given: Mapping[str, Any]) -> Found:
    tokens, seqs = tuned.args.get("--max-num-batched-tokens"), tuned.args.get("--max-num-seqs")
    drafted = given.get("num_speculative_tokens")
    each = int(given.get("method") == "draft_model")
    if given.get("parallel_drafting") is True and isinstance(drafted, int):
        each += drafted - 1
    if not isinstance(tokens, int) or not isinstance(seqs, int) or "--max-num-scheduled-tokens" in tuned.args:
        return
    if each and tokens <= each * seqs and tuned.inside(SLOTS_SINCE):
        what = f"drafts take {each * seqs} tokens of a step, and max_num_batched_tokens is {tokens}"
        yield SPECULATIVE, what, "Make it larger, or max_num_seqs smaller."


def speaks_of(config: Mapping[str, Any], *words: str) -> bool:
    """Whether a key or the type of a config.json has one of these words."""
    inner = config.get("text_config")
    names = [*config, *(inner if isinstance(inner, Mapping) else ()), str(config.get("model_type"))]
    return any(word in name for name in names for word in words)
