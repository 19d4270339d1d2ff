#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: download a model's weights to a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hf_model
short_description: Download a model from the Hugging Face hub into a node's cache, pinned to a commit
version_added: "0.1.0"
description:
  - Downloads a snapshot with the C(huggingface_hub) of the vLLM image, in a container that has the network
    and the cache and nothing else. The node needs no Python packages.
  - The download continues if the control node dies, and the next run waits for it. If the download itself was
    killed, the next one keeps all complete files, and resumes the others as far as the image's C(huggingface_hub) can.
  - Afterwards every file is written through to disk and compared with the hub's list, by size and by hash, and a marker
    records that the snapshot is complete. A file with wrong content is removed, and the module fails. A second run only
    checks the sizes, and does not need the hub.
  - A model given by an absolute path is not downloaded; only its presence is checked.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node, with the image
options:
  repo:
    description: Repository of the hub, C(org/name), or an absolute path of the node.
    type: str
    required: true
  commit:
    description: The commit to download, 40 hex digits. Needed unless O(repo) is a path.
    type: str
  revision:
    description:
      - Branch or tag that named O(commit) when it was pinned. The cache records it, so that offline look-ups by this
        name find the commit.
    type: str
    default: main
  image:
    description: The image to run the download in. Needed unless O(repo) is a path.
    type: str
  files:
    description: The required files, as a map of path to size in bytes. Needed unless O(repo) is a path.
    type: dict
    default: {}
  hashes:
    description:
      - The files' hashes, as a map of path to C(sha256:…) (of large files) or C(git-sha1:…) (git's id, of others).
      - For a file without one that the hub stores as a large file, the name of its blob is used, which is its SHA-256.
    type: dict
    default: {}
  verify:
    description: Hash the files again that were hashed when they were downloaded.
    type: bool
    default: false
  include:
    description: Patterns of files to download, as C(--include) of the hub's client; empty for all.
    type: list
    elements: str
    default: []
  exclude:
    description: Patterns of files to leave out, as C(--exclude) of the hub's client.
    type: list
    elements: str
    default: []
  cache_dir:
    description: C(HF_HOME) on the node; snapshots are below its C(hub) directory.
    type: path
    default: /var/lib/instinct-fleet/hf
  store:
    description:
      - The node's content store. If it has all files, as after M(instinct.fleet.blob_swarm), they are linked from
        there, and hashed; neither the hub nor O(image) is needed then.
      - A file that is wrong there is removed, and downloaded.
    type: path
    default: /var/lib/instinct-fleet/store
  endpoint:
    description:
      - A mirror of the hub, as C(HF_ENDPOINT).
      - Large files then come from it as well; Xet, which would get them from elsewhere, is off.
    type: str
  token:
    description:
      - Hub token for gated and private models.
      - It is written to C(/run/instinct-fleet/hf_token) (root only) while the container starts, and then removed. It
        appears in no argument, variable, label or log.
    type: str
  proxy:
    description:
      - The proxies to use, as in an environment. URLs may hold an account, which appears in no argument, label or log.
    type: dict
    default: {}
    suboptions:
      http_proxy: {type: str, description: The URL of the proxy for http.}
      https_proxy: {type: str, description: The URL of the proxy for https.}
      no_proxy: {type: str, description: Hosts that are reached without it; separated by commas.}
  ca_file:
    description: A file of the node with the CAs to trust, in PEM form, such as V(/etc/ssl/certs/ca-certificates.crt).
    type: path
  timeout:
    description: Seconds to wait for the download. A longer one continues, and the next run waits for it.
    type: int
    default: 86400
  max_workers:
    description: Files downloaded at once.
    type: int
    default: 8
  bandwidth:
    description:
      - Maximum bytes per second of a download, all files together; 0 for no limit.
      - With a limit, large files come over plain HTTP and not by Xet, which cannot be limited.
    type: int
    default: 0
  offline:
    description: Ask no hub. Files missing in the cache are linked from O(store), and the module fails if they are
      missing there too.
    type: bool
    default: false
  program:
    description: The download program. The module's action plugin sets it; leave it out.
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
      - Shows what would be downloaded, after the same disk check. A node without a Docker engine counts as one
        without containers.
  diff_mode:
    support: full
    details: How many of the files exist, and whether the marker exists, before and after.
  idempotent:
    support: full
    details: Files that exist with the right size are not downloaded again, and without O(verify) are hashed only once.
"""

EXAMPLES = r"""
- name: Download a model without the copies in other formats
  instinct.fleet.hf_model:
    repo: amd/Llama-3.1-8B-Instruct-FP8-KV
    commit: fa42f9a9105c545755fea25cf69f49ac8c8b40e1
    image: rocm/vllm@sha256:8f1c2d0e5b7a4f6392d1c0b5a4e3f2d1c0b9a8f7e6d5c4b3a2f1e0d9c8b7a6f5
    exclude: ["original/*"]
    token: "{{ vault_hf_token }}"
    files:
      config.json: 1234
      model-00001-of-00002.safetensors: 4886466168

- name: Check a model that was put on the node by other means
  instinct.fleet.hf_model:
    repo: /data/models/my-llama
"""

RETURN = r"""
snapshot:
  description: The snapshot's directory on the node, or the model's own path.
  type: str
  returned: success
  sample: /var/lib/instinct-fleet/hf/hub/models--lab--tiny-llama/snapshots/0123456789abcdef
bytes:
  description: Size of all files together; null for a model given by path.
  type: int
  returned: success
seconds:
  description: How long the download and its verification took.
  type: float
  returned: success
actions:
  description: Requests and files written, in order; in check mode those that would be.
  type: list
  elements: str
  returned: success
log:
  description: Last lines of a download that ended without a report.
  type: list
  elements: str
  returned: when such a download fails
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.content import proxies
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.short_secrets import (
    refuse_short_secrets,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.weights.cache import local_model
from ansible_collections.instinct.fleet.plugins.module_utils.weights.download import converge, fetch_of


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "repo": {"type": "str", "required": True},
        "commit": {"type": "str"},
        "revision": {"type": "str", "default": "main"},
        "image": {"type": "str"},
        "files": {"type": "dict", "default": {}},
        "hashes": {"type": "dict", "default": {}},
        "verify": {"type": "bool", "default": False},
        "include": {"type": "list", "elements": "str", "default": []},
        "exclude": {"type": "list", "elements": "str", "default": []},
        "cache_dir": {"type": "path", "default": paths.HF_CACHE},
        "store": {"type": "path", "default": paths.STORE},
        "endpoint": {"type": "str"},
        "token": {"type": "str", "no_log": True},
        "proxy": {
            "type": "dict",
            "default": {},
            "options": {name: {"type": "str"} for name in proxies.NAMES},
        },
        "ca_file": {"type": "path"},
        "timeout": {"type": "int", "default": 86400},
        "max_workers": {"type": "int", "default": 8},
        "bandwidth": {"type": "int", "default": 0},
        "offline": {"type": "bool", "default": False},
        "program": {"type": "str", "default": ""},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Download the model. Return the module's result."""
    refuse_short_secrets({"token": params["token"]})
    if params["repo"].startswith("/"):
        local_model(params["repo"])
        return {"changed": False, "actions": [], "snapshot": params["repo"], "bytes": None, "seconds": 0.0}
    return converge(connect(params["docker_socket"], check), fetch_of(params), check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    secrets = [module.params["token"], *proxies.secrets(module.params["proxy"])]
    finish(module, secrets, run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
