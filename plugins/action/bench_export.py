# SPDX-License-Identifier: Apache-2.0
"""Write a run of the benchmarks in formats of other tools: reads results/<run>/, writes files.

Documentation: plugins/modules/bench_export.py (`ansible-doc -t module instinct.fleet.bench_export`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.files import (
    find_run,
    read_run,
    write_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.formats import (
    check_formats,
    export_run,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "run": {"type": "str", "default": "latest"},
    "results_dir": {"type": "path", "default": "results"},
    "formats": {"type": "list", "elements": "str", "required": True},
    "to": {"type": "path"},
    "overwrite": {"type": "bool", "default": False},
}


class ActionModule(ControllerAction):
    """bench_export."""

    BYPASS_HOST_LOOP = True
    options: ClassVar = OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return run, directory, files and omitted; or fail when the run or a format is unknown."""
        formats = check_formats(options["formats"])
        directory = find_run(Path(options["results_dir"]).expanduser().absolute(), options["run"])
        made = export_run(read_run(directory), formats)
        to = Path(options["to"] or f"exports/{directory.name}").expanduser().absolute()
        check = bool(self._task.check_mode)
        changed = write_files(to, made.files, options["overwrite"], write=not check)
        verb = "would be" if check else "is"
        lines = [f"Run {directory.name} {verb} in {to}:", *(f"  {name}" for name in _shown(made.files))]
        self.show("\n" + "\n".join([*lines, *(f"omitted  {sentence}" for sentence in made.omitted)]))
        return {
            "changed": changed,
            "run": directory.name,
            "directory": str(to),
            "files": sorted(made.files),
            "omitted": list(made.omitted),
        }


def _shown(files: Mapping[str, str]) -> list[str]:
    """Return the files of each format, or how many if they are more than a few."""
    found: list[str] = []
    for name in dict.fromkeys(path.split("/", 1)[0] for path in files):
        own = [path for path in files if path.startswith(f"{name}/")]
        found += own if len(own) <= 4 else [f"{name}/ ({len(own)} files)"]
    return found
