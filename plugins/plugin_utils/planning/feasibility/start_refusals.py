# SPDX-License-Identifier: Apache-2.0
"""Refuse what stops vLLM at startup, by the rules of catalog/vllm/refusals. Pure.

Checks that are read from the release's own sources are in engine_refusals.py; checkpoint_refusals.py reads the table
of quantization methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....module_utils.common.errors import Problem, nearest
from ...knowledge.catalog.load import Knowledge
from ...knowledge.rules.conditions import read_map
from ...knowledge.rules.refusals import broken_rules
from ..desired.deployment import Deployment
from ..tuning.tune import TunedSettings
from .start_facts import StartFacts

FILES = ("arguments", "speculation", "graphs", "options", "models")
"""The files of rules about flags, in the order of their messages; engine_refusals.py reads the other one."""
_SUFFIXES = (
    "ForCausalLM", "ForConditionalGeneration", "ForSequenceClassification", "ForTextEncoding", "ForRewardModeling",
    "ChatModel", "LMHeadModel", "EmbeddingModel", "RewardModel", "Model",
)  # fmt: skip
"""Endings that vLLM replaces in an architecture's name before it looks for it."""


def start_refusals(
    deployment: Deployment, tuned: TunedSettings, config: Mapping[str, Any] | None, knowledge: Knowledge
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return problems, and warnings for what is not certain; config None: the model's config.json is not known."""
    if tuned.problems:
        return (), ()
    facts = StartFacts(deployment, tuned, config, knowledge)
    found = [
        (rule.flag, rule.what, rule.fix)
        for name in FILES
        for rule in broken_rules(knowledge.refusals(name), facts)
    ]
    found += _architecture(tuned, knowledge)
    version = tuned.release.requested
    problems = tuple(
        Problem(deployment.path, f"{flag}: vLLM {version} stops at startup: {what}.", fix)
        for flag, what, fix in found
    )
    return problems, tuple(_other_releases(tuned, config, knowledge))


def _architecture(tuned: TunedSettings, knowledge: Knowledge) -> Iterator[tuple[str, str, str]]:
    """Yield that no release has an architecture that the operator names.

    This is code rather than a rule, as names are compared without their endings, which vLLM replaces.
    """
    named = (read_map(tuned.args.get("--hf-overrides")) or {}).get("architectures")
    if not named or not isinstance(named, list):
        return
    known = knowledge.architectures
    bases = {_base(name) for name in known}
    if not any(_base(str(name)) in bases for name in named):
        what = f"no architecture is called {', '.join(map(str, named))}"
        near = nearest(str(named[0]), known)
        yield "--hf-overrides", what, f"Did you mean {near}?" if near else "Leave architectures out."


def _other_releases(
    tuned: TunedSettings, config: Mapping[str, Any] | None, knowledge: Knowledge
) -> Iterator[str]:
    """Yield that only other releases have the model's architecture; Transformers' own class may run it.

    This is code rather than a rule, as it reads the spans of the generated table of architectures.
    """
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
        f"vLLM {tuned.release.requested} has no {name}, which other releases have {when}; it stops at startup unless "
        "its Transformers library can run the model"
    )


def _base(name: str) -> str:
    end = next((item for item in _SUFFIXES if name.endswith(item)), "")
    return name.removesuffix(end) if end else name
