# SPDX-License-Identifier: Apache-2.0
"""The plan's verdicts against those of vLLM's own engine configuration.

Recorded by `make engines ENGINES_ARGS=--record`, which leaves out what they disagree about, and lists it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.oracles.engine_cases import Case
from tests.oracles.real_engines import RECORD, plan

VERDICTS: dict[str, list[list[Any]]] = json.loads(RECORD.read_text(encoding="utf-8"))


def test_there_are_enough_of_both_kinds() -> None:
    """A record of a few, or of accepted ones only, proves little."""
    entries = [entry for kept in VERDICTS.values() for entry in kept]
    refused = sum(bool(entry[3]) for entry in entries)
    assert len(VERDICTS) >= 3
    assert len(entries) >= 600
    assert 0.25 <= refused / len(entries) <= 0.75


@pytest.mark.parametrize("version", VERDICTS)
def test_plans_accept_and_refuse_what_vllm_does(version: str) -> None:
    """Every recorded deployment gets the verdict of the release."""
    wrong = []
    for model, engine_args, sizes, refused in VERDICTS[version]:
        found = plan(Case(model, engine_args, sizes), version)
        if bool(found.problems) != bool(refused):
            wrong.append(
                f"{model} {engine_args} {sizes}\n  vLLM: {refused or 'accepts'}\n  plan: {found.problems}"
            )
    assert not wrong, "\n".join(wrong)
