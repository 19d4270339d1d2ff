# SPDX-License-Identifier: Apache-2.0
"""What a command does in its release, beyond the flags and variables that it has; test_commands.py compares it.

An effect is what vLLM makes of several settings together: AITER's master switch turns its parts off, a number of
scheduler steps takes the V0 engine. A plan may add what a document leaves open, and may not turn what it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.attention_backends import (
    DENSE,
    MLA,
    Backends,
)

from tests.commands import Entry, Items, instances, items_of, plan
from tests.worlds.catalogue import knowledge

AITER = "VLLM_ROCM_USE_AITER"
_SPECULATIVE = ("--speculative-config", "--speculative-model")
_ENGINE = ("VLLM_USE_V1", "--num-scheduler-steps", *_SPECULATIVE)


@dataclass(frozen=True)
class Setup:
    """Flags and variables of a command, in the release that it is for."""

    entry: Entry
    items: Items

    def on(self, name: str) -> bool:
        """Whether a variable is on, as the release reads it."""
        variable = knowledge().env(self.entry.vllm).variables.get(name)
        if variable is None:
            return False
        text = self.items.get(name)
        return bool(variable.default) if text is None else str(text).lower() in ("1", "true")

    def aiter(self, part: str) -> bool:
        """Whether a part of AITER is on, and so the whole."""
        return self.on(AITER) and self.on(f"{AITER}_{part}")


def engine(setup: Setup) -> str:
    """V0 or V1."""
    if "VLLM_USE_V1" in setup.items:
        return "V1" if setup.on("VLLM_USE_V1") else "V0"
    release = knowledge().release(setup.entry.vllm)
    found = str(knowledge().default("engine", release))
    falls = knowledge().rules("engine", release)["falls_back"]
    steps, draft = setup.items.get("--num-scheduler-steps", 1), setup.items.get("--speculative-config", {})
    old = steps != 1 or (isinstance(draft, Mapping) and "model" in draft and "method" not in draft)
    return "V0" if falls and old else found


def attention(setup: Setup) -> str:
    """The attention backend."""
    release = knowledge().release(setup.entry.vllm)
    latent = "deepseek" in setup.entry.deployments[0]["model"].lower() and not setup.on("VLLM_MLA_DISABLE")
    env = {name: str(value) for name, value in setup.items.items() if not name.startswith("-")}
    backends = Backends(release, knowledge().line, knowledge().backends)
    facts = {"v1": engine(setup) == "V1"}
    return backends.in_effect(MLA if latent else DENSE, setup.items, env, facts)


def _value(name: str, default: Any = None) -> Callable[[Setup], Any]:
    return lambda setup: setup.items.get(name, default)


def _part(name: str) -> Callable[[Setup], Any]:
    return lambda setup: setup.aiter(name)


def _graphs(setup: Setup) -> Any:
    if setup.items.get("--enforce-eager"):
        return "NONE"
    config = setup.items.get("--compilation-config", {})
    named = ("cudagraph_mode", "full_cuda_graph", "use_cudagraph")
    return (
        {key: value for key, value in config.items() if key in named}
        if isinstance(config, Mapping)
        else config
    )


EFFECTS: Mapping[str, tuple[Callable[[Setup], Any], Sequence[str]]] = {
    "engine": (engine, _ENGINE),
    "attention backend": (
        attention,
        (
            AITER, f"{AITER}_MHA", f"{AITER}_MLA", f"{AITER}_UNIFIED_ATTENTION", "VLLM_MLA_DISABLE",
            "VLLM_V1_USE_PREFILL_DECODE_ATTENTION", "VLLM_ATTENTION_BACKEND", "--attention-backend", "--block-size",
        ),
    ),
    "experts by AITER": (_part("MOE"), (AITER, f"{AITER}_MOE")),
    "norms by AITER": (_part("RMSNORM"), (AITER, f"{AITER}_RMSNORM")),
    "linear layers by AITER": (_part("LINEAR"), (AITER, f"{AITER}_LINEAR")),
    "KV cache": (_value("--kv-cache-dtype", "auto"), ("--kv-cache-dtype",)),
    "weights": (_value("--quantization"), ("--quantization",)),
    "activations": (_value("--dtype", "auto"), ("--dtype",)),
    "graphs": (_graphs, ("--compilation-config", "--enforce-eager")),
    "context": (_value("--max-model-len"), ("--max-model-len",)),
    "sequences": (_value("--max-num-seqs"), ("--max-num-seqs",)),
    "tokens in a step": (_value("--max-num-batched-tokens"), ("--max-num-batched-tokens",)),
    "memory": (_value("--gpu-memory-utilization"), ("--gpu-memory-utilization",)),
    "prefix caching": (_value("--enable-prefix-caching"), ("--enable-prefix-caching",)),
    "asynchronous scheduling": (_value("--async-scheduling"), ("--async-scheduling",)),
    "speculation": (_value("--speculative-config"), _SPECULATIVE),
    "Quick Reduce": (
        _value("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE"), ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION",)
    ),
}  # fmt: skip
"""By name: what tells the effect, and the flags and variables that decide it."""


@dataclass(frozen=True)
class Beside:
    """A command's plan without and with recipes: what they add, each with its source, and what they turn."""

    added: Mapping[str, str]
    turned: Mapping[str, tuple[Any, Any]]


def beside(entry: Entry) -> list[Beside]:
    """Every instance of an entry, planned with recipes beside the same without."""
    pairs = zip(instances(plan(entry, recipes=False)), instances(plan(entry, recipes=True)), strict=True)
    return [_beside(entry, plain, rich) for plain, rich in pairs]


def _beside(entry: Entry, plain: Mapping[str, Any], rich: Mapping[str, Any]) -> Beside:
    before, after = (items_of(entry, item) for item in (plain, rich))
    sources = {item["setting"]: str(item["source"]) for item in rich["reasons"]}
    added = {name: sources.get(name, "") for name, value in after.items() if before.get(name) != value}
    decided = {item["setting"] for item in plain["reasons"] if str(item["source"]).startswith("deployment ")}
    turned = {}
    for name, (tell, deciders) in EFFECTS.items():
        was, now = (tell(Setup(entry, items)) for items in (before, after))
        if was != now and decided & set(deciders):
            turned[name] = (was, now)
    for name in decided & set(before):
        if not isinstance(before[name], Mapping) and after.get(name) != before[name]:
            turned[name] = (before[name], after.get(name))
    return Beside(added, turned)
