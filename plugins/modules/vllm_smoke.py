#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: send a dozen prompts to a vLLM instance."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_smoke
short_description: Send a dozen prompts to a vLLM instance
version_added: "0.1.0"
description:
  - Sends a dozen prompts (facts, arithmetic, code, other languages, repetition) to an instance from its own node, at
    temperature 0 and for 32 tokens each, all at once, and returns the answers. It leaves the judgement to
    M(instinct.fleet.canary_verdict).
  - The prompts go to C(/v1/completions), or to C(/v1/chat/completions) if the model does not support the first
    endpoint.
  - The API key is read from the instance's files on the node.
author: instinct-fleet contributors (@instinct-fleet)
options:
  target:
    description:
      - The instance, from the plan. The module reads C(name), C(deployment), C(served_model), C(port) and
        C(server.host), else C(argv).
      - For an instance of a stored generation, C(name), C(deployment) and C(generation) are enough.
    type: dict
    required: true
  times:
    description: How often all prompts are sent.
    type: int
    default: 1
  endpoint:
    description: The endpoint to use; empty to detect it.
    type: str
    choices: ["", completions, chat]
    default: ""
  timeout:
    description: Seconds for one answer. The first request may have to compile kernels.
    type: int
    default: 120
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
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
- name: Send the prompts to the first instance twice
  instinct.fleet.vllm_smoke:
    target: "{{ fleet_plan_result.plan.hosts[inventory_hostname].instances[0] }}"
    times: 2
"""

RETURN = r"""
instance:
  description: The instance, with C(name), C(deployment), C(model), C(commit), C(image), C(vllm), C(gpus) (a number).
  type: dict
  returned: always, unless the parameters are wrong
endpoint:
  description: The endpoint used, C(completions) or C(chat); empty if the instance generates no text.
  type: str
  returned: as RV(instance)
rounds:
  description: The answers of each round, in the order of the prompts, with C(prompt), C(text) and C(error).
  type: list
  elements: list
  returned: as RV(instance)
note:
  description: Why no prompts were sent; empty if they were.
  type: str
  returned: as RV(instance)
cause:
  description: The cause in the container's log if answers are missing; empty otherwise.
  type: str
  returned: as RV(instance)
actions:
  description: The requests sent; in check mode those that would be.
  type: list
  elements: str
  returned: as RV(instance)
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.containers import complete_target
from ansible_collections.instinct.fleet.plugins.module_utils.bench.entries import cause
from ansible_collections.instinct.fleet.plugins.module_utils.bench.smoke_run import (
    PATHS,
    ask_all,
    endpoint_of,
    find,
    key_of,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import container_name
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.secret_files import node_secrets
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET, DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.engines.smoke_prompts import PROMPTS, TOKENS
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store import GenerationStore
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased

KNOWN = ("name", "deployment", "model", "commit", "image", "vllm")


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "target": {"type": "dict", "required": True},
        "times": {"type": "int", "default": 1},
        "endpoint": {"type": "str", "choices": ["", "completions", "chat"], "default": ""},
        "timeout": {"type": "int", "default": 120},
        "docker_socket": {"type": "path", "default": SOCKET},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool, api_key: str) -> dict[str, Any]:
    """Send the prompts. Return the module's result."""
    instance = params["target"]
    missing = [key for key in ("name", "port", "served_model") if not instance.get(key)]
    if missing:
        raise NodeError(f"target: {', '.join(missing)} is missing. Pass the instance from the plan.")
    result: dict[str, Any] = {
        "changed": False,
        "instance": {
            **{key: str(instance.get(key) or "") for key in KNOWN},
            "gpus": len(instance.get("gpus") or ()),
        },
        "endpoint": params["endpoint"],
        "rounds": [],
        "note": "",
        "cause": "",
        "actions": [],
    }
    endpoint = endpoint_of(instance, api_key)
    if not check and not result["endpoint"]:
        result["endpoint"], why = find(endpoint, params["timeout"])
        if why:
            result["note"] = f"{instance['name']} generates no text, so no prompts are sent ({why})"
            return result
    path = PATHS.get(result["endpoint"], PATHS["completions"])
    result["actions"] = [
        f"POST http://{endpoint.host}:{endpoint.port}{path} ({len(PROMPTS)} prompts, {TOKENS} tokens each)"
    ] * params["times"]
    if check:
        return result
    rounds = [ask_all(endpoint, result["endpoint"], params["timeout"]) for _unused in range(params["times"])]
    result["rounds"] = [
        [
            {"prompt": prompt.text, "text": reply.text, "error": reply.error}
            for prompt, reply in zip(PROMPTS, replies)
        ]
        for replies in rounds
    ]
    if any(reply.error for replies in rounds for reply in replies):
        result["cause"] = cause(
            DockerClient(params["docker_socket"]), container_name(instance["name"])
        ).strip()
    return result


def main() -> None:
    """Run the module."""
    # no_log: the plan of an instance contains its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    try:
        target = complete_target(module.params["target"], GenerationStore())
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    api_key = key_of(target)
    secrets = [api_key, *secrets_of([target.get("server") or {}]), *node_secrets()]
    finish(
        module,
        secrets,
        run_leased(module, lambda: work({**module.params, "target": target}, module.check_mode, api_key)),
    )


if __name__ == "__main__":
    main()
