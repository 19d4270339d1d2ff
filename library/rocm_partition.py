#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: set the compute partition mode of AMD Instinct GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rocm_partition
short_description: Set the compute partition mode of AMD Instinct GPUs
version_added: "0.1.0"
description:
  - Brings GPUs to a compute partition mode through rocm-smi, amd-smi or the driver's sysfs files, and
    verifies it by reading it back from the driver, from KFD's list of logical GPUs and from C(/dev/dri).
  - Only GPUs that differ are touched. When a GPU fails, those already changed are set back.
  - Refuses before touching anything when the driver does not offer the mode, is missing, or does not allow
    the change (virtual machine, GPU in reset, not root).
  - While the driver is busy it tries again. If it stays so, the message names the processes and containers
    that hold the GPUs. It does not stop them.
options:
  compute:
    description:
      - The mode. A GPU then shows one (V(SPX)), two (V(DPX)), three (V(TPX)) or four (V(QPX)) logical GPUs,
        or one per accelerator die (V(CPX)).
    type: str
    required: true
    choices: [SPX, DPX, TPX, QPX, CPX]
  gpus:
    description: V(all), or GPUs by index (order of PCI addresses) or by PCI address.
    type: list
    elements: str
    default: [all]
  backend:
    description:
      - The way to set the mode. V(auto) tries V(rocm-smi), V(amd-smi) and V(sysfs) in this order, and goes on
        to the next when a tool is not installed, hangs, rejects the option as some releases do, or claims a
        success that does not read back.
      - Any other value uses that one alone.
    type: str
    default: auto
    choices: [auto, rocm-smi, amd-smi, sysfs]
  timeout:
    description: Seconds for setting the mode, pauses while the driver is busy included.
    type: int
    default: 120
  retries:
    description: How often to try again while the driver is busy, after pauses of 1, 2, 4, 8 and then 16 s.
    type: int
    default: 5
attributes:
  check_mode:
    description: Can run in check mode and return what it would do, without touching anything.
    support: full
  diff_mode:
    description: Will return the mode of every GPU before and after.
    support: full
  idempotent:
    description: Running it again changes nothing and runs no tool.
    support: full
  platform:
    description: Target OS that can be operated against.
    support: full
    platforms: linux
requirements:
  - Python 3.9 on the node
  - root
notes:
  - The mode lasts until the driver is loaded again, so also until the next boot.
  - In partitioned modes a Container Device Interface specification must be generated anew afterwards.
seealso:
  - module: node_state
  - name: GPU partitioning
    description: AMD's guide to the modes.
    link: https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/gpu-partitioning/index.html
author:
  - instinct-fleet contributors
"""

EXAMPLES = r"""
- name: Split every GPU into its accelerator dies
  rocm_partition:
    compute: CPX
  become: true

- name: Give two GPUs back as a whole, by the driver's own files
  rocm_partition:
    compute: SPX
    gpus: ["0", "0000:26:00.0"]
    backend: sysfs
  become: true
"""

RETURN = r"""
before:
  description: Every GPU of the node before. The mode is null when it cannot be read.
  returned: when GPUs were found
  type: list
  elements: dict
  sample: [{index: 0, bdf: "0000:05:00.0", compute_partition: SPX, partitions: 1}]
after:
  description:
    - Every GPU of the node afterwards, read back; in check mode as it would be. The number of partitions is
      null in check mode for GPUs whose number of dies is not known.
  returned: when GPUs were found
  type: list
  elements: dict
  sample: [{index: 0, bdf: "0000:05:00.0", compute_partition: CPX, partitions: 8}]
backend:
  description: The way that was used last, null when there was nothing to do.
  returned: when GPUs were found
  type: str
  sample: rocm-smi
actions:
  description: Commands run and files written, in order; in check mode those that would be if all goes well.
  returned: when GPUs were found
  type: list
  elements: str
  sample: [/opt/rocm/bin/rocm-smi --setcomputepartition CPX]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.instinct.nodemodule import NodeError, finish
from ..module_utils.instinct.partition import BACKENDS, COMPUTE_MODES, PartitionError, diff_text
from ..module_utils.instinct.partition_set import Node, Outcome, Request, converge, make_plan, predict


def argument_spec() -> dict[str, Any]:
    """The module's arguments, as DOCUMENTATION describes them."""
    return {
        "compute": {"type": "str", "required": True, "choices": list(COMPUTE_MODES)},
        "gpus": {"type": "list", "elements": "str", "default": ["all"]},
        "backend": {"type": "str", "default": "auto", "choices": ["auto", *BACKENDS]},
        "timeout": {"type": "int", "default": 120},
        "retries": {"type": "int", "default": 5},
    }


def change(params: dict[str, Any], node: Node, check: bool) -> Outcome:
    """Plan, then do or predict. Raises NodeError."""
    for key, low in (("timeout", 1), ("retries", 0)):
        if params[key] < low:
            raise NodeError(f"{key} must be at least {low}, not {params[key]}.")
    request = Request(
        params["compute"], tuple(params["gpus"]), params["backend"], params["timeout"], params["retries"]
    )
    try:
        plan = make_plan(node, request)
    except PartitionError as error:
        raise NodeError(str(error)) from None
    return predict(plan) if check else converge(node, plan, request)


def work(module: AnsibleModule, node: Node) -> dict[str, Any]:
    """The module's result. Raises NodeError, with what was done when something was."""
    outcome = change(module.params, node, module.check_mode)
    for warning in outcome.warnings:
        module.warn(warning)
    result: dict[str, Any] = {
        "changed": outcome.changed,
        "before": outcome.before,
        "after": outcome.after,
        "backend": outcome.backend,
        "actions": outcome.actions,
    }
    if module._diff:
        header = "compute partitions"
        result["diff"] = {
            "before_header": header,
            "before": diff_text(outcome.before),
            "after_header": header,
            "after": diff_text(outcome.after),
        }
    if outcome.error:
        raise NodeError(outcome.error, **result)
    return result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], lambda: work(module, Node()))


if __name__ == "__main__":
    main()
