# SPDX-License-Identifier: Apache-2.0
"""Settings as they are where nobody sets a variable, but for what a test is about."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerSettings,
    parse_balancer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.canary_tolerances import (
    CanaryTolerances,
)


def rules(**given: Any) -> CanaryTolerances:
    """How a canary is judged."""
    defaults = {
        item.name: public_variables()[f"canary_{item.name}"].default for item in fields(CanaryTolerances)
    }
    return CanaryTolerances(**{**defaults, **given})


def balancer_settings(**given: Any) -> BalancerSettings:
    """A load balancer's settings."""
    settings, _, problems = parse_balancer({}, "lb")
    assert not problems
    return replace(settings, **given)
