# SPDX-License-Identifier: Apache-2.0
"""Find hosts whose records serve a model that the inventory gives to another deployment. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from ..desired.fleet import Fleet
from ..endpoint.plan import EndpointInputs
from ..endpoint.servers import seen_servers
from ..generations.holds import held_together
from ..instances.planned import RecordedInstance
from .stages import HostStages


def foreign_model_names(
    fleet: Fleet, planned: Iterable[HostStages], endpoint: EndpointInputs
) -> dict[str, str]:
    """Return the hosts with a record that takes the model of another deployment, each with the reason.

    A model for which a load balancer already uses an instance was given to it by an earlier inventory. So was one that
    an instance serves while its deployment and the model's owner are held together: the edit of the inventory that
    moved the model was undone.
    """
    asked = {
        (server.of, model)
        for host in endpoint.hosts
        if host.observed
        for server in seen_servers(host.observed.config).values()
        for model in server.models
    }
    owners: dict[str, set[str]] = {}
    for deployment in {one.name: one for host in fleet.hosts for one in host.deployments}.values():
        for name in (deployment.served_model_name, *deployment.other_names):
            owners.setdefault(name, set()).add(deployment.name)
    known = set().union(*owners.values())
    claims: dict[str, dict[str, str]] = {}
    together = cache(partial(held_together, fleet))
    for stages in planned:
        for item in stages.serve.instances:
            # An instance that works for another server never gets requests.
            made = (
                item.generation if isinstance(item, RecordedInstance) and not item.member.headless else None
            )
            if made is None or not made.endpoint:
                continue
            for model in made.models:
                others = owners.get(model, {made.deployment})
                known_to_ask = ((stages.host.name, item.name), model) in asked
                if made.deployment in others or known_to_ask:
                    continue
                if not any(together(made.deployment, other) for other in others):
                    claims.setdefault(made.deployment, {})[stages.host.name] = model
    return {
        host: f"its record says that {name} serves the model {model}, which the inventory gives to another deployment. "
        f"Delete /etc/instinct-fleet/generations/{name} there, and run again."
        for name, found in claims.items()
        if name in known or len(found) == 1  # else it was renamed, and what runs has the old name
        for host, model in found.items()
    }
