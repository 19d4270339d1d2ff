#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of canary_verdict; the work is done on the control node, by plugins/action/canary_verdict.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: canary_verdict
short_description: Judge a new release by its benchmarks and answers
version_added: "0.1.0"
description:
  - Compares the results of M(instinct.fleet.vllm_smoke), M(instinct.fleet.vllm_accuracy) and
    M(instinct.fleet.vllm_bench) for an instance before and after its replacement.
  - Fails if the new release is slower or less accurate than the tolerances allow, answers garbage, or does not work. If
    something around the instance does not work, such as its node's Docker, it fails without a verdict (RV(class)).
  - Writes C(results_dir/run/canary.txt), which it also prints, and C(canary.json) for machines.
  - Runs on the control node only, and connects to nothing. docs/canary.md explains how it judges.
options:
  phase:
    description:
      - V(before) records the baseline of the old release. V(after) judges the new one. V(failed) only reports a new
        instance that did not start.
    type: str
    choices: [before, after, failed]
    required: true
  host:
    description: The instance's host, for the report.
    type: str
    default: ""
  instance:
    description: The new instance from the plan, for the report on an instance that could not be tested.
    type: dict
    default: {}
  reference:
    description: Name of the reference instance that was measured; empty for none.
    type: str
    default: ""
  smoke:
    description: The result of M(instinct.fleet.vllm_smoke), with two rounds for the old instance.
    type: dict
    default: {}
  accuracy:
    description: The result of M(instinct.fleet.vllm_accuracy), with all items; empty if nothing was asked.
    type: dict
    default: {}
  benchmarks:
    description:
      - Results of M(instinct.fleet.vllm_bench). V(before) takes one result, V(after) none, one or two, as requested by
        RV(more).
    type: list
    elements: dict
    default: []
  baseline:
    description: RV(baseline) from the phase V(before); empty if there was no old instance.
    type: dict
    default: {}
  failure:
    description: Why the new instance did not start.
    type: str
    default: ""
  log:
    description: Its log, which is stored with the report.
    type: str
    default: ""
  change:
    description: The changes in the new release, for the report.
    type: str
    default: ""
  runs:
    description: Number of benchmark runs before and after.
    type: int
    default: 5
  max_runs:
    description: Maximum number of runs after, if the first ones are inconclusive or slower.
    type: int
    default: 15
  tolerance:
    description: Percent of output throughput that the new instance may lose.
    type: float
    default: 10
  latency_tolerance:
    description: Percent by which the medians of TTFT and TPOT may increase.
    type: float
    default: 30
  accuracy_tolerance:
    description: Points of the sanity set that the new instance may lose; a point is a hundredth.
    type: float
    default: 2
  run:
    description:
      - Name of the report's directory. Default is a name with the deployment and the time. If the directory exists
        already, C(-2), C(-3) and so on is added.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
  - instinct.fleet.results
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
  - module: instinct.fleet.vllm_bench
  - module: instinct.fleet.vllm_smoke
"""

EXAMPLES = r"""
- name: Record how the old release performs
  instinct.fleet.canary_verdict:
    phase: before
    smoke: "{{ __canary_smoke }}"
    benchmarks: ["{{ __canary_bench }}"]
  register: __canary_before

- name: Judge the new one
  instinct.fleet.canary_verdict:
    phase: after
    smoke: "{{ __canary_smoke }}"
    benchmarks: ["{{ __canary_bench }}"]
    baseline: "{{ __canary_before.baseline }}"
"""

RETURN = r"""
baseline:
  description: The facts about the old release; empty if there is no old instance.
  type: dict
  returned: in the phase before
verdict:
  description: One of C(ok), C(slower), C(less accurate), C(garbage), C(broken); C(undecided) if more runs are needed.
  type: str
  returned: in the other phases
class:
  description: V(infrastructure) if it fails without a verdict.
  type: str
  returned: when no verdict was possible
more:
  description: Number of further benchmark runs that the verdict needs; 0 if it is final.
  type: int
  returned: as RV(verdict)
looks:
  description: O(benchmarks), to which the next result must be added.
  type: list
  elements: dict
  returned: when RV(more) is above 0
client:
  description: The client with which to measure the new instance, see O(instinct.fleet.vllm_bench#module:targets).
  type: dict
  returned: when RV(more) is above 0
summary:
  description: The verdict in one line, with its reasons.
  type: str
  returned: when the verdict is final
warnings_told:
  description: Facts that the verdict could not take into account, and other observations.
  type: list
  elements: str
  returned: as RV(summary)
directory:
  description: Where the report is.
  type: str
  returned: as RV(summary)
text:
  description: The report.
  type: str
  returned: as RV(summary)
"""
