#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: set the partition modes of AMD Instinct GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rocm_partition
short_description: Set the compute and memory partition modes of AMD Instinct GPUs
version_added: "0.1.0"
description:
  - Sets the compute and memory partition modes of a node's GPUs as a transaction. It stops the services that hold the
    GPUs, waits until no process does, sets the modes through rocm-smi, amd-smi or the driver's sysfs files, reloads the
    driver if a memory mode needs it, reads the result back from the driver, KFD's list of logical GPUs and C(/dev/dri),
    and restarts the stopped services.
  - If a step fails, modes and services are restored, and the module fails with the reason.
  - It stops O(servers), other instances of this toolkit, and known GPU monitors (AMD's metrics exporter, gpuagent,
    rdc, display managers). If any other process holds a GPU, the module names it and fails before any change.
    Containers and units are stopped gracefully, because killing one strands GPU memory.
  - Fails before anything is stopped if the driver is missing, does not offer the mode, or does not allow the change
    (virtual machine, GPU in reset, not root), if no tool answers, or if the disk has no space for the journal. In check
    mode it does so too, except for the journal.
  - If M(instinct.fleet.partition_boot) has recorded modes for the next boot, the record is updated.
  - C(/var/lib/instinct-fleet/partition.json) records the step in progress and the stopped services. The next run
    finishes an interrupted change; without O(compute) and O(memory) it undoes it.
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
  - instinct.fleet.partition
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The modes of every GPU.
  idempotent:
    support: full
    details: If nothing differs, no tool is run.
requirements:
  - Python 3.9 on the node
  - root
notes:
  - The compute mode lasts until the driver is reloaded or the node reboots.
  - A reload of the driver also resets settings made by hand, such as power caps and clocks.
  - A Container Device Interface specification at C(/etc/cdi/amd.json) is regenerated.
seealso:
  - module: instinct.fleet.node_state
  - name: GPU partitioning
    description: AMD's guide to the modes.
    link: https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/gpu-partitioning/index.html
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Split every GPU into its accelerator dies, each with its own memory
  instinct.fleet.rocm_partition:
    compute: CPX
    memory: NPS4
  become: true

- name: Make two GPUs undivided again, through the driver's own files
  instinct.fleet.rocm_partition:
    compute: SPX
    gpus: ["0", "0000:26:00.0"]
    backend: sysfs
  become: true

- name: Undo an interrupted change
  instinct.fleet.rocm_partition:
  become: true
"""

RETURN = r"""
before:
  description: Every GPU of the node before the change. A mode is null if it cannot be read.
  returned: when GPUs were found
  type: list
  elements: dict
  sample: [{index: 0, bdf: "0000:05:00.0", compute_partition: SPX, memory_partition: NPS1, partitions: 1}]
after:
  description:
    - Every GPU of the node after the change, read back; in check mode as expected. The number of partitions is
      null in check mode for GPUs whose number of dies is unknown.
  returned: when GPUs were found
  type: list
  elements: dict
  sample: [{index: 0, bdf: "0000:05:00.0", compute_partition: CPX, memory_partition: NPS4, partitions: 8}]
backend:
  description: The backend that was used last, null if nothing was changed.
  returned: when GPUs were found
  type: str
  sample: rocm-smi
actions:
  description: Commands run, files written, services stopped and started, in order; in check mode those
    expected.
  returned: when GPUs were found
  type: list
  elements: str
  sample: [stop gpuagent.service, /opt/rocm/bin/rocm-smi --setcomputepartition CPX, start gpuagent.service]
stopped:
  description: The units and containers that were stopped.
  returned: when GPUs were found
  type: list
  elements: str
  sample: [instinct-llama-0, gpuagent.service]
"""

import contextlib
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease_lock import under_lease
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.partition.backends import BACKENDS
from ansible_collections.instinct.fleet.plugins.module_utils.partition.converge import change, services_of
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import (
    COMPUTE_MODES,
    MEMORY_MODES,
    diff_text,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.node import PartitionNode
from ansible_collections.instinct.fleet.plugins.module_utils.partition.record import follow
from ansible_collections.instinct.fleet.plugins.module_utils.partition.request import PartitionRequest


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    return {
        "compute": {"type": "str", "choices": list(COMPUTE_MODES)},
        "memory": {"type": "str", "choices": list(MEMORY_MODES)},
        "gpus": {"type": "list", "elements": "str", "default": ["all"]},
        "backend": {"type": "str", "default": "auto", "choices": ["auto", *BACKENDS]},
        "timeout": {"type": "int", "default": 300},
        "retries": {"type": "int", "default": 5},
        "servers": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "name": {"type": "str", "required": True},
                "container_name": {"type": "str"},
                "stop_timeout": {"type": "int"},
            },
        },
        "clean": {"type": "bool", "default": False},
        "lease": {"type": "dict"},
    }


def request_of(params: dict[str, Any]) -> PartitionRequest:
    """Return the request in the parameters. Raise NodeError for an impossible number."""
    for key, low in (("timeout", 1), ("retries", 0)):
        if params[key] < low:
            raise NodeError(f"{key} must be at least {low}, not {params[key]}.")
    return PartitionRequest(
        compute=params["compute"],
        memory=params["memory"],
        gpus=tuple(params["gpus"]),
        backend=params["backend"],
        timeout=params["timeout"],
        retries=params["retries"],
        servers=services_of(params["servers"]),
        clean=params["clean"],
    )


def work(module: AnsibleModule, node: PartitionNode) -> dict[str, Any]:
    """Change the modes. Return the module's result. Raise NodeError, with any actions taken, on failure."""
    request = request_of(module.params)
    check = module.check_mode
    with contextlib.nullcontext() if check else run_lock("rocm_partition", 2 * request.timeout):
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
        result["actions"] = [*outcome.actions, *follow(node.path, node.gpus())]
    return result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    lease = None if module.check_mode else module.params["lease"]
    finish(module, [], lambda: under_lease(lease, lambda: work(module, PartitionNode())))


if __name__ == "__main__":
    main()
