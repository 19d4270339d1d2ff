# SPDX-License-Identifier: Apache-2.0
"""The generations kept on a node, in files that only root can read.

Each file is completely on disk before anything that it describes changes.

generations/<deployment>/<number>.json   a generation with every member's server and description (may hold an API key)
generations/<deployment>/summary.json    all generations without these two: what node_state reads
generations/<deployment>/state.json      whether the deployment is held, or on trial
journal.log                              a line for every event
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..common import paths
from ..common.files import read_text
from ..common.module_main import NodeError
from ..docker.client import Json
from ..engines.names import NAME
from ..service.generation_schema import SCHEMA

NUMBERED = re.compile(r"([1-9][0-9]*)\.json")


class GenerationStore:
    """A node's generations. Every method that reads raises NodeError for a damaged file."""

    def __init__(self, state_dir: str = "") -> None:
        top = state_dir or paths.STATE_DIR
        self.root = f"{top}/generations"
        self.journal = f"{top}/journal.log"

    # ---- reading -------------------------------------------------------------------------------------

    def path(self, deployment: str, name: str) -> str:
        """Return the path of a deployment's file."""
        return os.path.join(self.root, deployment, name)

    def numbers(self, deployment: str) -> list[int]:
        """Return the numbers of the stored generations in ascending order."""
        try:
            names = os.listdir(os.path.join(self.root, deployment))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(match[1]) for match in map(NUMBERED.fullmatch, names) if match)

    def generation(self, deployment: str, number: int) -> Json:
        """Return a complete generation."""
        found = self._load(self.path(deployment, f"{number}.json"))
        if found is None:
            kept = ", ".join(map(str, self.numbers(deployment))) or "none"
            raise NodeError(
                f"Generation {number} of {deployment} is not kept on this node (kept: {kept}). "
                "Plan again: another run has changed the node's store since this one looked."
            )
        return found

    def number_of(self, deployment: str, name: str, spec_hash: str) -> int:
        """Return the newest generation in which an instance has a spec hash; 0 for none."""
        for number in reversed(self.numbers(deployment)):
            members = self.generation(deployment, number)["members"]
            if any((item["name"], item["spec_hash"]) == (name, spec_hash) for item in members):
                return number
        return 0

    def member(self, data: Mapping[str, Any]) -> Json:
        """Return the stored member that {"name", "deployment", "generation", "spec_hash"} refers to."""
        name, deployment, number = data.get("name"), str(data.get("deployment") or ""), data["generation"]
        if not NAME.fullmatch(deployment):
            raise NodeError(f"servers[{name}]: {deployment!r} is not the name of a deployment.")
        found = self.generation(deployment, int(number))
        member = next((item for item in found["members"] if item["name"] == name), None)
        if member is None:
            raise NodeError(f"Generation {number} of {deployment} has no instance {name} on this node.")
        if data.get("spec_hash") not in (None, "", member["spec_hash"]):
            raise NodeError(
                f"Instance {name} of generation {number} is {member['spec_hash'][:12]} in the node's store, and "
                f"{str(data['spec_hash'])[:12]} in the plan: another run has changed it. Run again."
            )
        return dict(member)

    def server(self, data: Mapping[str, Any]) -> Json:
        """Return a stored member's SERVER, as it was in the plan when the generation was recorded."""
        return dict(self.member(data)["server"])

    def instance(self, data: Mapping[str, Any]) -> Json:
        """Return a stored member's INSTANCE, as it was in the plan."""
        member = self.member(data)
        return {**member["described"], "server": member["server"], "generation": int(data["generation"])}

    def _load(self, path: str) -> Json | None:
        text = read_text(path)
        if text is None:
            return None
        try:
            found = json.loads(text)
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']}")
            return dict(found)
        except (ValueError, KeyError, TypeError) as error:
            raise NodeError(
                f"{path} cannot be read ({type(error).__name__}: {error}). Delete it: "
                "only this record is lost; running instances are not affected."
            ) from None

    # ---- writing -------------------------------------------------------------------------------------

    def note(self, lines: Iterable[str], now: str) -> None:
        """Append lines to the journal."""
        text = "".join(f"{now} {' '.join(line.split())}\n" for line in lines)
        if not text:
            return
        os.makedirs(os.path.dirname(self.journal), exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.journal, flags, 0o600)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def now_text() -> str:
    """Return the present time in the format of the records."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
