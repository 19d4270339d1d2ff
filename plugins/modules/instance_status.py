#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: read what runs on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_status
short_description: Read the instances of a node and the servers of its load balancer
version_added: "0.1.0"
description:
  - Reads every instance of the node in one call - its container, its supervisor's report with its failures,
    C(/health), and C(/metrics) twice, a second apart, all instances at the same time.
  - On a host with a load balancer it reads HAProxy's servers too.
  - Changes nothing, and leaves the judgement to M(instinct.fleet.fleet_status).
author: instinct-fleet contributors (@instinct-fleet)
options:
  cache_dirs:
    description: The C(HF_HOME) directories of weights, for C(held_bytes).
    type: list
    elements: path
    default: [/var/lib/instinct-fleet/hf]
extends_documentation_fragment:
  - instinct.fleet.attributes.read_only
  - instinct.fleet.docker
seealso:
  - module: instinct.fleet.fleet_status
  - module: instinct.fleet.node_state
"""

EXAMPLES = r"""
- name: Read what runs
  instinct.fleet.instance_status:
  become: true
  register: instance_status_result
"""

RETURN = r"""
instance_status:
  description: What was found. Times are seconds since the epoch.
  returned: success
  type: dict
  contains:
    schema: {description: Version of this structure., type: int, sample: 1}
    now: {description: The node's clock., type: float}
    instances:
      description:
        - One entry per container of an instance. C(health) is the HTTP status of C(/health), 0 without an answer and
          null if it was not queried; C(metrics) is null if there are none; C(failure) is the cause in the log of a
          container that exited by itself and has no supervisor. C(attention) has the planned attention
          backend and those that this container's log proved at startup; null if none was planned, or the log was
          not read yet. C(start) has what vLLM measured when it started, as M(instinct.fleet.node_state) has it.
      type: list
      elements: dict
      sample: [{name: llama-0, deployment: llama, status: running, exit_code: 0, oom_killed: false, started: 1.0,
                finished: null, restarts: 0, spec_hash: 12ab, image: "r@sha256:22", vllm: 0.11.2,
                endpoint: {host: 127.0.0.1, port: 8000}, ready: true,
                attention: {planned: aiter_fa, running: [aiter_fa]}, supervisor: null, health: 200,
                metrics: {running: 3, waiting: 0, kv: 0.12, tokens_per_second: 210.5, prompt_tokens_per_second: 90.0,
                          generated: 1000}, failure: null}]
    balancer:
      description: Servers of the load balancer on this host; null if there is none. C(out) is who drained it.
      type: dict
      sample: {error: "", servers: [{name: "llama/n1.llama-0:8000", host: n1, instance: llama-0, deployment: llama,
                                     state: ready, up: true, check: L7OK, requests: 3, out: null}]}
    problems: {description: Sources that could not be read., type: list, elements: str}
    disks:
      description: File systems of images, weights, caches and records, and how full they are, as C(df) has it.
      type: list
      elements: dict
      sample: [{path: /var/lib/docker, percent: 71, free_bytes: 251000000000}]
    held_bytes:
      description: >-
        Bytes of images, weights, models that were made on the fleet, and the content store, which C(store_quota)
        limits; null without Docker.
      type: int
      sample: 213000000000
lease:
  description: The run that is changing this node, or the last one that did, as M(instinct.fleet.node_state) has it;
    null without one.
  returned: success
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.host.status import StatusPaths, read_node
from ansible_collections.instinct.fleet.plugins.module_utils.observe.lease import read_run
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "cache_dirs": {"type": "list", "elements": "path", "default": [paths.HF_CACHE]},
        "docker_socket": {"type": "path", "default": SOCKET},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    node = StatusPaths(
        docker_socket=module.params["docker_socket"], cache_dirs=tuple(module.params["cache_dirs"])
    )
    finish(
        module,
        [],
        lambda: {"changed": False, "instance_status": read_node(node), "lease": read_run(Source())},
    )


if __name__ == "__main__":
    main()
