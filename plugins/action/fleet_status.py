# SPDX-License-Identifier: Apache-2.0
"""Show what runs in the fleet: read what instance_status found on each host, and decide nothing here.

Documentation: plugins/modules/fleet_status.py (`ansible-doc -t module instinct.fleet.fleet_status`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import (
    ControllerAction,
    write_json,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.runs import (
    Lease,
    other_runs,
    run_warnings,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.fleet import status
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.text import text
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import (
    InventoryReader,
    why_unreached,
)


def _quota(reader: InventoryReader, host: str) -> int:
    """Return a host's store_quota in bytes; 0 for none, and for one that a plan refuses."""
    found = reader.values(host, ("store_quota",), lenient=True).get("store_quota")
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


class ActionModule(ControllerAction):
    """fleet_status."""

    options: ClassVar = {
        "detail": {"type": "bool", "default": False},
        "status_file": {"type": "path"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return status, verdict and text."""
        reader = InventoryReader(facts)
        seen: dict[str, Any] = {}
        unreached: dict[str, str] = {}
        leases: dict[str, Lease | None] = {}
        for name in (str(host) for host in facts["ansible_play_hosts_all"]):
            found = reader.registered(name, "instance_status_result")
            if "instance_status" in found:
                seen[name] = found["instance_status"]
                leases[name] = Lease.from_json(found.get("lease"))
            else:
                unreached[name] = why_unreached(found)
        made = status(seen, unreached, {name: _quota(reader, name) for name in seen})
        message = text(made, options["detail"])
        self.show(f"\n{message}")
        for warning in run_warnings(other_runs(leases)):
            self._display.warning(warning)
        data = made.to_json()
        if options["status_file"]:
            write_json(Path(options["status_file"]), data)
        return {"changed": False, "status": data, "verdict": made.verdict(), "text": message}
