#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: keep the generations of a node's deployments."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_generation
short_description: Record what a node's deployments are about to run, and hold them at a generation
version_added: "0.1.0"
description:
  - A generation is a numbered record of all instances that a deployment has on a node, with their files and
    containers. It is recorded before anything stops, so that M(instinct.fleet.vllm_server) can bring it back without
    a network.
  - Records are files of root's in C(/etc/instinct-fleet/generations/<deployment>); each is whole and on disk before
    the module returns. They may hold API keys, as the environment files of instances do.
  - A deployment can be held at a generation, after a rollback, and be on trial, while a rollout is under way.
  - Every event is a line in C(/etc/instinct-fleet/journal.log).
author: instinct-fleet contributors (@instinct-fleet)
options:
  record:
    description:
      - Generations to record, as the plan has them. One that is recorded already stays as it is; another content
        under the same number is an error.
    type: list
    elements: dict
    default: []
  instances:
    description: The plan's instances of this node, with their servers. The members of O(record) are among them.
    type: list
    elements: dict
    default: []
  bindings:
    description:
      - What binds deployments, each with C(deployment) and C(held) or C(trial) or both. A key that is left out stays
        as it is, and null takes it away.
      - C(held) has C(generation) and C(why), C(trial) has C(units) and C(baseline) besides. C(since) is the time of the
        change where it is left out.
    type: list
    elements: dict
    default: []
  journal:
    description: Lines for the journal; the time is put in front.
    type: list
    elements: str
    default: []
  keep:
    description:
      - Generations of a deployment to keep. Those that are held, on trial, or that instances run are kept besides.
    type: int
    default: 5
extends_documentation_fragment:
  - instinct.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Says what would be written.
  diff_mode:
    support: full
    details: The records without the instances' files.
  idempotent:
    support: partial
    details:
      - What is recorded, and how a deployment is bound, is not written again. Lines of O(journal) are.
"""

EXAMPLES = r"""
- name: Record what will serve
  instinct.fleet.serving_generation:
    record: "{{ fleet_host_plan.generations }}"
    instances: "{{ fleet_host_plan.instances }}"
    bindings: "{{ fleet_host_plan.bindings }}"
  become: true

- name: Hold a deployment at a generation
  instinct.fleet.serving_generation:
    bindings:
      - deployment: llama
        held: {generation: 2, why: generation 3 is 30 % slower}
  become: true

- name: Let it go
  instinct.fleet.serving_generation:
    bindings:
      - {deployment: llama, held: null}
  become: true
"""

RETURN = r"""
actions:
  description: Files that were (in check mode, would be) written or removed, and lines of the journal.
  returned: success
  type: list
  elements: str
  sample: [write /etc/instinct-fleet/generations/llama/3.json (mode 0600)]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.common.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.serving.record import KEEP, change
from ansible_collections.instinct.fleet.plugins.module_utils.serving.store import Store


def argument_spec():
    """The module's options."""
    return {
        "record": {"type": "list", "elements": "dict", "default": []},
        "instances": {"type": "list", "elements": "dict", "default": []},
        "bindings": {"type": "list", "elements": "dict", "default": []},
        "journal": {"type": "list", "elements": "str", "default": []},
        "keep": {"type": "int", "default": KEEP},
    }


def work(params, check):
    """Bring the store to what is asked. Returns the module's result."""
    if params["keep"] < 2:
        raise NodeError("keep: at least 2, what runs and what it replaced.")
    return change(
        Store(),
        params["record"],
        params["instances"],
        params["bindings"],
        params["journal"],
        params["keep"],
        check,
    )


def main():
    """Entry point."""
    # no_log: an instance's environment file may hold an API key, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    secrets = secrets_of([item.get("server") or {} for item in module.params["instances"]])
    finish(module, secrets, lambda: work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
