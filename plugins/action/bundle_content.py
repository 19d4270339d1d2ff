# SPDX-License-Identifier: Apache-2.0
"""Find what a bundle of the fleet's deployments must contain, and what the lock next to the inventory pins.

Documentation: plugins/modules/bundle_content.py (`ansible-doc -t module instinct.fleet.bundle_content`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import HF_CACHE
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import load_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.release import toolkit_release
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.control_node.found_files import (
    find_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.control_node.named_files import (
    FILES,
    SECRET_FILES,
    Places,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import build_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check import (
    conflict_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.groups import BALANCERS, FLEET
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import LOCK
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.closure import (
    closure,
    lock_pins,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.lock_file import read_lock


class ActionModule(ControllerAction):
    """bundle_content."""

    options: ClassVar = {"load": {"type": "bool", "default": False}}

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return images, models, files, pins, lock and about; for loading, only the pins of the whole lock."""
        reader, host = InventoryReader(facts), str(facts["inventory_hostname"])
        names = list(reader.groups().get(FLEET, ()))
        path = reader.inventory_directory(names) / LOCK
        if not path.exists():
            fix = (
                f"Copy {LOCK} of the bundle's directory there."
                if options["load"]
                else "Deploy first, or run plan.yml, which writes it."
            )
            raise FleetError([Problem((), f"{path} is not there.", fix)])
        lock = read_lock(path)
        if options["load"]:
            return {"changed": False, "pins": lock_pins(lock)}
        wrong = [*conflict_problems(reader, names, self._loader)]
        inputs = {name: reader.host(name, True) for name in names}
        fleet = build_fleet(inputs, reader.groups(), load_gpus(), True, wrong)
        cache_dir = str(reader.value(host, "hf_model_cache_dir") or HF_CACHE).rstrip("/")
        found = closure(fleet, lock, cache_dir)
        for text in found.warnings:
            self._display.warning(text)
        data = {**found.to_json(), "files": _files(reader, names)}
        data["about"]["release"] = toolkit_release()
        return {"changed": False, "lock": path.read_text(encoding="utf-8"), **data}

    def error_message(self, error: Exception, facts: Mapping[str, Any]) -> str:
        """Return every problem of the input, with the place where it was written."""
        reader = InventoryReader(facts)
        problems = error.problems if isinstance(error, FleetError) else ()
        lines = [problem.text(reader.origin(problem), reader.deployment(problem)) for problem in problems]
        return "\n".join(["Nothing was changed.", *(f"* {line}" for line in lines)])


def _files(reader: InventoryReader, names: list[str]) -> list[dict[str, Any]]:
    """Return the files of the control node that the inventory names, as one item of a loop; [] without any."""
    hosts = dict.fromkeys([*names, *reader.groups().get(BALANCERS, ())])
    variables = {name: reader.values(name, (*FILES, *SECRET_FILES)) for name in hosts}
    found = find_files(variables, Places(Path.cwd(), reader.inventory_directory(names), CATALOG.parent))
    files = [{"path": item.path, "source": item.source} for item in found]
    return [{"what": f"{len(files)} files", "files": files}] if files else []
