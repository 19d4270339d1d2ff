#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of bench_compare; the work is done on the control node, by plugins/action/bench_compare.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_compare
short_description: Judge the benchmarks of a run against those of another, or show them with published results
version_added: "0.1.0"
description:
  - Compares cells that did the same work (deployment, model, commit, precision, lengths, load, data set, GPUs,
    partition) on the same instances, and calls each of them better, worse, the same within O(tolerance), or not clear,
    with the number of runs that would make it clear.
  - Shows how else the runs differ, such as in options, image digest, versions and driver.
  - If a and b were measured in turns on each instance, or half of the instances had a first, drift between sessions
    cancels out. Otherwise the intervals include it. docs/compare.md says how to measure for a comparison.
  - Writes C(results_dir/comparisons/A-B.json), and prints a table.
  - Runs on the control node only, and connects to nothing. It does not fail because of a cell that is worse, which
    RV(worse) names. It fails if the runs have no cell in common.
options:
  a:
    description: The runs to judge, taken together. V(latest) is the last one, V(fp8-new-*) are all that match.
    type: list
    elements: str
    default: [latest]
  b:
    description:
      - The runs that they are judged against. V(previous) is the last run before it of a deployment on the same host.
      - V(published) shows the nearest published results of C(catalog/baselines), with ratios and differences.
    type: list
    elements: str
    default: [previous]
  tolerance:
    description: Percent of difference up to which cells count as the same.
    type: float
    default: 2.0
  drift:
    description: Standard deviation of an instance's speed between sessions, in percent.
    type: float
    default: 2.0
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
  - instinct.fleet.results
attributes:
  check_mode:
    support: full
    details: No run is changed, so check mode makes no difference.
  diff_mode:
    support: N/A
    details: No run is changed.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.bench_report
"""

EXAMPLES = r"""
- name: Compare the last run with the one before
  instinct.fleet.bench_compare:
  run_once: true
  register: bench_compare_result

- name: Compare runs that took turns
  instinct.fleet.bench_compare:
    a: [new-1, new-2, new-3]
    b: [old-1, old-2, old-3]
  run_once: true
"""

RETURN = r"""
text:
  description: The printed comparison.
  returned: success
  type: str
worse:
  description: The cells that are worse, in one line; empty if none is.
  returned: success
  type: str
  sample: "1 cell worse: llama in1024-out1024-c128."
file:
  description: The comparison as JSON.
  returned: success
  type: str
  sample: /home/operator/fleet/results/comparisons/20260201T101500Z-20260131T101500Z.json
"""
