#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: put an image or a model into a node's content store, for other nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: blob_fetch
short_description: Put an image or a model into a node's content store, for other nodes
version_added: "0.2.0"
description:
  - An image comes from its registry, with several blobs at a time, each hashed as it arrives. What an interrupted run
    left is continued.
  - A model comes from the node's cache, where M(instinct.fleet.hf_model) has put it. Its files are hashed again, as
    other nodes get them from here, and linked; they take no space where both are on one file system.
  - A local repository, which M(instinct.fleet.model_quantize) has made, is hashed and linked in the same way. A node
    that gets it from others offers nothing; files that it already has are not transferred again.
  - An image that the node has built comes from its engine. Every node that has it makes the same blobs from it.
  - Content that does not match its hash is named with its source, and not kept.
  - Returns the manifest, by which M(instinct.fleet.blob_swarm) gives the blobs to other nodes.
author: instinct-fleet contributors (@instinct-fleet)
options:
  image:
    description: The image; exactly one of O(image), O(model), O(built) and O(repository) is needed.
    type: dict
    suboptions:
      pull:
        description: The image, as C(repository@sha256:digest).
        type: str
        required: true
      username:
        description: Account at the registry. It is sent over TLS only.
        type: str
      password:
        description: Password or token of the account.
        type: str
      insecure:
        description: Whether the registry speaks plain http.
        type: bool
        default: false
  model:
    description: The model, as the options of M(instinct.fleet.hf_model) describe it.
    type: dict
    suboptions:
      repo: {type: str, required: true, description: Repository of the hub.}
      commit: {type: str, required: true, description: The commit.}
      revision: {type: str, default: main, description: The name of the commit.}
      files: {type: dict, required: true, description: "The files, as a map of path to size in bytes."}
      hashes: {type: dict, default: {}, description: "Their hashes, as a map of path to C(sha256:…) or C(git-sha1:…)."}
      cache_dir: {type: path, default: /var/lib/instinct-fleet/hf, description: The cache that has it.}
  built:
    description: The tag of an image that was built, and that the node's engine has.
    type: str
  repository:
    description: The local repository.
    type: dict
    suboptions:
      path: {type: path, required: true, description: "Its directory, which ends in NAME/COMMIT."}
      name:
        type: str
        default: ""
        description: The name of its manifest in the store; empty for that of its path and signature.
      offered: {type: bool, default: true, description: "Whether other nodes get it from here; then every file must be
      right."}
  docker_socket:
    description: Docker's socket, for O(built).
    type: path
    default: /var/run/docker.sock
  proxy:
    description: The proxies to use, as in an environment. URLs may hold an account, which appears in no log.
    type: dict
    default: {}
    suboptions:
      http_proxy: {type: str, description: The URL of the proxy for http.}
      https_proxy: {type: str, description: The URL of the proxy for https.}
      no_proxy: {type: str, description: Hosts that are reached without it; separated by commas.}
  ca_file:
    description:
      - A file of the node with the CAs to trust, in PEM form. Those of C(/etc/docker/certs.d) for the registry are
        trusted too.
    type: path
  timeout:
    description: Seconds to wait for another run of this module on the node. A fetch has no limit while bytes arrive.
    type: int
    default: 14400
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
  - instinct.fleet.store
attributes:
  check_mode:
    support: full
    details: Nothing is fetched, so the manifest is null unless the store has it.
  diff_mode:
    support: full
    details: Whether the store has everything, before and after.
  idempotent:
    support: full
    details: What the store has is hashed again, and not fetched.
"""

EXAMPLES = r"""
- name: Fetch an image for all nodes
  instinct.fleet.blob_fetch:
    image:
      pull: rocm/vllm@sha256:8f1c2d0e5b7a4f6392d1c0b5a4e3f2d1c0b9a8f7e6d5c4b3a2f1e0d9c8b7a6f5

- name: Offer a downloaded model to other nodes
  instinct.fleet.blob_fetch:
    model:
      repo: amd/Llama-3.1-8B-Instruct-FP8-KV
      commit: fa42f9a9105c545755fea25cf69f49ac8c8b40e1
      files: {config.json: 1234}
"""

RETURN = r"""
manifest:
  description: >-
    Name and files, each with path, size and sha256; null if nothing is offered, or in check mode if the store does not
    have it.
  type: dict
  returned: success
manifest_id:
  description: The manifest's SHA-256.
  type: str
  returned: when there is a manifest
fetched:
  description: Bytes that came from the registry, or from the engine.
  type: int
  returned: success
seconds:
  description: How long it took.
  type: float
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
from ansible_collections.instinct.fleet.plugins.module_utils.content import proxies
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.short_secrets import (
    refuse_short_secrets,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.weights.offer import offer


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "image": {
            "type": "dict",
            "options": {
                "pull": {"type": "str", "required": True},
                "username": {"type": "str"},
                "password": {"type": "str", "no_log": True},
                "insecure": {"type": "bool", "default": False},
            },
        },
        "model": {
            "type": "dict",
            "options": {
                "repo": {"type": "str", "required": True},
                "commit": {"type": "str", "required": True},
                "revision": {"type": "str", "default": "main"},
                "files": {"type": "dict", "required": True},
                "hashes": {"type": "dict", "default": {}},
                "cache_dir": {"type": "path", "default": paths.HF_CACHE},
            },
        },
        "built": {"type": "str"},
        "repository": {
            "type": "dict",
            "options": {
                "path": {"type": "path", "required": True},
                "name": {"type": "str", "default": ""},
                "offered": {"type": "bool", "default": True},
            },
        },
        "docker_socket": {"type": "path", "default": SOCKET},
        "store": {"type": "path", "default": paths.STORE},
        "proxy": {
            "type": "dict",
            "default": {},
            "options": {name: {"type": "str"} for name in proxies.NAMES},
        },
        "ca_file": {"type": "path"},
        "timeout": {"type": "int", "default": 14400},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Put it into the store. Return the module's result."""
    refuse_short_secrets({"image.password": (params["image"] or {}).get("password")})
    return offer(params, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=argument_spec(),
        mutually_exclusive=[("image", "model", "built", "repository")],
        required_one_of=[("image", "model", "built", "repository")],
        supports_check_mode=True,
    )
    secrets = [(module.params["image"] or {}).get("password"), *proxies.secrets(module.params["proxy"])]
    finish(module, secrets, run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
