# SPDX-License-Identifier: Apache-2.0
"""A lab whose inventory is edited while clients ask it, and while it is watched: nothing lost, nothing unforeseen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import self_signed

from tests.helpers.trace import State, not_contained
from tests.load import Load, Target, first_key
from tests.worlds.edited_fleet import Inventory

from .conftest import LAB, Lab, Run, container, lab_command
from .helpers import MODEL, STANDIN, deployment, wait_for
from .watch import Watcher

RATE = 12.0  # requests per second, over all addresses and names
SETTLE_SECONDS = 3.0
PORT = 8443
GAP = "is unavailable while its only engine is"
"""What a plan says of a model whose one engine it replaces; of several, it has to keep some."""
KEYS = {"first": "k" * 43 + "\n", "second": "q" * 43 + "\n"}
NEW_KEY = ("-e", "new_secrets=instance_key")
"""A checkout that has another key is usually the wrong one, so the operator says that it is to be replaced."""


def machines(hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The lab's nodes, each with two addresses."""
    return {
        host: (LAB.address(number), LAB.address(100 + number)) for number, host in enumerate(hosts, start=1)
    }


@dataclass
class Step:
    """What was seen of a run after an edit."""

    run: Run
    load: str
    lost: dict[str, int]
    unforeseen: str
    again: Run | None = None


@dataclass
class EditedLab:
    """A lab, and the inventory that runs on it."""

    lab: Lab
    inventory: Inventory
    variables: Mapping[str, Any] = field(default_factory=dict)
    canary: bool = False
    number: int = 0
    keys: dict[str, str] = field(default_factory=lambda: dict(KEYS))

    @classmethod
    def deployed(cls, lab: Lab, inventory: Inventory, **variables: Any) -> EditedLab:
        """Deploy an inventory on fresh nodes."""
        made = cls(lab, inventory, variables)
        made._prepare()
        made.write(inventory)
        run = lab.play("deploy", "-e", "at_once=true")
        assert run.rc == 0, run.out[-4000:]
        lab.batches = True  # from here on, as an operator's run does it
        for target in made.targets(inventory):
            wait_for(f"an answer of {target.model}", partial(answers, target))
        return made

    def _prepare(self) -> None:
        """A certificate and known hosts for all addresses that the machines have or will have."""
        there = [address for addresses in self.inventory.machines.values() for address in addresses]
        secrets = self.lab.inventory / ".secrets"
        secrets.mkdir(mode=0o700, exist_ok=True)
        if not (secrets / "endpoint.pem").exists():  # the clients trust it
            (secrets / "endpoint.pem").write_text(
                self_signed([*there, LAB.address(90), LAB.address(91)]), encoding="utf-8"
            )
        (secrets / "endpoint.pem").chmod(0o600)
        known = [line.split(" ", 1) for line in LAB.known_hosts.read_text(encoding="utf-8").splitlines()]
        lines = []
        for node, addresses in self.inventory.machines.items():
            own = [keys for names, keys in known if addresses[0] in names.split(",")]
            lines += [f"{address} {keys}\n" for address in addresses for keys in own]
            for address in addresses[1:]:
                self.lab.on(node, f"ip address add {address}/24 dev eth0 || true")
        (self.lab.tmp / "known_hosts").write_text("".join(lines), encoding="utf-8")

    def _nodes(self, inventory: Inventory) -> dict[str, str]:
        """The lab's node of each host, which is known by its address, as a host may have any name."""
        nodes = {address: node for node, there in inventory.machines.items() for address in there}
        return {name: nodes[address] for name, address in {**inventory.hosts, **inventory.balancers}.items()}

    @staticmethod
    def address(number: int) -> str:
        """An address of the lab's network."""
        return LAB.address(number)

    def replace_node(self, node: str) -> None:
        """Take a node away, as if its machine had died, and put a new one in its place."""
        subprocess.run(["docker", "rm", "--force", container(node)], check=True, stdout=subprocess.DEVNULL)
        lab_command("up")
        self._prepare()

    # ---- the inventory -------------------------------------------------------------------------------

    def write(self, inventory: Inventory) -> None:
        """Write an inventory as its operator would."""
        own = {
            name: {
                "ansible_host": address,
                "gpu_partition_compute": inventory.modes.get(name, "SPX"),
            }
            for name, address in inventory.hosts.items()
        }
        balancers = {name: {"ansible_host": address} for name, address in inventory.balancers.items()}
        common = yaml.safe_load(LAB.inventory.read_text(encoding="utf-8"))["instinct"]["vars"]
        common["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={self.lab.tmp / 'known_hosts'}"
        groups = {
            "all": {"vars": common},
            "instinct": {"hosts": own},
            "load_balancer": {"hosts": balancers},
        }
        (self.lab.inventory / "hosts.yml").write_text(yaml.safe_dump(groups), encoding="utf-8")
        self.lab.write_vars(
            vllm_deployments=[self._deployment(item) for item in inventory.deployments],
            rollout_soak=2,
            canary=self.canary,
            **inventory.endpoint,
            **self.variables,
        )
        self.key_file.write_text(self.keys[inventory.key], encoding="utf-8")
        self.key_file.chmod(0o600)

    @property
    def key_file(self) -> Path:
        """The key that load balancers send."""
        return self.lab.inventory / ".secrets/instance-key"

    def _deployment(self, item: Mapping[str, Any]) -> dict[str, Any]:
        return deployment(**{**item, "model": MODEL, "image": STANDIN})

    # ---- what clients see ----------------------------------------------------------------------------

    def targets(self, after: Inventory) -> list[Target]:
        """What clients may ask before an edit and after it, in the same words."""
        if not self.inventory.balancers:
            return []
        key = first_key(self.lab.inventory / ".secrets/api-keys.yml")
        pem = (self.lab.inventory / ".secrets/endpoint.pem").read_text(encoding="utf-8")
        ca = self.lab.tmp / "ca.crt"
        ca.write_text(pem[: pem.index("-----BEGIN PRIVATE KEY-----")], encoding="utf-8")
        kept = self.inventory.balancers.items() & after.balancers.items()
        names = served(self.inventory) & served(after)
        return [
            Target(f"https://{address}:{PORT}", name, key, str(ca))
            for _host, address in sorted(kept)
            for name in sorted(names)
        ]

    @contextlib.contextmanager
    def asked(self, after: Inventory) -> Iterator[list[Load]]:
        """Clients that ask all that stays valid."""
        targets = self.targets(after)
        loads = [Load(target, RATE / len(targets)) for target in targets]
        with contextlib.ExitStack() as stack:
            for load in loads:
                stack.enter_context(load)
            yield loads

    # ---- runs ----------------------------------------------------------------------------------------

    def settle(self, inventory: Inventory) -> None:
        """Bring it where an edit begins, if no test before did: unwatched, and all at once."""
        if inventory != self.inventory:
            self.write(inventory)
            run = self.lab.play("deploy", "-e", "at_once=true")
            assert run.rc == 0, run.out[-4000:]
            self.inventory = inventory

    def carry_out(
        self, after: Inventory, playbook: str = "deploy", *args: str, killed: Sequence[float] = ()
    ) -> Step:
        """Run a playbook after an edit, under load and watched; killed: runs that die after so many seconds."""
        self.write(after)
        self.number += 1
        files = [self.lab.tmp / f"states-{self.number}-{turn}.jsonl" for turn in range(len(killed) + 1)]
        known = self._nodes(after)
        with Watcher(self.lab, known) as watcher, self.asked(after) as loads:
            for load in loads:
                load.wait_for(2)
            for path, seconds in zip(files, killed, strict=False):
                self._killed(playbook, *args, path=path, seconds=seconds)
            run = self._run(playbook, *args, path=files[-1])
            time.sleep(SETTLE_SECONDS)
        lost: dict[str, int] = {}
        texts = []
        for load in loads:
            try:
                found = load.assert_nothing_lost()
            except AssertionError as error:
                found = load.summary()
                lost[f"{load.target.url} {load.target.model}"] = sum(found.problems.values())
                texts.append(str(error)[:1500])
            texts.append(f"{load.target.url} {load.target.model}: {found}")
        states = [state for path in files for state in read_states(path)]
        unforeseen = not_contained(watcher.looks, states) if states else ""
        step = Step(run, "\n".join(texts), lost, unforeseen)
        if run.rc == 0:
            self.inventory = after
            # Whoever repeats the order for a key that is in use already, as its run died, gets a new one.
            self.keys[after.key] = self.key_file.read_text(encoding="utf-8")
        return step

    def refused(self, after: Inventory, *args: str) -> str:
        """Why the planner refuses an edit, or says that a model's only engine changes; nothing if it does not."""
        self.write(after)
        run = self.lab.play("deploy", "--check", *args)
        if run.rc == 0:
            said = " ".join(run.out.split())
            return said[said.index(GAP) - 60 :][:160] if GAP in said else ""
        found = [record["result"] for record in run.records if record["module"] == "fleet_plan"]
        assert found, run.out[-4000:]
        assert found[-1].get("msg"), run.out[-4000:]
        assert "report this" not in found[-1]["msg"], found[-1]["msg"]
        return str(found[-1]["msg"])

    def edit(self, after: Inventory, playbook: str = "deploy", *args: str, **options: Any) -> Step:
        """The same, and AssertionError if something is lost, unforeseen, held, or left for the next run."""
        step = self.carry_out(after, playbook, *args, **options)
        assert step.run.rc == 0, step.run.out[-4000:]
        assert not step.lost, step.load
        assert not step.unforeseen, step.unforeseen
        step.again = self.lab.play("deploy")
        assert (step.again.rc, step.again.changed()) == (0, []), step.again.out[-4000:]
        assert "held" not in step.again.out, step.again.out[-4000:]
        print(step.load, flush=True)
        return step

    def _run(self, playbook: str, *args: str, path: Path) -> Run:
        with self._states(path):
            return self.lab.play(playbook, *args)

    def _killed(self, playbook: str, *args: str, path: Path, seconds: float) -> None:
        with self._states(path):
            env, _record = self.lab.environment()
        victim = subprocess.Popen(
            self.lab.command(playbook, *args), cwd=Path(__file__).parents[2], env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        timer = threading.Timer(seconds, lambda: os.killpg(victim.pid, signal.SIGKILL))
        timer.start()
        victim.wait(1800)
        timer.cancel()

    @contextlib.contextmanager
    def _states(self, path: Path) -> Iterator[None]:
        before = self.lab.env
        self.lab.env = {
            **before,
            "FLEET_STATES": str(path),
            "ANSIBLE_CALLBACKS_ENABLED": "recorder,simulated,instinct.fleet.exit_code",
        }  # fmt: skip
        try:
            yield
        finally:
            self.lab.env = before


def answers(target: Target) -> bool:
    """A client is answered."""
    with Load(target, RATE, count=1) as load:
        load.wait_for(1)
    return not load.problems()


def served(inventory: Inventory) -> set[str]:
    """The model names that clients may ask."""
    found: set[str] = set()
    for item in inventory.deployments:
        names = item["served_model_name"]
        found |= {names} if isinstance(names, str) else set(names)
    return found


def read_states(path: Path) -> list[State]:
    """The states of a simulation; none if there was nothing to simulate."""
    if not path.exists():
        return []
    return [State.of(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def edited(inventory: Inventory, *changes: Mapping[str, Any], **parts: Any) -> Inventory:
    """An inventory whose deployments have these changes, in their order, and other parts."""
    items = [dict(item) for item in inventory.deployments]
    for item, change in zip(items, changes, strict=False):
        item.update(change)
    return replace(inventory, deployments=tuple(items), **parts)
