# SPDX-License-Identifier: Apache-2.0
"""Decide how weights are read, by the file system that holds them."""

from __future__ import annotations

from ..desired.deployment import Deployment
from ..desired.reasons import VLLM_LOADER
from ..observed.node_state import NodeState
from ..tuning.parallel import Argument
from ..tuning.tune import TunedSettings

STRATEGY = "safetensors_load_strategy"
PREFETCHED = ("nfs", "nfs4", "lustre")
"""File systems on which releases with a choice of their own read ahead by themselves, if the memory suffices."""
_OTHER_READERS = ("--load-format", "--model-loader-extra-config")


def weights_file_system(state: NodeState | None, cache_dir: str) -> str:
    """Return the type of the network file system that holds the cache of weights; "" for a local or unknown one."""
    return next((disk.network for disk in state.disks if disk.path == cache_dir), "") if state else ""


def load_args(deployment: Deployment, tuned: TunedSettings, file_system: str) -> tuple[Argument, ...]:
    """Return the flag for weights on a network file system, where mapped pages are fetched one after the other."""
    found = tuned.table.get(STRATEGY)
    if (
        not file_system
        or not found
        or deployment.local_model
        or any(name in tuned.args for name in _OTHER_READERS)
    ):
        return ()
    flag, _negated = found
    if flag.default == "lazy":  # 0.10.2 to 0.18 have no prefetch
        reason = (
            f"weights are on {file_system}: whole files are read, as mapped pages would be fetched one by one"
        )
        return (Argument(STRATEGY, "eager", reason, VLLM_LOADER),)
    if file_system in PREFETCHED:
        return ()
    reason = f"weights are on {file_system}, which vLLM does not know as a network file system: they are read ahead"
    return (Argument(STRATEGY, "prefetch", reason, VLLM_LOADER),)
