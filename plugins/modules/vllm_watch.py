#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: watch vLLM servers for a while."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_watch
short_description: Watch vLLM servers of a node for a while, and fail if one ends or is restarted
version_added: "0.1.0"
description:
  - Used after a change, when an engine that answered its first requests may still fail.
  - Fails as soon as a container does not run or was restarted, or the vLLM inside it ended.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
options:
  servers:
    description: The instances' names.
    type: list
    elements: str
    required: true
  seconds:
    description: How long to watch; 0 checks once.
    type: int
    default: 30
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Checks once.
  diff_mode:
    support: N/A
    details: Nothing is changed.
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Watch replaced instances
  instinct.fleet.vllm_watch:
    servers: [llama-0]
    seconds: 30
"""

RETURN = r"""
servers:
  description: The instances that were watched.
  type: list
  elements: str
  returned: success
seconds:
  description: How long the instances were watched.
  type: float
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.serving.soak import watch


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "servers": {"type": "list", "elements": "str", "required": True},
        "seconds": {"type": "int", "default": 30},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    seconds = 0 if module.check_mode else module.params["seconds"]
    finish(
        module,
        [],
        run_leased(
            module,
            lambda: watch(
                connect(module.params["docker_socket"], module.check_mode), module.params["servers"], seconds
            ),
        ),
    )


if __name__ == "__main__":
    main()
