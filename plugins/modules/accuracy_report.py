#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of accuracy_report; the work is done on the control node, by plugins/action/accuracy_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: accuracy_report
short_description: Judge the answers of all instances, and write the report
version_added: "0.1.0"
description:
  - Reads what M(instinct.fleet.vllm_accuracy) and M(instinct.fleet.lm_eval) returned for each host, scores it, and
    compares it item by item with an earlier run, and the replicas of a deployment with each other.
  - Writes C(results_dir/run/accuracy.txt), which it also prints, C(accuracy.json) for machines and later comparisons,
    and the answers as C(answers.jsonl).
  - Writes the report of the newest benchmark of each deployment again, which then shows the accuracy.
  - Fails if a release lost more than the tolerance allows, if a replica differs from the others, or if an instance
    answered nothing.
  - Runs on the control node only, and connects to nothing. docs/runbooks/accuracy.md explains how it judges.
options:
  phase:
    description: V(check) only checks O(tasks), O(tolerance) and O(baseline), before an instance is asked or drained.
    type: str
    choices: [check, report]
    default: report
  run:
    description: Name of the run, a directory below O(results_dir); empty for C(accuracy-) and the time in UTC.
    type: str
    default: ""
  results_dir:
    description: Directory on the control node.
    type: path
    default: results
  tasks:
    description:
      - What is measured, as a list or with commas; V(sanity), V(nll), a task of C(catalog/accuracy.yml) such as
        V(gsm8k), or a directory of tasks of lm-eval, named with a slash.
    type: raw
    default: [sanity, nll]
  data_dir:
    description: Directory on the control node with the data of tasks of the catalogue.
    type: path
    default: ""
  tolerance:
    description: Points of a task's score that a release may lose; a point is a hundredth.
    type: float
    default: 2
  baseline:
    description:
      - The run to compare with; V(previous) for the newest one that had no problem with the deployment, V(none) for no
        comparison.
    type: str
    default: previous
  live:
    description: Whether the instances served while they were asked, for the report.
    type: bool
    default: false
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: Nothing is measured in check mode, so nothing is judged.
  diff_mode:
    support: none
    details: Every report is new.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.vllm_accuracy
"""

EXAMPLES = r"""
- name: Judge what was measured
  instinct.fleet.accuracy_report:
    baseline: previous
  run_once: true
"""

RETURN = r"""
directory:
  description: Where the report is.
  type: str
  returned: when something was measured
problems:
  description: What is wrong, for each deployment with a problem.
  type: dict
  returned: when something was measured
text:
  description: The report.
  type: str
  returned: when something was measured
sets:
  description: The shipped sets to measure, for M(instinct.fleet.vllm_accuracy).
  type: list
  elements: str
  returned: in phase V(check)
lm_eval:
  description:
    - The other tasks, for M(instinct.fleet.lm_eval), each with C(title), C(name), C(items), C(metric), C(filter),
      C(yaml) (the text of its file, empty if it is among the files) and C(files) (C(src) and C(dest)).
  type: list
  elements: dict
  returned: in phase V(check)
"""
