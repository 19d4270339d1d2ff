#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: apply a configuration of HAProxy, or take the load balancer down."""

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_config
short_description: Run the load balancer with these files, without dropping a connection
version_added: "0.1.0"
description:
  - Writes the configuration into a new directory, has HAProxy validate it, puts it in use by one rename, reloads, and
    reads back through the admin socket that the running process uses it. If the process rejects the configuration, it
    continues with the previous one.
  - HAProxy runs as a separate service, C(instinct-balancer), with a small agent that reports which instances have
    generated tokens. The distribution's own HAProxy service is not touched.
  - Drained servers stay drained.
  - With O(state=absent), HAProxy stops listening, running requests finish, and services, configuration and secrets are
    removed. Packages stay.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - HAProxy 2.4 or newer and systemd on the host
options:
  files:
    description:
      - The files by name, as rendered by the plan. C(balancer.json) has the version that identifies the running
        configuration. Required with O(state=present).
    type: dict
  api_keys:
    description: API keys by name. The host stores only their SHA-256. Without it, clients need no key.
    type: dict
  certificate:
    description: Certificate, chain and private key, as PEM. Needed if the configuration has TLS.
    type: str
  instance_key:
    description: The key that is sent to the instances. Needed if the configuration sends one.
    type: str
  state:
    description:
      - V(present) runs the load balancer with O(files). V(absent) takes it down; a virtual address goes to another load
        balancer first.
    type: str
    choices: [present, absent]
    default: present
  wait:
    description:
      - Seconds for running requests to finish with O(state=absent). Those that remain are ended, with a warning.
    type: int
    default: 300
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
    details: Shows what would be written and reloaded, after HAProxy, if installed, has validated it.
  diff_mode:
    support: full
    details: The files before and after, except those with secrets.
  idempotent:
    support: full
    details: If the files are equal and the running process has that version, or nothing is there to take down, nothing
      is done.
"""

EXAMPLES = r"""
- name: Apply the load balancer's configuration
  instinct.fleet.haproxy_config:
    files: "{{ fleet_host_plan.balancer.files }}"
    api_keys: "{{ load_balancer_api_keys }}"
    certificate: "{{ lookup('ansible.builtin.file', fleet_host_plan.balancer.certificate_file) }}"

- name: Take the load balancer of this host down
  instinct.fleet.haproxy_config:
    state: absent
"""

RETURN = r"""
actions:
  description: Files written and commands run, in order; in check mode those that would be.
  type: list
  elements: str
  returned: success
  sample: [write /etc/instinct-fleet/balancer/current/haproxy.cfg, reload instinct-balancer.service]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.api_keys import keys_map
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import header_map
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import converge
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.take_down import take_down
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's options."""
    return {
        "files": {"type": "dict"},
        "api_keys": {"type": "dict", "no_log": True},
        "certificate": {"type": "str", "no_log": True},
        "instance_key": {"type": "str", "no_log": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "wait": {"type": "int", "default": 300},
        **LEASE_OPTION,
    }


def work(params: dict[str, Any], check: bool) -> dict[str, Any]:
    """Apply the configuration, or take the load balancer down. Return the module's result."""
    if params["state"] == "absent":
        return take_down(params["wait"], check)
    texts = {name: str(text) for name, text in params["files"].items()}
    if params["api_keys"]:
        texts["keys.map"] = keys_map(params["api_keys"])
    if params["certificate"]:
        texts["endpoint.pem"] = params["certificate"].strip() + "\n"
    if params["instance_key"]:
        texts["instance.map"] = header_map(params["instance_key"].strip())
    return converge(texts, check)


def main() -> None:
    """Run the module."""
    # no_log: the parameters contain the private key, and would go to syslog.
    module = AnsibleModule(
        argument_spec=argument_spec(),
        supports_check_mode=True,
        no_log=True,
        required_if=[("state", "present", ["files"])],
    )
    keys = (module.params[name] for name in ("certificate", "instance_key"))
    secrets = [*(key for key in keys if key), *(module.params["api_keys"] or {}).values()]
    finish(module, secrets, run_leased(module, lambda: work(module.params, module.check_mode)))


if __name__ == "__main__":
    main()
