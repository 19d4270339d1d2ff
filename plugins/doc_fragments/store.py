# SPDX-License-Identifier: Apache-2.0
"""Document the option of modules that work with the node's content store."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation shared by modules: `instinct.fleet.store`."""

    DOCUMENTATION = r"""
options:
  store:
    description: The content store.
    type: path
    default: /var/lib/instinct-fleet/store
"""
