#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: measure the vLLM instances of a node with vLLM's own benchmarks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_bench
short_description: Measure vLLM instances with vLLM's own benchmark client
version_added: "0.1.0"
description:
  - Runs C(vllm bench) in one container per instance, with the instance's own image, environment, devices and mounts,
    for all given instances at once, and returns the JSON that it wrote.
  - V(serve) measures running instances through their HTTP endpoints. V(latency) and V(throughput) load the model
    themselves, so the instances must be stopped first.
  - Percentiles 50, 90, 95 and 99 of TTFT, TPOT, ITL and E2EL are measured unless O(args) sets others.
  - The API key of an instance reaches the client through the instance's environment file, never as an argument.
  - A benchmark fails if no request completed or some requests failed; the error has the cause in the server's log.
  - If the controller dies, the next call removes the benchmark's container. A call with the same O(run), instances and
    arguments keeps the runs that were finished, and performs the others. Files on the node are removed once their
    results were returned.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
options:
  run:
    description:
      - Name of the measurement, a label of the containers. Default is the time in UTC, and then there is nothing to
        continue from.
    type: str
    default: ""
  kind:
    description: Which benchmark of vLLM.
    type: str
    choices: [serve, latency, throughput]
    default: serve
  targets:
    description:
      - What to measure, from the plan.
      - It reads C(name), C(deployment), C(model), C(commit), C(served_model), C(image), C(vllm), C(port),
        C(argv) and C(server.container).
      - For an instance of a stored generation, C(generation) replaces C(server).
      - C(client), with C(image) and C(vllm), sets another image for the client; it must be on the node.
      - C(endpoint), with C(balancer) and C(url), sends the requests through that load balancer. The action plugin
        adds its key and certificate. C(deployments) names those that answer.
    type: list
    elements: dict
    default: []
  args:
    description:
      - Arguments of C(vllm bench), as a map; underscores and hyphens are equivalent. True gives the flag alone, false
        and null omit it, a list gives several values, a map JSON (C(goodput) and C(metadata) have their own forms).
      - If the release's client does not have a flag, the catalogue translates it. An argument that the client cannot
        express is an error before anything runs.
      - The offline benchmarks also get the instance's engine arguments, which these arguments override.
      - Evaluated on the control node, by the action plugin.
    type: dict
    default: {}
  suite:
    description:
      - What to measure in place of O(args) and O(repeat), a name in C(catalog/suites) or a path. Its cells of this
        O(kind) are measured; for a suite that searches for loads, the module is called for each probe.
    type: str
    default: ""
  overrides:
    description:
      - What a suite leaves to the operator, such as C(blocks), C(most), C(half_width), C(warmups), C(seed),
        C(percentiles) and C(dataset_path).
      - C(dataset_path), here and in O(args), is a file on the control node.
    type: dict
    default: {}
  results_dir:
    description: Where probes of a O(run) are kept until it is reported, on the control node. A killed search continues
      from them.
    type: path
    default: results
  repeat:
    description:
      - Number of runs, each with its own result. Each has another seed, counted up from the C(seed) of O(args) or from
        the time, so that no prompt is in the prefix cache.
    type: int
    default: 1
  most:
    description:
      - Number of runs up to which a measurement is repeated while the 95 % interval of its median is wider than
        O(half_width). Measurements of fewer than 3 runs are not repeated.
    type: int
    default: 10
  half_width:
    description: Half the width of that interval at which a measurement is precise enough, relative to the median.
    type: float
    default: 0.02
  warmups:
    description: Number of runs before them, whose results are discarded.
    type: int
    default: 0
  timeout:
    description: Seconds that a cell may take, including all its runs; O(args) make one cell.
    type: int
    default: 7200
  jobs:
    description:
      - What is measured of each target. The module's action plugin composes it; leave it out.
    type: dict
    default: {}
  program:
    description: Set by the module's action plugin; leave it out.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details:
      - Shows what would be run, after checking the state of the instances.
  diff_mode:
    support: N/A
    details: A measurement changes nothing.
  idempotent:
    support: none
    details: Every call measures again. It leaves only data sets on the node, and reports no change.
"""

EXAMPLES = r"""
- name: Measure all instances of the node with a suite
  instinct.fleet.vllm_bench:
    suite: serving
    targets: "{{ fleet_plan_result.plan.hosts[inventory_hostname].instances }}"

- name: Measure all instances of the node at once
  instinct.fleet.vllm_bench:
    run: 2026-01-31-evening
    targets: "{{ fleet_plan_result.plan.hosts[inventory_hostname].instances }}"
    args: {random_input_len: 1024, random_output_len: 1024, num_prompts: 640, max_concurrency: 128}
    repeat: 3
    warmups: 1
"""

RETURN = r"""
benchmarks:
  description: One entry for each cell of each target; O(args) make one cell.
  type: list
  elements: dict
  returned: always, unless the parameters are wrong or an instance is not in the state that the kind needs
  contains:
    instance:
      description: The instance's name.
      type: str
    deployment:
      description: Its deployment.
      type: str
    kind:
      description: The benchmark.
      type: str
    suite:
      description: The suite; null for O(args).
      type: str
    cell:
      description: Name of the cell, made of its shape and load.
      type: str
    shape:
      description: C(input) and C(output), tokens of a prompt and an answer; null for a data set of various lengths.
      type: dict
    load:
      description: C(kind), one of C(concurrency), C(rate), C(batch) and C(all), and its C(value).
      type: dict
    metric:
      description: The metric whose interval decides about repeats.
      type: str
    slos:
      description: Limits of latencies by which goodput is computed.
      type: list
      elements: dict
    model:
      description: The model.
      type: str
    commit:
      description: Its commit; null for a model given by path.
      type: str
    image:
      description: The image that served and measured.
      type: str
    digest:
      description: Its digest; null for an image built on the node.
      type: str
    command:
      description: The command line of the benchmark, without the seed.
      type: list
      elements: str
    runs:
      description: The runs in order of their blocks, failed ones too.
      type: list
      elements: dict
      contains:
        block:
          description: Which pass over all cells, from 1 on; 0 for a warm-up that failed.
          type: int
        order:
          description: Position within the block, from 1 on.
          type: int
        seed:
          description: The client's seed.
          type: int
        started:
          description: When it started, in seconds since 1970.
          type: float
        seconds:
          description: How long it took, including the client's start.
          type: float
        client_cpu_share:
          description:
            - CPU time of the client per second of measurement; null if unknown. Close to 1, the client is the limit.
          type: float
        result:
          description: The JSON that vLLM wrote, with null for NaN, without per-request lists; null if it wrote none.
          type: dict
        detail:
          description:
            - The per-request lists as JSON, compressed by gzip, in base64; null if there are none or if they are too
              large. Gaps between tokens (C(itls)) are left out where only they are.
          type: str
        log:
          description: The last lines that it printed, if they are needed.
          type: str
        error:
          description: Why it failed; null if it succeeded.
          type: str
        telemetry:
          description:
            - What the instance's GPUs did during the run - C(gpus) with power, clocks, temperatures, throttle shares,
              ECC counts and PCIe link of each; C(problems) of reading them; C(shared) if other instances ran on them.
            - Throttle shares and new errors are those of all runs of the call.
            - Null on a node without GPUs, for a run of an earlier call, and for requests through a load balancer.
          type: dict
    log:
      description: The last lines that were printed, if the cell failed.
      type: str
    error:
      description: Why the cell failed or has too few runs; null if it succeeded.
      type: str
    live:
      description: Whether the requests went through a load balancer, together with those of users.
      type: bool
    instance_plan:
      description: The target from the parameters, without C(server).
      type: dict
searches:
  description: C(slo_searches) of the results (docs/results.md), without C(host).
  type: list
  elements: dict
  returned: for a suite that searches
actions:
  description: Requests to Docker, in order; in check mode those that would be made.
  type: list
  elements: str
  returned: as RV(benchmarks)
"""

import contextlib
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.containers import (
    complete_target,
    parse_target,
)
from ansible_collections.instinct.fleet.plugins.module_utils.bench.entries import Measurement
from ansible_collections.instinct.fleet.plugins.module_utils.bench.run import measure
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import (
    NodeError,
    finish,
    require_program,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.node_key import node_key
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.secret_files import node_secrets
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.disk.beneath import remove_tree
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET, DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store import GenerationStore
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "run": {"type": "str", "default": ""},
        "kind": {"type": "str", "choices": ["serve", "latency", "throughput"], "default": "serve"},
        "targets": {"type": "list", "elements": "dict", "default": []},
        "args": {"type": "dict", "default": {}},
        "suite": {"type": "str", "default": ""},
        "overrides": {"type": "dict", "default": {}},
        "results_dir": {"type": "path", "default": "results"},
        "repeat": {"type": "int", "default": 1},
        "most": {"type": "int", "default": 10},
        "half_width": {"type": "float", "default": 0.02},
        "warmups": {"type": "int", "default": 0},
        "timeout": {"type": "int", "default": 7200},
        "jobs": {"type": "dict", "default": {}},
        "program": {"type": "str", "default": ""},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Measure the targets. Return the module's result."""
    run = params["run"] or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    if "/" in run or run.startswith("."):
        raise NodeError(f"run: {run!r} is not a name (it becomes part of a path).")
    require_program(params["program"])
    jobs = params["jobs"]
    targets = [parse_target(target, jobs.get(target.get("name"))) for target in params["targets"]]
    wanted = Measurement(params["kind"], run, params["timeout"], params["program"])
    try:
        return measure(lambda: DockerClient(params["docker_socket"]), targets, wanted, check)
    finally:
        if not params["run"]:  # no other call can continue it
            with contextlib.suppress(NodeError):  # prune.yml says why
                remove_tree(wanted.directory)


def main() -> None:
    """Run the module."""
    # no_log: the plan of an instance contains its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    try:
        targets = [complete_target(target, GenerationStore()) for target in module.params["targets"]]
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    secrets = [*secrets_of([target.get("server") or {} for target in targets]), *node_secrets(), node_key()]
    secrets += [key for target in targets if (key := (target.get("endpoint") or {}).get("key"))]
    finish(
        module,
        secrets,
        run_leased(module, lambda: work({**module.params, "targets": targets}, module.check_mode)),
    )


if __name__ == "__main__":
    main()
