# SPDX-License-Identifier: Apache-2.0
"""Tell what runs in the fleet: reads what instance_status found on each host; decides nothing itself.

Documentation: plugins/modules/fleet_status.py (`ansible-doc -t module instinct.fleet.fleet_status`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible_collections.instinct.fleet.plugins.plugin_utils.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.status.fleet import status
from ansible_collections.instinct.fleet.plugins.plugin_utils.status.text import text


class ActionModule(ControllerAction):
    """fleet_status."""

    options: ClassVar = {
        "detail": {"type": "bool", "default": False},
        "status_file": {"type": "path"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return status, verdict and text."""
        seen: dict[str, Any] = {}
        unreached: dict[str, str] = {}
        for name in (str(host) for host in facts["ansible_play_hosts_all"]):
            found = facts["hostvars"].raw_get(name).get("instance_status_result") or {}
            if "instance_status" in found:
                seen[name] = found["instance_status"]
            else:
                why = str(found.get("msg") or "it could not be reached").strip()
                unreached[name] = why.partition("\n")[0]
        made = status(seen, unreached)
        told = text(made, options["detail"])
        self._display.display(f"\n{told}")
        data = made.to_json()
        if options["status_file"]:
            _write(Path(options["status_file"]), data)
        return {"changed": False, "status": data, "verdict": made.verdict(), "text": told}


def _write(path: Path, data: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise AnsibleActionFail(f"status_file: {path} cannot be written: {error.strerror}.") from error
