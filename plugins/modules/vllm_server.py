#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: run the vLLM servers of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_server
short_description: Start, replace, stop and remove the vLLM servers of a node
version_added: "0.1.0"
description:
  - Converges all servers of a node in one call. Each has a directory with its launch script, environment and
    container spec, and a container that is labelled with the hash of these files.
  - Old containers are stopped gracefully, in parallel, before any new one starts, because they may hold the
    GPU
    or the port that another one gets. A container is never killed first, as that strands GPU memory.
  - What the engine would refuse (an image that is not there, a bad option) is found before anything stops,
    since
    the successor is created while the old container still serves.
  - Then all servers start, and the module waits for them in parallel. A server is ready when it has generated
    tokens; an answer of C(/health) is not enough.
  - A server that fails is reported with the deciding line of its log, the class of the failure and a next
    step.
    Its log is kept as C(startup.log) in its directory, its container is stopped and stays, and the other
    servers are not touched.
  - In a container runs the toolkit's supervisor, and vLLM below it. The module writes that program to
    C(/etc/instinct-fleet/lib), a directory per version, and removes versions with which nothing starts any
    more. In each is a file of failure signatures, which is written anew without a restart. A server whose
    supervisor gave up after three failures is started again.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node, with the servers' images
options:
  servers:
    description: The servers, as the plan renders them.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The instance's name, C(<deployment>-<index>).
        type: str
        required: true
      deployment:
        description: The deployment's name, for the container's label.
        type: str
      container_name:
        description: For the reader of a plan. The container is always C(instinct-<name>).
        type: str
      directory:
        description: Where the files are written. Needed for O(state=present).
        type: path
      cache_directory:
        description: A directory to make for the container to write to.
        type: path
      files:
        description:
          - The files by name, each with C(text) and C(mode) (octal digits). Needed for O(state=present).
          - C(VLLM_API_KEY) in the file C(env) or in C(/etc/instinct-fleet/keys/instances) is used to ask for tokens.
        type: dict
      generation:
        description:
          - A generation in the node's store, from which files, container and all the rest are read;
            O(servers[].deployment) and O(servers[].name) say what of it, and O(servers[].spec_hash) is what it must be.
            See M(instinct.fleet.serving_generation).
        type: int
      spec_hash:
        description: The hash of the files; a container with another one is replaced. Needed for
          O(state=present).
        type: str
      container:
        description: Body of the Docker Engine API's C(/containers/create). Needed for O(state=present).
        type: dict
      image:
        description: For the reader of a plan. The image is in O(servers[].container).
        type: str
      port:
        description: Where the server listens. Needed unless O(state=stopped).
        type: int
      host:
        description: The address at which the node reaches it. Default is C(127.0.0.1).
        type: str
      served_model:
        description: The name to ask tokens from. Needed unless O(state=stopped).
        type: str
      headless:
        description: Whether it works for a server on another host, and has no port. It is ready when it has run
          for a few seconds and its log tells of no failure; that the whole engine generates tokens is for the
          other server to show.
        type: bool
      attention:
        description:
          - The attention backend that the server is expected to take (C(planned)), and by backend the texts of a
            starting server's log that prove it (C(lines)). Without it, no log is checked for that.
        type: dict
      ready_timeout:
        description: Seconds from the start to the first tokens. Default is 1800.
        type: int
      stop_timeout:
        description: Seconds between asking to stop and killing. Default is 120.
        type: int
  remove:
    description: Names of servers to stop, and to remove with their directories.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) makes the servers as described, running and ready.
      - V(started) starts those that are there and do not run, and waits until they are ready.
      - V(stopped) stops them gracefully; their containers and files stay.
    type: str
    choices: [present, started, stopped]
    default: present
  wait:
    description:
      - Whether to wait until the servers are ready. Those of an engine over several hosts wait for one another, so
        they are first started on all hosts without waiting, and waited for in a second call.
    type: bool
    default: true
  timeout:
    description: Seconds to wait for readiness at most, whatever the servers' own O(servers[].ready_timeout).
    type: int
  program:
    description:
      - The files of the program around vLLM, by their paths. The action plugin of this module's name gives them; leave
        them out.
    type: dict
    default: {}
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
attributes:
  check_mode:
    support: full
    details:
      - Says what would be stopped, written and started, and waits for nothing. A node without an engine counts
        as one on which nothing runs.
  diff_mode:
    support: full
    details:
      - The containers' states and the files, before and after; values of secret variables are masked.
  idempotent:
    support: full
    details: A running server with the same hash and files is only asked for tokens.
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
  description: What became of each server.
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
        V(would be ready) and the like.
      type: str
    tokens:
      description: Tokens that the probe got; 0 for a headless server.
      type: int
    ready_seconds:
      description: How long it took until then.
      type: float
    attention_backend:
      description: Of a server with O(servers[].attention), the attention backends that its log proves, with commas
        between them; null where the log has no such line. Another one than the planned is warned about.
      type: str
    class:
      description: Of a failure, such as V(out_of_memory), V(unknown_flag), V(missing_weights),
        V(port_in_use).
      type: str
    log_line:
      description: Of a failure, the deciding line.
      type: str
    next_step:
      description: Of a failure, what to do.
      type: str
    log_file:
      description: Of a failure, where the whole log is kept on the node.
      type: str
actions:
  description: Requests to the engine and files written, in order; in check mode those that would be.
  type: list
  elements: str
  returned: as RV(servers)
  sample: ["POST /containers/instinct-llama-0/stop?t=120", "POST /containers/instinct-llama-0/start"]
seconds:
  description: How long all of it took.
  type: float
  returned: when not in check mode
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.instance_key import node_key
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.common.names import check_name
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import container_name
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.module_utils.common.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.serving.converge import Fleet, converge
from ansible_collections.instinct.fleet.plugins.module_utils.serving.instance import parse_server
from ansible_collections.instinct.fleet.plugins.module_utils.serving.store import note_servers, resolved


def argument_spec():
    """The module's options."""
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
                "ready_timeout": {"type": "int"},
                "stop_timeout": {"type": "int"},
            },
        },
        "remove": {"type": "list", "elements": "str", "default": []},
        "state": {"type": "str", "choices": ["present", "started", "stopped"], "default": "present"},
        "wait": {"type": "bool", "default": True},
        "timeout": {"type": "int"},
        "program": {"type": "dict", "default": {}},
        "docker_socket": {"type": "path", "default": SOCKET},
    }


def work(params, redact, check):
    """Converge the servers. Returns the module's result."""
    servers = [parse_server(data, params["state"]) for data in params["servers"]]
    remove = [check_name(name) for name in params["remove"]]
    fleet = Fleet(
        lambda: connect(params["docker_socket"], check),
        redact,
        params["timeout"],
        params["program"],
        params["wait"],
    )
    try:
        result = converge(fleet, servers, remove, params["state"], check)
    except NodeError as error:
        note(servers, error.result, remove, redact, check)
        raise
    note(servers, result, remove, redact, check)
    return result


def note(servers, result, remove, redact, check):
    """Tell the node's journal what was done."""
    gone = [
        name for name in remove if f"DELETE /containers/{container_name(name)}" in result.get("actions", ())
    ]
    if check:
        return
    try:
        note_servers(servers, redact.data(result), gone)
    except OSError as error:  # what was done is done
        result.setdefault("warnings", []).append(
            f"The journal {error.filename or 'of this node'} could not be written: {error.strerror}."
        )


def main():
    """Entry point."""
    # no_log: an environment file may hold an API key, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    try:
        params = {**module.params, "servers": resolved(module.params["servers"])}
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    secrets = [*secrets_of(params["servers"]), node_key()]
    finish(module, secrets, lambda: work(params, Redactor(secrets), module.check_mode))


if __name__ == "__main__":
    main()
