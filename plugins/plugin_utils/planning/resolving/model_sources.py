# SPDX-License-Identifier: Apache-2.0
"""Models on the control node that deployments name in model_config, read."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ....module_utils.common.errors import FleetError, Problem
from ..desired.fleet import Fleet
from ..instances.factory import ModelSource


def read_models(fleet: Fleet, base: Path) -> dict[str, ModelSource]:
    """Return what the deployments' model_config name, relative to the directory `base`. Raises FleetError."""
    found: dict[str, ModelSource] = {}
    problems: list[Problem] = []
    for host in fleet.hosts:
        for deployment in host.deployments:
            name = deployment.model_config
            if not name or name in found:
                continue
            path = base / os.path.expanduser(name)
            try:
                found[name] = _model_source(path)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not a JSON object"
                what = f"{path} cannot be read: {why}."
                fix = "Name a config.json on this machine, or a directory that contains one."
                problems.append(Problem((*deployment.path, "model_config"), what, fix, (host.name,)))
    if problems:
        raise FleetError(problems)
    return found


def _model_source(path: Path) -> ModelSource:
    files = None
    if path.is_dir():
        inside = sorted(item for item in path.rglob("*") if item.is_file())
        files = tuple((str(item.relative_to(path)), item.stat().st_size) for item in inside)
        path = path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(path)
    return ModelSource(config, files)
