# SPDX-License-Identifier: Apache-2.0
"""Recognize forks of vLLM, which are releases of their own, and apply how they differ from upstream.

A fork has a place among the releases, its parent: what its sources share with that release holds for it. The data is
catalog/vllm/{forks.yml, fork_differences.json}; nothing here reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ....module_utils.engines.versions import Release, Timeline, version_key

T = TypeVar("T")
Changes = Mapping[str, Any]
"""By name: None for what the fork does not have, else the attributes that differ."""
_COMMIT = re.compile(r"\+g?(?P<local>[0-9a-f]{7,40})(?:[.]|$)")
_HASH = re.compile(r"[0-9a-f]{7,40}")
_HOST = re.compile(r"^(?:[a-z+]+://)?(?:[^@/]*@)?github\.com[/:]", re.IGNORECASE)


@dataclass(frozen=True)
class Fork:
    """One fork at one commit.

    Attributes:
        called: the vLLM version that its maker names for it.
        parent: the upstream release that its flags, variables and engine are closest to.
        built: versions that vLLM prints of itself, without what names the build.
        branches: whose head the commit is.
        dockerfile: where its sources have it.
        renamed: variables of other releases that have another name here.
        defaults: what differs from defaults.yml.
        note: what an operator who knows the release of this number must know of the fork.
        tables: its part of fork_differences.json.
    """

    name: str
    called: str
    parent: str
    commit: str
    source: str
    built: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    dockerfile: str = "docker/Dockerfile.rocm"
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    tables: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def version(self) -> str:
        """Return how this toolkit writes it: the maker's version, and the commit."""
        return f"{self.called}+g{self.commit[:9]}"

    def changes(self, table: str) -> Changes:
        """Return a table of fork_differences.json: flags, env, configs or bench."""
        found: Changes = self.tables.get(table, {})
        return found

    def place(self, line: Timeline) -> Release:
        """Return its place among the releases."""
        return Release(self.version, self.parent, line.order[self.parent], True, fork=self.name)


@dataclass(frozen=True)
class Forks:
    """All forks, the newest first, the repositories of their sources and those of their images."""

    forks: tuple[Fork, ...] = ()
    sources: tuple[str, ...] = ()
    images: tuple[str, ...] = ()

    def named(self, name: str) -> Fork | None:
        """Return a fork by its name in the catalogue."""
        return next((item for item in self.forks if item.name == name), None)

    def of_version(self, version: str) -> Fork | None:
        """Return the fork that calls itself so: by the commit in the version, else by the number of a build."""
        text = version.strip()
        commit = _COMMIT.search(text)
        if commit:
            return self._of_commit(commit["local"])
        return next((item for item in self.forks if text.partition("+")[0] in item.built), None)

    def of_build(self, repo: str, ref: str) -> Fork | None:
        """Return the fork that a git reference names, by commit or branch; a branch only in the fork's repository."""
        if _HASH.fullmatch(ref.lower()):
            return self._of_commit(ref.lower())
        path = _HOST.sub("", repo.strip()).removesuffix("/").removesuffix(".git").lower()
        if path not in self.sources:
            return None
        branch = ref.removeprefix("refs/heads/").removeprefix("origin/")
        return next((item for item in self.forks if branch in item.branches), None)

    def of_image(self, repository: str, version: str) -> Fork | None:
        """Return the newest fork that the maker of a repository's images calls by this version."""
        if repository not in self.images:
            return None
        return next((item for item in self.forks if _same(item.called, version)), None)

    def _of_commit(self, text: str) -> Fork | None:
        return next((item for item in self.forks if item.commit.startswith(text)), None)


def _same(a: str, b: str) -> bool:
    try:
        return version_key(a) == version_key(b)
    except ValueError:
        return False


def parse_forks(data: Mapping[str, Any]) -> Forks:
    """Build from forks.yml, without tables; the tests check its schema."""
    found = tuple(
        Fork(
            name=name,
            called=item["called"],
            parent=item["parent"],
            commit=item["commit"],
            source=item["source"],
            built=tuple(item.get("built", ())),
            branches=tuple(item.get("branches", ())),
            dockerfile=item["dockerfile"],
            renamed=item.get("renamed", {}),
            defaults=item.get("defaults", {}),
            note=item["note"],
        )
        for name, item in data["forks"].items()
    )
    return Forks(found, tuple(data["repositories"]["sources"]), tuple(data["repositories"]["images"]))


def apply_changes(
    table: Mapping[str, T], changes: Changes, make: Callable[[str, T | None, Changes], T]
) -> dict[str, T]:
    """Return a table with a fork's changes; `make` builds an entry from its name, the parent's and the attributes."""
    found = dict(table)
    for name, attributes in changes.items():
        if attributes is None:
            found.pop(name, None)
        else:
            found[name] = make(name, table.get(name), attributes)
    return found


def renamed_settings(
    settings: Mapping[str, Mapping[str, Any]], fork: Fork, line: Timeline
) -> dict[str, Mapping[str, Any]]:
    """Return the neutral settings with the fork's names of variables; forms of a missing variable come later."""
    later = line.releases[min(line.order[fork.parent] + 1, len(line.releases) - 1)]
    lacking = {name for name, item in fork.changes("env").items() if item is None} - set(fork.renamed)

    def form(item: Mapping[str, Any]) -> Mapping[str, Any]:
        env = item.get("env")
        if not env:
            return item
        found = {**item, "env": {fork.renamed.get(name, name): value for name, value in env.items()}}
        here = line.inside(item.get("since"), item.get("until"), line.order[fork.parent])
        return {**found, "since": later} if here and lacking & set(env) else found

    def setting(item: Mapping[str, Any]) -> Mapping[str, Any]:
        if "env" in item:
            return {**item, "env": fork.renamed.get(item["env"], item["env"])}
        return {**item, "forms": [form(part) for part in item["forms"]]} if "forms" in item else item

    return {name: setting(item) for name, item in settings.items()}
