# SPDX-License-Identifier: Apache-2.0
"""Lookup plugin: the hosts of a play, after a check of everything that the run would otherwise silently ignore."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_hosts
author: instinct-fleet contributors (@instinct-fleet)
short_description: Name the groups of hosts of a play, and reject what the run would ignore
version_added: "0.1.0"
description:
  - Returns those of the given groups that the inventory has, for a play's C(hosts).
  - Ansible templates C(hosts) before it contacts a host. This plugin therefore fails the run there, with nothing
    contacted, for an inventory that is missing, unreadable or has invalid YAML, for misspelled groups and files of
    variables, for such files that look left over, are not read or set a variable a second time, for a C(--limit) or
    tag that matches nothing, for C(--start-at-task), for former names of the toolkit's variables, and for misspelled
    names or invalid values of them given with C(-e).
options:
  _terms:
    description: Groups of the inventory, C(instinct) and C(load_balancer) by default. One of them needs a host.
    type: list
    elements: str
  needs:
    description: Another group that needs a host, though the play does not run on it.
    type: str
    default: ""
  leaving:
    description:
      - Whether the run takes hosts apart. It needs a C(--limit), and in it a host that is not a load balancer; returns
        C(all), as such a host may have left the groups.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Status
  hosts: "{{ query('instinct.fleet.fleet_hosts') }}"
"""

RETURN = r"""
_raw:
  description: The given groups that exist.
  type: list
  elements: str
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager, split_host_pattern
from ansible.plugins.lookup import LookupBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import

# isort: split
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import Problem, merge
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired import inventory_check
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory import (
    inventory_files,
    run_input,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.groups import BALANCERS, FLEET
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.tags import (
    own_playbooks,
    toolkit_tags,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.unknown_variables import (
    FORMER,
    FORMER_EXTRA,
    unknown_extra_variables,
)

KNOWN = (FLEET, BALANCERS)
UNPARSED = re.compile(r"Unable to parse (\S+) as an inventory source")


class LookupModule(LookupBase):
    """fleet_hosts."""

    def run(
        self, terms: Sequence[str], variables: Mapping[str, Any] | None = None, **options: Any
    ) -> list[str]:
        """Return the groups, or raise AnsibleError with every problem of the command and the inventory."""
        self.set_options(var_options=variables, direct=options)
        facts = variables or {}
        groups = {str(name): [str(host) for host in hosts] for name, hosts in facts["groups"].items()}
        names = list(map(str, terms)) or list(KNOWN)
        if not context.CLIARGS.get("syntax"):
            problems = merge(self._problems(names, groups, facts))
            if problems:
                text = "\n".join(f"* {problem.text()}" for problem in problems)
                raise AnsibleError(f"Nothing was done, and no host was contacted.\n{text}")
        return ["all"] if self.get_option("leaving") else [name for name in names if name in groups]

    def _problems(
        self, names: Sequence[str], groups: Mapping[str, list[str]], facts: Mapping[str, Any]
    ) -> list[Problem]:
        sources = [str(source) for source in facts.get("ansible_inventory_sources", ())]
        playbook_dir = self._loader.get_basedir()
        broken = inventory_files.yaml_problems(sources, playbook_dir)
        broken += inventory_files.source_problems(sources, () if broken else self._unparsed())
        given = load_extra_vars(self._loader)
        known = public_variables()
        former = {**FORMER, **FORMER_EXTRA}
        problems = [Problem((), text) for text in unknown_extra_variables(map(str, given), known, former)]
        problems += run_input.value_problems(given, known)
        if own_playbooks(context.CLIARGS.get("args") or ()):
            problems += run_input.start_problems(context.CLIARGS.get("start_at_task"))
            tags = (*facts.get("ansible_run_tags", ()), *facts.get("ansible_skip_tags", ()))
            problems += run_input.tag_problems(tags, toolkit_tags())
        if broken:
            return [*broken, *problems]  # groups and hosts are not known
        hosts = groups.get("all", [])
        for required in (names, [needs]) if (needs := self.get_option("needs")) else (names,):
            problems += run_input.group_problems(required, KNOWN, groups)
        for kind, valid in (("group", groups), ("host", hosts)):
            files = inventory_files.variable_files(sources, playbook_dir, f"{kind}_vars")
            problems += run_input.file_problems(kind, files, valid)
        here = [str(name) for name in facts.get("ansible_play_hosts_all", hosts)]
        problems += inventory_check.file_problems(self._loader, sources, groups, here)
        limit = facts.get("ansible_limit")
        leaving = bool(self.get_option("leaving"))
        return [*problems, *self._limit_problems(names, groups, limit, leaving)]

    def _limit_problems(
        self, names: Sequence[str], groups: Mapping[str, list[str]], limit: str | None, leaving: bool = False
    ) -> Iterator[Problem]:
        """Yield patterns of --limit that match nothing, and that it leaves no host of the groups, or none that can
        leave."""
        if not limit:
            yield from [run_input.unlimited_problem()] if leaving else ()
            return
        inventory = InventoryManager(self._loader, parse=False)
        for group, hosts in groups.items():
            inventory.add_group(group)
            for host in hosts:
                inventory.add_host(host, group)
        named = [
            text for text in patterns(limit) if text not in KNOWN
        ]  # an inventory may have no load balancer
        unmatched = [text for text in named if not inventory.get_hosts(text.lstrip("!&"))]
        yield from run_input.limit_problems(unmatched, [*groups, *groups.get("all", ())])
        inventory.subset(limit)
        if leaving and not unmatched:
            here = [host.name for host in inventory.get_hosts("all")]
            yield from run_input.leaving_problems(here, groups.get(BALANCERS, ()))
            return
        there = [name for name in names if name in groups]
        if there and not unmatched and not inventory.get_hosts(there):
            what = f"--limit {limit}: leaves no host of the group {' or '.join(there)}."
            yield Problem((), what, "Name hosts of that group, or groups in it.")

    def _unparsed(self) -> list[str]:
        """Return the sources that Ansible could not parse. Only its warnings say so, and it keeps those."""
        warned = getattr(self._display, "_warns", ())
        return sorted({path for text in warned for path in UNPARSED.findall(str(text))})


def patterns(limit: str) -> list[str]:
    """Return the patterns of --limit, those in its files included."""
    found = []
    for text in split_host_pattern(limit):
        if text.startswith("@"):
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
            found += [line.strip() for line in lines if line.strip()]
        else:
            found.append(text)
    return found
