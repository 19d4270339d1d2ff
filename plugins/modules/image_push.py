#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: push an image that a node has built to a registry."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_push
short_description: Push an image that a node has built to a registry
version_added: "0.2.0"
description:
  - The engine of the node pushes the image. Then the registry's manifest is read back - its config must be the image,
    and its digest the one that the engine lists, which M(instinct.fleet.node_state) reports.
  - Nothing is pushed if the registry has the image by a digest that the engine lists. Digests that the registry no
    longer has are removed from the engine's list after another push.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
options:
  ref:
    description: The image in the engine, as C(repository:tag). It has the same tag in the registry.
    type: str
    required: true
  push_to:
    description: The repository of a registry, as C(registry/path), without a tag.
    type: str
    required: true
  image_id:
    description: The id that the image must have.
    type: str
  username:
    description: Account at the registry. It goes to the engine's socket, and to the registry over TLS only.
    type: str
  password:
    description: Password or token of the account.
    type: str
  insecure:
    description:
      - Whether the registry speaks plain http, for reading back. Docker needs C(insecure-registries) for the push.
    type: bool
    default: false
  proxy:
    description:
      - The proxies for reading back, as in an environment; the push uses Docker's own configuration. URLs
        may hold an account, which appears in no log.
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
    description: Seconds to wait for another run of this module on the node. A push has no limit while it makes
      progress.
    type: int
    default: 14400
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Asks the registry, and pushes nothing.
  diff_mode:
    support: full
    details: Whether the registry has the image, before and after.
  idempotent:
    support: full
    details: What the registry has by a digest that the engine lists is not pushed again.
"""

EXAMPLES = r"""
- name: Push what was built
  instinct.fleet.image_push:
    ref: own/vllm:2025-10-1b2c3d4e5f60
    push_to: registry.example/vllm
"""

RETURN = r"""
image:
  description: The image in the registry, as C(repository@sha256:digest); null in check mode if it is not there.
  type: str
  returned: success
bytes:
  description: Size of the compressed image in bytes; null in check mode if it is not there.
  type: int
  returned: success
actions:
  description: What was done; in check mode what would be.
  type: list
  elements: str
  returned: success
"""

from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.content import proxies
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import parse_ref
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.short_secrets import (
    refuse_short_secrets,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.image_push import converge_push, parse_push
from ansible_collections.instinct.fleet.plugins.module_utils.store.registry_client import (
    RegistryAccess,
    RegistryClient,
)


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "ref": {"type": "str", "required": True},
        "push_to": {"type": "str", "required": True},
        "image_id": {"type": "str"},
        "username": {"type": "str"},
        "password": {"type": "str", "no_log": True},
        "insecure": {"type": "bool", "default": False},
        "proxy": {
            "type": "dict",
            "default": {},
            "options": {name: {"type": "str"} for name in proxies.NAMES},
        },
        "ca_file": {"type": "path"},
        "timeout": {"type": "int", "default": 14400},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Push the image. Return the module's result."""
    refuse_short_secrets({"password": params["password"]})
    account = params["username"], params["password"]
    want = parse_push(params["ref"], params["push_to"], params["image_id"], *account)
    access = RegistryAccess(
        account[0] or "",
        account[1] or "",
        params["insecure"],
        proxies.environment(params["proxy"]),
        proxies.check_ca_file(params["ca_file"]),
    )
    client = connect(params["docker_socket"], check)
    with nullcontext() if check else run_lock("image_push", params["timeout"]):
        return converge_push(client, RegistryClient(parse_ref(params["push_to"]), access), want, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    secrets = [module.params["password"], *proxies.secrets(module.params["proxy"])]
    finish(module, secrets, run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
