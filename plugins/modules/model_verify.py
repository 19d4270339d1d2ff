#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: compare the files of models that are paths on a node with their manifests."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_verify
short_description: Verify models on a node by their manifests and signatures
version_added: "0.1.0"
description:
  - Hashes the files of models in directories with a C(manifest.json), as M(instinct.fleet.model_quantize)
    makes them, and fails with the names of files that are changed, missing or not in the manifest.
  - Signatures (C(model.sig), in the format of model-signing) are verified on the control node with O(public_key_file).
  - A directory without a manifest was not made by this toolkit; it is refused only if O(public_key_file) is given and
    O(required) is true.
author: instinct-fleet contributors (@instinct-fleet)
options:
  paths:
    description: Directories of the node.
    type: list
    elements: path
    default: []
  targets:
    description: Instances, from the plan; of those whose C(model) is a path, the model is verified too.
    type: list
    elements: dict
    default: []
  public_key_file:
    description: A file of the control node with the public EC key in PEM form that must have signed the manifests.
    type: path
    default: ""
  required:
    description: Whether models without a manifest are refused.
    type: bool
    default: false
  reread:
    description: Read all files again, even those that are unchanged by size and time since they were verified.
    type: bool
    default: false
  timeout:
    description: Seconds for all models of the node.
    type: int
    default: 14400
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: It only reads.
  diff_mode:
    support: N/A
    details: It changes nothing.
  idempotent:
    support: full
    details: It changes nothing, except for the hashes that it remembers.
seealso:
  - module: instinct.fleet.model_quantize
"""

EXAMPLES = r"""
- name: Verify a model before it is copied
  instinct.fleet.model_verify:
    paths: [/var/lib/instinct-fleet/models/Llama-3.3-70B-Instruct-ptpc-fp8/3f2a9c0d1e4b5a69788796a5b4c3d2e1f0a9b8c7]
    public_key_file: keys/models.pub
    required: true
"""

RETURN = r"""
models:
  description:
    - An entry for each directory with a manifest, with C(path), C(files), C(bytes) and C(key) - the SHA-256 of the
      public key that verified its signature; empty where none was verified.
  type: list
  elements: dict
  returned: success
unsigned:
  description: Directories without a manifest.
  type: list
  elements: str
  returned: success
actions:
  description: What was compared.
  type: list
  elements: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.secret_files import node_secrets
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.quantize.verify import verify_models


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "paths": {"type": "list", "elements": "path", "default": []},
        "targets": {"type": "list", "elements": "dict", "default": []},
        "public_key_file": {"type": "path", "default": "", "no_log": False},
        "required": {"type": "bool", "default": False},
        "reread": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 14400},
        **LEASE_OPTION,
    }


def main() -> None:
    """Run the module."""
    # no_log: the plan of an instance contains its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    targets = module.params["targets"]
    secrets = [*secrets_of([target.get("server") or {} for target in targets]), *node_secrets()]
    finish(module, secrets, run_leased(module, lambda: verify_models(module.params)))


if __name__ == "__main__":
    main()
