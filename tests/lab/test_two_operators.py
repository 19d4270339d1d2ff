# SPDX-License-Identifier: Apache-2.0
"""Pairs of runs that change the fleet, begun at random moments, some of them killed: one works, and nothing is lost.

OPERATOR_PAIRS=50 pytest tests/lab/test_two_operators.py -m deep      so many pairs; 4 without it
OPERATOR_SEED=…                                                       the draws of an earlier run, which prints it
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from tests import ROOT

from .conftest import Lab, container
from .endpoint import RATE, Endpoint
from .helpers import LEFT_OUT, wait_for
from .test_rollout import runs, serve, settled

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]
RUNBOOK = (ROOT / "docs/runbooks/two-operators.md").read_text(encoding="utf-8")
AT_ONCE, STALE = "Wait until that run has ended", "it changed after this run looked at it"
UNFINISHED = "llama has an unfinished upgrade to generation"
STAYS = ("restart", "partition")  # of what was cut off, each instance stays as it runs
SHORT = "must stay in service"  # what a killed run has just put back may not have passed its checks yet
PAIRS = int(os.environ.get("OPERATOR_PAIRS", "4"))
SEED = int(os.environ.get("OPERATOR_SEED", str(random.SystemRandom().randrange(10**6))))
FRESH = itertools.count(201)  # requests at once: a definition that no generation has
OPERATIONS = ("upgrade", "site", "restart", "rollback", "partition")
# The locks of the kernel on a node's lease: one byte of it for each run at work.
AT_WORK = (
    "inode=$(stat -c %i /run/instinct-fleet/lease 2> /dev/null) || exit 0; "
    "awk -v inode=$inode '/OFDLCK/ {split($6, id, \":\"); if (id[3] == inode) print $7}' /proc/locks | sort -u"
)
ARGS = {
    "upgrade": ("upgrade", "-e", "canary=false"),
    "site": ("deploy",),
    "restart": ("restart", "-e", "deployment=llama"),
    "rollback": ("rollback", "-e", "deployment=llama"),
    "partition": ("partition",),
}


@dataclass
class Operator:
    """One with a checkout and an inventory of their own; elsewhere: their processes cannot be seen from here."""

    lab: Lab
    elsewhere: bool = False
    process: subprocess.Popen[str] | None = None
    out: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    def begin(self, operation: str, *args: str) -> None:
        playbook, *own = ARGS[operation]
        env, _record = self.lab.environment()
        command = self.lab.command(playbook, *own, *args)
        if self.elsewhere:
            command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        stdout = self.process.stdout
        assert stdout is not None
        self.out = []
        self.thread = threading.Thread(target=lambda: self.out.append(stdout.read()))
        self.thread.start()

    def kill(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        assert self.process is not None
        assert self.thread is not None
        code = self.process.wait(1800)
        self.thread.join(60)
        return code, "".join(self.out)


@dataclass
class Operators:
    """Two of them on the same control node, and one on another.

    partitioned: the GPUs have other modes than in the generation before.
    """

    endpoint: Endpoint
    here: Operator
    beside: Operator
    elsewhere: Operator
    partitioned: bool = False


@pytest.fixture(scope="module")
def operators(balanced_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operators:
    first = balanced_lab
    for number in range(2):  # so that there is something to go back to
        serve(first, next(FRESH))
        run = first.play("upgrade" if number else "deploy", "-e", "canary=false")
        assert run.rc == 0, run.out[-3000:]
    place = tmp_path_factory.mktemp("two")
    shutil.copytree(first.inventory, place / "inventory")
    second = Lab(place / "inventory", place, first.hosts)
    first.batches = second.batches = True
    endpoint = Endpoint(first)
    endpoint.trust()
    return Operators(endpoint, Operator(first), Operator(second), Operator(second, elsewhere=True))


# Five times a second, inside the node: a `docker exec` for each look would cost more than what is looked at.
LOOK = f"while read -r -t 0.2 _; [ $? -gt 128 ]; do set -- $({AT_WORK}); [ $# -lt 2 ] || echo $*; done"


@contextmanager
def watched(lab: Lab) -> Iterator[list[str]]:
    """What is seen on nodes at which two runs are at work at once; complete after the block."""
    found: list[str] = []
    watches = {
        host: subprocess.Popen(
            ["docker", "exec", "--interactive", container(host), "bash", "-c", LOOK],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for host in lab.hosts
    }  # fmt: skip
    try:
        yield found
    finally:
        ended = {host: watch.communicate()[0] for host, watch in watches.items()}
        found += [f"{host}: {line}" for host, text in ended.items() for line in text.splitlines()]
    assert {watch.returncode for watch in watches.values()} == {0}, "a watch ended before its time"


def modes(lab: Lab) -> str:
    return lab.on("lab-n2", "cat /sys/class/drm/renderD*/device/current_compute_partition | sort -u").strip()


def prepare(lab: Lab, operation: str, now: str, mode: str) -> None:
    """An inventory that wants something of that operation."""
    if operation in ("upgrade", "site"):
        serve(lab, next(FRESH), mode)
    elif operation == "partition":
        serve(lab, int(now), "CPX" if mode == "SPX" else "SPX")
    else:
        serve(lab, int(now), mode)


def wanted(lab: Lab) -> tuple[str, str]:
    """What an inventory wants: requests at once, and the mode of lab-n2."""
    data: dict[str, Any] = yaml.safe_load((lab.inventory / "group_vars/instinct/test.yml").read_text())
    mode = re.search(r"'(\w+)'", data["gpu_partition_compute"])
    assert mode
    return str(data["vllm_deployments"][0]["engine_args"]["max_num_seqs"]), mode.group(1)


def journals(lab: Lab) -> str:
    return "".join(lab.on(host, "cat /etc/instinct-fleet/journal.log") for host in lab.hosts)


def test_the_runbook_says_what_runs_say() -> None:
    assert AT_ONCE in RUNBOOK
    assert STALE in RUNBOOK


def whole(lab: Lab) -> tuple[str, str]:
    """What all instances run: requests at once, and the mode of lab-n2. An earlier pair that failed is mended."""
    if len(runs(lab)) != 1:
        serve(lab, next(FRESH), modes(lab))
        run = lab.play("upgrade", "-e", "canary=false", "-e", "take_over=true")
        assert run.rc == 0, run.out[-3000:]
    (requests,) = runs(lab)
    return requests, modes(lab)


def end_it(operator: Operator, operation: str, *args: str) -> str:
    """Repeat a command until what a dead run left at work on a node has ended, and serves again; return the output."""
    end = time.monotonic() + 180
    while True:
        operator.begin(operation, *args)
        code, text = operator.end()
        if code == 0:
            return text
        assert AT_ONCE in text or STALE in text or SHORT in text, text[-4000:]
        assert time.monotonic() < end, text[-4000:]


@pytest.mark.parametrize("number", range(PAIRS))
def test_one_works_and_nothing_is_lost(operators: Operators, number: int) -> None:
    endpoint, lab, draw = operators.endpoint, operators.here.lab, random.Random(SEED * 1000 + number)
    first, second = draw.choice(OPERATIONS[:3]), draw.choice(OPERATIONS)
    offset, killed = draw.uniform(0.0, 15.0), draw.random() < 0.4
    a, b = draw.choice(
        (
            (operators.here, operators.beside),
            (operators.here, operators.elsewhere),
            (operators.elsewhere, operators.here),
        )
    )
    apart = a.elsewhere or b.elsewhere
    before, mode = whole(lab)
    if "rollback" in (first, second) and operators.partitioned:
        # No rollback leads to other modes: a host in which they differ is left out, as its message says.
        serve(lab, next(FRESH), mode)
        between = lab.play("upgrade", "-e", "canary=false", "-e", "take_over=true")
        assert between.rc == 0, between.out[-3000:]
        operators.partitioned, before = False, whole(lab)[0]
    prepare(a.lab, first, before, mode)
    prepare(b.lab, second, before, mode)
    where = "elsewhere" if b.elsewhere else "from elsewhere" if a.elsewhere else "beside"
    print(f"seed {SEED}, pair {number}: {first}, {offset:.1f} s later {second} {where}; killed: {killed}")
    lines = journals(lab).count(" took over from ")
    with endpoint.load(RATE) as load, watched(lab) as seen:
        load.wait_for(RATE)
        # What a run of another control node did before this pair is over, which none here can know.
        a.begin(first, "-e", "take_over=true")
        time.sleep(offset)
        if killed:
            a.kill()
            a.end()
        b.begin(second)
        results = [b.end()] if killed else [a.end(), b.end()]
        for code, text in results:
            refused = AT_ONCE in text or STALE in text or (killed and SHORT in text)
            assert code in (0, LEFT_OUT) or refused, text[-4000:]
            assert "llama is held. It ends when" not in text, text[-4000:]
        if not killed:
            assert any(code in (0, LEFT_OUT) for code, _text in results), [
                text[-2000:] for _code, text in results
            ]
        elif results[0][0]:
            if second == "partition":
                # What the dead run has drained is missing, and returns with its own command, as status.yml says.
                # Whoever changes modes then does so with the inventory of what runs.
                end_it(a, first, "-e", "take_over=true")
                prepare(b.lab, second, whole(lab)[0], mode)
            # Beside it, a dead run binds nobody. From another control node, only an operator knows that it is dead.
            results = [(0, end_it(b, second, *(("-e", "take_over=true") if apart else ())))]
            assert not apart or journals(lab).count(" took over from ") > lines
        if killed and second in STAYS and len(runs(lab)) > 1:
            # That one says so, and leaves it: whoever began the change continues it by the same command.
            assert UNFINISHED in results[0][1], results[0][1][-4000:]
            end_it(a, first, "-e", "take_over=true")
        load.wait_for(RATE * 2)
    print(load.assert_nothing_lost(at_least=RATE))
    assert not seen, seen
    settled(lab)
    after = runs(lab)
    assert len(after) == 1, f"neither plan wholly: {after}"
    plans = {wanted(a.lab)[0], wanted(b.lab)[0]} if "rollback" not in (first, second) else after
    assert after <= plans | {before}
    assert modes(lab) in {wanted(a.lab)[1], wanted(b.lab)[1], mode}
    operators.partitioned |= modes(lab) != mode
    # What the next pair begins with.
    wait_for("the leases' end", lambda: not any(lab.on(host, AT_WORK).split() for host in lab.hosts))
    for name in (a, b):
        serve(name.lab, int(next(iter(after))), modes(lab))
    final = lab.play("deploy", "-e", "take_over=true")
    assert final.rc == 0, final.out[-3000:]
