# SPDX-License-Identifier: Apache-2.0
"""Programs that unit tests run; where one is missing they fail, since a test that is left out proves nothing."""

from __future__ import annotations

import shutil

import pytest


def program(name: str) -> str:
    """The path of a program; the test that asks for one that is not installed fails."""
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") or pytest.fail(
        f"{name} is not installed here: make packages"
    )
