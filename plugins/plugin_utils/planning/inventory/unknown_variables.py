# SPDX-License-Identifier: Apache-2.0
"""Find unknown variables that resemble public ones: such a typo would silently have no effect. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

MIN_SIMILARITY = 0.85
"""Minimum ratio of equal letters in similar names; a judgement: vllm_deployment, gpu_partition_memry."""
MIN_WORDS = 3
"""Shorter names, such as vllm_image, are likely the operator's own."""
MIN_SIMILARITY_CONNECTION = 0.9
"""The same for Ansible's names of a connection. ansible_hostname, a fact, is none of ansible_host: 0.86."""
MIN_SIMILARITY_EXTRA = 0.8
"""The same for names given with -e, which are mostly short names of this toolkit: agian, canray."""


def unknown_variables(names: Iterable[str], known: Collection[str]) -> Mapping[str, str]:
    """Return each unknown name that closely resembles a known one, or lacks one of its words, with that one.

    Ansible's own names resemble none of ours, and a host has many of them.
    """
    found = {}
    for name in sorted({name for name in names if not name.startswith("ansible_")} - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=MIN_SIMILARITY)
        near = near or [item for item in sorted(known) if _lacks_a_word(name, item)]
        if near:
            found[name] = near[0]
    return found


def _lacks_a_word(name: str, known: str) -> bool:
    """Return whether a name is a known one without one of its words, as hf_token_file is of hf_model_token_file."""
    words, all_words = name.split("_"), known.split("_")
    return len(words) >= MIN_WORDS and any(
        words == all_words[:index] + all_words[index + 1 :] for index in range(len(all_words))
    )


def unknown_connection_variables(names: Iterable[str], known: Collection[str]) -> Mapping[str, str]:
    """Return each name of Ansible's form that is a slip for one of a connection, with that one: ansible_hots."""
    found = {}
    for name in sorted({name for name in names if name.startswith("ansible_")} - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=MIN_SIMILARITY_CONNECTION)
        if near:
            found[name] = near[0]
    return found


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
