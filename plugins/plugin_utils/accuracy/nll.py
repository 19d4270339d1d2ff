# SPDX-License-Identifier: Apache-2.0
"""Find the replica whose weights or GPU are wrong, by how likely it finds fixed passages. Pure.

Replicas with the same weights give the same passage nearly the same log likelihood, whatever they were trained on. The
unit is nat per token; the limits are nll_limits of catalog/accuracy.yml.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OK, OUTLIER, SUSPECT, UNMEASURED = "ok", "outlier", "suspect", "not measured"
SAME, SHIFTED, SUSPICIOUS, BROKEN = "same", "shifted", "suspicious", "broken"

_SIGMA = 1.4826  # the standard deviation of a normal distribution, in its median absolute deviations
_ROBUST_Z = 4.5  # as for slow GPUs: a false alarm in fewer than 1 of 100 fleets


@dataclass(frozen=True)
class NllLimits:
    """Differences in nat per token: between identical weights, another weight format, and what is broken."""

    same: float
    format: float
    broken: float


@dataclass(frozen=True)
class PassageScore:
    """The sum of a passage's negative log likelihoods, in nat, and its tokens (above 0)."""

    total: float
    tokens: int


Passages = Mapping[str, PassageScore]
"""The scores of a replica, by the passage."""


@dataclass(frozen=True)
class ReplicaNll:
    """A replica: `name` is host and instance. nll: mean per token, None if it was not measured (`why`).

    distance: from the other replicas, the mean over passages; None with fewer than two replicas.
    """

    name: str
    state: str
    nll: float | None
    distance: float | None
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the replica as accuracy.json has it."""
        return {
            "replica": self.name,
            "verdict": self.state,
            "nll": self.nll,
            "distance": self.distance,
            "why": self.why,
        }


@dataclass(frozen=True)
class NllChange:
    """A deployment against its previous release: the change of the mean, in nat per token."""

    state: str
    change: float

    @property
    def text(self) -> str:
        """Return the change in words."""
        meaning = {
            SAME: "as between identical weights",
            SHIFTED: "as with another weight format or kernel",
            SUSPICIOUS: "more than another weight format explains",
            BROKEN: "as with a broken kernel or tensor",
        }
        return f"NLL {self.change:+.4f} nat per token, {meaning[self.state]}"


def mean_nll(passages: Passages) -> float | None:
    """Return the mean negative log likelihood per token over all passages; None without one."""
    tokens = sum(score.tokens for score in passages.values())
    return sum(score.total for score in passages.values()) / tokens if tokens else None


def judge_replicas(
    replicas: Mapping[str, Passages], limits: NllLimits, previous: Mapping[str, Passages] | None = None
) -> tuple[ReplicaNll, ...]:
    """Judge the replicas of one release, by the name of each; one without passages was not measured.

    Each is compared with the median of all, passage by passage, so that a shift of some passages does not cancel out.
    Of two replicas that differ, the one that moved since `previous` (replicas of the release before it) is wrong; if
    neither or both did, both are suspect.
    """
    measured = {name: passages for name, passages in replicas.items() if passages}
    shared = _shared(list(measured.values()))
    distances = _distances(measured, shared)
    limit = max(limits.same, _ROBUST_Z * _SIGMA * _spread(list(distances.values())))
    far = {name for name, distance in distances.items() if distance > limit}
    moved: set[str] = set()
    if len(measured) == 2 and far:
        moved = {
            name
            for name in measured
            if (before := (previous or {}).get(name)) and _distance(measured[name], before) > limits.same
        }
    found = []
    for name in replicas:
        if name not in measured:
            found.append(ReplicaNll(name, UNMEASURED, None, None, "it gave no log likelihoods"))
            continue
        state, why = OK, ""
        if name in far and (len(measured) > 2 or moved == {name}):
            state = OUTLIER
            why = f"{distances[name]:.4f} nat per token from the others; up to {limit:.4f} is usual"
        elif name in far and len(moved) != 1:
            state, why = SUSPECT, "the two replicas differ, and nothing shows which of them is wrong"
        found.append(ReplicaNll(name, state, mean_nll(measured[name]), distances.get(name), why))
    return tuple(found)


def judge_change(before: Passages, now: Passages, limits: NllLimits) -> NllChange | None:
    """Compare a release with the previous one on the passages that both scored; None if they share none.

    Passages with another number of tokens were split by another tokenizer, and are left out.
    """
    shared = [name for name in _shared([before, now]) if before[name].tokens == now[name].tokens]
    old, new = (mean_nll({name: side[name] for name in shared}) for side in (before, now))
    if old is None or new is None:
        return None
    change = new - old
    for state, limit in ((SAME, limits.same), (SHIFTED, limits.format), (SUSPICIOUS, limits.broken)):
        if abs(change) < limit:
            return NllChange(state, change)
    return NllChange(BROKEN, change)


def typical(replicas: Sequence[Passages]) -> dict[str, PassageScore]:
    """Return the median score of each passage over the replicas that scored it."""
    names = dict.fromkeys(name for passages in replicas for name in passages)
    found = {}
    for name in names:
        scores = [passages[name] for passages in replicas if name in passages]
        found[name] = PassageScore(statistics.median(score.total for score in scores), scores[0].tokens)
    return found


def _shared(sides: Sequence[Passages]) -> list[str]:
    """Return the passages that all sides scored."""
    return [name for name in (sides[0] if sides else ()) if all(name in side for side in sides)]


def _distances(measured: Mapping[str, Passages], shared: Sequence[str]) -> dict[str, float]:
    if len(measured) < 2 or not shared:
        return {}
    sides = list(measured.values())
    middle = {name: statistics.median(_per_token(side[name]) for side in sides) for name in shared}
    found = {
        name: statistics.fmean(abs(_per_token(passages[item]) - middle[item]) for item in shared)
        for name, passages in measured.items()
    }
    # The middle of two is half way between them.
    return {name: 2 * distance for name, distance in found.items()} if len(measured) == 2 else found


def _distance(one: Passages, other: Passages) -> float:
    shared = _shared([one, other])
    return (
        statistics.fmean(abs(_per_token(one[item]) - _per_token(other[item])) for item in shared)
        if shared
        else 0.0
    )


def _per_token(score: PassageScore) -> float:
    return score.total / score.tokens


def _spread(distances: Sequence[float]) -> float:
    """Return the median absolute deviation of replicas; 0 for fewer than three, where it says nothing."""
    return statistics.median(distances) if len(distances) > 2 else 0.0
