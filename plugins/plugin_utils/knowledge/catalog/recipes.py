# SPDX-License-Identifier: Apache-2.0
"""Choose the recommended settings for a model on a GPU with a vLLM release, with reasons.

The data is catalog/recipes/*.yml; nothing here reads a file. If several recipes have the same setting, the more
specific one is chosen, and the choice records the value that it overrides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.engines.versions import Release, Timeline
from ...base.json_record import JsonRecord
from ..rules.conditions import UNKNOWN, Facts, holds
from ..rules.repositories import matches_pattern
from ..vllm.flag_values import Value
from .facts import ModelFacts

Rank = tuple[int, bool, int, int]
OBJECTIVES = ("latency", "interactive", "streaming", "throughput")
REPOSITORY, ARCHITECTURE, ANY = 2, 1, 0
"""How specifically a recipe matches a model."""


@dataclass(frozen=True)
class Context:
    """What a recipe's conditions are compared with, besides the model.

    Attributes:
        objective: latency (few requests, end to end), interactive (first token), streaming (between tokens),
            throughput.
        kv_cache: type of the KV cache as configured.
        workload: synthetic (repeated made-up prompts), short-input.
        devices: GPUs, or partitions, of one instance over all hosts.
        balancing: of data parallel ranks: internal, hybrid or external.
    """

    release: Release
    line: Timeline = field(repr=False)
    gfx: str
    gpu: str = ""
    objective: str = "throughput"
    compute: str = "SPX"
    memory: str = "NPS1"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    nodes: int = 1
    instances_per_gpu: int = 1
    kv_cache: str = "auto"
    engine: str = "V1"
    speculative: bool = False
    speculative_tokens: int = 0
    workload: tuple[str, ...] = ()
    balancing: str = "internal"

    @property
    def devices(self) -> int:
        """Return the number of GPUs or partitions of one instance."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class RecipeEntry:
    """One rule of a recipe: settings or a text, the conditions, the reason and its source.

    needs and unless: values of other settings that the rule requires or excludes.
    """

    recipe: str
    when: Mapping[str, Any]
    needs: Mapping[str, Sequence[Value]]
    source: str
    unless: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    reason: str = ""
    name: str = ""
    say: str = ""


@dataclass(frozen=True)
class Recipe:
    """One file of catalog/recipes."""

    name: str
    title: str
    match: Mapping[str, Any]
    settings: tuple[RecipeEntry, ...]
    rules: tuple[RecipeEntry, ...]
    pairs: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class RecipeChoice:
    """A recommended setting: its value, the reason, the source, and the value of a less specific recipe."""

    setting: str
    value: Value
    reason: str
    source: str
    recipe: str
    overridden: tuple[RecipeChoice, ...] = ()


@dataclass(frozen=True)
class Advice(JsonRecord):
    """Something to refuse, to warn about, or to advise."""

    name: str
    say: str
    text: str
    source: str
    recipe: str


@dataclass(frozen=True)
class RecipeSelection:
    """The chosen settings by name, and the advice."""

    choices: tuple[RecipeChoice, ...]
    advice: tuple[Advice, ...]


def parse_recipe(data: Mapping[str, Any]) -> Recipe:
    """Build a recipe from a file of catalog/recipes; the tests check its schema."""
    name = data["recipe"]
    return Recipe(
        name=name,
        title=data["title"],
        match=data["match"],
        settings=tuple(
            RecipeEntry(
                name,
                item["when"],
                item.get("with", {}),
                item["source"],
                settings=item["set"],
                reason=item["reason"],
            )
            for item in data.get("settings", ())
        ),
        rules=tuple(
            RecipeEntry(
                name,
                item.get("when", {}),
                item.get("with", {}),
                item["source"],
                item.get("unless", {}),
                reason=item["text"],
                name=item["id"],
                say=item["say"],
            )
            for item in data.get("rules", ())
        ),
        pairs=tuple(data.get("pairs", ())),
    )


def match_rank(recipe: Recipe, model: ModelFacts) -> int | None:
    """Return how specifically a recipe matches a model, or None if it does not."""
    if recipe.match.get("all"):
        return ANY
    if matches_pattern(model.repository, recipe.match.get("repositories", ())):
        return REPOSITORY
    if any(name in recipe.match.get("architectures", ()) for name in model.architectures):
        return ARCHITECTURE
    return None


def condition_facts(model: ModelFacts, context: Context) -> dict[str, Any]:
    """Return the facts that the conditions of recipes name; None of a model's is UNKNOWN."""
    heads, tp = model.heads, context.tp
    return {
        **{name: UNKNOWN if value is None else value for name, value in vars(model).items()},
        **vars(context),
        "devices": context.devices,
        "heads_per_rank": heads // tp if heads and not heads % tp else UNKNOWN,
    }


def select_recipes(
    recipes: Sequence[Recipe], model: ModelFacts, context: Context, given: Mapping[str, Value] | None = None
) -> RecipeSelection:
    """Return the recommended settings, in the order of their names' first appearance, and the advice.

    `given` are settings that the operator has decided: they are not chosen again, and conditions on other settings
    (`with`) see them. The more specific recipe takes precedence, then an entry that names the fork, then the larger
    number of conditions, then the later entry.
    """
    decided = dict(given or {})
    facts = condition_facts(model, context).__getitem__
    ranked: dict[str, list[tuple[Rank, RecipeChoice]]] = {}
    fitting = [
        (level, recipe) for recipe in recipes for level in (match_rank(recipe, model),) if level is not None
    ]
    entries = [
        (level, number, entry)
        for number, (level, entry) in enumerate(
            (level, entry) for level, recipe in fitting for entry in recipe.settings
        )
        if holds(entry.when, facts)
    ]
    for waiting in (False, True):  # entries that depend on other settings come second
        found = {name: max(items, key=lambda item: item[0])[1].value for name, items in ranked.items()}
        settings = settings_facts({**found, **decided})
        applying = (item for item in entries if bool(item[2].needs) == waiting)
        for level, number, entry in applying:
            if not holds(entry.needs, settings):
                continue
            own = context.release.fork in entry.when.get("forks", ())
            rank = (level, own, len(entry.when) + len(entry.needs), number)
            for name, value in entry.settings.items():
                if name not in decided:
                    choice = RecipeChoice(name, value, entry.reason, entry.source, entry.recipe)
                    ranked.setdefault(name, []).append((rank, choice))
    choices = tuple(_winner(items) for items in ranked.values())
    settings = settings_facts({**{choice.setting: choice.value for choice in choices}, **decided})
    advice = tuple(
        Advice(entry.name, entry.say, entry.reason, entry.source, entry.recipe)
        for _unused, recipe in fitting
        for entry in recipe.rules
        if (entry.when or entry.needs or entry.unless)
        and holds(entry.when, facts)
        and holds(entry.needs, settings)
        and not (entry.unless and holds(entry.unless, settings))
    )
    return RecipeSelection(choices, advice)


def statement(recipes: Sequence[Recipe], name: str) -> Advice:
    """Return a rule by its id, for code that decides it by arithmetic and quotes it. Raise KeyError if missing."""
    for recipe in recipes:
        for entry in recipe.rules:
            if entry.name == name:
                return Advice(entry.name, entry.say, entry.reason, entry.source, entry.recipe)
    raise KeyError(name)


def settings_facts(known: Mapping[str, Value]) -> Facts:
    """Return the facts that `with` and `unless` name: other settings; one that nothing decided is UNKNOWN."""
    return lambda name: known.get(name, UNKNOWN)


def _winner(items: Sequence[tuple[Rank, RecipeChoice]]) -> RecipeChoice:
    ordered = [choice for _unused, choice in sorted(items, key=lambda item: item[0], reverse=True)]
    first = ordered[0]
    others = tuple(choice for choice in ordered[1:] if choice.value != first.value)
    return RecipeChoice(first.setting, first.value, first.reason, first.source, first.recipe, others)


def speculative_pairs(
    recipes: Sequence[Recipe], model: ModelFacts, context: Context
) -> tuple[Mapping[str, Any], ...]:
    """Return the draft models that documents name for a model, for this release and engine."""
    return tuple(
        pair
        for recipe in recipes
        for pair in recipe.pairs
        if matches_pattern(model.repository, [pair["target"]])
        and pair["engine"] == context.engine
        and context.line.inside(pair["since"], pair["until"], context.release.index)
    )
