# SPDX-License-Identifier: Apache-2.0
"""Find unknown variables that resemble public ones, or were their names: they would have no effect, silently. Pure.

InventoryReader.misspelled asks for them while variables are read; the pass read_fleet refuses them.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

FORMER = {
    "upgrade_serial": "rollout_serial",
    "upgrade_min_in": "rollout_min_available",
    "upgrade_soak": "rollout_soak",
    "load_balancer_min_in": "load_balancer_min_available",
}
"""Former names of variables, with the present ones. Each is an error wherever it is set: nobody would notice that a
limit under such a name is not read."""
FORMER_EXTRA = {"again": "retry", "why": "reason"}
"""Former names that are errors only with -e, and only in the toolkit's own plays, where they had a meaning; a playbook
that imports these plays counts, as nothing tells for which of its plays a name was given. In an inventory, such general
words are more likely the operator's own variables: these two were of a single run."""

MIN_SIMILARITY = 0.85
"""Minimum ratio of equal letters in similar names; a judgement: vllm_deployment, gpu_partition_memry."""
MIN_WORDS = 3
"""Shorter names, such as vllm_image, are likely the operator's own."""
MIN_SIMILARITY_CONNECTION = 0.9
"""The same for Ansible's connection variables. ansible_hostname, a fact, must not pass for ansible_host: 0.86."""
MIN_SIMILARITY_EXTRA = 0.8
"""The same for names given with -e, which are mostly short names of this toolkit: rety, canray."""


def unknown_variables(names: Iterable[str], known: Collection[str]) -> Mapping[str, str]:
    """Return each unknown name that closely resembles a known one, or is one without one of its words, with that one.

    Former names count as known ones, and are returned as the present ones. Ansible's own names resemble none of ours,
    and a host has many of them.
    """
    found, valid = {}, [*known, *FORMER]
    for name in sorted({name for name in names if not name.startswith("ansible_")} - set(known)):
        near = difflib.get_close_matches(name, valid, n=1, cutoff=MIN_SIMILARITY)
        near = near or [item for item in sorted(valid) if _is_without_a_word(name, item)]
        if near:
            found[name] = FORMER.get(near[0], near[0])
    return found


def _is_without_a_word(name: str, known: str) -> bool:
    """Return whether a name is a known one without one of its words, as hf_token_file is of hf_model_token_file."""
    words, all_words = name.split("_"), known.split("_")
    return len(words) >= MIN_WORDS and any(
        words == all_words[:index] + all_words[index + 1 :] for index in range(len(all_words))
    )


def unknown_connection_variables(names: Iterable[str], known: Collection[str]) -> Mapping[str, str]:
    """Return each name of Ansible's form that is a typo of a connection variable, with that one: ansible_hots."""
    found = {}
    for name in sorted({name for name in names if name.startswith("ansible_")} - set(known)):
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=MIN_SIMILARITY_CONNECTION)
        if near:
            found[name] = near[0]
    return found


def unknown_extra_variables(
    given: Iterable[str], known: Collection[str], former: Mapping[str, str] = FORMER
) -> tuple[str, ...]:
    """Return the problems of the names given with -e.

    A typo there may widen the operation to everything: `stop.yml -e deploymnt=llama`. former: the former names that are
    errors, with the present ones.
    """
    found = []
    for name in sorted(set(given) - set(known)):
        if name in former:
            what = f"-e {name}: is now called {former[name]}. Write -e {former[name]}=…"
            found.append(f"{what}; if it is your own variable, rename it.")
        elif near := _nearest_extra(name, known):
            text = f"-e {name}: unknown variable. Did you mean {near}?"
            found.append(f"{text} If it is your own variable, rename it.")
    return tuple(found)


def _nearest_extra(name: str, known: Collection[str]) -> str:
    """Return the present name of the variable that a name given with -e resembles; "" of none."""
    valid = [*known, *FORMER]
    full = [item for item in (f"rollout_{name}", f"upgrade_{name}") if item in valid]
    near = full or difflib.get_close_matches(name, valid, n=1, cutoff=MIN_SIMILARITY_EXTRA)
    return FORMER.get(near[0], near[0]) if near else ""
