#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: run tasks of lm-eval against the vLLM instances of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lm_eval
short_description: Run tasks of lm-eval against vLLM instances
version_added: "0.1.0"
description:
  - Runs lm-eval, which the role C(accuracy) installs in an environment of its own on the node, against
    C(/v1/completions) of instances of the node, all instances at the same time, without a network.
  - The items of a task are divided among the instances of a deployment that the plan of the same run has, on all hosts.
  - A call that fails is repeated as long as that gives further answers; then the items that get none are found by
    halving, and left out. They are never scored.
  - The API key is read from the instance's files on the node, and reaches lm-eval through its environment.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - lm-eval 0.4.13 in C(/var/lib/instinct-fleet/lm-eval/venv)
options:
  targets:
    description:
      - The instances, from the plan. The module reads C(name), C(deployment), C(served_model), C(port), C(rank) and
        C(server.host), else C(argv). Ranks that serve nothing are left out.
    type: list
    elements: dict
    default: []
  tasks:
    description: The tasks, as M(instinct.fleet.accuracy_report) returns them. Their files are on the node.
    type: list
    elements: dict
    default: []
  concurrency:
    description: Requests to one instance at the same time.
    type: int
    default: 4
  timeout:
    description: Seconds for all tasks of an instance.
    type: int
    default: 14400
  work:
    description: Set by the action plugin; the items of each task, by instance.
    type: dict
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Shows what would be run.
  diff_mode:
    support: N/A
    details: A request changes nothing.
  idempotent:
    support: full
    details: It changes nothing.
"""

EXAMPLES = r"""
- name: Run the tasks
  instinct.fleet.lm_eval:
    targets: "{{ fleet_plan_result.plan.hosts[inventory_hostname].instances }}"
    tasks: "{{ accuracy_check.lm_eval }}"
"""

RETURN = r"""
instances:
  description:
    - An entry for each instance, with C(name), C(deployment), C(model), C(commit), C(image), C(vllm), and C(tasks).
    - C(tasks) has C(samples), C(failed) (items without an answer, with the hash of their document), C(error) and
      C(about) for each task.
  type: list
  elements: dict
  returned: when not in check mode
actions:
  description: The tasks run; in check mode those that would be.
  type: list
  elements: str
  returned: always, unless the parameters are wrong
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.lm_eval import (
    DIRECTORY,
    LmEval,
    LmEvalTask,
    link_base,
)
from ansible_collections.instinct.fleet.plugins.module_utils.bench.smoke_run import endpoint_of, key_of
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish, require_program
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.secret_files import node_secrets
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock import run_lock

KNOWN = ("name", "deployment", "model", "commit", "image", "vllm")
WAIT = 60.0


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "targets": {"type": "list", "elements": "dict", "default": []},
        "tasks": {"type": "list", "elements": "dict", "default": []},
        "concurrency": {"type": "int", "default": 4},
        "timeout": {"type": "int", "default": 14400},
        "work": {"type": "dict"},
        **LEASE_OPTION,
    }


def evaluate(target: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of one instance."""
    deadline = time.monotonic() + params["timeout"]
    found: dict[str, Any] = {}
    for task in params["tasks"]:
        run = LmEval(
            endpoint_of(target, key_of(target)),
            LmEvalTask(
                task["name"], os.path.join(DIRECTORY, "tasks", task["title"]), task["metric"], task["filter"]
            ),
            os.path.join(DIRECTORY, "work", target["name"]),
            params["concurrency"],
            deadline,
        )
        found[task["title"]] = run.run(params["work"][target["name"]][task["title"]])
    return {**{key: str(target.get(key) or "") for key in KNOWN}, "tasks": found}


def run(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Run all tasks. Return the module's result."""
    require_program(params["work"])
    serving = [target for target in params["targets"] if not (target.get("rank") or {}).get("headless")]
    titles = ", ".join(task["title"] for task in params["tasks"])
    actions = [f"lm-eval on {target['name']}: {titles}" for target in serving]
    if check or not serving or not titles:
        return {"changed": False, "actions": actions, "instances": []}
    with run_lock("lm_eval", WAIT):
        link_base()
        with ThreadPoolExecutor(max_workers=len(serving)) as pool:
            entries = list(pool.map(lambda target: evaluate(target, params), serving))
    return {"changed": False, "actions": actions, "instances": entries}


def main() -> None:
    """Run the module."""
    # no_log: the plan of an instance contains its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    targets = module.params["targets"]
    secrets = [
        *(key_of(target) for target in targets),
        *secrets_of([target.get("server") or {} for target in targets]),
        *node_secrets(),
    ]
    finish(module, secrets, run_leased(module, lambda: run(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
