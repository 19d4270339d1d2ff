# SPDX-License-Identifier: Apache-2.0
"""The groups of an inventory that the toolkit acts on, and the variables that say how hosts are reached.

It imports nothing of the planner, so that the first play begins before the planner is loaded.
"""

from __future__ import annotations

from ansible.constants import MAGIC_VARIABLE_MAPPING

FLEET, BALANCERS = "instinct", "load_balancer"
"""The groups of GPU servers, and of hosts that run a load balancer."""
CONNECTION = tuple(sorted({name for names in MAGIC_VARIABLE_MAPPING.values() for name in names}))
"""Ansible's variables that say how a host is reached."""
