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
  - If the controller dies, the next run removes the benchmark's container.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
options:
  run:
    description: Name of the measurement, a label of the containers. Default is the time in UTC.
    type: str
    default: ""
  kind:
    description: Which benchmark of vLLM.
    type: str
    choices: [serve, latency, throughput]
    default: serve
  targets:
    description:
      - The instances to measure, from the plan.
      - The module reads C(name), C(deployment), C(model), C(commit), C(served_model), C(image), C(vllm), C(port),
        C(argv) and C(server.container).
      - For an instance of a stored generation, C(generation) replaces C(server).
      - C(client), a map of C(image) and C(vllm), sets another image for the client, which must be on the node.
    type: list
    elements: dict
    default: []
  args:
    description:
      - Arguments of C(vllm bench), as a map; underscores and hyphens are equivalent. True gives the flag alone, false
        and null omit it, a list gives several values, a map JSON (C(goodput) and C(metadata) have their own forms).
      - If the release's client lacks a flag, the catalogue translates it. An argument that the client cannot express is
        an error before anything runs.
      - The offline benchmarks also get the instance's engine arguments, which these arguments override.
      - Evaluated on the control node, by the module's action plugin.
    type: dict
    default: {}
  repeat:
    description:
      - Number of consecutive runs, each with its own result. They share one process, so that vLLM is imported once.
      - With several runs or with O(warmups), each run has another seed, counted up from the C(seed) of O(args) or from
        the time, so that no prompt is in the prefix cache. Only for V(serve).
    type: int
    default: 1
  warmups:
    description: Number of runs before them, whose results are discarded. Only for V(serve).
    type: int
    default: 0
  timeout:
    description: Seconds that the benchmarks may take, including all runs.
    type: int
    default: 7200
  commands:
    description:
      - The command line of each target, by its name. The module's action plugin composes it from O(args); leave it out.
    type: dict
    default: {}
  seed:
    description: The seed of the first of several runs. The module's action plugin takes it from O(args); leave it out.
    type: int
    default: 0
  program:
    description: The program that repeats a run. The module's action plugin sets it; leave it out.
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
      - Shows what would be run, after checking that the instances are in the state that the kind needs.
  diff_mode:
    support: N/A
    details: A measurement changes nothing.
  idempotent:
    support: none
    details: Every call measures again. It leaves nothing on the node, so it reports no change.
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
      description: Its digest; null for an image built on the node.
      type: str
    command:
      description: The command line of the benchmark.
      type: list
      elements: str
    started:
      description: When it started, in seconds since 1970.
      type: float
    seconds:
      description: How long it took, including the client's start.
      type: float
    result:
      description: The JSON that vLLM wrote, with null for NaN; null if it wrote none. For several runs, the last one.
      type: dict
    results:
      description: The JSON of each successful run, without per-request lists.
      type: list
      elements: dict
    log:
      description: The last lines that it printed.
      type: str
    error:
      description: Why it failed; null if it succeeded.
      type: str
    instance_plan:
      description: The target from the parameters.
      type: dict
actions:
  description: Requests to Docker, in order; in check mode those that would be made.
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
from ansible_collections.instinct.fleet.plugins.module_utils.bench.run import complete_target, measure
from ansible_collections.instinct.fleet.plugins.module_utils.common.lease import LEASE_OPTION, leased
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import (
    NodeError,
    finish,
    require_program,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.node_key import node_key
from ansible_collections.instinct.fleet.plugins.module_utils.common.secret_files import node_secrets
from ansible_collections.instinct.fleet.plugins.module_utils.common.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET, DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.serving.store import GenerationStore


def argument_spec():
    """Return the module's options."""
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
        **LEASE_OPTION,
    }


def work(params, check):
    """Measure the targets. Return the module's result."""
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
        lambda: DockerClient(params["docker_socket"]),
        targets,
        params["kind"],
        run,
        params["timeout"],
        check,
        repeat,
    )


def main():
    """Run the module."""
    # no_log: the plan of an instance contains its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    try:
        targets = [complete_target(target, GenerationStore()) for target in module.params["targets"]]
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    secrets = [*secrets_of([target.get("server") or {} for target in targets]), *node_secrets(), node_key()]
    finish(
        module,
        secrets,
        leased(module, lambda: work({**module.params, "targets": targets}, module.check_mode)),
    )


if __name__ == "__main__":
    main()
