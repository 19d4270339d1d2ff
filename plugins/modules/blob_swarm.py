#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: take part in moving an image or a model between nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: blob_swarm
short_description: Take part in moving an image or a model between the content stores of nodes
version_added: "0.2.0"
description:
  - Starts a program that offers blobs to other nodes, or receives them from all others at once, over BitTorrent without
    strangers - only the members of the run are let in, with its key, on the addresses that they declare.
  - The program outlives this module and the controller, and ends when all members are complete. Ports are open only
    until then.
  - Each blob is hashed before it gets its name in the store. What an interrupted run received is kept.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - python3-libtorrent on the node
options:
  state:
    description:
      - V(started) starts the program, and returns. V(finished) waits until the store is complete, and records it there;
        a node that has it all waits for nothing.
    type: str
    choices: [started, finished]
    required: true
  manifest:
    description: Name and files, each with path, size and sha256, as M(instinct.fleet.blob_fetch) returns it.
    type: dict
    required: true
  own:
    description: The name of this node among O(members).
    type: str
    required: true
  members:
    description: All nodes of the run, the same on each of them. Needed to start.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {type: str, required: true, description: A name for messages.}
      address: {type: str, required: true, description: The IP address where the others reach it.}
      port: {type: int, required: true, description: The first of its two TCP ports.}
      serves: {type: bool, default: false, description: Whether it has everything.}
  key:
    description: A secret of this run, 32 random bytes or more in hex digits. Needed to start.
    type: str
  limit:
    description: Maximum bytes per second that the node sends, and that it receives; 0 for no limit.
    type: int
    default: 0
  timeout:
    description: Seconds after which the program ends, and the module stops waiting.
    type: int
    default: 86400
  program:
    description: The program. The module's action plugin sets it; leave it out.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
  - instinct.fleet.store
attributes:
  check_mode:
    support: full
    details: Shows what would be moved.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: A node whose store is complete neither starts nor waits, unless it offers.
"""

EXAMPLES = r"""
- name: Start to receive
  instinct.fleet.blob_swarm:
    state: started
    manifest: "{{ offered.manifest }}"
    own: "{{ inventory_hostname }}"
    members:
      - {name: n1, address: 10.0.0.1, port: 29870, serves: true}
      - {name: n2, address: 10.0.0.2, port: 29870}
    key: "{{ key_of_this_run }}"
"""

RETURN = r"""
manifest_id:
  description: The manifest's SHA-256.
  type: str
  returned: success
bytes:
  description: With O(state=started) what is missing, with O(state=finished) what arrived.
  type: int
  returned: success
actions:
  description: What was done; in check mode what would be.
  type: list
  elements: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import (
    finish as finish_module,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import require_program
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_member import finish, start


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "state": {"type": "str", "required": True, "choices": ["started", "finished"]},
        "manifest": {"type": "dict", "required": True},
        "own": {"type": "str", "required": True},
        "members": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "name": {"type": "str", "required": True},
                "address": {"type": "str", "required": True},
                "port": {"type": "int", "required": True},
                "serves": {"type": "bool", "default": False},
            },
        },
        "key": {"type": "str", "no_log": True},
        "limit": {"type": "int", "default": 0},
        "timeout": {"type": "int", "default": 86400},
        "store": {"type": "path", "default": paths.STORE},
        "program": {"type": "str", "default": ""},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Start, or wait. Return the module's result."""
    require_program(params["program"])
    return (start if params["state"] == "started" else finish)(params, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=argument_spec(),
        required_if=[("state", "started", ("members", "key"))],
        supports_check_mode=True,
    )
    finish_module(
        module, [module.params["key"]], run_leased(module, lambda: work(module.params, module.check_mode))
    )


if __name__ == "__main__":
    main()
