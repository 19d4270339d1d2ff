#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of fleet_plan; the work is done on the control node, by plugins/action/fleet_plan.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_plan
short_description: Plan what is missing on each node of the fleet
version_added: "0.1.0"
description:
  - Compares the inventory (C(vllm_deployments) and the variables of the roles) with the state that
    M(instinct.fleet.node_state) found, and returns the ordered actions of each host, with reasons.
  - Runs on the control node only, once for the whole fleet. Use it with C(run_once) in a play on the group
    C(instinct), after a task that registers M(instinct.fleet.node_state) as C(node_state_result). Hosts without
    that result are excluded and listed in the plan.
  - A host that answered but cannot be planned (its Docker does not answer, it shows no GPU, a record is damaged) is
    excluded too, with what is wrong and the next step, and put into the group C(fleet_excluded).
  - The whole input is checked first. All problems are reported at once, each with its key, the file and line
    of the key, the hosts, and the fix.
  - Image references and model revisions without a pin are resolved at their registry or hub, and pinned in a lock
    file. For downloads with older pins, registry and hub are asked whether access is granted; if the control node
    cannot reach them, that is a warning. A run without downloads makes no queries.
  - The software that M(instinct.fleet.vllm_image) found in images is recorded in the lock file too. If an image has not
    been probed yet, only the actions up to the probe are planned for its host, and the host is put into the group
    C(fleet_partial), to be planned again.
options:
  hosts:
    description:
      - Hosts to plan. Default is the hosts of the play that are in the group C(instinct), else that group.
    type: list
    elements: str
  again:
    description:
      - Hosts for the second plan of a run, after images were probed. These hosts were observed again, and RV(todo),
        RV(changes) and RV(text) are about them only. The other hosts are planned from their earlier state, because
        instances may span hosts. Ignores O(refresh).
    type: list
    elements: str
  offline:
    description:
      - Plan from the inventory alone, for hosts that were not contacted. They are assumed empty, with the GPUs that
        C(instinct_gpus) declares. Registries and hubs are not queried.
    type: bool
    default: false
  explain:
    description: Print every rendered setting of each deployment with its reason and source.
    type: bool
    default: false
  refresh:
    description: Resolve all image references and model revisions again, and pin the results.
    type: bool
    default: false
  check_pushes:
    description:
      - Query registries whether they still have the images that were built and pushed there. Without it, what
        C(fleet.lock.json) says is believed, unless a host does not have the image.
    type: bool
    default: false
  plan_file:
    description: Write the plan as JSON to this file on the control node, also in check mode.
    type: path
  lock_file:
    description:
      - The pins. Default is C(fleet.lock.json) in the inventory's directory. Not written in check mode.
    type: path
  apply:
    description:
      - Whether the run applies the plan. Only such a run generates missing keys and certificates of load balancers, and
        it cannot be O(offline).
    type: bool
    default: false
  new_secrets:
    description:
      - Secrets of the fleet that this run may replace by those next to the inventory, or by new ones if there are
        none. Without it, a run that would do so fails.
    type: list
    elements: str
    choices: [api_keys, certificate, instance_key]
    default: []
  operation:
    description:
      - How the run treats serving instances. V(deploy), V(upgrade), V(rollback) and V(restart) work in batches, which
        are returned as RV(rollout) and listed in the plan's text; V(stop) only stops instances.
      - V(benchmark) changes nothing. It takes instances out of service in such batches, and returns them.
      - Without it, the plan is that of a deploy, its text lists the batches, and nothing is refused because of them.
    type: str
    choices: [deploy, upgrade, rollback, restart, stop, benchmark]
  take_over:
    description:
      - Change hosts although another run has their lease, because that run is known to be dead. Without it, a run that
        changes hosts (O(apply), O(operation)) fails if another run is changing them.
    type: bool
    default: false
  remove_load_balancer:
    description:
      - Take down the load balancers that run on hosts outside the group C(load_balancer). Without it, the plan only
        lists them.
    type: bool
    default: false
  at_once:
    description:
      - Let V(deploy) replace all instances that serve at the same time, and lose the requests in progress.
      - Let V(stop), V(benchmark), O(reboots), O(stops) and changes of partition modes leave a deployment fewer engines
        in service than O(min_available), or none.
    type: bool
    default: false
  deployment:
    description: For V(restart), V(stop) and V(benchmark), only this deployment's instances.
    type: str
  instance:
    description: For V(restart), V(stop) and V(benchmark), only the instance of this name, on all hosts of the run.
    type: str
  only:
    description:
      - For V(restart), V(stop) and V(benchmark), only the instances of these hosts. Default is all hosts of the run.
    type: list
    elements: str
  generation:
    description:
      - For V(rollback), the target generation. Default is the newest one before the running generation.
    type: int
  reason:
    description: For V(rollback), the operator's reason, recorded in the journal and shown while the deployment is held.
    type: str
  retry:
    description: Upgrade a held deployment again to the definition that was rolled back.
    type: bool
    default: false
  canary:
    description: Compare the first group of an upgrade with its old release.
    type: bool
    default: true
  canary_terms:
    description: How the canary is judged; checked here, so that invalid values are refused before any change.
    type: dict
    default: {}
    suboptions:
      canary_tolerance:
        description: Percent of output throughput that may be lost.
        type: float
        default: 10
      canary_latency_tolerance:
        description: Percent by which the medians of TTFT and TPOT may increase.
        type: float
        default: 30
      canary_runs:
        description: Number of runs before and after.
        type: int
        default: 5
      canary_max_runs:
        description: Maximum number of runs after.
        type: int
        default: 15
      canary_accuracy_tolerance:
        description: Points of the sanity set that may be lost.
        type: float
        default: 2
  serial:
    description: Groups of hosts to change at a time, a number, a percentage, or a list of these. Default C([1, "20%"]).
    type: raw
  min_available:
    description: Engines of a deployment that stay in service, as a number or a percentage. Default is C(50%).
    type: raw
  partition_serial:
    description:
      - Hosts that change their partition modes at a time, a number, a percentage, or a list of these. Their instances
        stop, so the run is refused where a batch would leave a deployment fewer engines in service than
        O(min_available), or none.
    type: raw
    default: [1, "20%"]
  reboots:
    description:
      - Hosts that reboot in this run. It is refused where a batch of them would leave a deployment fewer engines in
        service than O(min_available), or none, or no load balancer.
    type: list
    elements: str
    default: []
  reboot_serial:
    description: Hosts that reboot at a time, a number, a percentage, or a list of these.
    type: raw
    default: [1, "20%"]
  stops:
    description: Hosts whose instances this run stops at the same time, for a while. It is refused like O(reboots).
    type: list
    elements: str
    default: []
  measure:
    description:
      - Whether a deploy measures what it starts. RV(todo) then names the instances that no load balancer uses before
        they are measured, with the group C(todo_benchmark); the plan's text says why the others are left out.
    type: bool
    default: false
  kinds:
    description:
      - The benchmarks that V(benchmark) runs. Without it, those of the hosts' C(benchmark_suite), and without a
        suite V(serve). The others run on one host, so they leave out engines over several hosts.
    type: list
    elements: str
    choices: [serve, latency, throughput]
    default: []
  live:
    description:
      - Whether V(benchmark) measures through a load balancer and drains nothing. RV(todo) then names the hosts of the
        clients. It needs O(rate).
    type: bool
    default: false
  rate:
    description: Requests per second with O(live).
    type: float
  measure_timeout:
    description: Maximum seconds of one benchmark; other runs wait that long if V(benchmark) keeps instances drained.
    type: int
    default: 7200
  soak:
    description: Seconds to watch each batch.
    type: raw
    default: 30
  drain_timeout:
    description: Maximum seconds for running requests to finish; for the text.
    type: int
    default: 300
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: Makes the same plan; missing pins are resolved, but not stored.
  diff_mode:
    support: none
    details: The plan itself lists the changes.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.node_state
  - module: instinct.fleet.bench_plan
"""

EXAMPLES = r"""
- name: Observe the node
  instinct.fleet.node_state:
  become: true
  register: node_state_result

- name: Plan what is missing
  instinct.fleet.fleet_plan:
    plan_file: plan.json
  run_once: true
  register: fleet_plan_result
"""

RETURN = r"""
plan:
  description: The plan; its schema is C(catalog/schemas/plan.schema.json).
  returned: success
  type: dict
todo:
  description: Hosts with actions, and excluded ones, in the form that M(ansible.builtin.add_host) needs.
  returned: success
  type: list
  elements: dict
  sample: [{name: n1, groups: [todo_host_prep, todo_vllm_serve], plan: {}}]
rollout:
  description:
    - The operation, its batches in order, and the seconds to watch each; null where V(deploy) replaces nothing that
      serves.
  returned: success
  type: dict
kinds:
  description: The benchmarks that V(benchmark) runs.
  returned: success
  type: list
  elements: str
  sample: [serve]
measures:
  description: Whether the run measures anything, so that M(instinct.fleet.bench_plan) must follow.
  returned: success
  type: bool
partial:
  description: Images that must be probed before the plan is complete.
  returned: success
  type: list
  elements: str
  sample: [registry.example/vllm:nightly]
ignored:
  description: A text for each deployment whose definition in the inventory is left out because it was rolled back.
  returned: success
  type: list
  elements: str
hold:
  description: Seconds for which a batch may keep instances out of a load balancer; other runs wait that long.
  returned: success
  type: int
  sample: 5850
changes:
  description: Number of actions on all hosts.
  returned: success
  type: int
  sample: 12
text:
  description: The printed plan.
  returned: success
  type: str
"""
