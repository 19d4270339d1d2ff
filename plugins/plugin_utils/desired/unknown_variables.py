# SPDX-License-Identifier: Apache-2.0
"""Variables that look like one of the toolkit's and are none: a typo there would silently do nothing. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

LIKE = 0.85
"""Two names are alike from this ratio of equal letters on; a judgement: vllm_deployment, gpu_partition_memry."""
LIKE_GIVEN = 0.8
"""The same for what stands behind -e, which are short names of this toolkit's more often than not: agian, canray."""


def misspelt(names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """A warning for each name that is none of the known ones and very like one of them."""
    found = []
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=LIKE)
        if near:
            found.append(f"unknown variable {name}: did you mean {near[0]}?")
    return tuple(found)


def mistaken(given: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """What is wrong with the names behind -e. A slip there means everything: `stop.yml -e deploymnt=llama`."""
    found = []
    for name in sorted(set(given) - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=LIKE_GIVEN)
        near = [f"upgrade_{name}"] if f"upgrade_{name}" in known else near
        if near:
            text = f"-e {name}: unknown variable. Did you mean {near[0]}?"
            found.append(f"{text} If it is your own variable, rename it.")
    return tuple(found)
