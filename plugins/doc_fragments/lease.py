# SPDX-License-Identifier: Apache-2.0
"""Document the option of modules that keep other runs away."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation shared by modules: `instinct.fleet.lease`."""

    DOCUMENTATION = r"""
options:
  lease:
    description:
      - Which run of C(ansible-playbook) this is, and what its plan saw. While the module works, and for two minutes
        afterwards, other runs are refused on this node; so is this one if another run is at work, or has changed the
        node since the plan. The module's action plugin sets it; leave it out.
    type: dict
"""
