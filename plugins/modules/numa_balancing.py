#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: automatic NUMA balancing, now and after reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: numa_balancing
short_description: Turn the kernel's automatic NUMA balancing off or on, now and after reboot
version_added: "0.1.0"
description:
  - Sets C(kernel.numa_balancing) in the running kernel and, for the next boots, in a file of C(sysctl.d).
  - AMD's guides recommend turning it off on hosts with Instinct GPUs.
  - If another file under C(/etc) would override it later in a boot, its line is commented out. Such a file elsewhere
    belongs to a package, so the module fails and names it.
  - Reads the written value back. On a kernel without the feature it does nothing, and RV(message) explains that.
options:
  enabled:
    description: Whether NUMA balancing should be on.
    type: bool
    default: false
  persist:
    description:
      - Whether to keep the setting over reboots.
      - Nothing is written if the next boot gives the same value anyway, by another file or by
        C(numa_balancing=disable) on the kernel command line.
    type: bool
    default: true
  sysctl_file:
    description: The file to write, in a C(sysctl.d) directory. Other lines in it are kept.
    type: path
    default: /etc/sysctl.d/60-instinct-fleet.conf
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The kernel's value and every file.
  idempotent:
    support: full
requirements:
  - Python 3.9 on the node
  - root
seealso:
  - module: instinct.fleet.node_state
  - name: System optimization
    description: AMD's guide for hosts with Instinct GPUs.
    link: https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/system-optimization/mi300x.html
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Turn NUMA balancing off, now and after reboot
  instinct.fleet.numa_balancing:
  become: true

- name: Turn it on again
  instinct.fleet.numa_balancing:
    enabled: true
  become: true
"""

RETURN = r"""
before:
  description: The kernel's value, the value after the next boot, and the file that sets it; null for none.
  returned: success
  type: dict
  sample: {runtime: 1, persisted: null, file: null}
after:
  description: The same after the change, read back; in check mode as expected.
  returned: success
  type: dict
  sample: {runtime: 0, persisted: 0, file: /etc/sysctl.d/60-instinct-fleet.conf}
actions:
  description: Values and files written, in order; in check mode those that would be.
  returned: success
  type: list
  elements: str
  sample:
    - write kernel.numa_balancing = 0 > /etc/sysctl.d/60-instinct-fleet.conf
    - write 0 > /proc/sys/kernel/numa_balancing
message:
  description: The reason for doing nothing if the kernel has no automatic NUMA balancing.
  returned: when the kernel lacks the feature
  type: str
  sample: This kernel has no automatic NUMA balancing; nothing to do.
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.host import numa
from ansible_collections.instinct.fleet.plugins.module_utils.host.sysctl_settings import resolved_settings
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, leased
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.observe.sysctl import SysctlError
from ansible_collections.instinct.fleet.plugins.module_utils.observe.sysctl_files import (
    SYSCTL_DIRS,
    read_numa_balancing,
)

ROOT = "/"


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    return {
        "enabled": {"type": "bool", "default": False},
        "persist": {"type": "bool", "default": True},
        "sysctl_file": {"type": "path", "default": "/etc/sysctl.d/60-instinct-fleet.conf"},
        **LEASE_OPTION,
    }


def local(path: str) -> str:
    """Return the path at which this process sees a path of the node."""
    return ROOT.rstrip("/") + path


def read(source: Source) -> dict[str, Any]:
    """Return the setting now and after the next boot."""
    return read_numa_balancing(source, (source.text("/proc/cmdline") or "").split())


def make_change(params: dict[str, Any], source: Source) -> numa.Change:
    """Read the files and decide on the change. Raise NodeError if it is impossible."""
    path = params["sysctl_file"]
    if os.path.dirname(path) not in SYSCTL_DIRS or not path.endswith(".conf"):
        raise NodeError(
            f"sysctl_file: {path} is not read at boot. It must end in .conf and be in one of "
            f"{', '.join(SYSCTL_DIRS)}."
        )
    settings = resolved_settings(source, numa.KEY)
    files = {}
    for file in {path, *(setting.real for setting in settings)}:
        if os.path.exists(local(file)):
            with open(local(file), encoding="utf-8", errors="surrogateescape") as stream:
                files[file] = stream.read()
    wanted = {"enabled": params["enabled"], "persist": params["persist"], "sysctl_file": path}
    try:
        return numa.plan(read(source), settings, files, **wanted)
    except SysctlError as error:
        raise NodeError(str(error)) from None


def apply(module: AnsibleModule, change: numa.Change) -> None:
    """Write the files, then the kernel's value: after a crash in between, a boot completes the change."""
    for edit in change.edits:
        temporary = os.path.join(module.tmpdir, "numa_balancing")
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(edit.new)
        if not os.path.exists(local(edit.path)):
            os.makedirs(os.path.dirname(local(edit.path)), mode=0o755, exist_ok=True)
            os.chmod(temporary, 0o644)
        module.atomic_move(temporary, local(edit.path))
    if change.runtime is not None:
        with open(local(numa.RUNTIME), "w", encoding="ascii") as stream:
            stream.write(change.runtime + "\n")


def diff(change: numa.Change, before: dict[str, Any]) -> list[dict[str, str]]:
    """Return the kernel's value and every file before and after."""
    entries = [
        {"before_header": edit.path, "before": edit.old, "after_header": edit.path, "after": edit.new}
        for edit in change.edits
    ]
    if change.runtime is not None:
        old, new, header = f"{before['runtime']}\n", f"{change.runtime}\n", numa.RUNTIME
        entries.append({"before_header": header, "before": old, "after_header": header, "after": new})
    return entries


def work(module: AnsibleModule) -> dict[str, Any]:
    """Change or predict the settings, and read them back. Return the module's result. Raise NodeError on failure."""
    source = Source(ROOT)
    params = module.params
    before = read(source)
    change = make_change(params, source)
    actions = list(change.actions)
    result: dict[str, Any] = {"changed": bool(actions), "before": before, "actions": actions}
    if module._diff:
        result["diff"] = diff(change, before)
    if before["runtime"] is None:
        result["message"] = "This kernel has no automatic NUMA balancing; nothing to do."
    if actions and os.geteuid() != 0:
        raise NodeError("Setting kernel.numa_balancing needs root: use become: true (-b).")
    if module.check_mode:
        return {**result, "after": predicted(before, change, params)}
    try:
        apply(module, change)
    except OSError as error:
        raise NodeError(
            f"Cannot write {error.filename or 'a file'}: {error.strerror or error}.", **result
        ) from None
    after = result["after"] = read(source)
    now, boot = after["runtime"], after["persisted"]
    wrong = now is not None and (now != 0) != params["enabled"]
    if wrong or (params["persist"] and change.edits and (boot is None or (boot != 0) != params["enabled"])):
        raise NodeError(
            f"kernel.numa_balancing does not read back as written: now {now}, after a boot {boot} by "
            f"{after['file']}. Something else on this host sets it.",
            **result,
        )
    return result


def predicted(before: dict[str, Any], change: numa.Change, params: dict[str, Any]) -> dict[str, Any]:
    """Return the state that reading back will show."""
    after = dict(before)
    if change.runtime is not None:
        after["runtime"] = int(change.runtime)
    if change.edits:
        after.update(persisted=int(params["enabled"]), file=change.file)
    return after


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], leased(module, lambda: work(module)))


if __name__ == "__main__":
    main()
