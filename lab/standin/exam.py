# SPDX-License-Identifier: Apache-2.0
"""What the stand-in knows: right and wrong answers to given prompts, failures, and log likelihoods of prompts."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from pathlib import Path
from typing import Any

from .knobs import KnobError, Knobs

_WRONG = ("42424242",)
_WHOLE = 1 << 32  # of a CRC


class Exam:
    """Answers by the knobs. The same seed gives the same wrong answers."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._rng = random.Random(knobs.seed)
        self._answers: dict[str, tuple[str, ...]] = {}
        if knobs.answers:
            try:
                rows = [json.loads(line) for line in Path(knobs.answers).read_text("utf-8").splitlines()]
                self._answers = {row["prompt"]: tuple(str(row["accepted"][0]).split()) for row in rows}
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise KnobError(
                    f"environment: STANDIN_ANSWERS={knobs.answers!r} cannot be read: {error}"
                ) from error

    def answer(self, prompt: str) -> tuple[str, ...]:
        """Return the words of the answer to a prompt; () for a prompt that it does not know."""
        known = self._answers.get(prompt, ())
        share = zlib.crc32(f"{self._knobs.seed} {prompt}".encode()) / _WHOLE
        return _WRONG if known and share < self._knobs.wrong_rate else known

    def fails(self) -> bool:
        """Return whether the next request fails."""
        return self._rng.random() < self._knobs.fail_rate

    def prompt_logprobs(self, prompt: str) -> list[dict[str, Any] | None]:
        """Return vLLM's list of a prompt: a word is a token, which depends on the one before it.

        Of a text without spaces, a letter is one.
        """
        words = prompt.split()
        words = words if len(words) > 2 else list(prompt)
        found: list[dict[str, Any] | None] = [None]
        for before, word in itertools.pairwise(words):
            likely = 1.0 + 3.0 * zlib.crc32(f"{before} {word}".encode()) / _WHOLE
            entry = {"logprob": -(likely + self._knobs.nll_shift), "rank": 1, "decoded_token": f" {word}"}
            found.append({str(zlib.crc32(word.encode()) % 32000): entry})
        return found
