# SPDX-License-Identifier: Apache-2.0
"""Document the modules' `attributes`.

A module states how far it supports each one, with peculiarities in `details`.
"""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation shared by modules: `instinct.fleet.attributes`, and its parts by name."""

    # Modules that change something on a node.
    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in check mode, and returns what it would change without touching anything.
  diff_mode:
    description: Returns what it has changed, or would change in check mode, when run in diff mode.
  idempotent:
    description: Running it again with the same options changes nothing when the first run succeeded.
  platform:
    description: The operating systems of the hosts that it works on.
    support: full
    platforms: linux
"""

    # Modules that only read.
    READ_ONLY = r"""
attributes:
  check_mode:
    description: Can run in check mode, and returns what it would change without touching anything.
    support: full
    details: Changes nothing, so check mode makes no difference.
  diff_mode:
    description: Returns what it has changed, or would change in check mode, when run in diff mode.
    support: N/A
    details: Changes nothing, so there is nothing to compare.
  idempotent:
    description: Running it again with the same options changes nothing when the first run succeeded.
    support: full
    details: Changes nothing.
  platform:
    description: The operating systems of the hosts that it works on.
    support: full
    platforms: linux
"""

    # Modules that run entirely in their action plugin.
    CONTROL_NODE = r"""
attributes:
  check_mode:
    description: Can run in check mode, and returns what it would change without touching anything.
  diff_mode:
    description: Returns what it has changed, or would change in check mode, when run in diff mode.
  platform:
    description: The operating systems of the hosts that it works on.
    support: full
    platforms: posix
    details: Runs on the control node, and opens no connection to the hosts.
"""
