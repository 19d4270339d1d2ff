# SPDX-License-Identifier: Apache-2.0
"""Tests. They import the product as Ansible does: this checkout is the collection instinct.fleet."""

import sys
from pathlib import Path

_COLLECTIONS = str(Path(__file__).resolve().parents[1] / ".collections")
if _COLLECTIONS not in sys.path:
    sys.path.insert(0, _COLLECTIONS)
