#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: write, verify or load a bundle of a node's content store."""

from __future__ import annotations

DOCUMENTATION = r"""
module: blob_bundle
short_description: Carry images and weights to a network without access to registries and hubs
version_added: "0.2.0"
description:
  - Writes blobs of the content store into volumes, which are tar files of at most a given size, with an index of all of
    them and their hashes. A volume that is there and has its hash is not written again.
  - Verifies the volumes, and names what is missing or wrong; nothing is changed.
  - Loads the blobs into another node's content store, each hashed on the way. A blob with wrong content is refused and
    named with its volume; the others stay, and the next run continues.
author: instinct-fleet contributors (@instinct-fleet)
options:
  state:
    description: V(created) writes a bundle, V(verified) reads it, V(loaded) puts its content into O(store).
    type: str
    choices: [created, verified, loaded]
    required: true
  path:
    description: The directory of the bundle on the node.
    type: path
    required: true
  id:
    description:
      - The id that the bundle must have, as O(state=created) returned it as RV(bundle_id). Another bundle, or one whose
        content was altered, is refused. It must come by another way than the bundle.
    type: str
    default: ""
  signing_key_file:
    description:
      - File of the control node with a private EC key, by which the action plugin signs a bundle that it creates. It
        never reaches the node.
    type: path
    default: ""
  signing_key_password:
    description: The key's password.
    type: str
    default: ""
  public_key_file:
    description:
      - File of the control node with the public key that must have signed the bundle, unless it is not signed and O(id)
        is given. With neither, nothing says who made it.
    type: path
    default: ""
  step:
    description:
      - What the node does; the action plugin sets it. V(read) returns id and signature, V(sign) writes O(signature).
    type: str
    choices: [run, read, sign]
    default: run
  signature:
    description: The signature to write; the action plugin makes it.
    type: str
    default: ""
  manifests:
    description: What to put into the bundle, each as M(instinct.fleet.blob_fetch) returns it. Needed to create one.
    type: list
    elements: dict
    default: []
  about:
    description:
      - The release, the deployments and the licences of the bundle, as M(instinct.fleet.bundle_content) returns them.
    type: dict
    default: {}
  lock:
    description: The text of C(fleet.lock.json), which is put next to the volumes. Needed to create a bundle.
    type: str
    default: ""
  pins:
    description:
      - Digests of images by reference, and commits of models by their key in the lock. With O(state=created), those
        of the
        content; with O(state=loaded), those of the lock, with which the bundle's are compared.
    type: dict
    default: {}
  volume_size:
    description: Maximum bytes of a volume, at least a MiB.
    type: int
    default: 107374182400
  base:
    description: The directory of an earlier bundle, or its C(bundle.json). Blobs that it has are left out.
    type: path
    default: ""
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
    details: >-
      Names the volumes that would be written or loaded, after the same checks; with O(state=verified) it reads all.
  diff_mode:
    support: full
    details: Whether everything is there, before and after.
  idempotent:
    support: full
    details: Complete volumes are not written again, and blobs that the store has are not loaded again.
"""

EXAMPLES = r"""
- name: Load a bundle
  instinct.fleet.blob_bundle:
    state: loaded
    path: /media/bundle
    pins: "{{ __bundle_content.pins }}"
"""

RETURN = r"""
bundle_id:
  description: SHA-256 of everything in the bundle, by which a later one names it as its base.
  type: str
  returned: success
signature:
  description: The signature next to the bundle, empty without one.
  type: str
  returned: with O(step=read) and O(step=sign)
origin:
  description: What proves who made the bundle, and that nobody altered it; or that nothing proves it.
  type: str
  returned: with O(state=verified) and O(state=loaded)
volumes:
  description: Names of the volumes; with O(state=loaded) of those that were read.
  type: list
  elements: str
  returned: success
bytes:
  description: Size of the volumes; with O(state=loaded) of what was not in the store.
  type: int
  returned: success
repositories:
  description: Models that were made on the fleet, as M(instinct.fleet.model_repository) takes path and name.
  type: list
  elements: dict
  returned: with O(state=loaded)
files:
  description: Files of the control node, as M(instinct.fleet.control_files) takes them.
  type: list
  elements: dict
  returned: with O(state=loaded)
wrong:
  description: What is missing or wrong, by volume.
  type: list
  elements: str
  returned: when there is any
actions:
  description: What was done; in check mode what would be.
  type: list
  elements: str
  returned: success
"""

from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bundles.bundle_index import plan_bundle
from ansible_collections.instinct.fleet.plugins.module_utils.bundles.bundle_read import (
    load_bundle,
    verify_bundle,
)
from ansible_collections.instinct.fleet.plugins.module_utils.bundles.bundle_write import (
    read_identity,
    read_index,
    write_bundle,
    write_signature,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import parse_manifest


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "state": {"type": "str", "required": True, "choices": ["created", "verified", "loaded"]},
        "path": {"type": "path", "required": True},
        "id": {"type": "str", "default": ""},
        "signing_key_file": {"type": "path", "default": ""},
        "signing_key_password": {"type": "str", "default": "", "no_log": True},
        "public_key_file": {"type": "path", "default": ""},
        "step": {"type": "str", "choices": ["run", "read", "sign"], "default": "run"},
        "signature": {"type": "str", "default": ""},
        "manifests": {"type": "list", "elements": "dict", "default": []},
        "about": {"type": "dict", "default": {}},
        "lock": {"type": "str", "default": ""},
        "pins": {"type": "dict", "default": {}},
        "volume_size": {"type": "int", "default": 100 * 2**30},
        "base": {"type": "path", "default": ""},
        "store": {"type": "path", "default": paths.STORE},
        "timeout": {"type": "int", "default": 14400},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Do what the state says. Return the module's result."""
    if params["step"] == "read":
        return read_identity(params["path"])
    if params["step"] == "sign":
        return write_signature(params["path"], params["signature"])
    if params["state"] == "verified":
        return verify_bundle(params["path"], params["id"])
    store = Store(params["store"])
    with nullcontext() if check else run_lock("blob_fetch", params["timeout"]):
        if params["state"] == "loaded":
            return load_bundle(store, params["path"], params["pins"], check, params["id"])
        index = plan_bundle(
            [parse_manifest(item) for item in params["manifests"]],
            params["about"],
            params["lock"],
            params["pins"],
            params["volume_size"],
            read_index(params["base"]) if params["base"] else None,
        )
        return write_bundle(store, index, params["lock"], params["path"], check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, (), run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
