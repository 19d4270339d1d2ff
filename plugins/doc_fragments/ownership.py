# SPDX-License-Identifier: Apache-2.0
"""Document the options of modules that remove what the toolkit made, and nothing that another tool made."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation shared by modules: `instinct.fleet.ownership`."""

    DOCUMENTATION = r"""
options:
  registry_override:
    description:
      - Mirrors of registries, as the variable of this name has them. An image from a mirror, or from the content store,
        counts as the one from its own registry. The action plugin adds the host's.
    type: dict
    default: {}
  push_repositories:
    description:
      - Repositories to which the toolkit pushes images that hosts have built; nobody else uses names there. The action
        plugin adds those of C(fleet.lock.json) and of the deployments.
    type: list
    elements: str
    default: []
  cache_dirs:
    description: The C(HF_HOME) directories to search.
    type: list
    elements: path
    default: [/var/lib/instinct-fleet/hf]
"""
