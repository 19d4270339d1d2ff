# SPDX-License-Identifier: Apache-2.0
"""Are weights and KV cache right for models that nobody looked at? Random shapes, before the real vLLM.

    python -m tests.oracles.held_out --python PYTHON_WITH_VLLM [--seed WORD] [--shapes 3] [--record FILE]

held_out_shapes.py draws so many shapes of each architecture that vLLM registers, fit_oracle.py lets vLLM build them,
and the planner says what it would plan. Known families must be at most 1 % off, the others inside the range that the
plan prints. --record keeps the answers; tests/unit/shapes/test_held_out.py compares a part of them in every run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracles.fit_cases import planned
from tests.worlds.catalogue import kv_rules

HERE = Path(__file__).parent
ALLOWED = 0.01
"""How far off the numbers of a known family may be."""
AT_LEAST = 60
"""Architectures that must have an answer."""


@dataclass(frozen=True)
class Verdict:
    """One shape: as vLLM has it, as it is planned."""

    name: str
    architecture: str
    known: bool
    right: bool
    text: str


def judged(case: Mapping[str, Any], release: str) -> Verdict:
    """Compare one answer with the plan's."""
    answer, name, (architecture,) = case["answer"], case["name"], case["config"]["architectures"]
    try:
        found = planned(dict(case), kv_rules(release))
    except Exception as problem:
        return Verdict(name, architecture, False, False, f"{type(problem).__name__}: {problem}")
    pairs = {
        "weights": (found.weights_bytes_per_gpu, answer["weights_bytes"]),
        "KV": (found.kv_cache_tokens, answer["tokens"]),
    }
    off = {key: here / there - 1 if there else float(here != there) for key, (here, there) in pairs.items()}
    text = ", ".join(f"{key} {100 * value:+.2f} %" for key, value in off.items())
    if found.between is None:
        right = found.basis == "exact" and all(abs(value) <= ALLOWED for value in off.values())
        return Verdict(name, architecture, True, right, text)
    ranges = found.between.weights_bytes_per_gpu, found.between.kv_cache_tokens
    right = all(low <= pairs[key][1] <= high for key, (low, high) in zip(pairs, ranges, strict=True))
    spans = ", ".join(
        f"{low / pairs[key][1]:.2f} to {high / pairs[key][1]:.2f} of the {key}"
        if pairs[key][1]
        else f"no {key}"
        for key, (low, high) in zip(pairs, ranges, strict=True)
    )
    return Verdict(name, architecture, False, right, f"{text}; a range: {spans}")


def report(cases: Iterable[Mapping[str, Any]], release: str) -> tuple[list[str], bool]:
    """The lines to print, and whether all is as it must be."""
    every = list(cases)
    answered = [case for case in every if "error" not in case["answer"]]
    verdicts = [judged(case, release) for case in answered]
    silent = Counter(
        f"{case['config']['architectures'][0]}: {case['answer']['error'].strip().splitlines()[-1][:160]}"
        for case in every
        if "error" in case["answer"]
    )
    lines = [f"no answer, {count} times: {text}" for text, count in sorted(silent.items())]
    lines += [f"WRONG  {item.name}: {item.text}" for item in verdicts if not item.right]
    known = [item for item in verdicts if item.known]
    unknown = [item for item in verdicts if not item.known]
    names = {item.architecture for item in verdicts}
    lines += [
        f"{len(verdicts)} of {len(every)} shapes answered, {len(names)} architectures",
        f"known: {sum(item.right for item in known)} of {len(known)} at most {100 * ALLOWED:.0f} % off",
        f"unknown: {sum(item.right for item in unknown)} of {len(unknown)} inside the range "
        f"({', '.join(sorted({item.architecture for item in unknown}))})",
    ]
    return lines, all(item.right for item in verdicts) and len(names) >= AT_LEAST


def asked(python: str, seed: str, shapes: int) -> dict[str, Any]:
    """The cases with vLLM's answers."""
    made = subprocess.run(
        [python, "-B", str(HERE / "held_out_shapes.py"), seed, str(shapes)],
        stdout=subprocess.PIPE,
        check=True,
    )
    done = subprocess.run(
        [python, "-B", str(HERE / "fit_oracle.py")], input=made.stdout, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sample(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One answered case of each architecture, by turns its first, second and so on."""
    of: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        if "error" not in case["answer"]:
            of.setdefault(case["config"]["architectures"][0], []).append(case)
    return [found[number % len(found)] for number, found in enumerate(of.values())]


def main() -> int:
    """Ask, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="the interpreter that has vLLM")
    parser.add_argument("--seed", default="1")
    parser.add_argument(
        "--shapes", type=int, default=3, help="of each architecture; the last one on two ranks"
    )
    parser.add_argument("--record", type=Path, help="write the cases with their answers")
    parser.add_argument("--answers", type=Path, help="compare these, and ask nothing")
    given = parser.parse_args()
    found = (
        json.loads(given.answers.read_text())
        if given.answers
        else asked(given.python, given.seed, given.shapes)
    )
    if given.record:
        cases = ",\n".join(json.dumps(case) for case in sample(found["cases"]))
        given.record.write_text(
            f'{{"vllm": "{found["vllm"]}", "seed": "{given.seed}", "cases": [\n{cases}\n]}}\n'
        )
    lines, right = report(found["cases"], found["vllm"])
    print("\n".join(lines))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
