# SPDX-License-Identifier: Apache-2.0
"""Record what a plan downloads from hubs, and on what terms, which are known before the first byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import Problem
from ...knowledge.catalog.licenses import License
from ..desired.deployment import Deployment
from ..desired.fleet import Host
from ..pins.lockfile import ModelPin
from ..pins.model_card import CardTerms
from ..tuning.companion_models import ModelRepository

SHOWN = 3
"""How many names a message lists."""


@dataclass(frozen=True)
class Download:
    """A repository that a host will download for a deployment. pin: None if it is not resolved yet."""

    host: Host
    deployment: Deployment
    wanted: ModelRepository
    pin: ModelPin | None


@dataclass(frozen=True)
class StatedLicense:
    """A licence of a download. of: the repository that states it. accepted: on all its hosts."""

    license: License
    of: CardTerms
    accepted: bool


@dataclass(frozen=True)
class DownloadTerms:
    """What is known before a repository is downloaded.

    uses: (role, deployment) pairs. known: the card was read; otherwise the catalogue names the licences, by the
    repository's name. scan: the hub's result, in words. omitted: number and bytes of pickles that are not downloaded.
    loaded: pickles that a server loads. code: its Python files with their hashes, if the deployment runs them.
    """

    repo: str
    revision: str
    commit: str
    uses: tuple[tuple[str, str], ...]
    hosts: tuple[str, ...]
    known: bool
    licenses: tuple[StatedLicense, ...]
    gates: tuple[CardTerms, ...]
    unread: tuple[str, ...]
    scan: str
    omitted: tuple[int, int] = (0, 0)
    loaded: tuple[str, ...] = ()
    code: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `downloads` in plan.json."""
        return {
            "repo": self.repo,
            "revision": self.revision,
            "commit": self.commit or None,
            "uses": [f"{role} of {name}" for role, name in self.uses],
            "hosts": list(self.hosts),
            "card_read": self.known,
            "licenses": [
                {
                    "license": item.license.key,
                    "of": item.of.repo,
                    "link": item.license.link or None,
                    "needs_acceptance": item.license.needed,
                    "accepted": item.accepted,
                }
                for item in self.licenses
            ],
            "gates": {item.repo: item.gate for item in self.gates},
            "scan": self.scan,
            "pickles_left_out": self.omitted[0],
            "pickles": list(self.loaded),
            "code": dict(self.code),
        }


@dataclass(frozen=True)
class JudgedDownloads:
    """What a plan downloads, what must not be downloaded, and what the operator should know."""

    downloads: tuple[DownloadTerms, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def names_of(group: Iterable[Download]) -> tuple[str, ...]:
    """Return the hosts of downloads."""
    return tuple(dict.fromkeys(item.host.name for item in group))


def first_names(names: Sequence[str]) -> str:
    """Return the first of many names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
