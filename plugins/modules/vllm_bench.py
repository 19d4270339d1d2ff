#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: measure the vLLM instances of a node with vLLM's own benchmarks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_bench
short_description: Measure vLLM instances with vLLM's own benchmark client
version_added: "0.1.0"
description:
  - Runs C(vllm bench) in one container per instance, made from the instance's own image, environment,
    devices and
    mounts, for all given instances at once, and returns the JSON that it wrote.
  - V(serve) measures running instances through their HTTP endpoints. V(latency) and V(throughput) load the
    model
    themselves, so the instances must be stopped before.
  - Percentiles 50, 90, 95 and 99 of TTFT, TPOT, ITL and E2EL are measured unless O(args) asks for others.
  - The API key of an instance reaches the client through the instance's environment file, never as an
    argument.
  - A benchmark of which no request completed, or of which some failed, is a failure, with what the server's
    log
    says of it.
  - The container of a benchmark whose controller died is removed by the next run.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
options:
  run:
    description: Name of the measurement, a label of the containers; empty for the time in UTC.
    type: str
    default: ""
  kind:
    description: Which benchmark of vLLM.
    type: str
    choices: [serve, latency, throughput]
    default: serve
  targets:
    description:
      - The instances to measure, as the plan has them.
      - Read are C(name), C(deployment), C(model), C(commit), C(served_model), C(image), C(vllm), C(port), C(argv) and
        C(server.container).
      - Of an instance of a generation that the node keeps, C(generation) stands for C(server).
      - C(client), a map of C(image) and C(vllm), names another image to measure with, which must be on the node.
    type: list
    elements: dict
    default: []
  args:
    description:
      - Arguments of C(vllm bench), as a map; underscores and hyphens are the same. True gives the flag alone,
        false and null leave it out, a list gives several values, a map JSON (C(goodput) and C(metadata)
        their own
        forms).
      - Of a flag that the release's client does not have, the catalogue says how it means the same. What it cannot
        express at all is an error, before anything runs.
      - The offline benchmarks also get the instance's engine arguments; these here go over them.
      - Read on the control node, by the action plugin of this module's name.
    type: dict
    default: {}
  repeat:
    description:
      - Runs, one after the other, each with its own result. They share one process, so that vLLM is imported once.
      - Of more than one, or with O(warmups), each run has another seed, from the C(seed) of O(args) on, else from the
        time on, so that no prompt is in the prefix cache. Only of V(serve).
    type: int
    default: 1
  warmups:
    description: Runs before those, whose results are thrown away. Only of V(serve).
    type: int
    default: 0
  timeout:
    description: Seconds that the benchmarks may take, all runs of them.
    type: int
    default: 7200
  commands:
    description:
      - The command line of each target, by its name. The action plugin composes them of O(args); leave it out.
    type: dict
    default: {}
  seed:
    description: The seed of the first of several runs. The action plugin takes it from O(args); leave it out.
    type: int
    default: 0
  program:
    description: The program that repeats a run. The action plugin of this module's name gives it; leave it out.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
attributes:
  check_mode:
    support: full
    details:
      - Says what would be run, after checking that the instances are in the state which the kind needs.
  diff_mode:
    support: N/A
    details: A measurement changes nothing.
  idempotent:
    support: none
    details: Every call measures anew. It leaves nothing on the node, so it reports no change.
"""

EXAMPLES = r"""
- name: Measure all instances of the node at once
  instinct.fleet.vllm_bench:
    run: 2026-01-31-evening
    targets: "{{ fleet_plan_result.plan.hosts[inventory_hostname].instances }}"
    args:
      dataset_name: random
      random_input_len: 1024
      random_output_len: 1024
      num_prompts: 640
      max_concurrency: 128
      ignore_eos: true
      seed: 0
"""

RETURN = r"""
benchmarks:
  description: One entry for each target.
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
      description: Its digest; null for one that was built on the node.
      type: str
    command:
      description: The command line of the benchmark.
      type: list
      elements: str
    started:
      description: When it started, in seconds since 1970.
      type: float
    seconds:
      description: How long it took, with the client's start.
      type: float
    result:
      description: What vLLM wrote, with null for NaN; null when it wrote nothing. Of several runs, the last one's.
      type: dict
    results:
      description: What it wrote in each run that went well, without the lists of every request.
      type: list
      elements: dict
    log:
      description: The last lines that it printed.
      type: str
    error:
      description: Why it failed; null when it did not.
      type: str
    instance_plan:
      description: The target as it was given.
      type: dict
actions:
  description: Requests to the engine, in order; in check mode those that would be made.
  type: list
  elements: str
  returned: as RV(benchmarks)
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.containers import (
    parse_repeat,
    parse_target,
)
from ansible_collections.instinct.fleet.plugins.module_utils.bench.run import measure, whole
from ansible_collections.instinct.fleet.plugins.module_utils.common.instance_key import node_key
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import (
    NodeError,
    finish,
    require_program,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET, Engine
from ansible_collections.instinct.fleet.plugins.module_utils.serving.store import Store


def argument_spec():
    """The module's options."""
    return {
        "run": {"type": "str", "default": ""},
        "kind": {"type": "str", "choices": ["serve", "latency", "throughput"], "default": "serve"},
        "targets": {"type": "list", "elements": "dict", "default": []},
        "args": {"type": "dict", "default": {}},
        "repeat": {"type": "int", "default": 1},
        "warmups": {"type": "int", "default": 0},
        "timeout": {"type": "int", "default": 7200},
        "commands": {"type": "dict", "default": {}},
        "seed": {"type": "int", "default": 0},
        "program": {"type": "str", "default": ""},
        "docker_socket": {"type": "path", "default": SOCKET},
    }


def work(params, check):
    """Measure. Returns the module's result."""
    run = params["run"] or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    if "/" in run or run.startswith("."):
        raise NodeError(f"run: {run!r} is not a name (it becomes part of a path).")
    commands = params["commands"]
    missing = [str(target.get("name")) for target in params["targets"] if target.get("name") not in commands]
    if missing:
        raise NodeError(
            f"commands: none for {', '.join(missing)}. The action plugin vllm_bench composes them."
        )
    targets = [parse_target(target, commands[target["name"]]) for target in params["targets"]]
    repeat = parse_repeat(
        params["kind"], params["repeat"], params["warmups"], params["seed"], params["program"]
    )
    if repeat:
        require_program(repeat.program)
    return measure(
        lambda: Engine(params["docker_socket"]),
        targets,
        params["kind"],
        run,
        params["timeout"],
        check,
        repeat,
    )


def main():
    """Entry point."""
    # no_log: the plan of an instance holds its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    try:
        targets = [whole(target, Store()) for target in module.params["targets"]]
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    secrets = [*secrets_of([target.get("server") or {} for target in targets]), node_key()]
    finish(module, secrets, lambda: work({**module.params, "targets": targets}, module.check_mode))


if __name__ == "__main__":
    main()
