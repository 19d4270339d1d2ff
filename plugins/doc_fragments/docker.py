# SPDX-License-Identifier: Apache-2.0
"""Document the options of modules that talk to the node's Docker."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation shared by modules: `instinct.fleet.docker`."""

    DOCUMENTATION = r"""
options:
  docker_socket:
    description: The Docker engine's socket on the node.
    type: path
    default: /var/run/docker.sock
"""
