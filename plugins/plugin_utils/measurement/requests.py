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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class LoadPoint:
    """What a client imposed. kind: concurrency (requests in flight), rate (requests/s), batch, or all (at once)."""

    kind: str
    value: float | None = None

    @property
    def text(self) -> str:
        """Return a text such as `concurrency 128`."""
        if self.value is None:
            return "all at once" if self.kind == "all" else self.kind
        return f"{self.kind} {self.value:g}" + (" requests/s" if self.kind == "rate" else "")

    def to_json(self) -> dict[str, float | str | None]:
        """Return the load as it stands in a row."""
        return {"kind": self.kind, "value": self.value}


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
    chunks: tuple[NDArray[Any], ...]
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

    def tokens(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return when pieces of answers arrived, and how many tokens each had: with speculation, several.

        vLLM records the tokens of a whole answer only, so they are spread evenly over its pieces. Raise ValueError
        without times of sending.
        """
        import numpy as np

        if self.starts is None:
            raise ValueError("the result has no start_times")
        times, weights = [], []
        for start, first, gaps, count in zip(self.starts, self.ttft, self.chunks, self.outputs, strict=True):
            arrivals = start + first + np.concatenate(([0.0], np.cumsum(gaps)))
            times.append(arrivals)
            weights.append(np.full(len(arrivals), count / len(arrivals)))
        if not times:
            return np.empty(0), np.empty(0)
        return np.concatenate(times), np.concatenate(weights)


def read_requests(raw: Mapping[str, Any]) -> Requests | None:
    """Return the requests of a result of `vllm bench serve`; None if it was saved without details.

    Where the many gaps between tokens were left out (vllm_bench does that where results are large), the tokens of an
    answer count as evenly spaced. Raise TypeError or ValueError for lists that are no such.
    """
    import numpy as np

    ttfts, outputs = raw.get("ttfts"), raw.get("output_lens")
    itls = raw.get("itls") or _even_gaps(raw)
    if not isinstance(ttfts, list) or not isinstance(outputs, list) or not itls:
        return None
    count = min(len(ttfts), len(itls), len(outputs))
    errors = list(raw.get("errors") or ())[:count]
    errors += [""] * (count - len(errors))
    # Before 0.9.2, failures have no text; their time to the first token is 0.
    done = [
        at
        for at in range(count)
        if not errors[at] and ttfts[at] and outputs[at] is not None and itls[at] is not None
    ]
    given = raw.get("start_times")
    starts, first = None, 0.0
    if isinstance(given, list) and len(given) >= count > 0 and None not in given[:count]:
        starts, first = np.array([given[at] for at in done], float), min(map(float, given[:count]))
    order = np.arange(len(done)) if starts is None else np.argsort(starts, kind="stable")
    chunks = [np.asarray(itls[done[at]], float) for at in order]
    ttft = np.array([ttfts[done[at]] for at in order], float)
    return Requests(
        ttft=ttft,
        e2el=ttft + np.array([gaps.sum() for gaps in chunks], float),
        outputs=np.array([outputs[done[at]] for at in order], float),
        chunks=tuple(chunks),
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


def without_gaps(detail: object) -> str | None:
    """Return packed per-request lists without the many gaps between tokens; None where there is nothing to read."""
    lists = unpack_lists(detail)
    if lists is None:
        return None
    kept = json.dumps({key: value for key, value in lists.items() if key != "itls"}, separators=(",", ":"))
    return base64.b64encode(gzip.compress(kept.encode(), mtime=0)).decode()


def _even_gaps(raw: Mapping[str, Any]) -> list[list[float] | None]:
    """Return evenly spaced gaps between the tokens of each answer, from its latency; None where that is unknown."""
    lists = (raw.get(key) or () for key in ("ttfts", "output_lens", "latencies"))
    return [
        None
        if whole is None or first is None
        else [(whole - first) / (count - 1)] * (count - 1)
        if (count or 0) > 1
        else []
        for first, count, whole in zip(*lists, strict=False)
    ]
