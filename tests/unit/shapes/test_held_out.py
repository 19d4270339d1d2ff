# SPDX-License-Identifier: Apache-2.0
"""Random shapes of the architectures that vLLM registers, as its own code answered for them (make shapes)."""

from __future__ import annotations

import json

import pytest

from tests import ROOT
from tests.oracles.held_out import AT_LEAST, judged, report

RECORDED = json.loads((ROOT / "tests/data/fit/held_out_0.32.0.json").read_text())
CASES = {case["name"]: case for case in RECORDED["cases"]}


@pytest.mark.parametrize("name", CASES)
def test_a_shape_that_nobody_chose(name: str) -> None:
    found = judged(CASES[name], RECORDED["vllm"])
    assert found.right, found.text


def test_what_is_recorded() -> None:
    """Many architectures, a part of them on two ranks, and most of them known."""
    assert len({case["config"]["architectures"][0] for case in CASES.values()}) >= AT_LEAST
    assert sum(case["tp"] == 2 for case in CASES.values()) >= 15
    assert sum(judged(case, RECORDED["vllm"]).known for case in CASES.values()) >= 55


def test_the_report_tells_what_is_wrong() -> None:
    """A wrong weight, a wrong cache, a shape without an answer, and too few architectures."""
    first, second, third, *_rest = RECORDED["cases"]
    heavy = {**first, "answer": {**first["answer"], "weights_bytes": 2 * first["answer"]["weights_bytes"]}}
    small = {**second, "answer": {**second["answer"], "tokens": 9 * second["answer"]["tokens"]}}
    silent = {**third, "answer": {"error": "Traceback\nValueError: no"}}
    lines, right = report([heavy, small, silent], RECORDED["vllm"])
    assert not right
    assert [line.partition(":")[0] for line in lines[:3]] == [
        "no answer, 1 times",
        f"WRONG  {heavy['name']}",
        f"WRONG  {small['name']}",
    ]
    assert not report([first], RECORDED["vllm"])[1]
