# SPDX-License-Identifier: Apache-2.0
"""Find what documents recommended for older releases only, so that a plan can say why it is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..rules.conditions import holds
from ..vllm.flag_values import Value
from .facts import ModelFacts
from .recipes import Context, Recipe, RecipeChoice, condition_facts, match_rank, settings_facts

_SPAN = ("since", "until")


def past_choices(
    recipes: Sequence[Recipe], model: ModelFacts, context: Context, known: Mapping[str, Value]
) -> tuple[tuple[RecipeChoice, str], ...]:
    """Return settings that nothing decides now, each with the first release for which it is not recommended.

    All other conditions of the recommendation hold.
    """
    order, index = context.line.order, context.release.index
    facts, settings = condition_facts(model, context).__getitem__, settings_facts(known)
    found: dict[str, tuple[RecipeChoice, str]] = {}
    for recipe in recipes:
        if match_rank(recipe, model) is None:
            continue
        for entry in recipe.settings:
            until = entry.when.get("until")
            others = {key: value for key, value in entry.when.items() if key not in _SPAN}
            if until is None or order[until] > index or not holds(others, facts):
                continue
            if not holds(entry.needs, settings):
                continue
            for name, value in entry.settings.items():
                if name not in known and (name not in found or order[found[name][1]] <= order[until]):
                    found[name] = RecipeChoice(name, value, entry.reason, entry.source, entry.recipe), until
    return tuple(found.values())
