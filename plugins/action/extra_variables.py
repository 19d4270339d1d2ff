# SPDX-License-Identifier: Apache-2.0
"""Refuse variables behind -e that look like slips; every other plugin of this toolkit does so by the way.

Documentation: library/extra_variables.py (`ansible-doc -t module extra_variables`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in sys.path:
    sys.path.insert(0, str(ROOT / "module_utils"))

from instinct.controller import ControllerAction


class ActionModule(ControllerAction):
    """extra_variables."""

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing is left to do: run() has looked."""
        del options, facts
        return {"changed": False}
