# SPDX-License-Identifier: Apache-2.0
"""The plays of each operation, in the order in which playbooks run them, on the data that the playbooks get. Pure.

tests/unit/simulation/test_plays.py compares PLAYS with the playbooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.service.generations import (
    BENCHMARK,
    DEPLOY,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
)
from ....module_utils.service.minimum import Count, resolve_count
from ..endpoint.backends import names_of
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.former import AFTER, BEFORE
from ..endpoint.servers import Instance
from .calls import Args, SimulatedRun, perform, stop_instance
from .model import FORMER, PRESENT
from .rules import IN_USE

PARTITION = "partition"
"""The operation of partition.yml, which plans without one."""
DEFAULT_PARTITION_SERIAL: tuple[Count, ...] = (1, "20%")
_BEFORE, _AFTER = ("balancers_before", "former_before"), ("balancers_after", "former_after")
PLAYS: dict[str, tuple[str, ...]] = {
    DEPLOY: (
        "fetch",
        "key",
        *_BEFORE,
        "partition",
        "serve",
        "rollout",
        "measure_new",
        *_AFTER,
    ),
    UPGRADE: ("fetch", "key", *_BEFORE, "rollout", *_AFTER),
    ROLLBACK: ("key", *_BEFORE, "rollout", *_AFTER),
    RESTART: ("key", *_BEFORE, "rollout", *_AFTER),
    STOP: ("stop",),
    BENCHMARK: ("return_left", "measure"),
    PARTITION: ("key", *_BEFORE, "partition", "resume", *_AFTER),
}
Todo = Sequence[Mapping[str, Any]]
"""What fleet_plan returns for add_host: name, groups and plan of each host."""


class Playbook:
    """A run of the plays of an operation. checked: called with the name of a step after its fleet has changed."""

    def __init__(
        self,
        context: SimulatedRun,
        todo: Todo,
        balancers: Iterable[BalancerPlan],
        checked: Callable[[], None],
        partition_serial: Sequence[Count] = DEFAULT_PARTITION_SERIAL,
    ) -> None:
        self.context, self.checked = context, checked
        self.hosts = {str(item["name"]): item for item in todo}
        self.balancers = {item.host.name: item for item in balancers}
        self.partition_serial = partition_serial
        self.until: tuple[int, str] | None = None
        self.ended = False

    def run(self, operation: str, until: tuple[int, str] | None = None) -> None:
        """Run the plays of an operation. until: the number of a batch and the phase with which it ends, as it fails."""
        self.until, self.ended = until, False
        plays = {
            "fetch": self._fetch,
            "key": self._key,
            "balancers_before": self._balancers_before,
            "partition": self._partition,
            "resume": self._resume,
            "serve": self._serve,
            "rollout": self._rollout,
            "stop": self._stop,
            "return_left": self._return_left,
            "measure": self._measure,
            "measure_new": self._measure_new,
            "balancers_after": self._balancers_after,
            "former_before": self._former_before,
            "former_after": self._former_after,
        }
        for play in PLAYS[operation]:
            if not self.ended:
                plays[play]()
        if not self.ended:
            self.context.step, self.context.changing = "after the run", ()
            for name in self.context.model.balancers:
                self.context.model.count_on(name)
            self.checked()

    def _in(self, group: str) -> list[str]:
        return [name for name, item in self.hosts.items() if group in item["groups"]]

    def _plan(self, host: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.hosts[host]["plan"]
        return found

    def _step(
        self, text: str, calls: Iterable[tuple[str, str, Args]], changing: Iterable[Instance] = ()
    ) -> None:
        self.context.step, self.context.changing = text, tuple(changing)
        perform(self.context, calls, self.checked)
        self.checked()

    # ---- before instances change ---------------------------------------------------------------------

    def _fetch(self) -> None:
        self.context.step = "fetching images and weights"
        self.context.awaited_images.clear()

    def _key(self) -> None:
        self.context.step = "writing the instances' key on hosts"
        for host in self._in("todo_instance_key"):
            self.context.model.give_key(host)
        self.checked()

    def _balancers_before(self) -> None:
        for name in self._in("todo_load_balancer"):
            part = self._plan(name)["balancer"]
            if part["first"]:
                self._update(name, "during", part["undrain_first"], "before instances change")

    def _balancers_after(self) -> None:
        names = self._in("todo_load_balancer")
        calls = [
            (name, "balancer_server", {"servers": [{"balancer": name, "servers": gone}], "state": "drain"})
            for name in names
            if (gone := self._plan(name)["balancer"]["gone"])
        ]
        if calls:
            self._step("draining servers that load balancers forget", calls)
        for name in names:
            undrain = self._plan(name)["balancer"]["undrain"]
            self._update(name, "backends", undrain, "after instances have changed")

    def _former_before(self) -> None:
        self._take_down(BEFORE)

    def _former_after(self) -> None:
        self._take_down(AFTER)

    def _take_down(self, phase: str) -> None:
        for name in self._in("todo_former_balancer"):
            if self._plan(name)["former_balancer"] == phase:
                self.context.step = f"taking down the load balancer of {name}"
                self.context.model.remove_balancer(name)
                self.checked()

    def _update(self, name: str, which: str, undrain: Sequence[str], when: str) -> None:
        """Configure a load balancer, and return servers to service. All load balancers do so at the same time."""
        self.context.step, self.context.changing = f"updating the load balancers {when}", ()
        plan = self.balancers[name]
        key = (PRESENT if plan.instance_key.map is not None else FORMER) if plan.instance_key.sent else ""
        servers = names_of(getattr(plan, which))
        for server in self.context.model.forgotten(name, servers):
            self.context.violate(
                IN_USE, f"load balancer {name} forgets {server} while it sends requests to it"
            )
        runs = [one for one, server in servers.items() if not server.coming]
        if there := self.context.model.balancers.get(name):
            carried = there.carried(servers)
            self.context.model.prove(name, filter(None, map(carried.get, runs)))
        self.context.model.configure(name, servers, key)
        self.checked()
        self.context.model.prove(name, runs)
        self.checked()
        self._return(name, undrain, self.context.step)

    def _return(self, balancer: str, servers: Sequence[str], step: str) -> None:
        if servers:
            args = {"servers": [{"balancer": balancer, "servers": servers}], "state": "ready", "wait": 0}
            self._step(step, [(balancer, "balancer_server", args)])

    # ---- instances -----------------------------------------------------------------------------------

    def _partition(self) -> None:
        rest, sizes = self._in("todo_gpu_partition"), list(self.partition_serial)
        total = len(rest)
        while rest:
            size = max(1, int(resolve_count(sizes[0], total)))
            sizes = sizes[1:] or sizes
            self._partition_batch(rest[:size])
            del rest[:size]

    def _partition_batch(self, hosts: Sequence[str]) -> None:
        names = ", ".join(hosts)
        parts = {host: self._plan(host) for host in hosts}
        self._balance(f"draining {names} to change partition modes", parts, "out", "drain")
        self.context.step = f"changing the partition modes of {names}"
        for host, part in parts.items():
            for server in part["partition"]["stop_servers"]:
                stop_instance(self.context, (host, server["name"]))
            self.context.partitions.discard(host)
        self.checked()
        calls = []
        for host, part in parts.items():
            servers = [item for item in part["servers"] if item["name"] in part["partition"]["serve"]]
            calls.append((host, "vllm_server", {"servers": servers, "remove": part["partition"]["remove"]}))
        self._step(f"starting the instances of {names} again", calls)
        back = {host: part["partition"] for host, part in parts.items()}
        self._balance(f"returning {names} to service", back, "into", "ready")

    def _balance(self, text: str, parts: Mapping[str, Args], key: str, state: str) -> None:
        calls = [
            (host, "balancer_server", {"servers": part[key], "state": state})
            for host, part in parts.items()
            if part.get(key)
        ]
        if calls:
            self._step(text, calls)

    def _serve(self) -> None:
        parts = {host: self._plan(host) for host in self._in("todo_vllm_serve")}
        unchanged = {host: part for host, part in parts.items() if part["partition"] is None}
        self._balance("draining what no batch changes", unchanged, "out", "drain")
        self._start(parts, "serve", "starting what no batch changes")
        self._balance("returning what no batch changes to service", parts, "into", "ready")

    def _resume(self) -> None:
        parts = {host: self._plan(host) for host in self._in("todo_vllm_serve")}
        parts = {host: part for host, part in parts.items() if part["resume"]}
        self._start(parts, "resume", "starting what an interrupted run left stopped, or what spans hosts")

    def _start(self, parts: Mapping[str, Args], key: str, text: str) -> None:
        for wait in (False, True):
            calls = []
            for host, part in parts.items():
                servers = [item for item in part["servers"] if item["name"] in part[key]]
                remove = part["remove"] if key == "serve" else []
                if wait or part.get("spans"):
                    calls.append((host, "vllm_server", {"servers": servers, "remove": remove, "wait": wait}))
            if calls:
                self._step(text, calls)

    # ---- batches -------------------------------------------------------------------------------------

    @property
    def _rollout_hosts(self) -> list[str]:
        return self._in("todo_rollout")

    def _rollout(self) -> None:
        hosts = self._rollout_hosts
        for batch in self._plan(hosts[0])["rollout"]["batches"] if hosts else ():
            phases = list(batch["phases"])
            if self.until and batch["number"] == self.until[0]:
                self.run_phases(batch, phases[: phases.index(self.until[1]) + 1])
                self.ended = True
                return
            self.run_phases(batch, phases)

    def run_phases(self, batch: Mapping[str, Any], phases: Iterable[str]) -> None:
        """Run phases of a batch; all of its hosts go through each phase together."""
        changing = [
            (host, name) for unit in batch["units"] for host, name in (one.split("/", 1) for one in unit)
        ]
        for phase in phases:
            calls = []
            for host in self._rollout_hosts:
                step = self._plan(host)["rollout"]["steps"].get(str(batch["number"]), {}).get(phase)
                if step:
                    calls.append((host, step["action"], step["args"]))
            if calls:
                self._step(f"{batch['text']}, phase {phase}", calls, changing)

    def _stop(self) -> None:
        hosts = self._rollout_hosts
        for balancer in self.balancers.values():
            names = [
                name
                for host in hosts
                for batch in self._plan(host)["rollout"]["steps"].values()
                for step in batch.values()
                for server in step["args"]["servers"]
                for name in balancer.leaving(host, [server["name"]])
            ]
            if names and self.context.model.balancers[balancer.host.name].exists:
                args = {"servers": [{"balancer": balancer.host.name, "servers": names}], "state": "drain"}
                self._step("draining what stops", [(balancer.host.name, "balancer_server", args)])
        self._rollout()

    def _return_left(self) -> None:
        for name in self._in("todo_load_balancer"):
            left = self._plan(name)["balancer"]["undrain_first"]
            self._return(name, left, "returning servers that an earlier run left drained")

    def _measure(self) -> None:
        self._rollout()

    def _measure_new(self) -> None:
        calls = [
            (host, "measurement", {"instances": self._plan(host)["measure"]})
            for host in self._in("todo_benchmark")
        ]
        if calls:
            self._step("measuring what is new", calls)
