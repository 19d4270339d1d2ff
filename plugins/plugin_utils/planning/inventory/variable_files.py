# SPDX-License-Identifier: Apache-2.0
"""Read the files of group_vars and host_vars as Ansible does, and find what it does not read, or reads twice."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

from ansible import constants
from ansible.errors import AnsibleError
from ansible.parsing.vault import AnsibleVaultError
from ansible.utils.vars import combine_vars

from ....module_utils.common.errors import Problem
from .inventory_files import directory_of, path_text
from .leftovers import MAYBE, leftover_likelihood
from .origins import origin_tag, place_of
from .unknown_variables import FORMER

SUFFIXES = ("", *constants.YAML_FILENAME_EXTENSIONS)
VAULT_FIX = "Give its password: --ask-vault-pass, or --vault-password-file FILE."


class Loader(Protocol):
    """Ansible's reader of files, which keeps what it has read."""

    def find_vars_files(self, path: str, name: str) -> list[str]:
        """Return the files of a group or host, in the order in which later ones replace what earlier ones set."""

    def load_from_file(self, file_name: str, **options: Any) -> Any:
        """Return the data of a file. Raise AnsibleError if it cannot be read."""


@dataclass(frozen=True)
class VariableFile:
    """A file that Ansible reads, with the variables that it sets; error: why it cannot be read."""

    path: Path
    values: Mapping[str, Any]
    error: str = ""
    vaulted: bool = False

    def place(self, name: str) -> str:
        """Return file:line of a variable."""
        key = next(key for key in self.values if key == name)
        tag = origin_tag(key, self.values[key])
        return place_of(tag) if getattr(tag, "path", None) else path_text(self.path)


class VariableFiles:
    """The files of groups and hosts below some directories, of which each is read once.

    directories: those of the inventory's sources, and the playbook's.
    """

    def __init__(self, loader: Loader, sources: Iterable[str], playbook_dir: str) -> None:
        self._loader = loader
        self._names: dict[Path, Mapping[str, bool]] = {}
        # Ansible's reader knows a file by its real path; a directory that is named twice counts at its last place.
        named = [
            directory_of(Path(source)) for source in sources if "," not in source or os.path.exists(source)
        ]
        self.sources = tuple(dict.fromkeys(reversed([Path(os.path.realpath(path)) for path in named])))[::-1]
        self.playbook = Path(os.path.realpath(playbook_dir))
        self.directories = tuple(dict.fromkeys((*self.sources, self.playbook)))

    def read(self, directory: Path, kind: str, name: str) -> tuple[VariableFile, ...]:
        """Return the files of a group or host ("group" or "host"), in the order in which Ansible takes them."""
        place = directory / f"{kind}_vars"
        if not _variants(self._listed(place), name):
            return ()
        return tuple(map(self._load, self._loader.find_vars_files(str(place), name)))

    def sets(self, kind: str, name: str, variable: str) -> bool:
        """Return whether some file of a group or host sets a variable."""
        return any(
            variable in file.values for place in self.directories for file in self.read(place, kind, name)
        )

    def problems(self, kind: str, names: Iterable[str], known: Collection[str]) -> Iterator[Problem]:
        """Yield what is not read, cannot be read, looks left behind, or sets a variable twice or by a former name."""
        every = tuple(names)
        for directory in self.directories:
            place = directory / f"{kind}_vars"
            listed = self._listed(place)
            for name in every if listed else ():
                found = _variants(listed, name)
                yield from (_unread(place / other, place / found[0]) for other in found[1:])
                if found and listed[found[0]]:
                    files = self.read(directory, kind, name)
                    yield from directory_problems(place / found[0], files, known)
                    yield from former_names(files)
                elif found and _may_have_former(place / found[0]):
                    yield from former_names([self._load(str(place / found[0]))])

    def _listed(self, place: Path) -> Mapping[str, bool]:
        """Return what is in a directory, and whether it is a directory itself."""
        if place not in self._names:
            try:
                self._names[place] = {entry.name: entry.is_dir() for entry in os.scandir(place)}
            except OSError:
                self._names[place] = {}
        return self._names[place]

    def _load(self, path: str) -> VariableFile:
        try:
            # As Ansible's own plugin does, which then gets the same data: Ansible caches it by path alone.
            data = self._loader.load_from_file(path, cache="all", unsafe=True, trusted_as_template=True)
        except AnsibleError as error:
            return VariableFile(Path(path), {}, str(error.message), isinstance(error, AnsibleVaultError))
        return VariableFile(Path(path), data if isinstance(data, Mapping) else {})


def former_names(files: Iterable[VariableFile]) -> Iterator[Problem]:
    """Yield the variables that files set by a former name."""
    for file in files:
        for name in file.values:
            if name in FORMER:
                what = f"is set in {file.place(name)}, and is now called {FORMER[name]}."
                yield Problem((str(name),), what, "Rename it there.")


def _may_have_former(path: Path) -> bool:
    """Return whether a former name is somewhere in a file; parsing all files of a thousand hosts would take longer."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return any(name.encode() in data for name in FORMER)


def _variants(listed: Collection[str], name: str) -> list[str]:
    """Return what there is of a group or host, of which Ansible reads only the first."""
    return [name + suffix for suffix in SUFFIXES if name + suffix in listed]


def directory_problems(
    directory: Path, files: Iterable[VariableFile], known: Collection[str]
) -> Iterator[Problem]:
    """Yield what is wrong with the files of one group's or host's directory."""
    seen: dict[str, list[VariableFile]] = {}
    for file in files:
        if file.error:
            fix = VAULT_FIX if file.vaulted else ""
            yield Problem((), f"{path_text(file.path)}: cannot be read: {file.error.rstrip('.')}.", fix)
        sure = leftover_likelihood(file.path.relative_to(directory))
        names = [str(name) for name in file.values if sure != MAYBE or name in known]
        if sure and names:
            what = f"{path_text(file.path)}: looks left behind, but Ansible reads it. It sets "
            what += f"{', '.join(sorted(names))}."
            yield Problem(
                (), what, "Remove it, or move it elsewhere. If it belongs there, give it another name."
            )
            continue
        for name in file.values:
            if name in known:
                seen.setdefault(str(name), []).append(file)
    for name, setting in seen.items():
        if len(setting) > 1 and not _merged([file.values[name] for file in setting]):
            *others, last = [file.place(name) for file in setting]
            what = f"is set in {', '.join(others)} and in {last}; Ansible takes only {last}."
            yield Problem((name,), what, "Keep one of them.")


def order_matters(first: Any, second: Any) -> bool:
    """Return whether a variable that is set twice depends on which of the values is the later one."""
    if first is second:
        return False
    one, two = {"value": first}, {"value": second}
    try:
        return bool(combine_vars(one, two) != combine_vars(two, one))
    except AnsibleError:  # one is vaulted without its password, which is an error where it is used
        return False


def _merged(values: list[Any]) -> bool:
    """Return whether Ansible is configured to merge these maps, and they do not contradict each other."""
    merges = constants.DEFAULT_HASH_BEHAVIOUR == "merge" and all(isinstance(item, Mapping) for item in values)
    return merges and not any(order_matters(one, two) for one, two in combinations(values, 2))


def _unread(path: Path, first: Path) -> Problem:
    name = f"{path_text(first)}{'/' if first.is_dir() else ''}"
    what = f"{path_text(path)}: Ansible does not read it, because {name} is there."
    return Problem((), what, f"Move what is in it to {name}, or remove it.")
