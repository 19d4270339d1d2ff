#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: keep what an instance compiled, and give it to equal instances before they start."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_cache
short_description: Pack the caches of vLLM instances, and restore them for equal instances before these start
version_added: "0.2.0"
description:
  - What vLLM, Triton and AITER compile during a first start takes minutes, and is the same for all instances of one
    image, model, command and GPU, to which the plan gives the same C(cache_key). V(packed) puts the caches of one of
    them
    into the node's content store; the action plugin copies the bundle to the control node
    (C(~/.cache/instinct-fleet/bundles), for the operator alone) and records its hash there.
  - V(restored) writes a recorded bundle into the cache directories of instances that have not had it, before they
    start. The action plugin sends it to nodes that do not have it. M(instinct.fleet.vllm_server) does this by itself.
  - The bundles are executable code. A bundle is packed only from an instance that this toolkit has just started and
    asked for tokens; its SHA-256 is compared on every node; links in caches are not followed, existing files are not
    replaced, and everything belongs to root.
  - Neither state fails because of a cache. If one cannot be packed or restored, that is a warning, and the instance
    starts cold.
author: instinct-fleet contributors (@instinct-fleet)
options:
  state:
    description: V(packed) after the first instance of a kind is ready; V(restored) before others start.
    type: str
    choices: [packed, restored]
    required: true
  instances:
    description: The instances, as in the plan's C(servers). Those without C(cache_key) are left out.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The instance's name.
        type: str
        required: true
      cache_key:
        description: The hash of what its caches depend on.
        type: str
        required: true
  limit:
    description: Bytes of caches above which they are not packed. V(0) packs and restores nothing.
    type: int
    default: 1073741824
  bundles:
    description: The recorded bundles by C(cache_key). The action plugin sets them; leave them out.
    type: dict
    default: {}
  files:
    description: Bundles that were sent to the node, by SHA-256. The action plugin sets them; leave them out.
    type: dict
    default: {}
  export:
    description: A directory for copies of what is packed. The action plugin sets it; leave it out.
    type: path
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: partial
    details: Names what would be restored. What will be packed is not known in advance.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: An instance that has had the bundle of its key is left alone; a key that has a bundle is not packed again.
"""

EXAMPLES = r"""
- name: Keep what the first instance has compiled
  instinct.fleet.instance_cache:
    state: packed
    instances: "{{ fleet_host_plan.servers }}"
"""

RETURN = r"""
actions:
  description: What was packed or restored; in check mode what would be restored.
  type: list
  elements: str
  returned: success
  sample: ["pack /var/lib/instinct-fleet/cache/llama-0 (212 files, 3.1 MiB)"]
bundles:
  description: What was packed, by C(cache_key) - SHA-256 and bytes of the bundle, bytes and number of the files in it.
  type: dict
  returned: O(state=packed)
warm:
  description: The instances whose caches were restored.
  type: list
  elements: str
  returned: O(state=restored)
missing:
  description: The bundles that are not on the node, by SHA-256.
  type: list
  elements: str
  returned: O(state=restored)
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.serving.instance_caches import (
    pack_caches,
    parse_bundles,
    parse_instances,
    restore_caches,
)


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "state": {"type": "str", "choices": ["packed", "restored"], "required": True},
        "instances": {
            "type": "list",
            "elements": "dict",
            "required": True,
            "options": {
                "name": {"type": "str", "required": True},
                "cache_key": {"type": "str", "required": True, "no_log": False},
            },
        },
        "limit": {"type": "int", "default": 2**30},
        "bundles": {"type": "dict", "default": {}},
        "files": {"type": "dict", "default": {}},
        "export": {"type": "path"},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Pack or restore. Return the module's result."""
    instances = parse_instances(params["instances"])
    if params["state"] == "packed":
        return pack_caches(instances, params["limit"], params["export"] or "", check)
    return restore_caches(instances, parse_bundles(params["bundles"]), params["files"], check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
