# SPDX-License-Identifier: Apache-2.0
"""No suite renders what a release's client would refuse. tests/oracles/real_parsers.py asks the releases themselves.

What a release cannot measure is left out with the release from which it can, and nothing else is.
"""

from __future__ import annotations

import re

import pytest

from tests.rendered_suites import lines_of, refusals, suite
from tests.worlds.catalogue import covered, knowledge

NAMES = knowledge().suite_names
LINE = knowledge().line
CANNOT: dict[str, tuple[tuple[str, str], ...]] = {
    # The client limits no concurrency.
    "batched-tokens": (("0.6.3", "0.6.4"),),
    "inferencex": (("0.6.3", "0.6.4"),),
    "quick": (("0.6.3", "0.6.4"),),
    # The first `vllm bench serve` had random prompts only.
    "sharegpt": (("0.8.0", "0.9.1"),),
    "speculation": (("0.6.3", "0.6.4"), ("0.8.0", "0.9.1")),
    "multi-turn": (("0.6.3", "0.10.1"),),
}
"""Releases [since, until) in which nothing of a suite can be measured."""
STATED = re.compile(
    r"\d is the first release that can|"
    r"possible from vLLM \d|possible before vLLM \d|came with vLLM \d|removed in vLLM \d"
)
ENGINE = "The engine does not run with"


def test_fourteen_suites() -> None:
    assert set(NAMES) == {
        "batched-tokens", "cpx", "graph-modes", "inferencex", "mad", "mlperf-slo", "multi-turn", "quick",
        "seed-latency", "seed-throughput", "serving", "sharegpt", "slo-search", "speculation",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_suite_in_every_release(name: str) -> None:
    missing = {release for since, until in CANNOT.get(name, ()) for release in covered(LINE, since, until)}
    assert suite(name).name == name
    for release in LINE.releases:
        lines, reasons = lines_of(name, release)
        assert bool(lines) == (release not in missing), (release, reasons)
        refused = {line: found for line in lines if (found := refusals(line, release))}
        assert not refused, f"{release}: {len(refused)}: {next(iter(refused.items()))}"
        twice = [line for _unused, line in lines if len(set(flags(line))) < len(flags(line))]
        assert not twice, f"{release}: {twice[0]}"
        unstated = [text for text in reasons if not STATED.search(text) and ENGINE not in text]
        assert not unstated, f"{release}: {unstated[0]}"


def flags(line: tuple[str, ...]) -> list[str]:
    """The options of a command line: of two equal ones a parser takes the last, without a word."""
    return [word for word in line if word.startswith("--")]
