#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: take instances out of the load balancer, and in again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: balancer_server
short_description: Take instances out of the load balancer and in again, and wait until it is so
version_added: "0.1.0"
description:
  - Runs on the load balancer's host. Sets the state of servers through HAProxy's admin socket, without a reload,
    and keeps it over reloads, restarts and reboots.
  - An instance that is out gets no new request and finishes those that it has. The module waits until neither
    HAProxy nor the instance itself counts one.
  - Taken in, an instance gets requests as soon as its C(/health) answers and it has generated tokens since it was
    started; the module waits for that.
author: instinct-fleet contributors (@instinct-fleet)
options:
  servers:
    description:
      - Servers by name, C(<deployment>/<host>.<instance>). Without it, O(hosts), O(deployment) and O(instance)
        choose, and all of them together mean.
    type: list
    elements: str
  hosts:
    description: Servers on these hosts. Default is all.
    type: list
    elements: str
  deployment:
    description: Servers of this deployment. Default is all.
    type: str
  instance:
    description: The server of this instance, such as C(llama-0).
    type: str
  instances:
    description: The servers of these instances.
    type: list
    elements: str
  optional:
    description: It is no failure that no server is meant, or that there is no load balancer on the host.
    type: bool
    default: false
  state:
    description: V(ready) takes in, V(drain) takes out, V(maint) takes out and stops the checks too.
    type: str
    choices: [ready, drain, maint]
    required: true
  by:
    description: Who wants it. What the V(operator) took out is left as it is by a V(run).
    type: str
    choices: [operator, run]
    default: operator
  wait:
    description:
      - Seconds to wait at most; 0 does not wait. Requests that are left then are a warning; an instance that is
        not in then is a failure.
    type: int
    default: 300
extends_documentation_fragment:
  - instinct.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Says what would be set, and waits for nothing.
  diff_mode:
    support: full
    details: The state of each server, before and after.
  idempotent:
    support: full
    details: A server that is in the state is only waited for.
"""

EXAMPLES = r"""
- name: Take an instance out before it is replaced
  instinct.fleet.balancer_server:
    servers: [llama/mi300x-01.llama-0]
    state: drain
    by: run
    wait: 600

- name: Take all instances of a host in again
  instinct.fleet.balancer_server:
    hosts: [mi300x-01]
    state: ready
"""

RETURN = r"""
servers:
  description: What is of each server in the end.
  type: list
  elements: dict
  returned: when not in check mode
  sample: [{name: llama/n1.llama-0, state: drain, up: true, requests: 0, check: L7OK, done: true}]
actions:
  description: What was, or in check mode would be, done.
  type: list
  elements: str
  returned: success
  sample: [set server llama/n1.llama-0 state drain]
seconds:
  description: How long it waited.
  type: float
  returned: when not in check mode
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.drain import Balancer, Wish, put, select
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import STATES


def argument_spec():
    """The module's options."""
    return {
        "servers": {"type": "list", "elements": "str"},
        "hosts": {"type": "list", "elements": "str"},
        "deployment": {"type": "str"},
        "instance": {"type": "str"},
        "instances": {"type": "list", "elements": "str"},
        "optional": {"type": "bool", "default": False},
        "state": {"type": "str", "choices": list(STATES), "required": True},
        "by": {"type": "str", "choices": ["operator", "run"], "default": "operator"},
        "wait": {"type": "int", "default": 300},
    }


def work(params, check):
    """Set and wait. Returns the module's result."""
    balancer = Balancer()
    names = params["servers"]
    if names is None:
        keys = ("hosts", "deployment", "instance", "instances", "optional")
        names = select(balancer, **{key: params[key] for key in keys})
    if not names:
        return {"changed": False, "actions": [], "servers": []}
    return put(balancer, Wish(tuple(names), params["state"], params["by"], params["wait"]), check)


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], lambda: work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
