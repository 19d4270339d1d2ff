# SPDX-License-Identifier: Apache-2.0
"""Paths inside an instance's container. The mounts are siblings: a read-only mount cannot hold mount points."""

from __future__ import annotations

INSTANCE_MOUNT = "/instinct"
HF_MOUNT = "/hf"
CACHE_MOUNT = "/cache"
LIB_MOUNT = "/instinct-lib"
KEYS_MOUNT = "/instinct-keys"
# A benchmark's container finds its job there, and writes its results.
BENCH_MOUNT = "/bench"
BENCH_JOB = "job.json"
BENCH_OUTPUT = "output.log"  # what the present run printed
BENCH_RESULT = "result.json"  # of the present run, by the client


def snapshot_dir(repo: str, commit: str) -> str:
    """Return where a container sees a commit of a repository, in the layout of the hub's cache."""
    return f"{HF_MOUNT}/hub/models--{repo.replace('/', '--')}/snapshots/{commit}"
