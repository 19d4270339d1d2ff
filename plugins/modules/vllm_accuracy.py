#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: ask vLLM instances small tasks and the log likelihood of fixed passages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_accuracy
short_description: Ask vLLM instances small tasks and the log likelihood of fixed passages
version_added: "0.1.0"
description:
  - Sends the items of the shipped sanity set, and passages whose log likelihood tells replicas apart, to the instances
    of a node, from the node itself, all instances at the same time. M(instinct.fleet.accuracy_report) judges the
    answers.
  - The items are divided among the instances of a deployment that the plan of the same run has, on all hosts, unless
    O(divide) is false; each instance gets all passages, one at a time.
  - It is a light load of a few minutes, but a load. The role C(accuracy) drains the instances first.
  - A request that fails is sent again, and is then recorded as failed. It is never scored.
  - The API key is read from the instance's files on the node.
author: instinct-fleet contributors (@instinct-fleet)
options:
  targets:
    description:
      - The instances, from the plan. The module reads C(name), C(deployment), C(served_model), C(port), C(rank) and
        C(server.host), else C(argv). Ranks that serve nothing are left out.
      - For an instance of a stored generation, C(name), C(deployment) and C(generation) are enough.
    type: list
    elements: dict
    default: []
  sets:
    description:
      - What is asked; V(sanity) for the items, V(nll) for the passages.
      - Evaluated on the control node, by the module's action plugin.
    type: list
    elements: str
    default: [sanity, nll]
  divide:
    description:
      - Whether the instances of a deployment share the items. Otherwise each gets all of them, with the categories in
        turn, so that the items answered in time come from all categories.
      - Evaluated on the control node, by the module's action plugin.
    type: bool
    default: true
  concurrency:
    description: Items that one instance answers at the same time.
    type: int
    default: 4
  request_timeout:
    description: Seconds for one answer. The first request may have to compile kernels.
    type: int
    default: 120
  retries:
    description: How often a failed request is sent again. A refused one is not.
    type: int
    default: 2
  timeout:
    description: Seconds for an instance. Requests that were not sent by then have failed.
    type: int
    default: 1800
  work:
    description: Set by the action plugin; the C(prompts) of each instance by its name, C(passages) and C(tokens).
    type: dict
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Shows the requests that would be sent.
  diff_mode:
    support: N/A
    details: A request changes nothing.
  idempotent:
    support: full
    details: It changes nothing.
"""

EXAMPLES = r"""
- name: Ask the node's instances
  instinct.fleet.vllm_accuracy:
    targets: "{{ fleet_plan_result.plan.hosts[inventory_hostname].instances }}"
  register: accuracy_result
"""

RETURN = r"""
instances:
  description:
    - An entry for each instance, with C(name), C(deployment), C(model), C(commit), C(image), C(vllm),
      C(quantization) (the options that choose number formats), C(endpoint), C(seconds), and C(note) where something
      could not be asked.
    - C(answers) have C(id), C(text) and C(error); C(passages) have C(id), C(nll) (the sum in nat), C(tokens) and
      C(error).
  type: list
  elements: dict
  returned: when not in check mode
actions:
  description: The requests sent; in check mode those that would be.
  type: list
  elements: str
  returned: always, unless the parameters are wrong
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.accuracy import (
    RequestLimits,
    measure,
    quantization_of,
)
from ansible_collections.instinct.fleet.plugins.module_utils.bench.containers import complete_target
from ansible_collections.instinct.fleet.plugins.module_utils.bench.smoke_run import endpoint_of, key_of
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import (
    NodeError,
    finish,
    require_program,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.secret_files import node_secrets
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store import GenerationStore
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased

KNOWN = ("name", "deployment", "model", "commit", "image", "vllm")


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "targets": {"type": "list", "elements": "dict", "default": []},
        "sets": {"type": "list", "elements": "str", "default": ["sanity", "nll"]},
        "divide": {"type": "bool", "default": True},
        "concurrency": {"type": "int", "default": 4},
        "request_timeout": {"type": "int", "default": 120},
        "retries": {"type": "int", "default": 2},
        "timeout": {"type": "int", "default": 1800},
        "work": {"type": "dict"},
        **LEASE_OPTION,
    }


def ask(target: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of one instance."""
    work, begun = params["work"], time.monotonic()
    limits = RequestLimits(
        params["concurrency"], params["request_timeout"], params["retries"], begun + params["timeout"]
    )
    found = measure(
        endpoint_of(target, key_of(target)),
        work["prompts"].get(target["name"], []),
        work["passages"],
        work["tokens"],
        limits,
    )
    known = {key: str(target.get(key) or "") for key in KNOWN}
    known["quantization"] = quantization_of(target.get("argv") or ())
    return {**known, **found, "seconds": round(time.monotonic() - begun, 1)}


def run(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Ask all instances. Return the module's result."""
    require_program(params["work"])
    serving = [target for target in params["targets"] if not (target.get("rank") or {}).get("headless")]
    work = params["work"]
    actions = [
        f"POST to {target['name']} ({len(work['prompts'].get(target['name'], []))} items, "
        f"{len(work['passages'])} passages)"
        for target in serving
    ]
    if check or not serving:
        return {"changed": False, "actions": actions, "instances": []}
    with ThreadPoolExecutor(max_workers=len(serving)) as pool:
        entries = list(pool.map(lambda target: ask(target, params), serving))
    return {"changed": False, "actions": actions, "instances": entries}


def main() -> None:
    """Run the module."""
    # no_log: the plan of an instance contains its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    store = GenerationStore()
    try:
        targets = [complete_target(target, store) for target in module.params["targets"]]
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    secrets = [
        *(key_of(target) for target in targets),
        *secrets_of([target.get("server") or {} for target in targets]),
        *node_secrets(),
    ]
    finish(
        module,
        secrets,
        run_leased(module, lambda: run({**module.params, "targets": targets}, module.check_mode)),
    )


if __name__ == "__main__":
    main()
