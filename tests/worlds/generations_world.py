# SPDX-License-Identifier: Apache-2.0
"""Fleets that were upgraded, held, put on trial and rolled back."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    ROLLBACK,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests import ROOT
from tests.worlds.plan_world import apply_to_state, deployment, fleet, state, workshop

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((ROOT / "catalog/schemas/plan.schema.json").read_text(encoding="utf-8"))
)
States = dict[str, Any]
WHY = "--max-num-seqs 16 (new)"


def planned(
    states: Mapping[str, Any], wanted: Any, request: OperationRequest | None = None, **keys: Any
) -> FleetPlan:
    """Plan as the action plugin does, and check plan.json against its schema."""
    request = request or OperationRequest()
    whole = fleet(states, wanted, **keys)
    plan = plan_fleet(check_fleet(whole, request), workshop())
    SCHEMA.validate(json.loads(json.dumps(plan.to_json())))
    return plan


def run(states: States, wanted: Any, request: OperationRequest | None = None, **keys: Any) -> States:
    """The hosts after a plan was carried out on those that it has."""
    data = planned(states, wanted, request, **keys).to_json()["hosts"]
    return {
        name: apply_to_state(found, data[name]) if name in data else found for name, found in states.items()
    }


def llama(seqs: int | None = None, **keys: Any) -> list[dict[str, Any]]:
    """A deployment of two instances per host; `seqs` makes another generation of it."""
    more = {"engine_args": {"max_num_seqs": seqs}} if seqs else {}
    return [deployment(instances_per_host=2, **more, **keys)]


def two(names: tuple[str, ...] = ("n1", "n2")) -> States:
    return {name: state(hostname=name) for name in names}


def upgraded(names: tuple[str, ...] = ("n1", "n2")) -> States:
    """Two hosts that ran generation 1, and run 2."""
    return run(run(two(names), llama()), llama(16))


def turn(plan: FleetPlan, name: str = "llama") -> dict[str, Any]:
    return next(item for item in plan.to_json()["generations"] if item["deployment"] == name)


def bind(states: States, *hosts: str, **keys: Any) -> States:
    """The hosts with a hold or a trial."""
    after = copy.deepcopy(states)
    for host in hosts:
        after[host]["generations"][0].update(keys)
    return after


HELD = {"generation": 1, "why": "slower", "since": "2026-11-21T23:00:00Z"}
TRIAL = {"generation": 2, "why": WHY, "since": "2026-11-21T23:00:00Z", "units": [], "baseline": {}}

BACK = OperationRequest(ROLLBACK, frozenset(["llama"]), 1, reason="answers got worse")


def only(states: States, host: str) -> States:
    return {host: states[host]}
