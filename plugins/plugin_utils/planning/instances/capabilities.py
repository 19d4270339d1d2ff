# SPDX-License-Identifier: Apache-2.0
"""The Linux capabilities of an engine's container: what Docker gives by default, less what no engine uses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

PRIVILEGED_PORTS = 1024
"""Ports below it need NET_BIND_SERVICE."""
ADDED = ("SYS_PTRACE",)
"""HIP's IPC between workers reads another process' memory; AMD's and vLLM's documents give it to `docker run`."""
DROPPED = {
    "AUDIT_WRITE": "writes to the kernel's audit log, as login programs do",
    "FSETID": "keeps setuid bits of files that are written; no-new-privileges makes them useless",
    "MKNOD": "makes device files; Docker makes those of the GPUs and NICs",
    "NET_BIND_SERVICE": "opens ports below 1024; the instance's are above",
    "NET_RAW": "forges packets, here on the host's own network; RCCL's queue pairs need none",
    "SETFCAP": "gives capabilities to files",
    "SETPCAP": "hands capabilities on to other processes",
    "SYS_CHROOT": "changes the root directory",
}
"""What Docker gives by default, and what for. What stays may be of use to an entry point of root's: CHOWN, DAC_OVERRIDE
and FOWNER for other users' files below mounts, SETGID and SETUID for a user of the image, KILL for its processes."""


def capabilities(more: Iterable[str], ports: Collection[int]) -> tuple[list[str], list[str]]:
    """Return what Docker is to add and to drop. more: what the deployment adds; ports: those of the instance."""
    low = ["NET_BIND_SERVICE"] if any(port < PRIVILEGED_PORTS for port in ports) else []
    added = sorted({*ADDED, *more})
    return added, sorted(DROPPED.keys() - {*added, *low})
