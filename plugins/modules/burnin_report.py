#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of burnin_report; the work is done on the control node, by plugins/action/burnin_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: burnin_report
short_description: Judge the GPUs that were tested
version_added: "0.1.0"
description:
  - Reads the results of M(instinct.fleet.gpu_burnin) from the variables of each host of the play (C(__burnin_result)),
    and gives each GPU a verdict - ok, slow or bad, with the reasons and the next step.
  - A GPU is slow if it is below the catalogue's value for its model, or an outlier among the GPUs of its model that
    were tested with it. It is bad if it computes or copies wrongly, fails, or shows a fault by its sensors.
  - Writes C(results_dir/run/burnin.json). An existing run is never overwritten.
  - Fails if a GPU is bad, or a test of a host has no result.
  - Runs on the control node only, once for the whole play, and connects to nothing.
options:
  run:
    description: Name of the run. Default is C(burnin-) and the time in UTC.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
  - instinct.fleet.results
attributes:
  check_mode:
    support: full
    details: Nothing is tested in check mode, so nothing is written.
  diff_mode:
    support: none
    details: Every run creates a new directory.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.gpu_burnin
"""

EXAMPLES = r"""
- name: Judge the GPUs
  instinct.fleet.burnin_report:
  run_once: true
"""

RETURN = r"""
verdicts:
  description: One entry per GPU.
  type: list
  elements: dict
  returned: when something was tested or failed
  sample: [{host: n1, gpu: 3, bdf: "0000:65:00.0", verdict: slow, measured: {copy_gbps: 3501.2},
            reasons: ["memory copy 3,501.2 GB/s, below 90% of 4,177 (BabelStream copy)"],
            next_step: Compare power cap and clocks with its neighbours}]
path:
  description: The file with all results.
  returned: when something was tested or failed
  type: str
  sample: /home/operator/fleet/results/burnin-20260131T101500Z/burnin.json
text:
  description: The printed summary.
  returned: when something was tested or failed
  type: str
"""
