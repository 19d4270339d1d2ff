#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of bench_report; the work is done on the control node, by plugins/action/bench_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_report
short_description: Gather the benchmarks of all nodes into one directory of results
version_added: "0.1.0"
description:
  - Reads the results of M(instinct.fleet.vllm_bench) from the variables of each host (C(__benchmark_serve),
    C(__benchmark_offline), or a list of benchmarks in C(benchmark_results)). It reads the description of the node from
    C(__benchmark_state), a M(instinct.fleet.node_state) registered just before the measurement, or else from
    C(node_state_result), which describes the node before the deployment.
  - Writes C(results_dir/run/) with C(summary.json), C(benchmarks.csv), vLLM's own output in C(raw/),
    C(report.html) and C(plan.json), and points the symbolic link C(results_dir/latest) at it. The directory
    appears complete or not at all, and an existing run is never overwritten.
  - Runs on the control node only, once for the whole play, and connects to nothing.
  - Hosts that failed or could not be reached are listed among the failures; they do not make this task fail.
  - Values of secret variables and options are masked, and so are the inventory's secrets wherever they appear.
options:
  run:
    description:
      - Name of the run. Default is the time in UTC. If the run exists already, C(-2), C(-3) and so on is
        added.
    type: str
    default: ""
  hosts:
    description:
      - Hosts that should have been measured. Default is the hosts of the play that are in the group C(instinct),
        including failed ones, or else the whole group.
    type: list
    elements: str
  report:
    description: Write C(report.html). Without it, no plots are drawn.
    type: bool
    default: true
  begin:
    description:
      - The RV(instinct.fleet.bench_plan#module:run) that begins. Then only this is written, to
        C(results_dir/.NAME.unfinished), until O(run) of that name is reported. A command after a killed one continues
        it.
    type: dict
  plan:
    description: The plan to store with the results. Default is the plan in C(fleet_plan_result), if defined.
    type: dict
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
  - instinct.fleet.results
attributes:
  check_mode:
    support: full
    details: Nothing is measured in check mode, so nothing is written.
  diff_mode:
    support: none
    details: Every run creates a new directory.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.node_state
  - module: instinct.fleet.vllm_bench
"""

EXAMPLES = r"""
- name: Measure serving
  instinct.fleet.vllm_bench:
    run: "20260131"
    kind: serve
    targets: "{{ benchmark_instances }}"
  register: __benchmark_serve

- name: Report
  instinct.fleet.bench_report:
    run: "20260131"
  run_once: true
"""

RETURN = r"""
run:
  description: Name of the run, as written.
  returned: when something was measured or failed
  type: str
  sample: 20260131T101500Z
directory:
  description: Where the files are.
  returned: when something was measured or failed
  type: str
  sample: /home/operator/fleet/results/20260131T101500Z
failures:
  description: Missing and incomplete measurements.
  returned: when something was measured or failed
  type: list
  elements: dict
  sample: [{host: n3, what: connection, message: "Connection timed out"}]
on_nodes:
  description: The directory in which nodes keep the measurements of O(run), which the results now contain.
  returned: when something was measured or failed, with O(run)
  type: str
  sample: /var/lib/instinct-fleet/bench/20260131T101500Z
text:
  description: The printed summary.
  returned: when something was measured or failed
  type: str
"""
