#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: drain instances from the load balancer, and return them to service."""

from __future__ import annotations

DOCUMENTATION = r"""
module: balancer_server
short_description: Drain instances from the load balancer or return them to service, and wait for that
version_added: "0.1.0"
description:
  - Runs on the load balancer's host. Sets the state of servers through HAProxy's admin socket, without a reload. The
    state persists over reloads, restarts and reboots.
  - A drained instance gets no new requests and finishes its running ones. The module waits until neither HAProxy nor
    the instance itself counts any.
  - An instance that is returned to service gets requests as soon as its C(/health) answers and it has generated tokens
    since it was started; the module waits for that.
author: instinct-fleet contributors (@instinct-fleet)
options:
  servers:
    description:
      - Servers by name, C(<deployment>/<host>.<instance>). Without it, the servers that match all
        of O(hosts), O(deployment), O(instance) and O(instances).
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
    description: Do not fail if no server matches, or if the host has no load balancer.
    type: bool
    default: false
  state:
    description: V(ready) returns to service, V(drain) drains, V(maint) drains and also stops the checks.
    type: str
    choices: [ready, drain, maint]
    required: true
  by:
    description: Who requests it. A V(run) leaves alone the servers that the V(operator) drained.
    type: str
    choices: [operator, run]
    default: operator
  at_once:
    description:
      - Drain even if fewer servers of a deployment than O(min_available) would stay in service. Without it, such a call
        fails and changes nothing. Servers that are down or drained already do not count, and may always be drained.
    type: bool
    default: false
  min_available:
    description:
      - Servers of a deployment that stay in service, as a number or a percentage of all. Default is C(50%). The last
        one that serves stays in any case.
    type: raw
  advice:
    description:
      - What the message of a call that fails because of O(min_available) tells the operator to do, instead of naming
        the part that may be drained.
    type: str
  wait:
    description:
      - Maximum seconds to wait; 0 does not wait. After that time, remaining requests are a warning, and an instance
        that is not in service is a failure.
    type: int
    default: 300
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Shows what would be set, and does not wait.
  diff_mode:
    support: full
    details: The state of each server, before and after.
  idempotent:
    support: full
    details: If a server is already in the state, the module only waits for it.
"""

EXAMPLES = r"""
- name: Drain an instance before it is replaced
  instinct.fleet.balancer_server:
    servers: [llama/mi300x-01.llama-0]
    state: drain
    by: run
    wait: 600

- name: Return all instances of a host to service
  instinct.fleet.balancer_server:
    hosts: [mi300x-01]
    state: ready
"""

RETURN = r"""
servers:
  description: The final state of each server.
  type: list
  elements: dict
  returned: when not in check mode
  sample: [{name: llama/n1.llama-0, state: drain, up: true, requests: 0, check: L7OK, done: true}]
actions:
  description: Commands sent; in check mode those that would be sent.
  type: list
  elements: str
  returned: success
  sample: [set server llama/n1.llama-0 state drain]
seconds:
  description: How long the module waited.
  type: float
  returned: when not in check mode
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.drain import (
    ServerStateRequest,
    find_servers,
    set_state,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import STATES
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.installed import Balancer
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "servers": {"type": "list", "elements": "str"},
        "hosts": {"type": "list", "elements": "str"},
        "deployment": {"type": "str"},
        "instance": {"type": "str"},
        "instances": {"type": "list", "elements": "str"},
        "optional": {"type": "bool", "default": False},
        "state": {"type": "str", "choices": list(STATES), "required": True},
        "by": {"type": "str", "choices": ["operator", "run"], "default": "operator"},
        "at_once": {"type": "bool", "default": False},
        "min_available": {"type": "raw"},
        "advice": {"type": "str"},
        "wait": {"type": "int", "default": 300},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Set the state and wait. Return the module's result."""
    balancer = Balancer()
    names, planned = params["servers"], params["servers"] is not None
    if not planned:
        keys = ("hosts", "deployment", "instance", "instances", "optional")
        names = find_servers(balancer, **{key: params[key] for key in keys})
    if not names:
        return {"changed": False, "actions": [], "servers": []}
    keys = ("state", "by", "wait", "at_once", "min_available")
    lease = params.get("lease") or {}
    run, command = (str(lease.get(key) or "") for key in ("run", "command"))
    # A plan names servers by whole hosts; an operator's selection can be as small as one instance.
    given = {key: params[key] for key in keys}
    given["advice"] = params.get("advice") or ""
    request = ServerStateRequest(tuple(names), **given, run=run, command=command, whole_hosts=planned)
    return set_state(balancer, request, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(
        module,
        [],
        run_leased(module, lambda: work(module.params, module.check_mode), Balancer().drain_record.has),
    )


if __name__ == "__main__":
    main()
