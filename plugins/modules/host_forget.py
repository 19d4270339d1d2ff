#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: take apart a host that leaves the fleet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_forget
short_description: Remove what the toolkit made on a host that leaves the fleet
version_added: "0.2.0"
description:
  - Removes containers of the toolkit, units, settings of the host, keys, records and caches, and checks that they are
    gone. Lines of other files that the toolkit turned off are turned on again. A load balancer on the host is first
    taken down by M(instinct.fleet.haproxy_config).
  - Weights, the content store and images stay unless O(weights) and O(images) are true. Values of the running kernel
    and partition modes of GPUs stay until a reboot, packages for good; RV(left) names what stays.
  - What another tool made stays - containers and images without a mark of the toolkit, and weights without its marker.
    So do weights on a network file system, or in a directory that a container of another tool mounts.
  - Fails, and removes nothing, while a container of the toolkit runs.
author: instinct-fleet contributors (@instinct-fleet)
options:
  weights:
    description: Also remove weights, models that were quantized here, and the content store.
    type: bool
    default: false
  images:
    description: Also remove the images that the toolkit pulled or built.
    type: bool
    default: false
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
  - instinct.fleet.ownership
attributes:
  check_mode:
    support: full
    details: Names what would be removed, also while containers run.
  diff_mode:
    support: full
    details: What is there, before and after.
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Take the host apart
  instinct.fleet.host_forget:
    images: true
"""

RETURN = r"""
actions:
  description: What was removed, in order; in check mode what would be.
  type: list
  elements: str
  returned: success
  sample: [remove container instinct-llama-0, remove /etc/instinct-fleet]
left:
  description: What stays on the host, and what removes it.
  type: list
  elements: str
  returned: success
  sample: ["weights in /var/lib/instinct-fleet/hf (131.4 GiB): -e forget_weights=true"]
"""

import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_names import Override
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.host.forget_data import ForgetRequest
from ansible_collections.instinct.fleet.plugins.module_utils.host.forget_node import ForgottenHost, converge
from ansible_collections.instinct.fleet.plugins.module_utils.host.prune_node import PrunePaths
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased

PROGRAMS = "/usr/bin:/usr/sbin:/usr/local/bin"


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "weights": {"type": "bool", "default": False},
        "images": {"type": "bool", "default": False},
        "registry_override": {"type": "dict", "default": {}},
        "push_repositories": {"type": "list", "elements": "str", "default": []},
        "cache_dirs": {"type": "list", "elements": "path", "default": [paths.HF_CACHE]},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Take the host apart. Return the module's result."""
    wanted = ForgetRequest(
        weights=params["weights"],
        images=params["images"],
        overrides=tuple(Override(*pair) for pair in params["registry_override"].items()),
        pushed=frozenset(params["push_repositories"]),
    )
    node = PrunePaths(tuple(path.rstrip("/") for path in params["cache_dirs"]))
    # A load balancer's host has no Docker; one whose Docker does not answer may have containers.
    client = connect(params["docker_socket"], check or not shutil.which("dockerd", path=PROGRAMS))
    return converge(client, ForgottenHost(node), wanted, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
