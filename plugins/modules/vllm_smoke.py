#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: ask a vLLM instance a dozen prompts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_smoke
short_description: Ask a vLLM instance a dozen prompts
version_added: "0.1.0"
description:
  - Asks an instance on its own node a dozen prompts (facts, arithmetic, code, other languages, repetition), at
    temperature 0 and for 32 tokens each, all at once, and returns the answers. It judges nothing;
    M(instinct.fleet.canary_verdict) does.
  - Text is asked for at C(/v1/completions), and at C(/v1/chat/completions) where the model has not the first one.
  - The API key is read from the instance's files on the node.
author: instinct-fleet contributors (@instinct-fleet)
options:
  target:
    description:
      - The instance, as the plan has it. Read are C(name), C(deployment), C(served_model), C(port) and C(server.host),
        else C(argv).
      - Of an instance of a generation that the node keeps, C(name), C(deployment) and C(generation) are enough.
    type: dict
    required: true
  times:
    description: How often all prompts are asked.
    type: int
    default: 1
  endpoint:
    description: Where to ask; empty to find out.
    type: str
    choices: ["", completions, chat]
    default: ""
  timeout:
    description: Seconds for one answer. The first one may have to wait for a kernel to be compiled.
    type: int
    default: 120
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.docker
attributes:
  check_mode:
    support: full
    details: Says what would be asked.
  diff_mode:
    support: N/A
    details: A question changes nothing.
  idempotent:
    support: full
    details: It changes nothing.
"""

EXAMPLES = r"""
- name: Ask the first instance twice
  instinct.fleet.vllm_smoke:
    target: "{{ fleet_plan_result.plan.hosts[inventory_hostname].instances[0] }}"
    times: 2
"""

RETURN = r"""
instance:
  description: Who was asked, C(name), C(deployment), C(model), C(commit), C(image), C(vllm), and how many C(gpus).
  type: dict
  returned: always, unless the parameters are wrong
endpoint:
  description: Where it was asked, C(completions) or C(chat); empty when it generates no text.
  type: str
  returned: as RV(instance)
rounds:
  description: The answers of each time, in the order of the prompts, with C(prompt), C(text) and C(error).
  type: list
  elements: list
  returned: as RV(instance)
note:
  description: Why nothing was asked; empty when something was.
  type: str
  returned: as RV(instance)
cause:
  description: What the container's log says, when answers are missing; empty otherwise.
  type: str
  returned: as RV(instance)
actions:
  description: The requests.
  type: list
  elements: str
  returned: as RV(instance)
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.run import cause, whole
from ansible_collections.instinct.fleet.plugins.module_utils.bench.smoke_run import (
    PATHS,
    ask_all,
    endpoint_of,
    find,
    key_of,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import container_name
from ansible_collections.instinct.fleet.plugins.module_utils.common.server_secrets import secrets_of
from ansible_collections.instinct.fleet.plugins.module_utils.common.smoke_prompts import PROMPTS, TOKENS
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import SOCKET, Engine
from ansible_collections.instinct.fleet.plugins.module_utils.serving.store import Store

KNOWN = ("name", "deployment", "model", "commit", "image", "vllm")


def argument_spec():
    """The module's options."""
    return {
        "target": {"type": "dict", "required": True},
        "times": {"type": "int", "default": 1},
        "endpoint": {"type": "str", "choices": ["", "completions", "chat"], "default": ""},
        "timeout": {"type": "int", "default": 120},
        "docker_socket": {"type": "path", "default": SOCKET},
    }


def work(params, check, api_key):
    """Ask. Returns the module's result."""
    instance = params["target"]
    missing = [key for key in ("name", "port", "served_model") if not instance.get(key)]
    if missing:
        raise NodeError(f"target: {', '.join(missing)} is missing. Give the instance as the plan has it.")
    result = {
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
            result["note"] = f"{instance['name']} generates no text, so no prompts are asked ({why})"
            return result
    path = PATHS.get(result["endpoint"], PATHS["completions"])
    result["actions"] = [
        f"POST http://{endpoint.host}:{endpoint.port}{path} ({len(PROMPTS)} prompts, {TOKENS} tokens each)"
    ] * params["times"]
    if check:
        return result
    rounds = [ask_all(endpoint, result["endpoint"], params["timeout"]) for _ in range(params["times"])]
    result["rounds"] = [
        [
            {"prompt": prompt.text, "text": reply.text, "error": reply.error}
            for prompt, reply in zip(PROMPTS, replies)
        ]
        for replies in rounds
    ]
    if any(reply.error for replies in rounds for reply in replies):
        result["cause"] = cause(Engine(params["docker_socket"]), container_name(instance["name"])).strip()
    return result


def main():
    """Entry point."""
    # no_log: the plan of an instance holds its environment file, and the parameters would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    try:
        target = whole(module.params["target"], Store())
    except NodeError as error:
        module.fail_json(msg=str(error))
        return
    api_key = key_of(target)
    secrets = [api_key, *secrets_of([target.get("server") or {}])]
    finish(module, secrets, lambda: work({**module.params, "target": target}, module.check_mode, api_key))


if __name__ == "__main__":
    main()
