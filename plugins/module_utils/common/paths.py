# SPDX-License-Identifier: Apache-2.0
"""Paths and names on a node."""

from __future__ import annotations

STATE_DIR = "/etc/instinct-fleet"
DATA_DIR = "/var/lib/instinct-fleet"
HF_CACHE = DATA_DIR + "/hf"
STORE = DATA_DIR + "/store"
# The journal of a partition change in progress, which node_state reads.
PARTITION_JOURNAL = DATA_DIR + "/partition.json"
KEYS_DIR = STATE_DIR + "/keys"
# The boot unit's record and program, in root's directory.
PARTITION_RECORD = DATA_DIR + "/partition/modes.json"
PARTITION_PROGRAM = DATA_DIR + "/partition/restore.pyz"
PARTITION_UNIT = "/etc/systemd/system/instinct-partition.service"
PARTITION_LINK = "/etc/systemd/system/multi-user.target.wants/instinct-partition.service"
BALANCER_DIR = STATE_DIR + "/balancer"
BALANCER_STATE = DATA_DIR + "/balancer"
ROUTER_DIR = DATA_DIR + "/router"
DOCKER_ROOT = "/var/lib/docker"
# A pull keeps a layer compressed until it is unpacked, and ROCm's layers (code objects for several targets) unpack to
# two to three times their size. A pull therefore takes about three times the bytes that the registry sends.
UNPACK_FACTOR = 3


def instance_dir(name: str) -> str:
    """Return the directory of an instance's files on its node."""
    return f"{STATE_DIR}/instances/{name}"


def cache_dir(name: str) -> str:
    """Return the writable cache directory of an instance on its node."""
    return f"{DATA_DIR}/cache/{name}"


def lib_dir(version: str = "") -> str:
    """Return the directory of the supervisor on a node: one per version, named by its hash."""
    return f"{STATE_DIR}/lib/{version}".rstrip("/")


def software_file(image_id: str) -> str:
    """Return the path of the probed facts about an image; `image_id` is Docker's, sha256:…"""
    return f"{DATA_DIR}/images/{image_id.rpartition(':')[2]}.json"


def container_name(name: str) -> str:
    """Return the name of an instance's Docker container."""
    return f"instinct-{name}"
