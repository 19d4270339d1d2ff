# SPDX-License-Identifier: Apache-2.0
"""Judge several comparisons at once by Holm's procedure, which makes a family of them err as rarely as one. Pure.

Ten comparisons of equal releases at 5 % each would find one "worse" in two of five runs. Source: Holm, Scandinavian
Journal of Statistics 6 (1979) 65.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

Key = TypeVar("Key")
Verdict = TypeVar("Verdict")


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given: a comparison is significant if its own is at the level."""
    found, least, count = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, at in enumerate(sorted(range(count), key=p_values.__getitem__)):
        least = max(least, (count - rank) * p_values[at])
        found[at] = min(1.0, least)
    return found


def step_down(
    keys: Collection[Key],
    judge: Callable[[Key, float], Verdict],
    clear: Callable[[Verdict], bool],
    level: float,
) -> dict[Key, Verdict]:
    """Judge each key by an interval at a level (0.95: the family errs in 5 % of cases), where there is no p-value.

    Of m comparisons, each is judged at 1 - (1 - level)/m. Those that are clear drop out, and the others are judged
    again as a smaller family, until no more are clear.
    """
    decided: dict[Key, Verdict] = {}
    while len(decided) < len(keys):
        rest = [key for key in keys if key not in decided]
        judged = {key: judge(key, 1 - (1 - level) / len(rest)) for key in rest}
        decided |= {key: verdict for key, verdict in judged.items() if clear(verdict)} or judged
    return {key: decided[key] for key in keys}
