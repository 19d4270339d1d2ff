# SPDX-License-Identifier: Apache-2.0
"""Provide the base of action plugins for modules that run a program on the node."""

from __future__ import annotations

from typing import Any

from . import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import

# isort: split
from ..base.bundle import GIVEN
from .timed_action import TimedAction


class ProgramAction(TimedAction):
    """An action plugin that passes a program, where the module has one, as its parameter `program`."""

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's own result."""
        program = GIVEN.get(self.module)
        return super().call({**args, "program": program()} if program else args, facts)
