# SPDX-License-Identifier: Apache-2.0
"""Run a program that must succeed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .module_main import NodeError
from .processes import Program, run_program


def run_checked(
    words: Sequence[str], limit: float, hint: str = "Run it by hand to see why, and run again."
) -> str:
    """Run a program, and return its output. Raise NodeError unless it succeeds."""
    name = " ".join(words)
    try:
        done = run_program(Program(words, {**os.environ, "LC_ALL": "C"}), limit)
    except OSError as error:
        raise NodeError(f"{name} cannot be started: {error.strerror}. {hint}", changed=True) from error
    if done.code is None:
        raise NodeError(f"{name} did not finish within {limit:.0f} s and was killed. {hint}", changed=True)
    if done.code:
        said = (done.err or done.out).strip()[-300:]
        raise NodeError(f"{name} ended with exit code {done.code}: {said} {hint}", changed=True)
    return done.out
