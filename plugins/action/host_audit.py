# SPDX-License-Identifier: Apache-2.0
"""Judge the fleet's hosts: read hosts' variables and the catalogue, and decide nothing here.

Documentation: plugins/modules/host_audit.py (`ansible-doc -t module instinct.fleet.host_audit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import (
    ControllerAction,
    write_json,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.runs import (
    Lease,
    other_runs,
    run_warnings,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.auditor import (
    VARIABLES,
    HostAuditor,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.items import REQUIRED
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.judge import (
    differences,
    findings_with_status,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.reboot import (
    running_deployments,
    spanning_instances,
    stopped_servers,
    todo_host,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.serving_checks import drifts
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.text import (
    Report,
    text,
    verdict_text,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check import (
    conflict_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader


class ActionModule(ControllerAction):
    """host_audit."""

    options: ClassVar[dict[str, dict[str, Any]]] = {
        "hosts": {"type": "list", "elements": "str"},
        "explain": {"type": "bool", "default": False},
        "audit_file": {"type": "path"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return hosts, failing, todo and text."""
        reader, auditor = InventoryReader(facts), HostAuditor()
        names = reader.hosts(options["hosts"] or None)
        if wrong := [*conflict_problems(reader, names, self._loader)]:
            raise FleetError(wrong)
        owns = {name: reader.values(name, VARIABLES) for name in names}
        found = {name: reader.registered(name, "host_facts_result") for name in names}
        reached = {name: seen for name, seen in found.items() if "host_facts" in seen}
        differing = drifts({name: seen["node_state"] for name, seen in reached.items()})
        views = {name: auditor.view(seen, owns[name], differing[name]) for name, seen in reached.items()}
        hosts = tuple(auditor.audited(name, views.get(name), found[name], owns[name]) for name in names)
        report = Report(hosts, differences(views), auditor.bios)
        message = text(report, options["explain"])
        self.show(f"\n{message}")
        leases = {name: Lease.from_json(seen["node_state"].get("lease")) for name, seen in reached.items()}
        for warning in run_warnings(other_runs(leases)):
            self._display.warning(warning)
        data = report.to_json()
        if options["audit_file"]:
            write_json(Path(options["audit_file"]), data)
        waiting = {
            name: host["todo"]["waiting"] for name, host in data["hosts"].items() if host["todo"]["waiting"]
        }
        running = {name: running_deployments(view) for name, view in views.items()}
        spanning = spanning_instances(running, owns, waiting)
        return {
            "changed": False,
            "hosts": data["hosts"],
            "failing": [host.name for host in hosts if findings_with_status(host.findings, REQUIRED)],
            "verdict": verdict_text(hosts),
            "waiting": waiting,
            "spanning": {name: stopped_servers(names) for name, names in spanning.items() if names},
            "todo": [
                item
                for host in hosts
                if host.name in views
                for item in todo_host(
                    host, [name for name in running[host.name] if name not in spanning[host.name]]
                )
            ],
            "text": message,
        }
