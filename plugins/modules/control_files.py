#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: copy files of the control node into a node's content store, or from there to the control node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: control_files
short_description: Carry files of the control node in a bundle
version_added: "0.2.0"
description:
  - Copies files of the control node into a node's content store, from which M(instinct.fleet.blob_bundle) writes them
    into a bundle. Only files that are not in the store are copied, and each is hashed on arrival.
  - Copies the files of a loaded bundle into a directory of the control node, hashed before they get their names. Files
    that are there with their content are not copied. Says how to name them in an inventory.
author: instinct-fleet contributors (@instinct-fleet)
options:
  state:
    description: V(sent) into O(store), V(received) in O(directory).
    type: str
    choices: [sent, received]
    required: true
  files:
    description:
      - With O(state=sent), the files as M(instinct.fleet.bundle_content) returns them, with path and source; with
        O(state=received), as M(instinct.fleet.blob_bundle) returns them, with path, size and sha256.
    type: list
    elements: dict
    required: true
  directory:
    description: The directory of the control node. Needed with O(state=received).
    type: path
    default: ""
  received:
    description: Copies of files on the node, by their SHA-256. The action plugin sets it; leave it out.
    type: dict
    default: {}
  export:
    description:
      - Where to copy files of the store for the connection's user, by their SHA-256. The action plugin sets it; leave
        it out.
    type: dict
    default: {}
  timeout:
    description: Seconds to wait for another run of this module, or of M(instinct.fleet.blob_fetch), on the node.
    type: int
    default: 14400
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
  - instinct.fleet.store
attributes:
  check_mode:
    support: full
    details: Names what would be copied.
  diff_mode:
    support: full
    details: What is missing, before and after.
  idempotent:
    support: full
    details: Files that are there with their content are not copied.
"""

EXAMPLES = r"""
- name: Put the files of a bundle next to the inventory
  instinct.fleet.control_files:
    state: received
    files: "{{ __bundle_written.files }}"
    directory: "{{ inventory_dir }}/.bundle_files"
"""

RETURN = r"""
manifest:
  description: Name and files, each with path, size and sha256; null in check mode if the store does not have all of
    them.
  type: dict
  returned: with O(state=sent)
missing:
  description: Sizes in bytes of what is missing in the store, by SHA-256.
  type: dict
  returned: with O(state=sent)
inventory:
  description: Lines for an inventory that name the files.
  type: list
  elements: str
  returned: with O(state=received)
actions:
  description: What was done; in check mode what would be.
  type: list
  elements: str
  returned: success
"""

from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bundles.control_files import (
    export_files,
    take_files,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import CONTROL_FILES
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import parse_manifest


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "state": {"type": "str", "required": True, "choices": ["sent", "received"]},
        "files": {"type": "list", "elements": "dict", "required": True},
        "directory": {"type": "path", "default": ""},
        "received": {"type": "dict", "default": {}},
        "export": {"type": "dict", "default": {}},
        "store": {"type": "path", "default": paths.STORE},
        "timeout": {"type": "int", "default": 14400},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Take the files, or copy them for the connection's user. Return the module's result."""
    if params["state"] == "received":
        if not params["export"]:
            raise NodeError("state: received is the action plugin's, on the control node.")
        return export_files(Store(params["store"]), params["export"])
    manifest = parse_manifest({"name": CONTROL_FILES, "files": params["files"]})
    with nullcontext() if check else run_lock("blob_fetch", params["timeout"]):
        return take_files(Store(params["store"]), manifest, params["received"], check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, (), run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
