# SPDX-License-Identifier: Apache-2.0
"""What makes a start of an instance quick: where its caches are, and whose caches it can take over."""

from __future__ import annotations

from collections.abc import Sequence

from ....module_utils.common.hashing import canonical, text_hash
from ....module_utils.engines.mounts import CACHE_MOUNT
from ....module_utils.engines.start_command import without_addresses
from ..desired.reasons import VLLM_COMPILE, VLLM_STARTUP_PLAN, Reason
from ..tuning.tune import STARTUP_PLAN, TunedSettings


def warm_start_variables(tuned: TunedSettings) -> tuple[Reason, ...]:
    """Return the variables that let caches outlive the container; AITER's is the supervisor's (warm_start.py)."""
    found = [
        Reason(
            "TRITON_CACHE_DIR",
            f"{CACHE_MOUNT}/triton",
            "what Triton compiled outlives the container, also where no compiled graph used it",
            VLLM_COMPILE,
        )
    ]
    if tuned.startup_plan:
        reason = "memory that was measured when the same command last started is not measured again"
        found.append(Reason(STARTUP_PLAN, "1", reason, VLLM_STARTUP_PLAN))
    return tuple(found)


def cache_key(argv: Sequence[Sequence[str]], start_key: str) -> str:
    """Return the key of what compiled caches depend on; equal instances have the same, wherever they listen.

    start_key: of image, release, model, GPU with its partition modes, parallel sizes, decided flags and variables.
    """
    words = [word for group in argv for word in group]
    return text_hash(canonical([start_key, without_addresses(words)]))[:32]
