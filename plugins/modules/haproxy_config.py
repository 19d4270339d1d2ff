#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: bring HAProxy to a configuration."""

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_config
short_description: Run the load balancer with these files, without dropping a connection
version_added: "0.1.0"
description:
  - Writes the configuration into a directory of its own, has HAProxy validate it, puts it in use by one rename,
    reloads, and reads back through the admin socket that the running process has it. A process that does not
    take it goes on with the one before.
  - HAProxy runs as a service of its own, C(instinct-balancer), beside a small agent that tells it which instances
    have generated tokens. A HAProxy of the distribution's own service is not touched.
  - Servers that are out stay out.
author: instinct-fleet contributors (@instinct-fleet)
requirements:
  - HAProxy 2.4 or newer and systemd on the host
options:
  files:
    description:
      - The files by name, as the plan renders them. C(balancer.json) holds the version by which the running
        configuration is known.
    type: dict
    required: true
  api_keys:
    description: Names and API keys. On the host only their SHA-256 is kept. Without it, no key is asked for.
    type: dict
  certificate:
    description: Certificate, chain and private key, as PEM. Needed where the configuration has TLS.
    type: str
  instance_key:
    description: The key that is sent to the instances. Needed where the configuration sends one.
    type: str
extends_documentation_fragment:
  - instinct.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Says what would be written and reloaded, after HAProxy has validated it where it is installed.
  diff_mode:
    support: full
    details: The files before and after, but for those with secrets.
  idempotent:
    support: full
    details: With equal files and the running process of that version, nothing is done.
"""

EXAMPLES = r"""
- name: Balance
  instinct.fleet.haproxy_config:
    files: "{{ fleet_host_plan.balancer.files }}"
    api_keys: "{{ load_balancer_api_keys }}"
    certificate: "{{ lookup('ansible.builtin.file', fleet_host_plan.balancer.certificate_file) }}"
"""

RETURN = r"""
actions:
  description: What was, or in check mode would be, done.
  type: list
  elements: str
  returned: success
  sample: [write /etc/instinct-fleet/balancer/current/haproxy.cfg, reload instinct-balancer.service]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.api_keys import keys_map
from ansible_collections.instinct.fleet.plugins.module_utils.common.instance_key import header_map
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import converge


def argument_spec():
    """The module's options."""
    return {
        "files": {"type": "dict", "required": True},
        "api_keys": {"type": "dict", "no_log": True},
        "certificate": {"type": "str", "no_log": True},
        "instance_key": {"type": "str", "no_log": True},
    }


def work(params, check):
    """Converge. Returns the module's result."""
    texts = {name: str(text) for name, text in params["files"].items()}
    if params["api_keys"]:
        texts["keys.map"] = keys_map(params["api_keys"])
    if params["certificate"]:
        texts["endpoint.pem"] = params["certificate"].strip() + "\n"
    if params["instance_key"]:
        texts["instance.map"] = header_map(params["instance_key"].strip())
    return converge(texts, check)


def main():
    """Entry point."""
    # no_log: the parameters hold the private key, and would go to syslog.
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, no_log=True)
    keys = (module.params[name] for name in ("certificate", "instance_key"))
    secrets = [*(key for key in keys if key), *(module.params["api_keys"] or {}).values()]
    finish(module, secrets, lambda: work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
