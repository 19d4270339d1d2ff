#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: set the partition modes of AMD Instinct GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rocm_partition
short_description: Set the compute and memory partition modes of AMD Instinct GPUs
version_added: "0.1.0"
description:
  - Brings a node's GPUs to a compute and a memory partition mode as a transaction. It stops what holds the GPUs,
    waits until nothing does, sets the modes through rocm-smi, amd-smi or the driver's sysfs files, reloads the
    driver where a memory mode needs it, reads everything back from the driver, from KFD's list of logical GPUs
    and from C(/dev/dri), and starts again what it stopped.
  - When a step fails, modes and services are put back as they were, and the module fails with the reason.
  - Stopped are O(servers), other instances of this toolkit, and known monitors of GPUs (AMD's metrics exporter,
    gpuagent, rdc, display managers). Whatever else holds a GPU ends the transaction before anything is touched,
    by its name. Containers and units are asked to stop; killing one strands GPU memory.
  - Refuses before touching anything when the driver does not offer the mode, is missing, or does not allow
    the change (virtual machine, GPU in reset, not root).
  - Where M(instinct.fleet.partition_boot) has recorded modes for the next boot, the record follows the change.
  - C(/var/lib/instinct-fleet/partition.json) says on disk which step is under way and what was stopped. The next
    run finishes a change that was cut off; without O(compute) and O(memory) it takes it back.
options:
  compute:
    description:
      - The mode. A GPU then shows one (V(SPX)), two (V(DPX)), three (V(TPX)) or four (V(QPX)) logical GPUs,
        or one per accelerator die (V(CPX)). Without it the GPUs keep theirs.
    type: str
    choices: [SPX, DPX, TPX, QPX, CPX]
  memory:
    description:
      - The number of memory partitions of every GPU of the node. A change reloads the driver. Without it, they
        stay as they are.
    type: str
    choices: [NPS1, NPS2, NPS4]
  gpus:
    description:
      - V(all), or GPUs by index (order of PCI addresses) or by PCI address, for O(compute). The others keep
        their mode.
    type: list
    elements: str
    default: [all]
  backend:
    description:
      - The way to set a mode. V(auto) tries V(rocm-smi), V(amd-smi) and V(sysfs) in this order, and goes on
        to the next when a tool is not installed, hangs, rejects the option as some releases do, or claims a
        success that does not read back.
      - Any other value uses that one alone. What has to be undone goes through sysfs.
    type: str
    default: auto
    choices: [auto, rocm-smi, amd-smi, sysfs]
  timeout:
    description: Seconds for setting the modes, reloads and pauses while the driver is busy included; as long
      again for the way back.
    type: int
    default: 300
  retries:
    description: How often to try again while the driver is busy, after pauses of 1, 2, 4, 8 and then 16 s.
    type: int
    default: 5
  servers:
    description: Instances to stop before, each with C(name) and C(stop_timeout), as the plan names them. They are
      started again only when the change is undone.
    type: list
    elements: dict
    default: []
  clean:
    description: Reload the driver when VRAM is in use that no process holds, as a killed server leaves it.
    type: bool
    default: false
  program:
    description: The program that sets the modes at boot. The action plugin of this name gives it; leave it out.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The modes of every GPU.
  idempotent:
    support: full
    details: Runs no tool either.
requirements:
  - Python 3.9 on the node
  - root
notes:
  - The compute mode lasts until the driver is loaded again, so also until the next boot.
  - A reload of the driver also resets what was set by hand for the time being, such as power caps and clocks.
  - A Container Device Interface specification at C(/etc/cdi/amd.json) is generated anew.
seealso:
  - module: instinct.fleet.node_state
  - name: GPU partitioning
    description: AMD's guide to the modes.
    link: https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/gpu-partitioning/index.html
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Split every GPU into its accelerator dies, each with memory of its own
  instinct.fleet.rocm_partition:
    compute: CPX
    memory: NPS4
  become: true

- name: Give two GPUs back as a whole, by the driver's own files
  instinct.fleet.rocm_partition:
    compute: SPX
    gpus: ["0", "0000:26:00.0"]
    backend: sysfs
  become: true

- name: Take back a change that was cut off
  instinct.fleet.rocm_partition:
  become: true
"""

RETURN = r"""
before:
  description: Every GPU of the node before. A mode is null when it cannot be read.
  returned: when GPUs were found
  type: list
  elements: dict
  sample: [{index: 0, bdf: "0000:05:00.0", compute_partition: SPX, memory_partition: NPS1, partitions: 1}]
after:
  description:
    - Every GPU of the node afterwards, read back; in check mode as it would be. The number of partitions is
      null in check mode for GPUs whose number of dies is not known.
  returned: when GPUs were found
  type: list
  elements: dict
  sample: [{index: 0, bdf: "0000:05:00.0", compute_partition: CPX, memory_partition: NPS4, partitions: 8}]
backend:
  description: The way that was used last, null when there was nothing to do.
  returned: when GPUs were found
  type: str
  sample: rocm-smi
actions:
  description: Commands run, files written, services stopped and started, in order; in check mode those that would
    be if all goes well.
  returned: when GPUs were found
  type: list
  elements: str
  sample: [stop gpuagent.service, /opt/rocm/bin/rocm-smi --setcomputepartition CPX, start gpuagent.service]
stopped:
  description: What was stopped for it, units and containers.
  returned: when GPUs were found
  type: list
  elements: str
  sample: [instinct-llama-0, gpuagent.service]
"""

import base64
import contextlib
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.common.run_lock import alone
from ansible_collections.instinct.fleet.plugins.module_utils.common.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.partition.backends import BACKENDS
from ansible_collections.instinct.fleet.plugins.module_utils.partition.boot_unit import follow
from ansible_collections.instinct.fleet.plugins.module_utils.partition.converge import change, services_of
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import (
    COMPUTE_MODES,
    MEMORY_MODES,
    diff_text,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.node import Node
from ansible_collections.instinct.fleet.plugins.module_utils.partition.request import Request


def argument_spec() -> dict[str, Any]:
    """The module's arguments, as DOCUMENTATION describes them."""
    return {
        "compute": {"type": "str", "choices": list(COMPUTE_MODES)},
        "memory": {"type": "str", "choices": list(MEMORY_MODES)},
        "gpus": {"type": "list", "elements": "str", "default": ["all"]},
        "backend": {"type": "str", "default": "auto", "choices": ["auto", *BACKENDS]},
        "timeout": {"type": "int", "default": 300},
        "retries": {"type": "int", "default": 5},
        "servers": {"type": "list", "elements": "dict", "default": []},
        "clean": {"type": "bool", "default": False},
        "program": {"type": "str", "default": ""},
    }


def request_of(params: dict[str, Any]) -> Request:
    """What is asked for. Raises NodeError for a number that cannot be."""
    for key, low in (("timeout", 1), ("retries", 0)):
        if params[key] < low:
            raise NodeError(f"{key} must be at least {low}, not {params[key]}.")
    return Request(
        compute=params["compute"],
        memory=params["memory"],
        gpus=tuple(params["gpus"]),
        backend=params["backend"],
        timeout=params["timeout"],
        retries=params["retries"],
        servers=services_of(params["servers"]),
        clean=params["clean"],
    )


def work(module: AnsibleModule, node: Node) -> dict[str, Any]:
    """The module's result. Raises NodeError, with what was done when something was."""
    request = request_of(module.params)
    check = module.check_mode
    with contextlib.nullcontext() if check else alone("rocm_partition", 2 * request.timeout):
        outcome = change(node, request, check)
    result: dict[str, Any] = {
        "changed": outcome.changed,
        "before": outcome.before,
        "after": outcome.after,
        "backend": outcome.backend,
        "actions": outcome.actions,
        "stopped": outcome.stopped,
        "warnings": outcome.warnings,
    }
    if module._diff:
        header = "partition modes"
        result["diff"] = {
            "before_header": header,
            "before": diff_text(outcome.before),
            "after_header": header,
            "after": diff_text(outcome.after),
        }
    if outcome.error:
        raise NodeError(outcome.error, **result)
    if not check:
        program = base64.b64decode(module.params["program"])
        result["actions"] = [*outcome.actions, *follow(node.path, node.gpus(), module.run_command, program)]
    return result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, secrets_of(module.params["servers"]), lambda: work(module, Node()))


if __name__ == "__main__":
    main()
