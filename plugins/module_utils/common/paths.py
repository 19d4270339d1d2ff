# SPDX-License-Identifier: Apache-2.0
"""Names and places on a node and inside an instance's container."""

from __future__ import annotations

STATE_DIR = "/etc/instinct-fleet"
DATA_DIR = "/var/lib/instinct-fleet"
HF_CACHE = DATA_DIR + "/hf"
# A change of GPU partition modes that is under way; node_state looks for it.
PARTITION_JOURNAL = DATA_DIR + "/partition.json"
KEYS_DIR = STATE_DIR + "/keys"
# What sets partition modes again at a boot: a directory of root's alone.
PARTITION_RECORD = DATA_DIR + "/partition/modes.json"
PARTITION_PROGRAM = DATA_DIR + "/partition/restore.pyz"
BALANCER_DIR = STATE_DIR + "/balancer"
BALANCER_STATE = DATA_DIR + "/balancer"
ROUTER_DIR = DATA_DIR + "/router"
DOCKER_ROOT = "/var/lib/docker"
# A pull keeps a layer compressed until it is unpacked, and ROCm's layers (code objects for several targets)
# unpack to two to three times that: a pull takes about three times what the registry sends.
UNPACK_FACTOR = 3

# Inside the container. The mounts are beside, not in one another: a read-only mount cannot hold mount points.
INSTANCE_MOUNT = "/instinct"
HF_MOUNT = "/hf"
CACHE_MOUNT = "/cache"
LIB_MOUNT = "/instinct-lib"
KEYS_MOUNT = "/instinct-keys"
# Where a benchmark's container writes what it measured.
BENCH_MOUNT = "/bench"
BENCH_RESULT = "result.json"


def instance_dir(name: str) -> str:
    """Where an instance's files live on its node."""
    return f"{STATE_DIR}/instances/{name}"


def cache_dir(name: str) -> str:
    """The writable cache of an instance on its node."""
    return f"{DATA_DIR}/cache/{name}"


def lib_dir(version: str = "") -> str:
    """The program around vLLM on a node: a directory per version, which its hash names."""
    return f"{STATE_DIR}/lib/{version}".rstrip("/")


def snapshot_dir(repo: str, commit: str) -> str:
    """Where a container sees a commit of a repository, in the layout of the hub's cache."""
    return f"{HF_MOUNT}/hub/models--{repo.replace('/', '--')}/snapshots/{commit}"


def software_file(image_id: str) -> str:
    """What an image answered when it was asked what is in it; `image_id` is the engine's, sha256:…"""
    return f"{DATA_DIR}/images/{image_id.rpartition(':')[2]}.json"


def container_name(name: str) -> str:
    """The Docker name of an instance."""
    return f"instinct-{name}"
