# SPDX-License-Identifier: Apache-2.0
"""Every fault during every operation, under a streaming load: only what was on a thing that died may be lost.

Three hosts with two stand-in instances each, behind HAProxy on the first one; faults befall the second one. With two
hosts only, the canary and its reference would be all that serves beside it. A cell is run alone by its name, and so is
a row or a column:

    pytest tests/lab/test_faults.py -m deep -s -k "upgrade and power_cycle"
    pytest tests/lab/test_faults.py -m deep -s -k "test_a_fault_during_an_operation and upgrade"

With -s each cell prints its row of the table. test_half_an_hour_with_a_fault_each_minute lasts FAULT_MINUTES (30).
"""

from __future__ import annotations

import csv
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from tests.load import Load

from .conftest import Lab, Run, copy_inventory, lab_command
from .endpoint import Endpoint
from .faults import BALANCER, FAULTS, FAULTY, Fault, end_all, prepare_clock, prepare_disk
from .footprint import footprints, grown, supervisors_memory
from .helpers import deployment, wait_for

pytestmark = [pytest.mark.deep, pytest.mark.timeout(7200)]
RATE = 30  # requests per second of a fifth of a second each
LONG_RATE, LONG_TOKENS = 1, 300  # and some that take seconds
INSTANCES = 6
BACK_SECONDS = 240.0  # until all serve again; an engine that hangs is found after 40
# Before these tasks nothing has been touched; in them, the first instances have left the load balancer.
FIRST_DRAIN = "Set servers of the load balancer"
NUMBERS = itertools.count(101)  # requests at once: a definition that no generation has
CANARY: dict[str, Any] = {
    "canary_runs": 4,
    "canary_max_runs": 6,
    "canary_tolerance": 60,  # two cores, a load and a fault beside it
    "canary_latency_tolerance": 400,
    "canary_accuracy_tolerance": 100,  # test_canary asks; it would take a minute each time
    "canary_args": {
        "dataset_name": "random",
        "random_input_len": 32,
        "random_output_len": 16,
        "num_prompts": 16,
        "max_concurrency": 4,
        "temperature": 0,
        "ignore_eos": True,
    },
}


@dataclass
class Fleet:
    """The lab as these tests use it, and what its inventory wants at present."""

    endpoint: Endpoint
    small_disk: tuple[str, ...]  # these directories are on one
    requests: int = 100
    compute: str = "SPX"
    earlier: int = 0  # what a rollback went back to, and is held at; 0: nothing is held

    @property
    def lab(self) -> Lab:
        return self.endpoint.lab

    def want(self) -> None:
        """Write what the inventory wants."""
        wanted = deployment(instances_per_host=2, engine_args={"max_num_seqs": self.requests})
        wanted["runtime"]["hang_timeout"] = 30
        mode = f"{{{{ '{self.compute}' if inventory_hostname == '{FAULTY}' else 'SPX' }}}}"
        self.lab.write_vars(
            vllm_deployments=[wanted],
            rollout_soak=2,
            rollout_serial=[1, 2],
            gpu_partition_compute=mode,
            **CANARY,
        )

    def deploy(self) -> None:
        """Everything as the inventory wants it, at once."""
        run = self.lab.play("site", "--skip-tags", "benchmark", "-e", "at_once=true")
        assert run.rc == 0, run.out[-4000:]

    def differs(self, requests: int) -> str:
        """Which hosts run something else than this definition, in words."""
        show = "grep -ho 'max-num-seqs [0-9]*' /etc/instinct-fleet/instances/llama-*/serve.sh | sort -u"
        found = {host: self.lab.on(host, show).split("\n")[:-1] for host in self.lab.hosts}
        wrong = {host: lines for host, lines in found.items() if lines != [f"max-num-seqs {requests}"]}
        return f"not all run with {requests} requests at once: {wrong}" if wrong else ""

    def serving(self) -> int:
        """How many instances HAProxy sends requests to."""
        return sum(row["status"].startswith("UP") for row in self._servers())

    def busy(self) -> int:
        """Slots of servers that requests hold."""
        return sum(int(row["scur"] or 0) + int(row["qcur"] or 0) for row in self._servers())

    def _servers(self) -> list[dict[str, str]]:
        program = (
            "import socket; s=socket.socket(socket.AF_UNIX); "
            "s.connect('/var/lib/instinct-fleet/balancer/admin.sock'); s.sendall(b'show stat -1 4 -1\\n'); "
            "print(s.makefile().read())"
        )
        text = self.lab.on(BALANCER, f'python3 -c "{program}"', check=False)
        if not text.startswith("# "):
            return []
        rows = csv.DictReader(text.removeprefix("# ").splitlines())
        return [row for row in rows if row["pxname"] == "llama"]


@dataclass
class Operation:
    """What an operator does: playbooks, one after the other. A fault begins at the first task of this name."""

    name: str
    plays: tuple[tuple[str, ...], ...]
    moment: str = FIRST_DRAIN
    disk_moment: str = ""  # "" before the operation begins
    disk_host: str = FAULTY

    def prepare(self, fleet: Fleet) -> None:
        """Let there be something to do."""
        fleet.requests = next(NUMBERS)
        fleet.want()

    def undone(self, fleet: Fleet) -> str:
        """What the operation has left undone, in words."""
        return fleet.differs(fleet.requests)


class Rollback(Operation):
    def prepare(self, fleet: Fleet) -> None:
        """Deploy a change. The inventory goes on wanting it, and the deployment is held until the next test."""
        fleet.earlier = fleet.requests
        fleet.requests = next(NUMBERS)
        fleet.want()
        fleet.deploy()

    def undone(self, fleet: Fleet) -> str:
        return fleet.differs(fleet.earlier)


class Partition(Operation):
    def prepare(self, fleet: Fleet) -> None:
        fleet.compute = "CPX" if fleet.compute == "SPX" else "SPX"
        fleet.want()

    def undone(self, fleet: Fleet) -> str:
        show = "cat /sys/class/drm/card*/device/current_compute_partition | sort -u"
        found = fleet.lab.on(FAULTY, show).split()
        return "" if found == [fleet.compute] else f"{FAULTY} is in {found}, not in {fleet.compute}"


class NoChange(Operation):
    def prepare(self, fleet: Fleet) -> None:
        """It changes nothing that the inventory has."""

    def undone(self, fleet: Fleet) -> str:
        return fleet.differs(fleet.requests)


OPERATIONS = (
    NoChange("drain", (("drain", "--limit", FAULTY), ("undrain", "--limit", FAULTY)), disk_host=BALANCER),
    Rollback("rollback", (("rollback", "-e", "deployment=llama"),), disk_moment="Change instances"),
    Partition("partition", (("partition",),), disk_moment="Change the partition modes"),
    Operation("deploy", (("deploy", "-e", "canary=false"),)),
    NoChange("benchmark", (("benchmark",),), moment="Measure serving", disk_moment="Measure serving"),
    Operation("upgrade", (("upgrade",),), disk_moment="Record generations"),
)


@pytest.fixture(scope="module")
def fleets() -> Iterator[dict[tuple[str, ...], Fleet]]:
    """Fleets that were made, by what is on a small disk; the last one is there."""
    before = os.environ.get("LAB_NODES")
    os.environ["LAB_NODES"] = "3"
    made: dict[tuple[str, ...], Fleet] = {}
    try:
        lab_command("up")
        yield made
    finally:
        os.environ.pop("LAB_NODES")
        if before is not None:
            os.environ["LAB_NODES"] = before
        lab_command("reset")


def fleet_with(
    fleets: dict[tuple[str, ...], Fleet],
    tmp_path_factory: pytest.TempPathFactory,
    small_disk: tuple[str, ...] = (),
) -> Fleet:
    """The fleet with all its instances serving; made anew when it has other disks, or cannot be mended."""
    if small_disk in fleets:
        fleet = fleets[small_disk]
        try:
            end_all(fleet.lab)
            if fleet.earlier:  # the inventory wants what runs, so nothing is held any more
                fleet.requests, fleet.earlier = fleet.earlier, 0
                fleet.want()
                fleet.deploy()
            if fleet.serving() != INSTANCES or "{}" not in out_of_service(fleet):
                fleet.deploy()
                fleet.lab.play("undrain")
            if fleet.differs(fleet.requests):  # a rollout that did not end
                fleet.lab.play("upgrade", "-e", "canary=false")
                assert not fleet.differs(fleet.requests)
            wait_for("all instances", lambda: fleet.serving() == INSTANCES, BACK_SECONDS)
            return fleet
        except AssertionError as error:
            print(f"the lab is made anew: {str(error)[-500:]}", flush=True)
    fleets.clear()
    lab_command("reset")
    names = [f"lab-n{number}" for number in (1, 2, 3)]
    lab = copy_inventory(names, tmp_path_factory.mktemp("faults"))
    lab.batches = True
    lab.write_balancer(BALANCER)
    path = lab.inventory / "hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    inventory["instinct"]["hosts"][FAULTY]["ansible_python_interpreter"] = prepare_clock(lab)
    path.write_text(yaml.safe_dump(inventory))
    if small_disk:
        prepare_disk(lab, small_disk)
    endpoint = Endpoint(lab)
    fleet = Fleet(endpoint, small_disk, next(NUMBERS))
    fleet.want()
    fleet.deploy()
    endpoint.trust()
    wait_for("all instances", lambda: fleet.serving() == INSTANCES, BACK_SECONDS)
    fleets[small_disk] = fleet
    return fleet


def out_of_service(fleet: Fleet) -> str:
    """What the load balancer's host has noted as drained."""
    path = "/var/lib/instinct-fleet/balancer/out.json"
    return fleet.lab.on(BALANCER, f"cat {path} 2> /dev/null || echo '{{}}'")


@dataclass
class Row:
    """What became of one operation during one fault: a row of the table."""

    fault: str
    operation: str
    codes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    back: float = 0.0  # seconds from the operation's end until all serve
    sent: int = 0
    lost: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        causes = ", ".join(f"{count} {kind}" for kind, count in sorted(self.lost.items())) or "-"
        return (
            f"| {self.fault} | {self.operation} | {' '.join(map(str, self.codes))} | {self.seconds:.0f} | "
            f"{self.back:.0f} | {self.sent} | {self.lost.total()} | {causes} |"
        )


class Streams:
    """The load: many short answers, some long ones."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.loads: list[Load] = [
            endpoint.load(RATE),
            endpoint.load(LONG_RATE, tokens=LONG_TOKENS, limit=60.0),
        ]

    def __enter__(self) -> Streams:
        for load in self.loads:
            load.__enter__()
        self.loads[0].wait_for(RATE)
        return self

    def __exit__(self, *_: object) -> None:
        for load in self.loads:
            load.stop()

    def lost(self) -> Counter[str]:
        """Requests that failed so far, by how."""
        found: Counter[str] = Counter()
        for load in self.loads:
            found.update(load.problems())
        return found

    def sent(self) -> int:
        return sum(load.begun for load in self.loads)


def reached(started: str, moment: str) -> bool:
    """Whether a task of the run that writes this file has begun."""
    try:
        with open(started, encoding="utf-8") as lines:
            return any(line.startswith(moment) for line in lines)
    except FileNotFoundError:
        return False


def operate(fleet: Fleet, operation: Operation, fault: Fault, row: Row) -> list[Run]:
    """Carry out the operation with the fault in its midst; return its runs."""
    lab = fleet.lab
    moment = operation.moment
    if fault.small_disk:
        moment = operation.disk_moment
    begins = time.monotonic()
    runs = []
    with ThreadPoolExecutor(1) as pool:
        for number, (playbook, *args) in enumerate(operation.plays):
            started = lab.env["FLEET_STARTED"] = str(lab.tmp / f"started-{next(NUMBERS)}")
            if number == 0 and (fault.early or not moment):
                fault.begin(lab)
                struck = time.monotonic()
            running: Future[Run] = pool.submit(lab.play, playbook, *args, timeout=900)
            if number == 0:
                if not (fault.early or not moment):
                    wait_for(moment, lambda: reached(started, moment) or running.done())  # noqa: B023
                    assert not running.done(), f"{moment} was not reached:\n{running.result().out[-3000:]}"
                    time.sleep(0.3)
                    fault.begin(lab)
                    struck = time.monotonic()
                time.sleep(max(0.0, struck + fault.seconds - time.monotonic()))
                fault.end(lab)
            run = running.result()
            row.codes.append(run.rc)
            runs.append(run)
            if run.rc:
                break
    row.seconds = time.monotonic() - begins
    return runs


def wait_until_back(fleet: Fleet, row: Row) -> None:
    """Until all instances serve again, without a hand."""
    begun = time.monotonic()
    wait_for(f"{INSTANCES} instances to serve", lambda: fleet.serving() == INSTANCES, BACK_SECONDS)
    row.back = time.monotonic() - begun


CELLS = [
    pytest.param(kind, operation, id=f"{kind.name}-{operation.name}")
    for kind in FAULTS
    for operation in OPERATIONS
]


@pytest.mark.parametrize(("kind", "operation"), CELLS)
def test_a_fault_during_an_operation(
    fleets: dict[tuple[str, ...], Fleet],
    tmp_path_factory: pytest.TempPathFactory,
    kind: type[Fault],
    operation: Operation,
) -> None:
    fault = kind(operation.disk_host) if kind.small_disk else kind()
    fleet = fleet_with(fleets, tmp_path_factory, fault.small_disk)
    lab = fleet.lab
    operation.prepare(fleet)
    row = Row(fault.name, operation.name)
    wrong: list[str] = []
    before = footprints(lab)
    try:
        with Streams(fleet.endpoint) as streams:
            runs = operate(fleet, operation, fault, row)
            if runs[-1].rc == 0:
                wait_until_back(fleet, row)
            time.sleep(2)
        row.lost, row.sent = streams.lost(), streams.sent()
        last = runs[-1]
        if last.rc:
            if not any(word in last.out for word in fault.words):
                wrong.append(f"rc {last.rc}, and none of {fault.words} in its words")
            print(f"--- {operation.name}, {fault.name}: rc {last.rc}\n{last.out[-2500:]}\n---", flush=True)
            # The same command once more, until all are through.
            for playbook, *args in operation.plays[len(runs) - 1 :]:
                again = lab.play(playbook, *args, timeout=900)
                row.codes.append(again.rc)
                if again.rc:
                    wrong.append(f"{playbook} once more: rc {again.rc}:\n{again.out[-3000:]}")
                    break
            wait_until_back(fleet, row)
        if undone := operation.undone(fleet):
            wrong.append(undone)
        site = lab.play("site", "--skip-tags", "benchmark")
        if site.rc or site.changed():
            wrong.append(f"site.yml afterwards: rc {site.rc}, {site.changed()}:\n{site.out[-2000:]}")
        if row.lost.total() > fault.lost:
            failed = [item for load in streams.loads for item in load.outcomes if item.problem]
            text = "".join(f"\n  {item}" for item in failed[:12])
            wrong.append(f"{row.lost.total()} requests are lost, {fault.lost} may be:{text}")
        wait_for("all slots to be free", lambda: fleet.busy() == 0, 60)
        leaked = grown(before, footprints(lab))
        if leaked:
            time.sleep(10)
            leaked = grown(before, footprints(lab))
        if leaked:
            wrong.append(f"it left behind: {leaked}")
    finally:
        print(f"\n{row}{' WRONG' if wrong else ''}", *wrong, sep="\n", flush=True)
    assert not wrong, "\n".join(wrong)


def test_half_an_hour_with_a_fault_each_minute(
    fleets: dict[tuple[str, ...], Fleet], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing leaks, and each supervisor's memory stays what it was."""
    fleet = fleet_with(fleets, tmp_path_factory)
    lab = fleet.lab
    minutes = int(os.environ.get("FAULT_MINUTES", "30"))
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    choose = random.Random(seed)
    may_be_lost = 0
    before, memory = footprints(lab), supervisors_memory(lab)
    with Streams(fleet.endpoint) as streams:
        for minute in range(minutes):
            begun = time.monotonic()
            fault = choose.choice([kind for kind in FAULTS if not kind.small_disk])()
            sofar = streams.lost().total()
            fault.begin(lab)
            time.sleep(fault.seconds)
            fault.end(lab)
            wait_for(f"all instances after {fault.name}", lambda: fleet.serving() == INSTANCES, BACK_SECONDS)
            may_be_lost += fault.lost
            print(
                f"| {minute} | {fault.name} | {time.monotonic() - begun:.0f} | {streams.lost().total() - sofar} |",
                flush=True,
            )
            time.sleep(max(0.0, begun + 60 - time.monotonic()))
    lost = streams.lost()
    after = supervisors_memory(lab)
    print(f"{streams.sent()} sent, lost: {dict(lost)}; supervisors' KiB {memory} → {after}", flush=True)
    assert lost.total() <= may_be_lost, lost
    site = lab.play("site", "--skip-tags", "benchmark")
    assert (site.rc, site.changed()) == (0, []), site.out[-3000:]
    wait_for("all slots to be free", lambda: fleet.busy() == 0, 60)
    assert not grown(before, footprints(lab))
    # A supervisor that was started anew is compared with the one before it.
    assert {key for key in memory if after[key] > 1.2 * memory[key] + 1024} == set()


def test_tasks_that_are_waited_for_exist() -> None:
    """A fault begins with them."""
    from tests import ROOT

    names = [
        item.split("name: ", 1)[1]
        for path in (*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml"))
        for item in path.read_text(encoding="utf-8").splitlines()
        if "- name: " in item
    ]
    for operation in OPERATIONS:
        for moment in filter(None, (operation.moment, operation.disk_moment)):
            assert any(name.startswith(moment) for name in names), moment
