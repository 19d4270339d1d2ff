# SPDX-License-Identifier: Apache-2.0
"""`python3 <this directory> --root DIR`: start the hub, wherever the directory was copied."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.append(str(here.parent))
runpy.run_module(f"{here.name}.server", run_name="__main__")
