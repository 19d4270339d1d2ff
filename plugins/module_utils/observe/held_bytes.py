# SPDX-License-Identifier: Apache-2.0
"""How many bytes of this host's own disks the content store, weights and models take."""

from __future__ import annotations

import os

from .source import Source, listing

NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "wekafs",
    "beegfs",
    "ceph",
    "gpfs",
    "glusterfs",
    "fuse.glusterfs",
    "cifs",
    "smb3",
)


def network_devices(source: Source) -> dict[str, str]:
    """Return the types of mounted network file systems by device, "major:minor"."""
    found = {}
    for line in (source.text("/proc/self/mountinfo") or "").splitlines():
        words, _unused, rest = line.partition(" - ")
        kind = rest.partition(" ")[0]
        if kind in NETWORK:
            found[words.split()[2]] = kind
    return found


def held_bytes(data_dir: str, cache_dirs: list[str]) -> int:
    """Return the bytes of the content store, of weights with a marker and of models made on the fleet.

    Hard links count once. Files on network file systems do not count, as they are not this host's alone, nor does what
    came in part, which a plan counts whole.
    """
    network = network_devices(Source())
    places = [os.path.join(data_dir, name) for name in ("store/blobs", "models")]
    for hub in (os.path.join(cache_dir, "hub") for cache_dir in cache_dirs):
        repos = (os.path.join(hub, name) for name in listing(hub))
        places += [
            os.path.join(repo, "blobs") for repo in repos if listing(os.path.join(repo, ".instinct-fleet"))
        ]
    found: dict[tuple[int, int], int] = {}
    walks = (walked for place in places for walked in os.walk(place))
    for path in (os.path.join(top, name) for top, _unused, names in walks for name in names):
        if path.endswith(".incomplete"):  # a download's
            continue
        try:
            stat = os.lstat(path)
        except FileNotFoundError:  # renamed meanwhile
            continue
        if (
            stat.st_mode & 0o170000 == 0o100000
            and f"{os.major(stat.st_dev)}:{os.minor(stat.st_dev)}" not in network
        ):
            found[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(found.values())
