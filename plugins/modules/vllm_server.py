#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: run the vLLM servers of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_server
short_description: Start, replace, stop and remove the vLLM servers of a node
version_added: "0.1.0"
description:
  - Converges all servers of a node in one call. Each has a directory with launch script, environment and container
    spec, and a container labelled with the hash of these files.
  - Old containers are stopped gracefully, in parallel, before any new one starts, as they may hold the GPU or the port
    that another one gets. A container is asked to stop before it is killed, as a kill strands GPU memory.
  - Errors that Docker would report (a missing image, a bad option) are found before anything stops, as the successor is
    created while the old container still serves.
  - Then all servers start, and are waited for in parallel. A server is ready once it has generated tokens; an
    answer of C(/health) is not enough.
  - A failed server is reported with the decisive line of its log, the class of the failure and a next step. Its log
    is kept as C(startup.log) in its directory, its container is stopped and kept; other servers are not touched.
  - Each container runs the toolkit's supervisor, which runs vLLM. It is written to C(/etc/instinct-fleet/lib), one
    directory per version; unused versions are removed. Each directory has a file of failure signatures, which is
    updated without a restart. A server whose supervisor gave up after three failures is restarted.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node, with the servers' images
options:
  remove:
    description: Names of servers to stop and remove, with their directories.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) creates or replaces the servers as described, and waits until they are ready.
      - V(started) starts existing servers that do not run, and waits until they are ready.
      - V(stopped) stops them gracefully; their containers and files stay.
    type: str
    choices: [present, started, stopped]
    default: present
  wait:
    description:
      - Whether to wait until the servers are ready. Servers of one engine on several hosts wait for one another, so all
        are started without waiting; a second call waits.
    type: bool
    default: true
  timeout:
    description: Maximum seconds to wait for readiness, whatever the servers' own O(servers[].ready_timeout).
    type: int
  secrets:
    description:
      - The secret variables of the servers' deployments, by deployment and fingerprint. The module's action plugin
        takes them from the inventory; leave them out.
    type: dict
    default: {}
  program:
    description:
      - The files of the supervisor, by their paths. The module's action plugin sets them; leave them out.
    type: dict
    default: {}
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
  - instinct.fleet.servers
attributes:
  check_mode:
    support: full
    details:
      - Shows what would be stopped, written and started, and does not wait. A node without a Docker engine counts as
        one without containers.
  diff_mode:
    support: full
    details:
      - The containers' states and the files, before and after; values of secret variables are masked.
  idempotent:
    support: full
    details: A running server with the same hash and files only gets a request for tokens.
"""

EXAMPLES = r"""
- name: Start the instances and wait for their first tokens
  instinct.fleet.vllm_server:
    servers: "{{ fleet_host_plan.servers }}"
    remove: "{{ fleet_host_plan.remove }}"

- name: Stop an instance gracefully
  instinct.fleet.vllm_server:
    servers:
      - name: llama-0
    state: stopped
"""

RETURN = r"""
servers:
  description: The result for each server.
  type: list
  elements: dict
  returned: always, unless the parameters are wrong or the engine does not answer
  contains:
    name:
      description: The instance.
      type: str
    changed:
      description: Whether it was (in check mode, would be) touched.
      type: bool
    state:
      description: V(ready), V(stopped) or V(failed), and V(started) without O(wait); in check mode also
        V(would be ready).
      type: str
    tokens:
      description: Tokens that the probe got; 0 for a headless server.
      type: int
    ready_seconds:
      description: How long it took until the first tokens.
      type: float
    attention_backend:
      description: Of a server with O(servers[].attention), the attention backends that its log proves, with commas
        between them; null where the log has no such line. One that differs from the planned one is a warning.
      type: str
    class:
      description: The class of a failure, such as V(out_of_memory), V(unknown_flag), V(missing_weights),
        V(port_in_use).
      type: str
    log_line:
      description: The decisive log line of a failure.
      type: str
    next_step:
      description: What to do about a failure.
      type: str
    log_file:
      description: The path of the whole log of a failure on the node.
      type: str
removed:
  description: The instances of O(remove) that were there and are gone; in check mode those that would be.
  type: list
  elements: str
  returned: as RV(servers)
actions:
  description: Requests to Docker and files written, in order; in check mode those that would be. Files are written next
    to the old ones, and renamed once the old instance has stopped.
  type: list
  elements: str
  returned: as RV(servers)
  sample: ["POST /containers/instinct-llama-0/stop?t=120", "POST /containers/instinct-llama-0/start"]
seconds:
  description: How long the whole call took.
  type: float
  returned: when not in check mode
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.node_key import node_key
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.secret_files import (
    node_secrets,
    values_of,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.engines.names import check_name
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store_servers import (
    note_servers,
    resolve_servers,
)
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.serving.converge import ConvergeContext, converge
from ansible_collections.instinct.fleet.plugins.module_utils.serving.instance import ServerSpec, parse_server


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "servers": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "name": {"type": "str", "required": True},
                "deployment": {"type": "str"},
                "container_name": {"type": "str"},
                "directory": {"type": "path"},
                "cache_directory": {"type": "path"},
                "cache_key": {"type": "str", "no_log": False},
                "files": {"type": "dict"},
                "generation": {"type": "int"},
                "spec_hash": {"type": "str"},
                "container": {"type": "dict"},
                "image": {"type": "str"},
                "port": {"type": "int"},
                "host": {"type": "str"},
                "served_model": {"type": "str"},
                "headless": {"type": "bool"},
                "attention": {"type": "dict"},
                "memory": {"type": "dict"},
                "ready_timeout": {"type": "int"},
                "stop_timeout": {"type": "int"},
                "secrets": {"type": "str", "no_log": False},
            },
        },
        "remove": {"type": "list", "elements": "str", "default": []},
        "state": {"type": "str", "choices": ["present", "started", "stopped"], "default": "present"},
        "wait": {"type": "bool", "default": True},
        "timeout": {"type": "int"},
        "secrets": {"type": "dict", "default": {}, "no_log": True},
        "program": {"type": "dict", "default": {}},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], redact: Redactor, check: bool) -> dict[str, Any]:
    """Converge the servers. Return the module's result."""
    servers = [parse_server(data, params["state"]) for data in params["servers"]]
    remove = [check_name(name) for name in params["remove"]]
    fleet = ConvergeContext(
        lambda: connect(params["docker_socket"], check),
        redact,
        params["timeout"],
        params["program"],
        params["wait"],
        params["secrets"],
    )
    try:
        result = converge(fleet, servers, remove, params["state"], check)
    except NodeError as error:
        note(servers, error.result, redact, check)
        raise
    note(servers, result, redact, check)
    return result


def note(servers: list[ServerSpec], result: dict[str, Any], redact: Redactor, check: bool) -> None:
    """Record the changes in the node's journal."""
    if check:
        return
    try:
        note_servers(servers, redact.data(result), result.get("removed", ()))
    except OSError as error:  # the changes themselves succeeded
        result.setdefault("warnings", []).append(
            f"The journal {error.filename or 'of this node'} could not be written: {error.strerror}."
        )


def main() -> None:
    """Run the module."""
    # no_log: an environment file may contain an API key, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    try:
        params = {**module.params, "servers": resolve_servers(module.params["servers"])}
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    given = [
        value for texts in params["secrets"].values() for text in texts.values() for value in values_of(text)
    ]
    secrets = [*secrets_of(params["servers"]), *given, *node_secrets(), node_key()]
    finish(module, secrets, run_leased(module, lambda: work(params, Redactor(secrets), module.check_mode)))


if __name__ == "__main__":
    main()
