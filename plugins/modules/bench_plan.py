#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of bench_plan; the work is done on the control node, by plugins/action/bench_plan.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_plan
short_description: Plan what a run measures
version_added: "0.2.0"
description:
  - Takes the plan of a run (M(instinct.fleet.fleet_plan)), and checks the suites of its hosts (C(benchmark_suite),
    C(benchmark_suite_args)) for every instance that it measures, before anything is drained. Prints what suites leave
    out.
  - For V(benchmark), finds the run to perform - a new one, or an unfinished one in the results.
  - Runs on the control node only, once for the whole fleet. Use it with C(run_once), after
    M(instinct.fleet.fleet_plan).
options:
  hosts:
    description:
      - Hosts of the run. Default is the hosts of the play that are in the group C(instinct), else that group.
    type: list
    elements: str
  todo:
    description: The RV(instinct.fleet.fleet_plan#module:todo) of the run.
    type: list
    elements: dict
    required: true
  kinds:
    description: The RV(instinct.fleet.fleet_plan#module:kinds) of the run.
    type: list
    elements: str
    choices: [serve, latency, throughput]
    required: true
  operation:
    description: As of M(instinct.fleet.fleet_plan).
    type: str
    choices: [deploy, upgrade, rollback, restart, stop, benchmark]
  deployment:
    description: The deployment that is measured. Default is all of them.
    type: str
  instance:
    description: The instance that is measured. Default is all of them.
    type: str
  run:
    description:
      - Name of a benchmark's run. Without it, the newest unfinished run that measures the same and is younger than 24
        hours continues, or a new one is named after the time in UTC.
    type: str
    default: ""
  live:
    description: Whether V(benchmark) measures through a load balancer.
    type: bool
    default: false
  rate:
    description: Requests per second with O(live).
    type: float
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
  - instinct.fleet.results
attributes:
  check_mode:
    support: full
    details: Makes the same plan.
  diff_mode:
    support: none
    details: Nothing is changed.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.fleet_plan
  - module: instinct.fleet.vllm_bench
  - module: instinct.fleet.bench_report
"""

EXAMPLES = r"""
- name: Plan what is measured
  instinct.fleet.bench_plan:
    todo: "{{ fleet_plan_result.todo }}"
    kinds: "{{ fleet_plan_result.kinds }}"
    operation: benchmark
  run_once: true
  register: bench_plan_result
  when: fleet_plan_result.measures
"""

RETURN = r"""
run:
  description: The run of V(benchmark), begun now or earlier, and what it measures; null if nothing is measured.
  returned: success
  type: dict
  sample: {name: 20260131T101500Z, begun: "2026-01-31T10:15:00Z", request: {suite: serving}, fingerprints: {}}
text:
  description: The printed lines.
  returned: success
  type: str
"""
