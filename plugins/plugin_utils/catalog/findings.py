# SPDX-License-Identifier: Apache-2.0
"""What checking a flag, a variable or a setting against the catalogue comes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK = "ok"
UNKNOWN = "unknown"  # no known release has it
NOT_YET = "not yet"  # a later release has it
GONE = "gone"  # an earlier release had it
DEPRECATED = "deprecated"  # accepted, with a warning of vLLM's own
NO_EFFECT = "no effect"  # accepted, and read by nothing
BAD_CHOICE = "bad choice"
BAD_VALUE = "bad value"
AMBIGUOUS = "ambiguous"  # an abbreviation of more than one flag
MISSING = "missing"  # required and not given

_ERRORS = frozenset((UNKNOWN, NOT_YET, GONE, BAD_CHOICE, BAD_VALUE, AMBIGUOUS, MISSING))


@dataclass(frozen=True)
class Finding:
    """One verdict: about which flag or variable, what it is, why, and what to do next.

    `certain` is False when the image's vLLM lies between two releases of the catalogue, or after the last;
    `harmless` is True when vLLM starts all the same. In both cases an error is told as a warning.
    """

    subject: str
    status: str
    what: str = ""
    fix: str = ""
    source: str = ""
    certain: bool = True
    harmless: bool = False

    @property
    def is_error(self) -> bool:
        """vLLM would refuse to start."""
        return self.certain and not self.harmless and self.status in _ERRORS

    @property
    def is_warning(self) -> bool:
        """vLLM would start; something deserves to be said."""
        return self.status != OK and not self.is_error

    def text(self) -> str:
        """One line for people."""
        return " ".join(
            part for part in (f"{self.subject}: {self.what}" if self.what else "", self.fix) if part
        )


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that stop vLLM from starting."""
    return tuple(finding for finding in findings if finding.is_error)


def warnings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those worth saying that stop nothing."""
    return tuple(finding for finding in findings if finding.is_warning)
