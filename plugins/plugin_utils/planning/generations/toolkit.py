# SPDX-License-Identifier: Apache-2.0
"""Find what an update of the toolkit changes: the same inventory is rendered to other files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....module_utils.service.generations import Generation
from .diff import changed_names


@dataclass(frozen=True)
class ToolkitChange:
    """An update of the toolkit. before, after: releases. names: the flags and variables that it changes."""

    before: str
    after: str
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the update as text; two checkouts may be of one release."""
        if self.before == self.after:
            return f"toolkit {self.after} (another checkout)"
        return f"toolkit {self.before} → {self.after}"


def toolkit_change(old: Generation | None, new: Generation) -> ToolkitChange | None:
    """Return the update that alone makes two generations differ; None if anything else does, or may."""
    if old is None or not (old.toolkit and new.toolkit) or _given(old) != _given(new):
        return None
    return ToolkitChange(old.toolkit, new.toolkit, changed_names(old, new))


def _given(made: Generation) -> tuple[Any, ...]:
    """Return the part of a generation that does not come from the toolkit."""
    places = [(item.name, item.ports, item.render_nodes, item.share, item.hosts) for item in made.members]
    return (
        made.definition,
        made.image,
        made.image_ref,
        made.vllm,
        made.commit,
        made.weights,
        made.modes,
        places,
    )
