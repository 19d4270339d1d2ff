# SPDX-License-Identifier: Apache-2.0
"""Document the options of rocm_partition: a module is sent to a node, and its fragments are not."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation of `instinct.fleet.rocm_partition`."""

    DOCUMENTATION = r"""
options:
  compute:
    description:
      - The mode, in which a GPU shows one (V(SPX)), two (V(DPX)), three (V(TPX)) or four (V(QPX)) logical GPUs, or one
        per accelerator die (V(CPX)). Without it, the GPUs keep their modes.
    type: str
    choices: [SPX, DPX, TPX, QPX, CPX]
  memory:
    description:
      - The number of memory partitions of every GPU of the node. A change reloads the driver. Without it, the memory
        mode stays unchanged.
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
      - How to set a mode. V(auto) tries V(rocm-smi), V(amd-smi) and V(sysfs) in this order, and continues with the
        next if a tool is not installed, hangs, rejects the option as some releases do, or reports a success that does
        not read back.
      - Any other value uses that one alone. Changes are undone through sysfs.
    type: str
    default: auto
    choices: [auto, rocm-smi, amd-smi, sysfs]
  timeout:
    description: Seconds for setting the modes, including reloads and pauses while the driver is busy; the same
      again to undo the change.
    type: int
    default: 300
  retries:
    description: How often to retry while the driver is busy, after pauses of 1, 2, 4, 8 and then 16 s.
    type: int
    default: 5
  servers:
    description: Instances to stop first. They are restarted only if the change is undone.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The instance's name.
        type: str
        required: true
      container_name:
        description: For readers of the plan. The container is always C(instinct-<name>).
        type: str
      stop_timeout:
        description: Seconds between the request to stop and the kill. Default is 120.
        type: int
  clean:
    description: Reload the driver if VRAM is in use that no process holds, for example after a server was killed.
    type: bool
    default: false
"""
