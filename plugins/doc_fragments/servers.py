# SPDX-License-Identifier: Apache-2.0
"""Document the servers of vllm_server: a module is sent to a node, and its fragments are not."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation of `instinct.fleet.vllm_server`."""

    DOCUMENTATION = r"""
options:
  servers:
    description: The servers, as rendered by the plan.
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
        description: For readers of the plan. The container is always C(instinct-<name>).
        type: str
      directory:
        description: Where the files are written. Needed for O(state=present).
        type: path
      cache_directory:
        description: A directory to create for the container to write to.
        type: path
      cache_key:
        description: The hash of what its caches depend on. With O(state=present), a bundle of caches that is recorded
          for it is restored before the start. See M(instinct.fleet.instance_cache).
        type: str
      files:
        description:
          - The files by name, each with C(text) and C(mode) (octal digits). Needed for O(state=present).
          - C(VLLM_API_KEY) in the file C(env) or in C(/etc/instinct-fleet/keys/instances) is used to request tokens.
        type: dict
      generation:
        description:
          - A generation in the node's store, from which files, container and everything else are read;
            O(servers[].deployment) and O(servers[].name) select the instance, and its hash must be
            O(servers[].spec_hash). See M(instinct.fleet.serving_generation).
        type: int
      spec_hash:
        description: The hash of the files; a container with another hash is replaced. Needed for
          O(state=present).
        type: str
      container:
        description: Body of the Docker Engine API's C(/containers/create). Needed for O(state=present).
        type: dict
      image:
        description: For readers of the plan. The image is in O(servers[].container).
        type: str
      port:
        description: The port on which the server listens. Needed unless O(state=stopped).
        type: int
      host:
        description: The address at which the node reaches the server. Default is C(127.0.0.1).
        type: str
      served_model:
        description: The model name for requests. Needed unless O(state=stopped).
        type: str
      headless:
        description: Whether it works for a server on another host, and has no port. It is ready once it has run
          for a few seconds without a failure in its log; the other server shows whether the whole engine
          generates tokens.
        type: bool
      attention:
        description:
          - The attention backend that the server is expected to take (C(planned)), and by backend the texts of a
            starting server's log that prove it (C(lines)). Without it, no log is checked for that.
        type: dict
      memory:
        description: What is recorded with the memory that vLLM measures at startup (C(key), and the prediction).
        type: dict
      ready_timeout:
        description: Seconds from the start to the first tokens. Default is 1800.
        type: int
      stop_timeout:
        description: Seconds between the request to stop and the kill. Default is 120.
        type: int
      secrets:
        description: The fingerprint of its deployment's secret variables, which names their file in
          C(/etc/instinct-fleet/secrets/<deployment>).
        type: str
"""
