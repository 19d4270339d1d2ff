# SPDX-License-Identifier: Apache-2.0
"""What one member of a swarm does, in a file that only root reads: it holds the key of the run."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..common.files import make_private, read_text, write_atomic
from ..common.module_main import NodeError
from ..store.manifest import Manifest, parse_manifest

RUN_DIR = "/run/instinct-fleet/swarm"
KEY_BYTES = 32


@dataclass(frozen=True)
class SwarmMember:
    """A node of the swarm: its name for messages, and where it listens during a run.

    Peers connect to `port`, and ask for hashes of pieces at the one above it.
    """

    name: str
    address: str
    port: int
    serves: bool = False  # it has blobs to offer from the start


@dataclass(frozen=True)
class SwarmJob:
    """One member's part of a run.

    Attributes:
        own: the name of this member among `members`, which are the same on all nodes
        serve: SHA-256 of the blobs that this member offers from its store; it receives those that it does not have
        key: a random secret of the run, in hex digits
        limit: bytes per second that it sends, and that it receives, at most; 0 for no limit
        linger: seconds without a byte sent after which a complete member ends
        stall: seconds without a byte received after which an incomplete member gives up
        deadline: seconds after which it ends in any case
    """

    manifest: Manifest
    root: str
    own: str
    members: tuple[SwarmMember, ...]
    serve: tuple[str, ...]
    key: str
    limit: int = 0
    linger: float = 120.0
    stall: float = 180.0
    deadline: float = 86400.0

    @property
    def me(self) -> SwarmMember:
        """Return this member."""
        return next(member for member in self.members if member.name == self.own)

    @property
    def others(self) -> tuple[SwarmMember, ...]:
        """Return the other members, in the order of all."""
        return tuple(member for member in self.members if member.name != self.own)

    def text(self) -> str:
        """Return the text of the file."""
        return json.dumps({**asdict(self), "manifest": self.manifest.to_json()}, indent=1)


def run_directory(manifest_id: str) -> str:
    """Return the directory of a run's files, which only root reads."""
    return os.path.join(RUN_DIR, manifest_id)


def parse_job(data: Mapping[str, Any]) -> SwarmJob:
    """Return a job as text() wrote it, or as a module's parameters give it. Raise NodeError if it is malformed."""
    members = tuple(
        SwarmMember(str(item["name"]), str(item["address"]), int(item["port"]), bool(item.get("serves")))
        for item in data["members"]
    )
    job = SwarmJob(
        **{
            **data,
            "manifest": parse_manifest(data["manifest"]),
            "members": members,
            "serve": tuple(data["serve"]),
        }
    )
    _check(job)
    return job


def _check(job: SwarmJob) -> None:
    names = [member.name for member in job.members]
    if job.own not in names:
        raise NodeError(
            f"members: {job.own} is not among them ({', '.join(names)}), so that it cannot take part."
        )
    if len(set(names)) < len(names):
        raise NodeError("members: a name is listed twice. Each node takes part once.")
    places = [(member.address, member.port) for member in job.members]
    if len(set(places)) < len(places):
        raise NodeError("members: two have the same address and port. Give each node its own address.")
    for member in job.members:
        try:
            ipaddress.ip_address(member.address)
        except ValueError as error:
            raise NodeError(
                f"members: {member.address!r} of {member.name} is not an IP address. Peers connect to "
                "addresses, not to "
                "names."
            ) from error
        if not 0 < member.port < 65535:  # the port above it is used too
            raise NodeError(f"members: port {member.port} of {member.name} is not between 1 and 65534.")
    unknown = sorted(set(job.serve) - job.manifest.blobs.keys())
    if unknown:
        raise NodeError(f"serve: {unknown[0]} is not a blob of {job.manifest.name}.")
    try:
        usable = len(bytes.fromhex(job.key)) >= KEY_BYTES
    except ValueError:
        usable = False
    if not usable:
        raise NodeError(f"key: it needs {KEY_BYTES} random bytes in hex digits, new in each run.")


def read_job(path: str) -> SwarmJob:
    """Read a job's file. Raise NodeError if it is missing or malformed."""
    text = read_text(path)
    if text is None:
        raise NodeError(f"{path} is missing.")
    try:
        return parse_job(json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(f"{path} is malformed ({type(error).__name__}).") from error


def write_job(job: SwarmJob, directory: str) -> str:
    """Write a job's file, for root alone; return its path. The program writes its state next to it."""
    make_private(directory)
    path = os.path.join(directory, "job.json")
    write_atomic(path, job.text(), 0o600)
    return path
