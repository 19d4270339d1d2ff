# SPDX-License-Identifier: Apache-2.0
"""Searches for secrets, which first show that they find one: a canary, planted wherever they look."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import secrets
import shlex
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .conftest import Lab, container
from .helpers import STANDIN, wait_for

PATTERNS = "/dev/shm/instinct-patterns"  # so that no command line has them
PLACES = ("/etc", "/var", "/run", "/tmp", "/opt", "/srv", "/home", "/root", "/dev/shm")
# Files; what processes were started with; what Docker keeps, what containers said and what was written inside them. Not
# the layers of images, which are far larger; of an engine that does not tell where a container's own layer is, all. In
# capitals and small letters, as a key of hex digits is written in both.
SEARCH = f"""
export LC_ALL=C
cd / && docker ps > /dev/null || exit 1
grep -rlsiF -f {PATTERNS} {" ".join(PLACES)} --exclude-dir=overlay2 --exclude={Path(PATTERNS).name} | sed 's/^/file /'
for process in /proc/[0-9]*; do
    for what in cmdline environ; do
        grep -qsaiF -f {PATTERNS} $process/$what && echo "$what $(cat $process/comm)"
    done
done
for id in $(docker ps -aq); do
    name=$(docker inspect -f '{{{{.Name}}}}' $id)
    docker inspect $id | grep -qiF -f {PATTERNS} && echo "inspect $name"
    docker logs $id 2>&1 | grep -qiF -f {PATTERNS} && echo "log $name"
    layer=$(docker inspect -f '{{{{.GraphDriver.Data.UpperDir}}}}' $id)
    if [ -d "$layer" ]; then grep -rqsiF -f {PATTERNS} "$layer"; else docker export $id | grep -qaiF -f {PATTERNS}; fi \
        && echo "layer $name"
done
true
"""
READ = f"""
set -e
canary=$(cat {PATTERNS})
"""
PLANT_PROCESSES = """
setsid bash -c 'sleep 900; true' "$canary" > /dev/null 2>&1 < /dev/null &
CANARY="$canary" setsid sleep 901 > /dev/null 2>&1 < /dev/null &
# They are what they are to be once both sleep; before, they are this shell.
until pgrep -x -f 'sleep 900' && pgrep -x -f 'sleep 901'; do sleep 0.1; done > /dev/null
"""
PLANT = f"""
for place in {" ".join(PLACES)}; do echo "$canary" > $place/canary; done
said='echo "$CANARY" > /tmp/canary; echo "$CANARY"; exec sleep 902'
docker run -d --name canary -e CANARY="$canary" --entrypoint sh {STANDIN} -c "$said" > /dev/null
until docker logs canary 2>&1 | grep -qF "$canary"; do sleep 0.1; done
"""
UPROOT = f"""
docker rm -f canary > /dev/null 2>&1; pkill -x -f 'sleep 90[012]'
rm -f {" ".join(f"{place}/canary" for place in PLACES)}
"""
PLANTED = {
    *(f"file {place}/canary" for place in PLACES),
    "cmdline bash",
    "environ sleep",
    "inspect /canary",
    "log /canary",
    "layer /canary",
}


def found_on(lab: Lab, host: str, patterns: Sequence[str]) -> set[str]:
    """Where a node has one of these: "file /etc/x", "cmdline vllm", "inspect /name", "log /name", "layer /name"."""
    text = base64.b64encode("\n".join(patterns).encode()).decode()
    lab.on(host, f"umask 077; echo {text} | base64 -d > {PATTERNS}")
    try:
        return set(lab.on(host, SEARCH).splitlines())
    finally:
        lab.on(host, f"rm -f {PATTERNS}")


@contextlib.contextmanager
def planted(lab: Lab, host: str, plant: str = PLANT_PROCESSES + PLANT) -> Iterator[str]:
    """A canary on a node, in each place that is searched, as long as this lasts."""
    canary = f"canary-{secrets.token_hex(16)}"
    text = base64.b64encode(canary.encode()).decode()
    lab.on(host, f"umask 077; echo {text} | base64 -d > {PATTERNS}")
    try:
        lab.on(host, READ + plant)
        yield canary
    finally:
        lab.on(host, UPROOT, check=False)
        lab.on(host, f"rm -f {PATTERNS}")


def search_works(lab: Lab, host: str) -> None:
    """The search finds a canary in each place where it looks."""
    with planted(lab, host) as canary:
        found = found_on(lab, host, [canary])
    assert found >= PLANTED, PLANTED - found


# The same for somebody without rights, who gets the patterns as standard input.
AS_NOBODY = f"""
export LC_ALL=C
grep -rlsaiF -f - {" ".join(PLACES)} /proc/[0-9]*/cmdline /proc/[0-9]*/environ | sed -E 's|^/proc/[0-9]+/|process |'
"""
PLANT_READABLE = """
install -m 644 <(echo "$canary") /tmp/canary
su -s /bin/bash nobody -c 'CANARY=$(cat) setsid sleep 901 > /dev/null 2>&1 < /dev/null &' <<< "$canary"
until pgrep -u nobody -x -f 'sleep 901' > /dev/null; do sleep 0.1; done
"""
OURS = ("/etc/instinct-fleet", "/var/lib/instinct-fleet")


def as_nobody(command: str) -> str:
    """The command as a user without rights runs it."""
    return f"su -s /bin/bash nobody -c {shlex.quote(command)}"


def found_by_nobody(lab: Lab, host: str, patterns: Sequence[str]) -> set[str]:
    """Where somebody without rights finds one of these: "/etc/x", "process environ"."""
    text = base64.b64encode("\n".join(patterns).encode()).decode()
    lab.on(host, f"umask 077; echo {text} | base64 -d > {PATTERNS}")
    try:
        # What nobody may not read is a matter of course: only what was found counts.
        return set(lab.on(host, f"{as_nobody(AS_NOBODY)} < {PATTERNS}", check=False).splitlines())
    finally:
        lab.on(host, f"rm -f {PATTERNS}")


def search_by_nobody_works(lab: Lab, host: str) -> None:
    """Somebody without rights finds a canary in a file and in a process that he may read."""
    with planted(lab, host, PLANT_PROCESSES + PLANT_READABLE) as canary:
        found = found_by_nobody(lab, host, [canary])
    assert found == {"/tmp/canary", "process cmdline", "process environ"}


def readable_by_nobody(lab: Lab, host: str) -> set[str]:
    """Our files that somebody without rights may read."""
    command = f"find {' '.join(OURS)} -type f -readable 2> /dev/null; true"
    return set(lab.on(host, as_nobody(command)).splitlines())


class Sampler(threading.Thread):
    """Looks again and again at what every process was started with: the lab's nodes are processes of this machine."""

    def __init__(self, *wanted: str) -> None:
        super().__init__(daemon=True)
        self.wanted = wanted
        self.patterns = list(wanted)
        self.found: dict[str, set[str]] = {secret: set() for secret in wanted}
        self.seen: set[tuple[str, bytes]] = set()
        self.looks: Counter[str] = Counter()
        self.processes: set[str] = set()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            for process in Path("/proc").glob("[0-9]*"):
                for what in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        self.look(what, (process / what).read_bytes())

    def look(self, what: str, content: bytes) -> None:
        self.looks[what] += 1
        self.processes.add(content[:80].decode(errors="replace"))
        self.seen.add((what, content))
        for pattern in self.patterns:
            if pattern.encode() in content:
                self.found[pattern].add(what)

    def works(self, lab: Lab) -> None:
        """It sees a canary on each node, in arguments and in the environment."""
        for host in lab.hosts:
            with planted(lab, host, PLANT_PROCESSES) as canary:
                seen = self.found.setdefault(canary, set())
                self.patterns.append(canary)
                wait_for(f"the canary of {host}", lambda seen=seen: seen == {"cmdline", "environ"})  # type: ignore[misc]
                self.patterns.remove(canary)

    def end(self) -> set[str]:
        """End it; where it found one of the secrets."""
        assert self.is_alive(), "it ended before"
        self.done.set()
        self.join()
        return set().union(*(self.found[secret] for secret in self.wanted))

    def had(self, secret: str) -> set[str]:
        """Where a secret was that is known only now, in capitals or small letters."""
        return {what for what, content in self.seen if secret.lower().encode() in content.lower()}


STOP = "/dev/shm/instinct-stop"
WATCH = f"""
until [ -e {STOP} ]; do cat /run/instinct-fleet/swarm/*/job.json 2> /dev/null && echo; sleep 0.01; done
rm -f {STOP}
"""


class RunKeys(threading.Thread):
    """The keys of transfers between hosts, from the files that a node's root has for a moment; each is passed on."""

    def __init__(self, lab: Lab, host: str, learned: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.lab, self.host, self.learned = lab, host, learned
        self.keys: set[str] = set()
        command = ["docker", "exec", container(host), "bash", "-c", WATCH]
        self.watch = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def run(self) -> None:
        for line in self.watch.stdout or ():
            for key in re.findall(r'"key": *"([0-9a-f]{64})"', line):
                if key not in self.keys:
                    self.keys.add(key)
                    self.learned(key)

    def end(self) -> set[str]:
        """End it; the keys."""
        self.lab.on(self.host, f"touch {STOP}")
        self.watch.wait()
        self.join()
        return self.keys


BENCHMARKS = "/var/lib/instinct-fleet/bench"
KEPT = "/dev/shm/instinct-results"
KEEP = f"""
mkdir -m 700 {KEPT}
until [ -e {STOP}-results ]; do cp -ru {BENCHMARKS}/. {KEPT} 2> /dev/null; sleep 0.05; done
rm -f {STOP}-results
"""


@contextlib.contextmanager
def kept_results(lab: Lab) -> Iterator[None]:
    """What benchmarks write on nodes goes once it is reported: copies of it stay where found_on() looks."""
    watches = {
        host: subprocess.Popen(["docker", "exec", container(host), "bash", "-c", KEEP]) for host in lab.hosts
    }
    try:
        yield
    finally:
        for host, watch in watches.items():
            lab.on(host, f"touch {STOP}-results")
            watch.wait()


def runs_kept(lab: Lab, host: str) -> list[str]:
    """The copies of what single runs of benchmarks wrote on a node."""
    return lab.on(host, f"find {KEPT} -name '[0-9]*.[0-9]*.json'").split()


class NobodysSearch(threading.Thread):
    """Looks again and again, on all nodes, for what somebody without rights can read while something runs."""

    def __init__(self, lab: Lab, *wanted: str) -> None:
        super().__init__(daemon=True)
        self.lab, self.wanted = lab, list(wanted)
        self.found: set[str] = set()
        self.looks = 0
        self.failed: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            while not self.done.wait(0.2):
                for host in self.lab.hosts:
                    self.found |= {
                        f"{host} {place}" for place in found_by_nobody(self.lab, host, self.wanted)
                    }
                self.looks += 1
        except BaseException as error:  # it would be lost with the thread
            self.failed = error

    def end(self) -> set[str]:
        """End it; where it found one of the secrets."""
        self.done.set()
        self.join()
        assert self.failed is None, self.failed
        assert self.looks > 1
        return self.found


def files_with(secret: str, *places: Path) -> list[str]:
    """Files of this machine below these places that have a secret; it finds a canary in each of them."""
    canary = f"Canary-{secrets.token_hex(16)}"
    planted_here = [place / "canary" for place in places]
    for path in planted_here:
        path.write_text(canary.upper())
    try:
        assert sorted(_files_with(canary, *places)) == sorted(map(str, planted_here))
    finally:
        for path in planted_here:
            path.unlink()
    return _files_with(secret, *places)


def _files_with(secret: str, *places: Path) -> list[str]:
    found = []
    for place in places:
        # Not rglob(), which fails when what others have there goes meanwhile, as what Ansible of the other lab does.
        for directory, _, names in os.walk(place):
            for path in (Path(directory, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    if (
                        path.is_file()
                        and not path.is_symlink()
                        and secret.lower().encode() in path.read_bytes().lower()
                    ):
                        found.append(str(path))
    return found
