# SPDX-License-Identifier: Apache-2.0
"""What a fleet that serves takes up: containers, files, processes, memory. Compared, it shows what leaks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Lab

# Sessions and their shells come and go, as does what looks here.
PROCESSES = r"ps -eo stat=,args= | grep -v '^[^ ]* *\(sshd\|-\?bash\|bash\|sh\|ps\|grep\|sudo\|sleep\|dd\)\b'"
FILES = (
    "find /etc/instinct-fleet /var/lib/instinct-fleet /run/instinct-fleet /tmp /home/ops/.ansible/tmp "
    "~root/.ansible/tmp -type f 2> /dev/null; true"
)
CONTAINERS = "docker ps -a --format '{{.Names}} {{.State}}'"
MEMORY = "ps -eo rss=,args= | grep '[s]upervise.py' | grep -v docker-init"
# Locks are files that stay.
LOCK = re.compile(r"^/run/instinct-fleet/(\w+\.lock|lease)$")
# What is kept of the past is bounded, each kind by itself: so many files of it may come.
KEPT = {
    r"/generations/": 12,  # five of each deployment, with their files
    r"/lib/": 12,  # versions of the supervisor
    r"/supervise/failure-N\.log$": 6,
    r"/supervise/": 4,
    r"/balancer/": 16,  # the earlier configuration
    r"/(ready|attention\.json|startup\.log|journal\.log)$": 8,
    r"^/tmp/(ansible_|containerd\.)": 4,  # of what ran when its host died; a server clears /tmp by itself
}


@dataclass(frozen=True)
class Footprint:
    """Of one host: how often each container, process and file is there, numbers in their names left out."""

    containers: Counter[str]
    processes: Counter[str]
    zombies: int
    files: Counter[str]

    @staticmethod
    def of(lab: Lab, host: str) -> Footprint:
        lines = [line.split(None, 1) for line in lab.on(host, PROCESSES).splitlines()]
        return Footprint(
            Counter(lab.on(host, CONTAINERS).splitlines()),
            Counter(" ".join(_plain(args).split()[:2]) for state, args in lines if "Z" not in state),
            sum("Z" in state for state, _ in lines),
            Counter(_plain(path) for path in lab.on(host, FILES).splitlines() if not LOCK.match(path)),
        )

    def grown(self, before: Footprint) -> list[str]:
        """What is there now and was not before, in words."""
        found = [f"container {name}" for name in self.containers - before.containers]
        found += [f"{count} processes {name}" for name, count in (self.processes - before.processes).items()]
        if self.zombies > before.zombies:
            found.append(f"{self.zombies - before.zombies} zombies")
        for name, count in (self.files - before.files).items():
            kept = next((most for pattern, most in KEPT.items() if re.search(pattern, name)), 0)
            if count > kept:
                found.append(f"{count} files {name}")
        return found


def _plain(text: str) -> str:
    """The text without what is another one each time: numbers, hashes, random names."""
    text = re.sub(r"\b(?=[a-z_]*\d)[0-9a-f]{8,}\b", "H", text)
    return re.sub(r"\d+", "N", text)


def footprints(lab: Lab) -> dict[str, Footprint]:
    """Of each host."""
    return {host: Footprint.of(lab, host) for host in lab.hosts}


def grown(before: dict[str, Footprint], after: dict[str, Footprint]) -> list[str]:
    """What is there now and was not before, by host."""
    return [f"{host}: {item}" for host in before for item in after[host].grown(before[host])]


def supervisors_memory(lab: Lab) -> dict[str, int]:
    """Resident memory of each supervisor in KiB, by host and place among the host's."""
    found = {}
    for host in lab.hosts:
        for number, line in enumerate(
            sorted(lab.on(host, MEMORY).splitlines(), key=lambda line: line.split()[1:])
        ):
            found[f"{host}/{number}"] = int(line.split()[0])
    return found
