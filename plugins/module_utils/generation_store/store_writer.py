# SPDX-License-Identifier: Apache-2.0
"""Write a node's generations: what the module serving_generation does with the store."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from ..common.files import make_private, sync_directory, write_atomic
from ..docker.client import Json
from ..service.generation_schema import SCHEMA
from .store import GenerationStore

SUMMARY, STATE = "summary.json", "state.json"
HEAVY = ("server", "described")


class GenerationWriter(GenerationStore):
    """A node's generations, to be changed."""

    def state(self, deployment: str) -> Json:
        """Return whether the deployment is held, or on trial."""
        found = self._load(self.path(deployment, STATE)) or {}
        keys = ("held", "trial", "lifted", "ended")
        return {"schema": SCHEMA, **{key: found.get(key) for key in keys}}

    def put(self, deployment: str, name: str, data: Mapping[str, Any]) -> None:
        """Write a deployment's file; it is on disk under its name when this returns."""
        directory = os.path.join(self.root, deployment)
        make_private(self.root)
        make_private(directory)
        write_atomic(os.path.join(directory, name), json.dumps(data, indent=1) + "\n", 0o600)
        sync_directory(directory)

    def drop(self, deployment: str, number: int) -> None:
        """Remove a generation."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(deployment, f"{number}.json"))
        sync_directory(os.path.join(self.root, deployment))

    def summarise(self, deployment: str) -> None:
        """Rewrite summary.json from the generations."""
        kept = [without_files(self.generation(deployment, number)) for number in self.numbers(deployment)]
        self.put(deployment, SUMMARY, {"schema": SCHEMA, "kept": kept})


def without_files(generation: Mapping[str, Any]) -> Json:
    """Return a generation without its members' files and descriptions."""
    members = [
        {key: value for key, value in member.items() if key not in HEAVY} for member in generation["members"]
    ]
    return {**generation, "members": members}
