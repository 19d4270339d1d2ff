#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: quantize a model on a node, and make a local repository of the output."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_quantize
short_description: Quantize a model with AMD Quark or llm-compressor
version_added: "0.1.0"
description:
  - Quantizes a model that is on the node, in a container of a vLLM image, with packages in a directory of their own
    that no serving container sees. The job has no network, no token, and only GPUs that no process uses, or the CPU.
  - Where it runs, whether file by file or as a whole, and whether there is enough memory and disk is planned before
    anything starts.
  - The output is compared with its source by names, types, shapes and values of the tensors, and gets a card, a record
    of what it was made of, and a manifest with the SHA-256 of every file. It is written to a temporary directory, and
    renamed when it is complete, to C(/var/lib/instinct-fleet/models/NAME/COMMIT). The commit is the hash of its file
    list.
  - The job continues if the control node dies, and the next run waits for it. Its log is kept in
    C(/var/lib/instinct-fleet/quantize/logs).
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node, with the image
  - cryptography on the control node, to sign
options:
  source:
    description: The model's directory on the node.
    type: path
    required: true
  image:
    description: The vLLM image that is on the node. Its Python and PyTorch are used.
    type: str
    required: true
  scheme:
    description: A scheme of C(catalog/quantization/schemes.yml).
    type: str
    default: ptpc_fp8
  kv_cache:
    description: V(fp8) for scales of an FP8 KV cache too.
    type: str
    default: ""
  name:
    description: Name of the local repository; empty for the source's name and the scheme.
    type: str
    default: ""
  device:
    description: V(auto) takes free GPUs, or the CPU if they are not enough and it is.
    type: str
    choices: [auto, gpu, cpu]
    default: auto
  exclude:
    description: Patterns of modules that stay as they are, in place of the architecture's own; V([]) for none.
    type: list
    elements: str
  architecture:
    description: An architecture of the catalogue whose modules have the same names, for a model_type that is not in the
      catalogue.
    type: str
    default: ""
  calibration:
    description: A file or directory of the node with texts, for schemes that need it.
    type: path
    default: ""
  samples:
    description: Samples of the calibration.
    type: int
    default: 128
  length:
    description: Tokens of each sample.
    type: int
    default: 512
  remote_code:
    description: Whether code of the model's repository may run.
    type: bool
    default: false
  signing_key_file:
    description: A file of the control node with a private EC key in PEM form. It never reaches the node.
    type: path
    default: ""
  signing_key_password:
    description: The key's password.
    type: str
    default: ""
  packages:
    description: A directory of the node with the packages; empty to download them.
    type: path
    default: ""
  index:
    description: A package index in place of PyPI.
    type: str
    default: ""
  proxy:
    description: The proxies to use, as in an environment. URLs may hold an account, which appears in no log.
    type: dict
    default: {}
    suboptions:
      http_proxy: {type: str, description: The URL of the proxy for http.}
      https_proxy: {type: str, description: The URL of the proxy for https.}
      no_proxy: {type: str, description: Hosts that are reached without it; separated by commas.}
  ca_file:
    description: A file of the node with the CAs to trust, in PEM form.
    type: path
  timeout:
    description: Seconds to wait for the job. A longer one continues, and the next run waits for it.
    type: int
    default: 86400
  step:
    description: Set by the action plugin, which calls the module several times.
    type: str
    choices: [facts, run, sign]
    default: facts
  job:
    description: Set by the action plugin; what to do.
    type: dict
  requirements:
    description: Set by the action plugin; the backend's packages with their hashes.
    type: str
    default: ""
  signature:
    description: Set by the action plugin; path and text of the signature.
    type: dict
  program:
    description: The program that quantizes. The module's action plugin sets it; leave it out.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Shows what would be done, with sizes, after the same checks of memory and disk.
  diff_mode:
    support: N/A
    details: An output is either new or already there.
  idempotent:
    support: full
    details: Equal source, scheme, settings, calibration and packages are quantized once.
seealso:
  - module: instinct.fleet.model_verify
  - module: instinct.fleet.hf_model
"""

EXAMPLES = r"""
- name: Quantize a model file by file
  instinct.fleet.model_quantize:
    source: /data/models/Llama-3.3-70B-Instruct
    image: rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210
    scheme: ptpc_fp8

- name: Quantize as AMD's FP8-KV models are
  instinct.fleet.model_quantize:
    source: /data/models/Llama-3.3-70B-Instruct
    image: rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210
    scheme: fp8
    kv_cache: fp8
    calibration: /data/calibration/pile.jsonl
    signing_key_file: ~/keys/models.pem
"""

RETURN = r"""
path:
  description: The output's directory; null in check mode, unless it is there.
  type: str
  returned: success
  sample: /var/lib/instinct-fleet/models/Llama-3.3-70B-Instruct-ptpc-fp8/3f2a9c0d1e4b5a69788796a5b4c3d2e1f0a9b8c7
commit:
  description: The output's commit.
  type: str
  returned: success
report:
  description: How it compares with its source; null if it was already there.
  type: dict
  returned: success
signed:
  description: The SHA-256 of the public key that verifies its signature; empty without one.
  type: str
  returned: success
text:
  description: The printed summary.
  type: str
  returned: success
actions:
  description: Requests to Docker and files written, in order; in check mode those that would be.
  type: list
  elements: str
  returned: success
log:
  description: Last lines of a job that failed.
  type: list
  elements: str
  returned: when a job fails
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish, require_program
from ansible_collections.instinct.fleet.plugins.module_utils.content import proxies
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET
from ansible_collections.instinct.fleet.plugins.module_utils.docker.connect import connect
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.quantize.converge import (
    quantize,
    write_signature,
)
from ansible_collections.instinct.fleet.plugins.module_utils.quantize.facts import read_facts


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "source": {"type": "path", "required": True},
        "image": {"type": "str", "required": True},
        "scheme": {"type": "str", "default": "ptpc_fp8"},
        "kv_cache": {"type": "str", "default": ""},
        "name": {"type": "str", "default": ""},
        "device": {"type": "str", "choices": ["auto", "gpu", "cpu"], "default": "auto"},
        "exclude": {"type": "list", "elements": "str"},
        "architecture": {"type": "str", "default": ""},
        "calibration": {"type": "path", "default": ""},
        "samples": {"type": "int", "default": 128},
        "length": {"type": "int", "default": 512},
        "remote_code": {"type": "bool", "default": False},
        "signing_key_file": {"type": "path", "default": "", "no_log": False},
        "signing_key_password": {"type": "str", "default": "", "no_log": True},
        "packages": {"type": "path", "default": ""},
        "index": {"type": "str", "default": ""},
        "proxy": {
            "type": "dict",
            "default": {},
            "options": {name: {"type": "str"} for name in proxies.NAMES},
        },
        "ca_file": {"type": "path"},
        "timeout": {"type": "int", "default": 86400},
        "step": {"type": "str", "choices": ["facts", "run", "sign"], "default": "facts"},
        "job": {"type": "dict"},
        "requirements": {"type": "str", "default": ""},
        "signature": {"type": "dict"},
        "program": {"type": "str", "default": ""},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Do one step. Return the module's result."""
    require_program(params["program"])
    if params["step"] == "sign":
        return write_signature(params["signature"]["path"], params["signature"]["text"], check)
    client = connect(params["docker_socket"], check)
    if params["step"] == "facts":
        return {"changed": False, "facts": read_facts(client, params, check)}
    return quantize(client, params, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(
        module,
        proxies.secrets(module.params["proxy"]),
        run_leased(module, lambda: work(module.params, module.check_mode)),
    )


if __name__ == "__main__":
    main()
