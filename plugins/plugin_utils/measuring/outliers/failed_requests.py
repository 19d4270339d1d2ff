# SPDX-License-Identifier: Apache-2.0
"""Keep an instance whose requests failed from being called ok because of those that it answered. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..measurement.rows import MOST_FAILED, failed_share
from .compare import SpeedComparison
from .samples import InstanceKey, Row


def mark_failed_requests(
    outcomes: Mapping[InstanceKey, SpeedComparison], rows: Sequence[Row]
) -> dict[InstanceKey, SpeedComparison]:
    """Return the outcomes; an instance is suspect if requests failed that its deployment's other instances answered.

    If requests fail on all of them, the engine or the load is the cause, and their speed shows nothing. In a search,
    requests may fail.
    """
    own: dict[InstanceKey, list[Row]] = {}
    for row in rows:
        if not row.get("probe"):
            own.setdefault((row["host"], row["instance"]), []).append(row)
    shares = {instance: failed_share(found) for instance, found in own.items()}
    names = {instance: found[0]["deployment"] for instance, found in own.items()}
    judged = dict(outcomes)
    for instance, share in shares.items():
        if share <= MOST_FAILED or outcomes[instance].verdict in ("slow", "suspect"):
            continue
        others = [shares[other] for other in shares if other != instance and names[other] == names[instance]]
        usual = statistics.median(others) if others else share
        alike = usual > MOST_FAILED
        reason = f"{share:.0%} of its requests failed, {'as' if alike else 'unlike'} those of the others"
        judged[instance] = replace(
            outcomes[instance],
            verdict=None if alike else "suspect",
            reason=reason if others else reason.partition(",")[0],
        )
    return judged
