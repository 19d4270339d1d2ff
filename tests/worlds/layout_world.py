# SPDX-License-Identifier: Apache-2.0
"""Layouts of deployments on one host, or why there is none."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.layout import (
    Layout,
    lay_out_fleet,
)

from tests.worlds.plan_world import fleet, state


def layouts(states: Any, wanted: Any, **keys: Any) -> dict[str, Layout]:
    """The layout of every host; FleetError when there is none."""
    found, problems = lay_out_fleet(fleet(states, wanted, **keys))
    if problems:
        raise FleetError(problems)
    return found


def refused(wanted: Any, states: Any = None, **keys: Any) -> list[str]:
    with pytest.raises(FleetError) as error:
        layouts(states or {"n1": state()}, wanted, **keys)
    return [problem.text() for problem in error.value.problems]
