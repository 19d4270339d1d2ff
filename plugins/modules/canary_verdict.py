#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of canary_verdict; the work is done on the control node, by plugins/action/canary_verdict.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: canary_verdict
short_description: Judge a new release by what was measured and asked
version_added: "0.1.0"
description:
  - Compares what M(instinct.fleet.vllm_smoke) and M(instinct.fleet.vllm_bench) returned of an instance before it was
    replaced and afterwards.
  - Fails when the new release is slower than the tolerance, answers garbage, or does not work.
  - Writes C(results_dir/run/canary.txt) for people and C(canary.json) for machines, and prints the former.
  - Runs on the control node only, and connects to nothing. docs/canary.md says how it judges.
options:
  phase:
    description:
      - V(before) makes the baseline of the old release. V(after) judges the new one. V(failed) only reports one that
        did not start.
    type: str
    choices: [before, after, failed]
    required: true
  host:
    description: Where the instance runs, for the report.
    type: str
    default: ""
  instance:
    description: The new instance, as the plan has it; for the report of one that could not be asked.
    type: dict
    default: {}
  reference:
    description: Name of the instance that was measured beside the old one; empty for none.
    type: str
    default: ""
  smoke:
    description: What M(instinct.fleet.vllm_smoke) returned, of the old instance asked twice, or of the new one.
    type: dict
    default: {}
  benchmarks:
    description:
      - What M(instinct.fleet.vllm_bench) returned. Before, one result. Afterwards none, one or two, as RV(more) asks
        for them.
    type: list
    elements: dict
    default: []
  baseline:
    description: RV(baseline) of the phase before; empty when there was no old instance.
    type: dict
    default: {}
  failure:
    description: Why the new instance did not start.
    type: str
    default: ""
  log:
    description: What it printed, which is kept beside the report.
    type: str
    default: ""
  change:
    description: What the new release changes, for the report.
    type: str
    default: ""
  runs:
    description: Runs of the benchmark before and after.
    type: int
    default: 5
  max_runs:
    description: Runs after, at most, when the first ones are not clear or say that it is slower.
    type: int
    default: 15
  tolerance:
    description: Percent of output throughput that the new instance may lack.
    type: float
    default: 10
  latency_tolerance:
    description: Percent by which the medians of TTFT and of TPOT may be longer.
    type: float
    default: 30
  run:
    description:
      - Name of the report's directory. Empty for one of the deployment and the time. If there is such a directory
        already, C(-2), C(-3) and so on is added.
    type: str
    default: ""
  results_dir:
    description: Where runs are kept. A relative path starts where ansible-playbook was started.
    type: path
    default: results
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: Nothing is measured in check mode, so nothing is judged.
  diff_mode:
    support: none
    details: A report is always new.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.vllm_bench
  - module: instinct.fleet.vllm_smoke
"""

EXAMPLES = r"""
- name: Note how the old release does
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
  description: What is known of the old release; empty when there is no old instance.
  type: dict
  returned: in the phase before
verdict:
  description: One of C(ok), C(slower), C(garbage), C(broken); C(undecided) when it takes more runs.
  type: str
  returned: in the other phases
more:
  description: Runs of the benchmark that are wanted before the verdict is final; 0 when it is.
  type: int
  returned: as RV(verdict)
looks:
  description: O(benchmarks), to which the next look is added.
  type: list
  elements: dict
  returned: when RV(more) is above 0
client:
  description: What is to measure the new instance, O(instinct.fleet.vllm_bench#module:targets)'s C(client).
  type: dict
  returned: when RV(more) is above 0
summary:
  description: The verdict in one line, with its reasons.
  type: str
  returned: when the verdict is final
warnings_told:
  description: What the verdict could not take into account, and what was noticed beside it.
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
