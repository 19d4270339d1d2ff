# SPDX-License-Identifier: Apache-2.0
"""Find unknown variables that resemble public ones: such a typo would silently have no effect. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

MIN_SIMILARITY = 0.85
"""Minimum ratio of equal letters in similar names; a judgement: vllm_deployment, gpu_partition_memry."""
MIN_SIMILARITY_EXTRA = 0.8
"""The same for names given with -e, which are mostly short names of this toolkit: agian, canray."""


def unknown_variables(names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """Return a warning for each unknown name that closely resembles a known one.

    Ansible's own names resemble none of ours, and a host has many of them.
    """
    found = []
    for name in sorted({name for name in names if not name.startswith("ansible_")} - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=MIN_SIMILARITY)
        if near:
            found.append(f"unknown variable {name}: did you mean {near[0]}?")
    return tuple(found)


def unknown_extra_variables(given: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the problems of the names given with -e.

    A typo there may widen the operation to everything: `stop.yml -e deploymnt=llama`.
    """
    found = []
    for name in sorted(set(given) - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=MIN_SIMILARITY_EXTRA)
        near = [f"upgrade_{name}"] if f"upgrade_{name}" in known else near
        if near:
            text = f"-e {name}: unknown variable. Did you mean {near[0]}?"
            found.append(f"{text} If it is your own variable, rename it.")
    return tuple(found)
