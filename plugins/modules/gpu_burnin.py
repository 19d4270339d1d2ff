#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: test the GPUs of a node with PyTorch of a vLLM image."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_burnin
short_description: Test a node's GPUs from a vLLM image
version_added: "0.1.0"
description:
  - Runs one container of a vLLM image that is already on the node, with all GPUs, and uses only PyTorch in it.
  - All GPUs at the same time, each by itself, multiply matrices in FP16, BF16 and FP8, and copy memory. Every product
    is checked, as its numbers are exact, so silent errors are found. Then each pair of GPUs copies data, and all of
    them sum data.
  - Nothing else may use the GPUs. The module fails before it starts anything if a process does.
  - M(instinct.fleet.burnin_report) judges the results. Power, temperatures, throttling and ECC errors are recorded
    during the test.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - a Docker engine on the node
options:
  image:
    description: The image, by tag, digest or ID. It must be on the node, and have PyTorch.
    type: str
    required: true
  device:
    description:
      - V(cpu) tries the program on the CPU, without GPUs, with small matrices. Such a result is never judged.
    type: str
    choices: [gpu, cpu]
    default: gpu
  seconds:
    description: Seconds for which each GPU multiplies in each type.
    type: float
    default: 30
  size:
    description: Rows and columns of the matrices.
    type: int
    default: 8192
  copy_mib:
    description: MiB that are copied at once in a GPU's memory.
    type: int
    default: 4096
  reduce_mib:
    description: MiB of each all-reduce over all GPUs, in rising order.
    type: list
    elements: int
    default: [1, 16, 256, 1024]
  timeout:
    description: Maximum seconds for all tests of the node.
    type: int
    default: 1800
  program:
    description: The program that tests. The module's action plugin sets it; leave it out.
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
      - Shows what would be run, after checking that the GPUs are free and the image is there.
  diff_mode:
    support: N/A
    details: A test changes nothing.
  idempotent:
    support: none
    details: Every call tests again. It leaves nothing on the node, so it reports no change.
seealso:
  - module: instinct.fleet.burnin_report
"""

EXAMPLES = r"""
- name: Test the GPUs of the node
  instinct.fleet.gpu_burnin:
    image: rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210
  register: __burnin_result
"""

RETURN = r"""
burnin:
  description: What was measured; null in check mode.
  type: dict
  returned: success
  contains:
    device:
      description: O(device).
      type: str
    torch:
      description: The version of PyTorch.
      type: str
    started:
      description: When it started, in seconds since 1970.
      type: float
    seconds:
      description: How long it took.
      type: float
    gpus:
      description:
        - Each device as PyTorch numbers it, with its C(bdf), C(gemm) by type (C(tflops), C(products),
          C(wrong_elements), C(rows_right)), C(copy_gbps), C(peer_gbps) by target, and C(telemetry).
        - A test that failed has an C(error) in place of its result.
      type: list
      elements: dict
    peers_error:
      description: Why the copies between GPUs failed as a whole; null if they did not.
      type: str
    reduce:
      description: The bus bandwidth of the all-reduce by size in MiB (C(rates)) of each rank, in GB/s, or its C(error).
      type: list
      elements: dict
    tools:
      description: Paths of AMD's own test programs on the host; null for what is not installed. They are not run.
      type: dict
      sample: {rvs: /opt/rocm/bin/rvs, all_reduce_perf: null, TransferBench: null}
actions:
  description: Requests to Docker, in order; in check mode those that would be made.
  type: list
  elements: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.burnin import BurninRequest, burn_in
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish, require_program
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET, DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased

OPTIONS = ("device", "seconds", "size", "copy_mib", "reduce_mib")


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "image": {"type": "str", "required": True},
        "device": {"type": "str", "choices": ["gpu", "cpu"], "default": "gpu"},
        "seconds": {"type": "float", "default": 30},
        "size": {"type": "int", "default": 8192},
        "copy_mib": {"type": "int", "default": 4096},
        "reduce_mib": {"type": "list", "elements": "int", "default": [1, 16, 256, 1024]},
        "timeout": {"type": "int", "default": 1800},
        "program": {"type": "str", "default": ""},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Test the GPUs. Return the module's result."""
    require_program(params["program"])
    request = BurninRequest(
        image=params["image"],
        program=params["program"],
        options={**{name: params[name] for name in OPTIONS}, "phase_seconds": params["timeout"] / 3},
        timeout=params["timeout"],
    )
    return burn_in(lambda: DockerClient(params["docker_socket"]), request, check)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
