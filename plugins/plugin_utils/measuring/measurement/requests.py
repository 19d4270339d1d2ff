# SPDX-License-Identifier: Apache-2.0
"""Read the single requests of a benchmark from what `vllm bench serve --save-detailed` writes. Pure.

numpy is imported when a result is read: this module costs other plans nothing.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...base.json_record import JsonRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class LoadPoint(JsonRecord):
    """What a client imposed. kind: concurrency (requests in flight), rate (requests/s), batch, or all (at once)."""

    kind: str
    value: float | None = None

    @property
    def text(self) -> str:
        """Return a text such as `concurrency 128`."""
        if self.value is None:
            return "all at once" if self.kind == "all" else self.kind
        return f"{self.kind} {self.value:g}" + (" requests/s" if self.kind == "rate" else "")


@dataclass(frozen=True)
class Requests:
    """The requests of one run that succeeded, ordered by the time of sending, and the number of those that failed.

    starts, ends, ttft and e2el have one value for each request, in seconds; starts and ends count from the first
    request that was sent, and are None for releases before 0.15.0, which do not record them. outputs: generated tokens.
    chunks: for each request, the times between the pieces of its answer in seconds (inter-token latencies).
    """

    ttft: NDArray[Any]
    e2el: NDArray[Any]
    outputs: NDArray[Any]
    gaps: tuple[NDArray[Any], ...] | None
    starts: NDArray[Any] | None
    failed: int
    duration: float

    @property
    def ends(self) -> NDArray[Any] | None:
        """Return when each answer was complete."""
        return None if self.starts is None else self.starts + self.e2el

    @property
    def tpot(self) -> NDArray[Any]:
        """Return the seconds per output token after the first; NaN for answers of one token or none."""
        import numpy as np

        rest = np.where(self.outputs > 1, self.outputs - 1, np.nan)
        tpot: NDArray[Any] = (self.e2el - self.ttft) / rest
        return tpot

    def produced(self, until: NDArray[Any]) -> NDArray[Any]:
        """Return how many tokens had arrived at each of these times. Raise ValueError without times of sending."""
        import numpy as np

        if self.starts is None or self.ends is None:
            raise ValueError("the result has no start_times")
        found: NDArray[Any]
        if self.gaps is not None:
            times, sums = self._arrived
            found = sums[np.searchsorted(times, until, side="right")]
            return found
        # The first token of an answer arrives at once, the others evenly until its end: straight lines in between.
        firsts, ends = self.starts + self.ttft, self.ends
        seconds = ends - firsts
        lasts = (self.outputs > 1) & (seconds > 0)
        rates = np.where(lasts, (self.outputs - 1) / np.where(lasts, seconds, 1.0), 0.0)
        order = np.argsort(firsts)
        at_once = np.where(lasts, 1.0, self.outputs)[order]
        found = np.concatenate(([0.0], np.cumsum(at_once)))[
            np.searchsorted(firsts[order], until, side="right")
        ]
        if not lasts.any():
            return found
        times, changes = np.concatenate((firsts, ends)), np.concatenate((rates, -rates))
        order = np.argsort(times)
        times, slopes = times[order], np.cumsum(changes[order])
        sums = np.concatenate(([0.0], np.cumsum(slopes[:-1] * np.diff(times))))
        found += np.interp(until, times, sums)
        return found

    @cached_property
    def _arrived(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return when pieces of answers arrived, in order, and the sum of tokens before each and after the last.

        vLLM only records the tokens of a whole answer, so they are spread evenly over its pieces: with speculation, a
        piece has several.
        """
        import numpy as np

        if self.starts is None or self.gaps is None:
            raise AssertionError("nothing records when tokens arrived")
        pieces = np.array([len(gaps) + 1 for gaps in self.gaps], int)
        first = np.cumsum(pieces) - pieces
        later = np.ones(pieces.sum(), bool)
        later[first] = False
        times = np.zeros(len(later))
        times[later] = np.concatenate((*self.gaps, ()))
        times = np.cumsum(times)
        times += np.repeat(self.starts + self.ttft - times[first], pieces)
        order = np.argsort(times, kind="stable")  # each answer's are in order already
        tokens = np.repeat(self.outputs / pieces, pieces)[order]
        return times[order], np.concatenate(([0.0], np.cumsum(tokens)))


def read_requests(raw: Mapping[str, Any]) -> Requests | None:
    """Return the requests of a result of `vllm bench serve`; None if it was saved without details.

    Raise TypeError or ValueError for malformed lists.
    """
    import numpy as np

    ttfts, outputs = raw.get("ttfts"), raw.get("output_lens")
    # vllm_bench leaves the many gaps out where results are large.
    itls, wholes = raw.get("itls") or None, raw.get("latencies")
    known = itls or wholes
    if not isinstance(ttfts, list) or not isinstance(outputs, list) or not known:
        return None
    count = min(len(ttfts), len(known), len(outputs))
    errors = list(raw.get("errors") or ())[:count]
    errors += [""] * (count - len(errors))
    # Before 0.9.2, failures have no text; their time to the first token is 0.
    done = [
        at
        for at in range(count)
        if not errors[at] and ttfts[at] and outputs[at] is not None and known[at] is not None
    ]
    given = raw.get("start_times")
    starts, first = None, 0.0
    if isinstance(given, list) and len(given) >= count > 0 and None not in given[:count]:
        starts, first = np.array([given[at] for at in done], float), min(map(float, given[:count]))
    order = np.arange(len(done)) if starts is None else np.argsort(starts, kind="stable")
    done = [done[at] for at in order]
    ttft = np.array([ttfts[at] for at in done], float)
    tokens = np.array([outputs[at] for at in done], float)
    gaps = None if itls is None else tuple(np.asarray(itls[at], float) for at in done)
    if gaps is None:
        e2el = np.where(tokens > 1, np.array([known[at] for at in done], float), ttft)
    else:
        e2el = ttft + np.array([own.sum() for own in gaps], float)
    return Requests(
        ttft=ttft,
        e2el=e2el,
        outputs=tokens,
        gaps=gaps,
        starts=None if starts is None else starts[order] - first,
        failed=max(count - len(done), int(raw.get("failed") or 0)),
        duration=float(raw.get("duration") or 0.0),
    )


def unpack_lists(detail: object) -> Mapping[str, Any] | None:
    """Return the per-request lists that vllm_bench packed; None if there are none."""
    if not isinstance(detail, str) or not detail:
        return None
    try:
        found = json.loads(gzip.decompress(base64.b64decode(detail)))
    except (ValueError, OSError, EOFError):
        return None
    return found if isinstance(found, Mapping) else None


def drop_gaps(detail: object) -> str | None:
    """Return packed per-request lists without the many gaps between tokens; None where there is nothing to read."""
    lists = unpack_lists(detail)
    if lists is None:
        return None
    kept = json.dumps({key: value for key, value in lists.items() if key != "itls"}, separators=(",", ":"))
    return base64.b64encode(gzip.compress(kept.encode(), mtime=0)).decode()
