#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: remove images, weights and caches that nothing refers to."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_prune
short_description: Remove the toolkit's images, weights, caches and results to which nothing refers
version_added: "0.1.0"
description:
  - Removes images that the toolkit pulled or built, commits of models that it fetched, compile caches of instances that
    are gone, bundles of caches that no instance of the node had, directories that measurements left, copies of data
    sets, and, while nothing is quantized, calibration data and jobs of quantizations that were killed.
  - What a kept generation, an instance's files, any container, a running download, or the control node
    (O(images), O(weights)) refers to stays. So does what another tool made - images that the toolkit never read, images
    to which somebody gave another name, commits without the toolkit's marker, and a cache of weights that a
    container of another tool mounts. Files of the control node in the content store stay for bundles.
  - Fails, and removes nothing, when a record of generations cannot be read, or when there is no C(fleet.lock.json)
    next to the inventory, unless the variable C(no_lock) is true.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
options:
  images:
    description:
      - Names of images that stay, tags or digests. The module's action plugin adds those of C(fleet.lock.json) and of
        the deployments.
    type: list
    elements: str
    default: []
  weights:
    description: Commits of models that stay, C(org/name@commit). The action plugin adds those of C(fleet.lock.json).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
  - instinct.fleet.ownership
attributes:
  check_mode:
    support: full
    details: Names what would be removed, with sizes.
  diff_mode:
    support: full
    details: What nothing refers to, before and after.
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Remove what nothing refers to
  instinct.fleet.host_prune:
"""

RETURN = r"""
actions:
  description: What was removed, with sizes; in check mode what would be.
  type: list
  elements: str
  returned: success
  sample: ["remove image rocm/vllm:rocm6.4.1_vllm_0.10.0 (24.1 GiB)"]
bytes:
  description: The sum of the sizes. Images share layers, so the disk may gain less.
  type: int
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_names import Override
from ansible_collections.instinct.fleet.plugins.module_utils.content.prune import Roots
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.host.prune_node import PrunePaths, converge
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "images": {"type": "list", "elements": "str", "default": []},
        "registry_override": {"type": "dict", "default": {}},
        "push_repositories": {"type": "list", "elements": "str", "default": []},
        "weights": {"type": "list", "elements": "str", "default": []},
        "cache_dirs": {"type": "list", "elements": "path", "default": [paths.HF_CACHE]},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Remove what nothing refers to. Return the module's result."""
    pairs = [text.partition("@") for text in params["weights"]]
    kept = Roots(
        images=frozenset(params["images"]),
        overrides=tuple(Override(*pair) for pair in params["registry_override"].items()),
        pushed=frozenset(params["push_repositories"]),
        weights=frozenset((repo, commit) for repo, _unused, commit in pairs),
    )
    node = PrunePaths(tuple(path.rstrip("/") for path in params["cache_dirs"]))
    return converge(connect(params["docker_socket"], check), node, kept, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
