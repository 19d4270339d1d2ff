#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: record the generations of a node's deployments."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_generation
short_description: Record the generations of a node's deployments, and hold deployments at one
version_added: "0.1.0"
description:
  - A generation is a numbered record of all instances that a deployment has on a node, with their files and
    containers. It is recorded before anything stops, so that M(instinct.fleet.vllm_server) can restore it without
    a network.
  - Records are files in C(/etc/instinct-fleet/generations/<deployment>) that only root can read; each is completely on
    disk before the module returns. They may contain API keys, like the environment files of instances.
  - A deployment can be held at a generation, after a rollback, and be on trial while a rollout is in progress.
  - Every event is a line in C(/etc/instinct-fleet/journal.log).
author: instinct-fleet contributors (@instinct-fleet)
options:
  record:
    description:
      - Generations to record, from the plan. An existing record stays unchanged; different content under the same
        number is an error.
    type: list
    elements: dict
    default: []
  instances:
    description: The plan's instances of this node, with their servers, including the members of O(record).
    type: list
    elements: dict
    default: []
  bindings:
    description:
      - Holds and trials of deployments, each with C(deployment) and C(held) or C(trial) or both. A missing key leaves
        the hold or trial unchanged, and null removes it.
      - C(held) has C(generation) (0 for a deployment of which nothing served before), C(why), C(failed), the
        generations that were rolled back, and C(together), the deployments that were rolled back with it.
      - C(trial) has C(generation), C(why), C(units), C(baseline), C(before), the generation to which the rollout
        goes back if it fails, and C(together), those of the deployments that go back with it.
      - C(since) defaults to the present time.
    type: list
    elements: dict
    default: []
  journal:
    description: Lines for the journal; the module adds the time.
    type: list
    elements: str
    default: []
  keep:
    description:
      - Generations of a deployment to keep, in addition to those that a hold or a trial names, or instances run.
    type: int
    default: 5
  at:
    description:
      - The time of O(bindings), UTC, such as V(2026-11-21T23:00:00Z). The planner compares the times of all nodes, so
        the control node's clock should give them; default is this node's.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Shows what would be written.
  diff_mode:
    support: full
    details: The records without the instances' files.
  idempotent:
    support: partial
    details:
      - Existing records, holds and trials are not written again. Lines of O(journal) are.
"""

EXAMPLES = r"""
- name: Record the generations that will serve
  instinct.fleet.serving_generation:
    record: "{{ fleet_host_plan.generations }}"
    instances: "{{ fleet_host_plan.instances }}"
    bindings: "{{ fleet_host_plan.bindings }}"
    at: "{{ now(utc=true, fmt='%Y-%m-%dT%H:%M:%SZ') }}"
  become: true

- name: Hold a deployment at a generation
  instinct.fleet.serving_generation:
    bindings:
      - deployment: llama
        held: {generation: 2, why: generation 3 is 30 % slower, failed: [3]}
  become: true

- name: End the hold
  instinct.fleet.serving_generation:
    bindings:
      - {deployment: llama, held: null}
  become: true
"""

RETURN = r"""
actions:
  description: Files written or removed, and lines of the journal; in check mode those that would be.
  returned: success
  type: list
  elements: str
  sample: [write /etc/instinct-fleet/generations/llama/3.json (mode 0600)]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.record import (
    KEEP,
    StoreUpdate,
    change,
)
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store_writer import (
    GenerationWriter,
)
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "record": {"type": "list", "elements": "dict", "default": []},
        "instances": {"type": "list", "elements": "dict", "default": []},
        "bindings": {"type": "list", "elements": "dict", "default": []},
        "journal": {"type": "list", "elements": "str", "default": []},
        "keep": {"type": "int", "default": KEEP},
        "at": {"type": "str", "default": ""},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Update the store. Return the module's result."""
    if params["keep"] < 2:
        raise NodeError("keep must be at least 2: what runs, and what it replaced.")
    update = StoreUpdate(**{name: value for name, value in params.items() if name not in LEASE_OPTION})
    return change(GenerationWriter(), update, check)


def main() -> None:
    """Run the module."""
    # no_log: an instance's environment file may contain an API key, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    secrets = secrets_of([item.get("server") or {} for item in module.params["instances"]])
    finish(module, secrets, run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
