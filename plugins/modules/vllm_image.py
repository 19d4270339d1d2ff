#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: pull a vLLM image to a node by digest, or build it from source."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_image
short_description: Pull a vLLM image by digest, or build it from a git ref
version_added: "0.1.0"
description:
  - Pulls an image by digest through the Docker Engine API, reads it back, and gives it its human-readable name.
  - Or clones a git repository, checks out a ref, and runs C(docker build) with vLLM's Dockerfile for ROCm, as AMD's
    documentation shows. Base images are named by digest in that build, and labels of the image record the commit, the
    base images and a hash of all inputs.
  - An image that exists already is not pulled again, so a second run needs no registry.
  - Before a pull, the free space of Docker's directory is compared with the space that the image needs.
  - Then the image is probed, once per node - a container without GPU and network reads the versions of vLLM, PyTorch,
    Python and ROCm without importing them. The result is stored in C(/var/lib/instinct-fleet/images), where
    M(instinct.fleet.node_state) reads it.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
  - for O(build), the commands C(git) and C(docker) on the node
options:
  pull:
    description:
      - The image to pull, as C(repository@sha256:digest).
      - Exactly one of O(pull) and O(build) is needed.
    type: str
  ref:
    description:
      - The human-readable name, C(repository:tag). A pulled image gets it as a tag; a reference with a digest gives
        no tag.
      - With O(build), the tag of the result if O(build.tag) is not given.
    type: str
  bytes:
    description:
      - Size of the compressed image in bytes. Without it, the disk is not checked.
    type: int
  registry_username:
    description: Account at the image's registry. Needs O(registry_password).
    type: str
  registry_password:
    description: Password or token of the account. It is sent to Docker with the pull, and not stored.
    type: str
  build:
    description:
      - Build the image on the node. The result is labelled with a hash of these inputs; an image with this
        label is not built again. Pin a commit in O(build.ref), because a branch that moves does not change
        the inputs.
    type: dict
    suboptions:
      repo:
        description: URL that git can clone, without user, password or token in it, except for the user of ssh.
        type: str
        required: true
      ref:
        description: Branch, tag or commit.
        type: str
        required: true
      dockerfile:
        description:
          - The Dockerfile's path in the repository. If it is not there, it is looked for at the root or in C(docker/).
        type: str
        default: docker/Dockerfile.rocm
      target:
        description: The stage of the Dockerfile to build; the last one, if not given.
        type: str
      args:
        description:
          - Build arguments. They are readable in the image's history, so do not put secrets here.
          - One that the Dockerfile has no C(ARG) line for is a warning, with the nearest name.
        type: dict
        default: {}
      tag:
        description: The result's name. Default is O(ref), else C(instinct-fleet/vllm:<hash>).
        type: str
      from_store:
        description:
          - Take the image from O(store), where M(instinct.fleet.blob_swarm) has put what another node built, and build
            nothing. It fails if the image is not there.
        type: bool
        default: false
      image_id:
        description: With O(build.from_store), the id that the image must have.
        type: str
  proxy:
    description:
      - The proxies for O(build), as in an environment; a pull uses Docker's own configuration.
      - URLs may hold an account, which appears in no argument, label or log.
    type: dict
    default: {}
    suboptions:
      http_proxy: {type: str, description: The URL of the proxy for http.}
      https_proxy: {type: str, description: The URL of the proxy for https.}
      no_proxy: {type: str, description: Hosts that are reached without it; separated by commas.}
  ca_file:
    description: A file of the node with the CAs that C(git) trusts, in PEM form.
    type: path
  store:
    description:
      - The node's content store. If it has the whole image, as after M(instinct.fleet.blob_swarm), the engine gets the
        layers from there, and only the manifest from the registry; the engine checks each layer.
      - Blobs that are wrong there are named and removed, and the image is pulled from its registry.
    type: path
    default: /var/lib/instinct-fleet/store
  keep_blobs:
    description: Keep the compressed image in O(store) after the pull, for nodes that need it later.
    type: bool
    default: false
  timeout:
    description:
      - Seconds that a build may take, and seconds to wait for another run of this module on the node.
      - A pull has no limit as long as it makes progress.
    type: int
    default: 14400
  program:
    description: The program that probes the image. The module's action plugin sets it; leave it out.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details:
      - Shows what would be pulled, built and probed, after the same disk check. A node without a Docker engine counts
        as one without images.
  diff_mode:
    support: full
    details: Whether the image exists, the image that the tag names, and its vLLM version, before and after.
  idempotent:
    support: full
    details:
      - An image with the same digest, or built from the same inputs, is neither changed nor probed again.
"""

EXAMPLES = r"""
- name: Pull an image by digest
  instinct.fleet.vllm_image:
    ref: rocm/vllm:rocm7.0.0_vllm_0.11.1_20251024
    pull: rocm/vllm@sha256:8f1c2d0e5b7a4f6392d1c0b5a4e3f2d1c0b9a8f7e6d5c4b3a2f1e0d9c8b7a6f5
    bytes: 7516192768

- name: Build an image, as in AMD's documentation
  instinct.fleet.vllm_image:
    build:
      repo: https://github.com/ROCm/vllm.git
      ref: b432b7a285aa0dcb9677380936ffa74931bb6d6f
      args:
        USE_CYTHON: "1"
      tag: instinct-fleet/vllm:rocm-0.9.1
"""

RETURN = r"""
image_id:
  description: Docker's id of the image; null in check mode if the image does not exist yet.
  type: str
  returned: success
  sample: sha256:2f1a
digest:
  description: Digest of the pulled image; null for a built one.
  type: str
  returned: success
  sample: sha256:8f1c
bytes:
  description: Size of the unpacked image; null in check mode if the image does not exist yet.
  type: int
  returned: success
commit:
  description: The commit that was built; null if nothing was built.
  type: str
  returned: with O(build)
inputs:
  description: SHA-256 of repository, commit, Dockerfile, target, arguments and base images; null if nothing was built.
  type: str
  returned: with O(build)
bases:
  description: The digests of base images by the names in the Dockerfile; V("") for one that was never pulled.
  type: dict
  returned: with O(build)
software:
  description:
    - The software found by the probe; null in check mode if the image has not been probed yet. V("") and null in it
      mean unknown.
  type: dict
  returned: success
  sample: {vllm: 0.11.2+rocm700, platform: rocm, rocm: 7.0.0, pytorch: 2.9.0, python: 3.12.11,
           gfx: [gfx942, gfx950]}
actions:
  description: Requests to Docker and commands, in order; in check mode those that would be made.
  type: list
  elements: str
  returned: success
  sample: ["POST /images/create?fromImage=rocm/vllm&tag=sha256:8f1c"]
log:
  description: Last lines of a build that failed, or of a container that did not answer.
  type: list
  elements: str
  returned: when there are any
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import (
    finish,
    require_program,
)
from ansible_collections.instinct.fleet.plugins.module_utils.content import proxies
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.short_secrets import (
    refuse_short_secrets,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.build_plan import build_plan
from ansible_collections.instinct.fleet.plugins.module_utils.docker.built_images import (
    converge_build,
    converge_received,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.docker.images import (
    converge_pull,
    parse_pull,
)
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.built_image import ReceivedImage
from ansible_collections.instinct.fleet.plugins.module_utils.store.engine_pull import stored_image


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "pull": {"type": "str"},
        "ref": {"type": "str"},
        "bytes": {"type": "int"},
        "registry_username": {"type": "str"},
        "registry_password": {"type": "str", "no_log": True},
        "build": {
            "type": "dict",
            "options": {
                "repo": {"type": "str", "required": True},
                "ref": {"type": "str", "required": True},
                "dockerfile": {"type": "str", "default": "docker/Dockerfile.rocm"},
                "target": {"type": "str"},
                "args": {"type": "dict", "default": {}},
                "tag": {"type": "str"},
                "from_store": {"type": "bool", "default": False},
                "image_id": {"type": "str"},
            },
        },
        "proxy": {
            "type": "dict",
            "default": {},
            "options": {name: {"type": "str"} for name in proxies.NAMES},
        },
        "ca_file": {"type": "path"},
        "store": {"type": "path", "default": paths.STORE},
        "keep_blobs": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 14400},
        "program": {"type": "str", "default": ""},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Pull or build the image. Return the module's result."""
    refuse_short_secrets({"registry_password": params["registry_password"]})
    require_program(params["program"])
    client = connect(params["docker_socket"], check)
    if params["build"]:
        way = proxies.environment(params["proxy"])
        plan = replace(
            build_plan(params["build"], params["ref"]),
            proxy=way,
            ca_file=proxies.check_ca_file(params["ca_file"]),
        )
        with nullcontext() if check else run_lock("vllm_image", params["timeout"]):
            if params["build"]["from_store"]:
                image_id = params["build"]["image_id"] or ""
                stored = ReceivedImage(Store(params["store"]), plan.tag, image_id, params["keep_blobs"])
                return converge_received(client, plan, stored, image_id, check, params["program"])
            return converge_build(client, plan, paths.DATA_DIR, params["timeout"], check, params["program"])
    want = parse_pull(
        params["pull"],
        params["ref"],
        params["bytes"],
        params["registry_username"],
        params["registry_password"],
    )
    with nullcontext() if check else run_lock("vllm_image", params["timeout"]):
        near = stored_image(params["store"], want, params["keep_blobs"])
        return converge_pull(client, want, check, params["program"], near)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=argument_spec(),
        mutually_exclusive=[("pull", "build")],
        required_one_of=[("pull", "build")],
        supports_check_mode=True,
    )
    secrets = [module.params["registry_password"], *proxies.secrets(module.params["proxy"])]
    finish(module, secrets, run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
