#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of extra_variables; the work is done on the control node, by plugins/action/extra_variables.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: extra_variables
short_description: Reject misspelled variables of the command line
version_added: "0.1.0"
description:
  - Fails if a variable given with C(-e) is unknown to the toolkit but similar to one of its own. Such a misspelled
    variable would have no effect, so that a run meant for one deployment would change all of them.
  - Runs on the control node only, and connects to nothing. The other modules that run there make the same check.
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: It makes the same check.
  diff_mode:
    support: N/A
    details: Nothing is changed.
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Reject misspelled variables of the command line
  instinct.fleet.extra_variables:
  run_once: true
"""

RETURN = r"""
"""
