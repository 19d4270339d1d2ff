# SPDX-License-Identifier: Apache-2.0
"""Fleets with a load balancer: made at random, planned, and as its host has them."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash, text_hash
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.api_keys import key_marks, keys_map
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
    balancer_host,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import self_signed
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    BalancerPlan,
    BalancerSecrets,
    wanted_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.render import (
    template_renderer,
)

from tests import ROOT

DRAW = template_renderer((ROOT / "templates/haproxy.cfg.j2").read_text(encoding="utf-8"))
KEYS = keys_map({"default": "sk-" + "k" * 40})
PEM = self_signed(["192.0.2.1"])
MATERIAL = BalancerSecrets(KEYS, PEM, "keys.yml", "endpoint.pem")
ADDRESSES = {"n1": {"ansible_host": "192.0.2.11"}, "n2": {"ansible_host": "192.0.2.12"}}

NEVER = {
    "installed": False, "keepalived": False, "running": False,
    "files": {}, "keys": [], "applied": None, "config": None, "out": None,
}  # fmt: skip


def found(balancer: dict[str, Any] | None) -> dict[str, Any]:
    return {"os": {"id": "debian"}, "balancer": balancer or NEVER}


def host(
    balancer: dict[str, Any] | None = None, absent: str = "", name: str = "lb", **variables: Any
) -> BalancerHost:
    """A balancer's host with what was found on it."""
    made, problems = balancer_host(name, {"ansible_host": "192.0.2.1", **variables}, found(balancer), absent)
    assert problems == ()
    return made


def applied(plan: BalancerPlan, **changes: Any) -> dict[str, Any]:
    """What node_state finds after a run of this plan."""
    texts = wanted_files(plan.files, plan.host.settings, plan.material, plan.instance_key)
    assert texts is not None
    return {
        "installed": True,
        "keepalived": False,
        "running": True,
        "files": {name: text_hash(text) for name, text in texts.items()},
        "keys": key_marks(texts.get("keys.map", "")),
        "applied": spec_hash(texts),
        "config": json.loads(texts["balancer.json"]),
        "out": None,
        **changes,
    }
