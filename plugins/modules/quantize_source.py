#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of quantize_source; the work is done on the control node, by plugins/action/quantize_source.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: quantize_source
short_description: Find the model to quantize
version_added: "0.1.0"
description:
  - Returns where a model is on the host. A repository of the hub is resolved to its commit, with its files and their
    hashes, as the argument of the role C(hf_model), which downloads it with the host's token, proxies and mirror.
  - Runs on the control node only, and connects to nothing but the hub.
options:
  source:
    description: A repository of the hub, C(org/name), or an absolute path of the host.
    type: str
    required: true
  revision:
    description: Branch, tag or commit of the repository.
    type: str
    default: main
  image:
    description: The image to run the download in.
    type: str
    required: true
  include:
    description: Patterns of files to download; empty for all but formats that are not quantized.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: It changes nothing.
  diff_mode:
    support: none
    details: It changes nothing.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.model_quantize
  - module: instinct.fleet.hf_model
"""

EXAMPLES = r"""
- name: Find the model
  instinct.fleet.quantize_source:
    source: meta-llama/Llama-3.3-70B-Instruct
    image: rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210
  register: __quantize_source
"""

RETURN = r"""
path:
  description: Where the model is on the host, once it is downloaded.
  type: str
  returned: success
models:
  description: Arguments of the role C(hf_model); empty for a path.
  type: list
  elements: dict
  returned: success
"""
