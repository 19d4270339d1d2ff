# SPDX-License-Identifier: Apache-2.0
"""Pair two runs item by item. Pure.

Failures are rarely random: long and hard items fail first. Items without an answer in one run are counted, so that a
verdict can assume the worst of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class AccuracyError(Exception):
    """The runs cannot be compared, or the request is not valid. The message says what to do."""


@dataclass(frozen=True)
class ItemOutcome:
    """One item of a run. prompt: the hash of what was sent; correct: None if the request failed."""

    prompt: str
    correct: bool | None


Outcomes = Mapping[str, ItemOutcome]
"""The items of a run, by the hash of their document."""


@dataclass(frozen=True)
class PairedCounts:
    """The items that both runs answered: lost ones only the old run has right, gained ones only the new one.

    failed_old and failed_new: items whose request failed. unmatched: items of one run only. doubtful: more items that
    the new release may have lost: they failed, or only one run was asked, and what is known of them allows it.
    """

    n: int
    lost: int
    gained: int
    failed_old: tuple[str, ...] = ()
    failed_new: tuple[str, ...] = ()
    unmatched: int = 0
    doubtful: int = 0


def pair(old: Outcomes, new: Outcomes) -> PairedCounts:
    """Pair two runs by their items. Raise AccuracyError if their prompts differ, or they have no item in common."""
    both = sorted(set(old) & set(new))
    if not both:
        raise AccuracyError(
            "The two runs have no item in common, so they cannot be compared: the task changed."
        )
    other = [item for item in both if old[item].prompt != new[item].prompt]
    if other:
        raise AccuracyError(
            f"{len(other)} of {len(both)} items were sent with another prompt, as with another chat template, another "
            "endpoint or another number of examples. Such answers cannot be compared: measure the old release again."
        )
    failed_old = tuple(item for item in both if old[item].correct is None)
    failed_new = tuple(item for item in both if new[item].correct is None)
    failed = {*failed_old, *failed_new}
    answered = [item for item in both if item not in failed]
    old_only, new_only = set(old) - set(new), set(new) - set(old)
    return PairedCounts(
        len(answered),
        sum(bool(old[item].correct) and not new[item].correct for item in answered),
        sum(bool(new[item].correct) and not old[item].correct for item in answered),
        failed_old,
        failed_new,
        len(old_only) + len(new_only),
        sum(old[item].correct is not False and not new[item].correct for item in failed)
        + sum(bool(old[item].correct) for item in old_only)
        + sum(not new[item].correct for item in new_only),
    )
