#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of bench_history; the work is done on the control node, by plugins/action/bench_history.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_history
short_description: Write a page with all benchmarks of a deployment over time
version_added: "0.1.0"
description:
  - Reads all runs of the results directory, and writes C(results_dir/history/DEPLOYMENT.html), one page that loads
    nothing. It has a plot and a table for each cell, with the interval of the repeats, and marks runs whose image
    digest is not that of the run before.
  - An index of the runs, C(results_dir/index.sqlite), is brought up to date. It may be deleted at any time.
  - Runs on the control node only, and connects to nothing.
options:
  deployment:
    description: Only this deployment. By default, every deployment that was measured gets a page.
    type: str
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
  - instinct.fleet.results
attributes:
  check_mode:
    support: full
    details: Pages are not written.
  diff_mode:
    support: N/A
    details: No run is changed.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.bench_compare
  - module: instinct.fleet.bench_report
"""

EXAMPLES = r"""
- name: Write the history of a deployment
  instinct.fleet.bench_history:
    deployment: llama
  run_once: true
"""

RETURN = r"""
text:
  description: The printed lines, with the content of each page and where it is.
  returned: success
  type: str
files:
  description: The pages.
  returned: success
  type: list
  elements: str
  sample: [/home/operator/fleet/results/history/llama.html]
"""
