# SPDX-License-Identifier: Apache-2.0
"""Limit the time of a module's call on a node, where the limit depends on the call's own parameters.

A module ends its own waits. What it cannot end is a read or write that the kernel never completes, as with a GPU in
reset or a dead network file system: then the control node abandons the call, so that the other hosts are served.
Tasks whose limit is a number have Ansible's keyword `timeout` instead.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

MARGIN = 300
"""Seconds for what a module does in addition to its own waits."""
DEFAULTS = {
    "vllm_image": 14400,
    "blob_swarm": 86400,
    "hf_model": 86400,
    "model_quantize": 86400,
    "model_repository": 14400,
    "model_verify": 14400,
    "rocm_partition": 300,
    "vllm_bench": 7200,
    "vllm_accuracy": 1800,
    "lm_eval": 14400,
    "gpu_burnin": 1800,
}
"""The modules' defaults for their parameter `timeout`, in seconds."""
TIMES = {"vllm_image": 2, "rocm_partition": 2, "model_quantize": 2, "model_repository": 2}
"""How many times a call may need its `timeout`: also for a run before it, or to undo the change."""


class CallTimeout(BaseException):
    """The call's time is over. Not an Exception, so that handlers between here and the connection do not catch it."""


def call_limit(module: str, args: Mapping[str, Any]) -> int:
    """Return the seconds that a call may take: its own waits, those for another call on the node, and a margin."""
    servers = [item for item in args.get("servers") or () if isinstance(item, Mapping)]
    longest = max(
        (_seconds(item, "ready_timeout", 1800) + _seconds(item, "stop_timeout", 120) for item in servers),
        default=600,
    )
    own = _seconds(args, "timeout", DEFAULTS.get(module, 0)) * TIMES.get(module, 1)
    if module in ("vllm_server", "rocm_partition"):
        own += 2 * longest
    return own + MARGIN


def _seconds(item: Mapping[str, Any], key: str, default: int) -> int:
    """Return a number of seconds; the default for a value that the module will refuse."""
    try:
        return int(item.get(key) or default)
    except (TypeError, ValueError):
        return default


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise CallTimeout in the body after this many seconds; do nothing where Ansible has a timer for the task."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise CallTimeout

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
