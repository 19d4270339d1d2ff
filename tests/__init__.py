# SPDX-License-Identifier: Apache-2.0
"""Tests. They import the product as Ansible does: this checkout is the collection instinct.fleet."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the repository

_COLLECTIONS = str(ROOT / ".collections")
if _COLLECTIONS not in sys.path:
    sys.path.insert(0, _COLLECTIONS)
