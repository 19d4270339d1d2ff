# SPDX-License-Identifier: Apache-2.0
"""Variables that look like one of the toolkit's and are none: a typo there would silently do nothing. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

LIKE = 0.85
"""Two names are alike from this ratio of equal letters on; a judgement: vllm_deployment, gpu_partition_memry."""


def misspelt(names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """A warning for each name that is none of the known ones and very like one of them."""
    found = []
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=LIKE)
        if near:
            found.append(f"the variable {name} is none of the toolkit's: did you mean {near[0]}?")
    return tuple(found)
