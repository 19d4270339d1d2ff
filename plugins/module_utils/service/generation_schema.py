# SPDX-License-Identifier: Apache-2.0
"""The version of the records of generations.

It is separate from the code that reads them, which not every module needs.
"""

from __future__ import annotations

SCHEMA = 1
