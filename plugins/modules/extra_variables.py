#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of extra_variables; the work is done on the control node, by plugins/action/extra_variables.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: extra_variables
short_description: Refuse variables of the command line that look like slips
version_added: "0.1.0"
description:
  - Fails when a variable given with C(-e) is none of the toolkit's and very like one of them. Such a slip would do
    nothing, and a run meant for one deployment would be for all of them.
  - Runs on the control node only, and connects to nothing. The other modules that run there look for the same.
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: It looks in any case.
  diff_mode:
    support: N/A
    details: Nothing is changed.
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Refuse slips in variables of the command line
  instinct.fleet.extra_variables:
  run_once: true
"""

RETURN = r"""
"""
