# SPDX-License-Identifier: Apache-2.0
"""Results of checking a flag, a variable or a setting against the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK = "ok"
UNKNOWN = "unknown"  # not in any known release
NOT_YET = "not yet"  # added in a later release
GONE = "gone"  # removed after an earlier release
DEPRECATED = "deprecated"  # accepted, but vLLM warns
NO_EFFECT = "no effect"  # accepted, but not read
BAD_CHOICE = "bad choice"
BAD_VALUE = "bad value"
AMBIGUOUS = "ambiguous"  # an abbreviation of several flags
MISSING = "missing"  # required, but not given

_ERRORS = frozenset((UNKNOWN, NOT_YET, GONE, BAD_CHOICE, BAD_VALUE, AMBIGUOUS, MISSING))


@dataclass(frozen=True)
class Finding:
    """One result: which flag or variable, its status, why, and what to do next.

    `certain` is False if the image's vLLM lies between two releases of the catalogue, or after the last. `harmless` is
    True if vLLM starts nevertheless. In both cases an error is reported as a warning.
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
        """Return whether vLLM would refuse to start."""
        return self.certain and not self.harmless and self.status in _ERRORS

    @property
    def is_warning(self) -> bool:
        """Return whether vLLM would start, with something worth reporting."""
        return self.status != OK and not self.is_error

    def text(self) -> str:
        """Return the finding as one line of text."""
        return " ".join(
            part for part in (f"{self.subject}: {self.what}" if self.what else "", self.fix) if part
        )


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that prevent vLLM from starting."""
    return tuple(finding for finding in findings if finding.is_error)


def warnings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that are worth reporting but do not prevent a start."""
    return tuple(finding for finding in findings if finding.is_warning)
