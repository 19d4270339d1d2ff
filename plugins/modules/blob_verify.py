#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: hash again what a node keeps of images and weights."""

from __future__ import annotations

DOCUMENTATION = r"""
module: blob_verify
short_description: Hash again what a node keeps of images and weights, and remove what is wrong
version_added: "0.2.0"
description:
  - Reads every blob of the content store, every file of the weights that were downloaded with their hashes, and of the
    models that M(instinct.fleet.model_quantize) made, and compares them.
  - What is wrong is named and removed, and the module fails. The next deploy fetches it again.
  - Docker's own copy of an image is not read; Docker compares layers when it unpacks them.
author: instinct-fleet contributors (@instinct-fleet)
options:
  cache_dirs:
    description: Caches of weights, as C(HF_HOME).
    type: list
    elements: path
    default: [/var/lib/instinct-fleet/hf]
  models:
    description: Local repositories.
    type: path
    default: /var/lib/instinct-fleet/models
  timeout:
    description: Seconds to wait for a download or another run of this module on the node.
    type: int
    default: 600
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
  - instinct.fleet.store
attributes:
  check_mode:
    support: full
    details: Reads and compares everything, and fails in the same way; removes nothing.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: What was wrong is gone afterwards.
"""

EXAMPLES = r"""
- name: Read everything again
  instinct.fleet.blob_verify:
"""

RETURN = r"""
bytes:
  description: How much was read.
  type: int
  returned: always
blobs:
  description: How many blobs the store has.
  type: int
  returned: always
snapshots:
  description: How many models at a commit the caches have.
  type: int
  returned: always
wrong:
  description: What was wrong, each with where it was.
  type: list
  elements: str
  returned: always
actions:
  description: What was removed; in check mode what would be.
  type: list
  elements: str
  returned: always
"""

from contextlib import ExitStack
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.content.model_manifest import MODELS
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.weights.rehash import rehash

LOCKS = ("hf_model", "blob_fetch", "blob_verify")  # modules that write what is read here


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "store": {"type": "path", "default": paths.STORE},
        "cache_dirs": {"type": "list", "elements": "path", "default": [paths.HF_CACHE]},
        "models": {"type": "path", "default": MODELS},
        "timeout": {"type": "int", "default": 600},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Hash everything. Return the module's result."""
    with ExitStack() as held:
        for name in () if check else LOCKS:
            held.enter_context(run_lock(name, params["timeout"]))
        return rehash(Store(params["store"]), params["cache_dirs"], params["models"], check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, (), run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
