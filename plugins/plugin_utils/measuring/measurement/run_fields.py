# SPDX-License-Identifier: Apache-2.0
"""Return the fields of a row that the single requests of a run show. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .client_bound import client_bound, send_lag_ms
from .goodput import LatencyLimits, attained_share, goodput
from .requests import LoadPoint, read_requests
from .steady import steady_state


def run_fields(
    raw: Mapping[str, Any], load: LoadPoint, slos: Mapping[str, LatencyLimits], cpu_share: float | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a row of `vllm bench serve`, and warnings about its steady state.

    cpu_share: CPU time of the client over its time. What a result without details cannot show is None.
    """
    requests = read_requests(raw)
    fields: dict[str, Any] = {
        "steady_output_throughput": None,
        "steady_share": None,
        "client_cpu_share": cpu_share,
        "send_lag_ms": None,
        "client_bound": client_bound(cpu_share, None),
        "goodput": dict.fromkeys(slos),
        "slo_attainment": dict.fromkeys(slos),
    }
    if requests is None:
        return fields, ()
    steady = steady_state(requests, load)
    lag = send_lag_ms(requests, load)
    fields |= {
        "steady_output_throughput": steady.throughput,
        "steady_share": steady.share,
        "send_lag_ms": lag,
        "client_bound": client_bound(cpu_share, lag),
        "goodput": {name: goodput(requests, slo) for name, slo in slos.items()},
        "slo_attainment": {name: attained_share(requests, slo) for name, slo in slos.items()},
    }
    return fields, steady.warnings
