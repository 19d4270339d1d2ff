# SPDX-License-Identifier: Apache-2.0
"""Give the known facts of a server's start the names that conditions in catalog/vllm/refusals use. Pure.

docs/catalogue.md lists the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...knowledge.catalog.load import Knowledge
from ...knowledge.rules.conditions import UNKNOWN, read_map
from ..desired.deployment import Deployment
from ..tuning.companion_models import adapter_of, map_or_empty
from ..tuning.tune import TunedSettings

SPECULATIVE = "--speculative-config"
SHORT = {"--spec-model": "model", "--spec-method": "method", "--spec-tokens": "num_speculative_tokens"}
"""Flags that go into the configuration of speculation; vllm/engine/arg_utils.py."""


class StartFacts:
    """Returns the value of a fact, or UNKNOWN; a flag, variable or key that is not given is None.

    config None: the model's config.json is not known. more: facts that only some rules ask for.
    """

    def __init__(
        self,
        deployment: Deployment,
        tuned: TunedSettings,
        config: Mapping[str, Any] | None,
        knowledge: Knowledge,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.tuned, self.config, self.knowledge = tuned, config, knowledge
        context = tuned.context
        self.known = {
            **{"line": context.line, "release": tuned.release, "version": tuned.release.requested},
            **{"tp": context.tp, "pp": context.pp, "dp": context.dp, "devices": context.devices},
            "repository": deployment.model,
            **(more or {}),
        }

    def __call__(self, name: str) -> Any:
        """Return the value of a fact. Raise KeyError if there is none of this name."""
        kind, dot, rest = name.partition(".")
        if name.startswith("--"):
            value = self.tuned.args.get(kind)
            return (read_map(value) or {}).get(rest) if dot else value
        if dot:
            return _NAMED[kind](self, rest)
        return self.known[name] if name in self.known else _COMPUTED[name](self)

    def speculative(self) -> Mapping[str, Any]:
        """Return the configuration of speculation, with the flags that set its keys; empty if there is none."""
        args = self.tuned.args
        short = {key: args[flag] for flag, key in SHORT.items() if args.get(flag) is not None}
        return {**(read_map(args.get(SPECULATIVE)) or {}), **short}

    def drafting(self, key: str) -> Any:
        """Return a key of the configuration of speculation; UNKNOWN if there is none, or if it is not a map."""
        given = self.tuned.args.get(SPECULATIVE)
        found = self.speculative()
        return UNKNOWN if (read_map(given) is None if given is not None else not found) else found.get(key)

    def inner(self) -> Mapping[str, Any]:
        """Return the part of config.json that is for the language model; empty if there is none."""
        return map_or_empty((self.config or {}).get("text_config"))


def _registered(facts: StartFacts, kind: str) -> frozenset[str]:
    release = facts.tuned.release
    if kind == "quantization":
        return frozenset(facts.knowledge.quantization(release).methods)
    return facts.knowledge.registered(kind, release)


def _of_flag(facts: StartFacts, flag: str, name: str, absent: Any) -> Any:
    entry = facts.tuned.table.flags.get(flag)
    return absent if entry is None else getattr(entry, name)


_NAMED: Mapping[str, Callable[[StartFacts, str], Any]] = {
    "env": lambda facts, name: facts.tuned.env.get(name),
    "speculative": StartFacts.drafting,
    "accepts": lambda facts, flag: facts.tuned.table.get(flag) is not None,
    "choices": lambda facts, flag: _of_flag(facts, flag, "choices", UNKNOWN),
    "default": lambda facts, flag: _of_flag(facts, flag, "default", None),
    "registered": _registered,
    "rules": lambda facts, name: facts.knowledge.rules("engine", facts.tuned.release)[name],
}
"""Facts with a name after a dot."""


def _model_type(facts: StartFacts) -> Any:
    found = facts.inner().get("model_type") or (facts.config or {}).get("model_type")
    return found if isinstance(found, str) else UNKNOWN


def _config_names(facts: StartFacts) -> Any:
    """Return the keys of a config.json, also for its language model, and the model's type."""
    if facts.config is None:
        return UNKNOWN
    return [*facts.config, *facts.inner(), str(facts.config.get("model_type"))]


def _architectures(facts: StartFacts) -> Any:
    return (
        UNKNOWN if facts.config is None else [str(name) for name in facts.config.get("architectures") or ()]
    )


def _rope_type(facts: StartFacts) -> Any:
    scaling = map_or_empty((facts.config or {}).get("rope_scaling"))
    return UNKNOWN if facts.config is None else scaling.get("rope_type") or scaling.get("type")


def _draft_method(facts: StartFacts) -> str:
    given = facts.speculative()
    named = given.get("method") or ("ngram" if given.get("model") in ("ngram", "[ngram]") else "")
    return str(named).strip("[]")


def _draft_slots(facts: StartFacts) -> int:
    """Return how many tokens of a step each sequence leaves for drafts."""
    given = facts.speculative()
    drafted = given.get("num_speculative_tokens")
    parallel = given.get("parallel_drafting") is True and isinstance(drafted, int)
    return int(given.get("method") == "draft_model") + (int(drafted or 0) - 1 if parallel else 0)


def _nameless_adapters(facts: StartFacts) -> list[Any]:
    given = facts.tuned.args.get("--lora-modules")
    listed = given if isinstance(given, (list, tuple)) else (given,)
    return [item for item in listed if item and not adapter_of(item)]


def _reasoning_texts(facts: StartFacts) -> int:
    given = read_map(facts.tuned.args.get("--reasoning-config")) or {}
    return sum(bool(value) for key, value in given.items() if key.endswith("_str"))


_COMPUTED: Mapping[str, Callable[[StartFacts], Any]] = {
    "speculative": StartFacts.speculative,
    "draft_name": lambda facts: str(facts.speculative().get("model") or "").lower(),
    "draft_method": _draft_method,
    "draft_slots": _draft_slots,
    "cudagraph_mode": lambda facts: str(facts("--compilation-config.cudagraph_mode") or "").upper(),
    "nameless_adapters": _nameless_adapters,
    "reasoning_texts": _reasoning_texts,
    "model_type": _model_type,
    "architectures": _architectures,
    "rope_type": _rope_type,
    "config_keys": lambda facts: UNKNOWN if facts.config is None else list(facts.config),
    "config_names": _config_names,
}
