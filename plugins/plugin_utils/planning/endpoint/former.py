# SPDX-License-Identifier: Apache-2.0
"""Find load balancers on hosts outside the group load_balancer: what runs there, and when it is taken down. Pure.

Such a host left the group but stays in the inventory. Its HAProxy keeps its last configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ....module_utils.common.errors import natural
from ....module_utils.common.paths import BALANCER_DIR
from ....module_utils.service.endpoint import ADDRESS_FILE
from ...base.text import join_names, plural
from ..desired.actions import Action
from ..desired.endpoint_settings import BalancerHost, ObservedBalancer
from ..inventory.groups import BALANCERS
from ..observed.node_state import MALFORMED
from .balancer_plan import url_of
from .servers import seen_servers

VARIABLE = "remove_load_balancer"
REMOVAL: Final = "remove_balancer"
"""The kind of the action that takes a load balancer down."""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class FormerBalancer:
    """A load balancer on a host outside the group.

    observed: its state; None if that cannot be read. phase: when this run takes it down, BEFORE or AFTER instances
    change; "" if it does not. others: URLs of the group's load balancers.
    """

    host: str
    observed: ObservedBalancer | None
    phase: str = ""
    others: tuple[str, ...] = ()

    @property
    def config(self) -> Mapping[str, Any]:
        """Return its HAProxy's last configuration."""
        return self.observed.config if self.observed else {}

    @property
    def text(self) -> str:
        """Return what is present, what it means for clients, and how to remove it."""
        return " ".join(filter(None, (self._there(), self._clients(), self._way_out())))

    def _there(self) -> str:
        if self.observed is None:
            return f"{self.host} has files of a load balancer in {BALANCER_DIR} that cannot be read."
        config, services = self.config, ["instinct-balancer", "instinct-balancer-agent"]
        services += ["instinct-balancer-router"] if config.get("routers") else []
        services += ["instinct-balancer-address"] if ADDRESS_FILE in self.observed.files else []
        at = f" at {config['listen']}:{config['port']}" if "listen" in config and "port" in config else ""
        count = plural(len({server.of for server in seen_servers(config).values()}), "instance")
        state = (
            f"listens{at} and sends requests to {count}" if self.observed.running else f"is not running{at}"
        )
        return (
            f"{self.host} is not in the group {BALANCERS}, but its load balancer {state} "
            f"(services {', '.join(services)}; keys in {BALANCER_DIR})."
        )

    def _clients(self) -> str:
        if self.observed is None or not self.observed.running:
            return ""
        if not self.others:
            return (
                "It is the only one: without it, clients can reach instances only directly, on their hosts."
            )
        return f"It is told of no change and drains nothing; clients should use {join_names(self.others)}."

    def _way_out(self) -> str:
        if self.phase:
            return (
                "This run takes it down: it accepts no more connections, and running requests finish first."
            )
        return f"To take it down: site.yml -e {VARIABLE}=true. To keep it: put the host back in the group."

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return what this run does about it; nothing unless the operator requested it."""
        if not self.phase:
            return ()
        before = "running" if self.observed and self.observed.running else "not running"
        reason = f"the host is not in the group {BALANCERS}, and {VARIABLE} is true"
        return (Action(REMOVAL, "load_balancer", self.host, before, "absent", reason, VARIABLE),)

    def to_json(self) -> dict[str, Any]:
        """Return its entry in plan.json."""
        return {
            "text": self.text,
            "phase": self.phase or None,
            "actions": [item.to_json() for item in self.actions],
        }


def former_balancers(
    states: Mapping[str, Mapping[str, Any] | None], group: Collection[str]
) -> tuple[FormerBalancer, ...]:
    """Return the load balancers on hosts outside the group. states: node_state of the hosts of this run."""
    found = []
    for name in sorted(states.keys() - set(group), key=natural):
        state = states[name]
        if not state:
            continue
        unread = any(item.get("what") == "balancer" for item in state.get("problems") or ())
        try:
            observed: ObservedBalancer | None = ObservedBalancer.from_json(state)
        except MALFORMED:
            observed = None
        if unread or observed is None or observed.files or observed.running:
            found.append(FormerBalancer(name, None if unread else observed))
    return tuple(found)


def with_removal(
    former: Iterable[FormerBalancer], group: Sequence[BalancerHost], remove: bool
) -> tuple[FormerBalancer, ...]:
    """Return them with the load balancers that clients can use instead, and the phase in which they are taken down.

    That is before instances change, since nothing is drained there, but not before another load balancer serves.
    """
    urls = tuple(dict.fromkeys(map(url_of, group)))
    coming = any(not host.absent and not (host.observed and host.observed.running) for host in group)
    phase = (AFTER if coming else BEFORE) if remove else ""
    return tuple(replace(item, phase=phase, others=urls) for item in former)
