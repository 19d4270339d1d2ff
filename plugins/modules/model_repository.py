#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: put a model that another node made at its path on this node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_repository
short_description: Put a model that another node has made at its path on this node
version_added: "0.2.0"
description:
  - Takes a local repository, which M(instinct.fleet.model_quantize) made on another node, out of the content store,
    where M(instinct.fleet.blob_swarm) has put it.
  - The signature is verified on the control node, and the files are hashed, before the directory appears, complete. The
    files take no extra space if they are on the same file system as the store.
  - A directory that differs is replaced. Running instances continue with the files that they opened.
author: instinct-fleet contributors (@instinct-fleet)
options:
  path:
    description: Its directory, which ends in NAME/COMMIT; the commit is the hash of its file list.
    type: path
    required: true
  name:
    description: The name of its manifest in the store.
    type: str
    required: true
  public_key_file:
    description: A file of the control node with the public EC key in PEM form that must have signed it.
    type: path
    default: ""
  step:
    description: >-
      V(read) returns manifest and signature, V(place) puts it at its path. The action plugin sets it; leave it out.
    type: str
    choices: [read, place]
    default: place
  timeout:
    description: Seconds to wait for another run on the node, and for reading the files.
    type: int
    default: 14400
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
  - instinct.fleet.store
attributes:
  check_mode:
    support: full
    details: Nothing is received in check mode, so the directory is compared with its own manifest.
  diff_mode:
    support: full
    details: Whether the directory is as it was made, before and after.
  idempotent:
    support: full
seealso:
  - module: instinct.fleet.model_verify
"""

EXAMPLES = r"""
- name: Put the model at its path
  instinct.fleet.model_repository:
    path: /var/lib/instinct-fleet/models/llama-ptpc-fp8/3f2a9c0d1e4b5a69788796a5b4c3d2e1f0a9b8c7
    name: model /var/lib/instinct-fleet/models/llama-ptpc-fp8@3f2a9c0d1e4b5a69788796a5b4c3d2e1f0a9b8c7 unsigned
    public_key_file: keys/models.pub
"""

RETURN = r"""
path:
  description: The directory.
  type: str
  returned: success
key:
  description: The SHA-256 of the public key that verified the signature; empty where none was verified.
  type: str
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
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.received_repository import (
    is_as_named,
    is_placed,
    place_repository,
    stored_repository,
)
from ansible_collections.instinct.fleet.plugins.module_utils.store.repository import LocalRepository


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "path": {"type": "path", "required": True},
        "name": {"type": "str", "required": True},
        "public_key_file": {"type": "path", "default": "", "no_log": False},
        "store": {"type": "path", "default": paths.STORE},
        "step": {"type": "str", "choices": ["read", "place"], "default": "place"},
        "timeout": {"type": "int", "default": 14400},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Read, or place. Return the module's result."""
    repository = LocalRepository(params["path"].rstrip("/"))
    if check:
        there = is_as_named(repository, params["name"])
        return _result(repository, [] if there else [f"place {repository.path}"])
    store = Store(params["store"])
    with run_lock("blob_fetch", params["timeout"]):
        stored = stored_repository(store, repository, params["name"])
        if params["step"] == "read":
            texts = {"statement": stored.statement, "signature": stored.signature}
            return {**_result(repository, []), **texts}
        placed = is_placed(repository, stored)
        return _result(repository, [] if placed else [place_repository(store, repository, stored)])


def _result(repository: LocalRepository, actions: list[str]) -> dict[str, Any]:
    return {
        "changed": bool(actions),
        "path": repository.path,
        "key": "",
        "actions": actions,
        "diff": {"before": {"as_made": not actions}, "after": {"as_made": True}},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, (), run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
