# SPDX-License-Identifier: Apache-2.0
"""Find the replica whose weights or GPU are wrong, by how likely it finds fixed passages. Pure.

Replicas with the same weights give the same passage nearly the same log likelihood, whatever they were trained on. The
unit is nat per token; the limits are nll_limits of catalog/accuracy.yml.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import sub

OK, OUTLIER, SUSPECT, UNMEASURED = "ok", "outlier", "suspect", "not measured"
SAME, SHIFTED, SUSPICIOUS, BROKEN = "same", "shifted", "suspicious", "broken"

_SIGMA = 1.4826  # the standard deviation of a normal distribution, in its median absolute deviations
_ROBUST_Z = 4.5  # as for slow GPUs: a false alarm in fewer than 1 of 100 fleets
_NEIGHBOURS = 64  # replicas with which each one is compared, so that thousands take seconds


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
    Where most agree, the others are wrong. Where they do not, as with two replicas, or two hosts of which one has
    wrong weights, those are wrong that moved since `previous` (replicas of the previous release); if none or all moved,
    or there is no previous release, all are suspect.
    """
    measured = {name: passages for name, passages in replicas.items() if passages}
    scores = _scores(measured)
    distances = _distances(scores)
    limit = max(limits.same, _ROBUST_Z * _SIGMA * _spread(list(scores.values())))
    far = {name for name, distance in distances.items() if distance > limit}
    wrong = far
    if 2 * len(far) >= len(measured):
        wrong = {
            name
            for name in far
            if (before := (previous or {}).get(name)) and _moved(measured[name], before) > limits.same
        }
    found = []
    for name in replicas:
        if name not in measured:
            found.append(ReplicaNll(name, UNMEASURED, None, None, "it gave no log likelihoods"))
            continue
        state, why = OK, ""
        if 0 < len(wrong) < len(measured):
            if name in wrong:
                state = OUTLIER
                why = f"{distances[name]:.4f} nat per token from the others; up to {limit:.4f} is usual"
        elif name in far:
            state, why = SUSPECT, "the replicas differ, and nothing shows which of them are wrong"
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


def _scores(replicas: Mapping[str, Passages]) -> dict[str, list[float]]:
    """Return the log likelihoods per token of each replica, of the passages that all scored."""
    shared = _shared(list(replicas.values()))
    return {
        name: [passages[item].total / passages[item].tokens for item in shared]
        for name, passages in replicas.items()
    }


def _distances(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    if len(scores) < 2 or not any(scores.values()):
        return {}
    middle = [statistics.median(column) for column in zip(*scores.values(), strict=True)]
    found = {name: _distance(own, middle) for name, own in scores.items()}
    # The middle of two is half way between them.
    return {name: 2 * distance for name, distance in found.items()} if len(scores) == 2 else found


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the mean difference; 0 without a passage."""
    return sum(map(abs, map(sub, one, other))) / len(one) if one else 0.0


def _moved(now: Passages, before: Passages) -> float:
    return _distance(*_scores({"now": now, "before": before}).values())


def _spread(sides: Sequence[Sequence[float]]) -> float:
    """Return how far replicas that agree are from each other; 0 for fewer than three, where nothing shows it.

    It is the median distance to the nearest other replica: if half of them are wrong, all are equally far from the
    median of all, and that distance would be taken for usual.
    """
    if len(sides) < 3:
        return 0.0
    others = sides[:: -(-len(sides) // _NEIGHBOURS)]
    return statistics.median(
        min(_distance(one, other) for other in others if other is not one) for one in sides
    )
