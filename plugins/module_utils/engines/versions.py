# SPDX-License-Identifier: Apache-2.0
"""vLLM versions in order, and values that change from one release to the next.

The catalogue records such values in two forms, both in terms of known releases:

* a history, `[[since, value], …]`: each value holds until the next entry's release;
* spans, `[[since, until], …]`: half-open, `until` is the first release without it, null if there is none.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[tuple[int, ...], tuple[int, int], int, tuple[int, int]]
"""Sort key of a version, after PEP 440: release, pre-release, post-release, development release."""

_FORM = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|rc)[-_.]?(?P<pre_number>\d*))?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d*))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+[A-Za-z0-9._-]+)?"
)
_STAGES = {"a": 0, "b": 1, "rc": 2}
_FINAL = 3


def version_key(text: str) -> Key:
    """Return the sort key of a version as vLLM prints it: "0.11.1", "0.6.3.post1", "0.9.2.dev364+gb432b7a28.rocm641".

    The part after a plus sign names the build and does not affect the order. Raise ValueError for anything else.
    """
    found = _FORM.fullmatch(text.strip())
    if not found:
        raise ValueError(
            f"{text!r} is not a version; it looks like 0.11.1, 0.6.3.post1 or 0.9.2.dev364+g1234567"
        )
    release = [int(part) for part in found["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre = (_STAGES[found["pre"]], int(found["pre_number"] or 0)) if found["pre"] else (_FINAL, 0)
    post = -1 if found["post"] is None else int(found["post"] or 0)
    dev = (0, int(found["dev_number"] or 0)) if found["dev"] else (1, 0)
    if found["dev"] and not found["pre"] and found["post"] is None:
        pre = (-1, 0)  # 0.9.2.dev364 comes before 0.9.2rc1
    return tuple(release), pre, post, dev


@dataclass(frozen=True)
class Release:
    """A version placed among the known releases.

    `name` is the release whose data applies: the version itself if it is known, else the newest known one before it.
    `exact` is False in the second case, and `note` says why. `fork` is the name of a fork of vLLM with this place.
    """

    requested: str
    name: str
    index: int
    exact: bool
    note: str = ""
    fork: str = ""


@dataclass(frozen=True)
class Timeline:
    """The known releases, oldest first."""

    releases: tuple[str, ...]
    keys: tuple[Key, ...] = field(repr=False)
    order: Mapping[str, int] = field(repr=False)

    def find(self, version: str) -> Release:
        """Return a version's place. Raise ValueError if it is not a version, or older than all known ones."""
        text = version.strip()
        known = self.order.get(text)
        if known is not None:
            return Release(text, text, known, True)
        key = version_key(text)
        index = bisect.bisect_right(self.keys, key) - 1
        if index < 0:
            raise ValueError(
                f"vLLM {text} is older than {self.releases[0]}, the oldest release in the catalogue"
            )
        name = self.releases[index]
        if self.keys[index] == key:
            return Release(text, name, index, True)
        if index == len(self.releases) - 1:
            note = (
                f"vLLM {text} is newer than the catalogue, which ends with {name}; what {name} has is assumed"
            )
        else:
            note = (
                f"vLLM {text} is not a release in the catalogue; the release before it, {name}, is assumed, "
                f"and it may already have what is new in {self.releases[index + 1]}"
            )
        return Release(text, name, index, False, note)

    def value(self, history: Sequence[Sequence[Any]], index: int, default: Any = None) -> Any:
        """Return a history's value at a release; `default` before its first entry."""
        result = default
        for since, value in history:
            if self.order[since] > index:
                break
            result = value
        return result

    def within(self, spans: Sequence[Sequence[str | None]], index: int) -> bool:
        """Return whether a release lies in one of the spans."""
        return any(self.inside(since, until, index) for since, until in spans)

    def inside(self, since: str | None, until: str | None, index: int) -> bool:
        """Return whether a release lies in [since, until); None is open."""
        return (since is None or self.order[since] <= index) and (until is None or index < self.order[until])


def timeline(releases: Sequence[str]) -> Timeline:
    """Order release names. Raise ValueError if they are not given oldest first."""
    keys = tuple(version_key(name) for name in releases)
    if any(a >= b for a, b in zip(keys, keys[1:])):
        raise ValueError("releases must be in order, the oldest first, each once")
    return Timeline(tuple(releases), keys, {name: index for index, name in enumerate(releases)})
