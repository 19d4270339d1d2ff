# SPDX-License-Identifier: Apache-2.0
"""Build command lines of vLLM's benchmark clients for one release from neutral arguments.

The data is catalog/vllm/{bench.json, bench_settings.yml}; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.benchmarks.bench_results import KINDS
from ....module_utils.common.errors import nearest, suggest
from ..vllm.findings import BAD_CHOICE, BAD_VALUE, GONE, NOT_YET, OK, UNKNOWN, Finding
from ..vllm.flag_values import Value, token
from ..vllm.flags import Flag, FlagTable, absence_finding, check, flags_of, option_index
from ..vllm.settings import PLACE, applies_to_release, fill_template, flag_argv, wrong_value
from .bench_clients import BenchClients, flags_in_any_release


@dataclass(frozen=True)
class BenchCommand:
    """A benchmark command. If the findings contain an error, argv must not be run."""

    argv: tuple[str, ...]
    table: str
    findings: tuple[Finding, ...]


def bench_table(serve: FlagTable, data: Mapping[str, Any], command: str) -> FlagTable | None:
    """Return the flags of a benchmark command (a key of bench.json) in serve's release; None if it is missing.

    Commands with an engine also accept the engine's flags of `vllm serve`.
    """
    entry = data["commands"][command]
    if not serve.line.within(entry["present"], serve.release.index):
        return None
    flags: dict[str, Flag] = {}
    if entry["engine_args"]:
        flags.update((name, flag) for name, flag in serve.flags.items() if flag.engine)
    changes = serve.bench.get(command, {})
    flags.update(flags_of(entry["flags"], data["defaults"], serve.line, serve.release.index, changes))
    return replace(
        serve, flags=flags, options=option_index(flags.values()), ever=flags_in_any_release(serve, entry)
    )


def bench_args(
    serve: FlagTable,
    data: Mapping[str, Any],
    book: Mapping[str, Any],
    kind: str,
    measured: Mapping[str, Value],
    arguments: Mapping[str, Value],
    served: Sequence[str] = (),
) -> BenchCommand:
    """Return the command line of a benchmark of this kind.

    `measured` describes what is measured and `arguments` how, as flags of the client or by the names of
    bench_settings.yml; a setting is translated to other flags if the release does not have the intended one. `served`
    is the server's command line, from which the client takes the options that it needs too. An argument that the
    release cannot express becomes a finding that names the release where it was added or removed. Raise ValueError for
    an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of benchmark. {suggest(kind, KINDS)}")
    clients = BenchClients(serve, data, book, kind)
    command = clients.command(serve.release.index)
    table = bench_table(serve, data, command["table"])
    if table is None:
        raise ValueError(f"bench.json has no {command['table']} for vLLM {serve.release.name}")
    client = _Client(table, clients)
    words: dict[str, list[str]] = {}
    findings = client.put(words, measured)
    words.update(client.carried(serve, served))
    findings += client.put(words, arguments)
    argv = list(command["argv"])
    if "script" in command:
        argv.append(f"{book['script_directory']}/{command['script']}")
    argv += [word for group in words.values() for word in group]
    return BenchCommand(tuple(argv), command["table"], tuple(findings))


def reserved_findings(book: Mapping[str, Any], kind: str, arguments: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding for each argument that the operator may not set."""
    for name in arguments:
        setting = book["settings"].get(name)
        flags = {_option(name), *(flags_of_setting(setting) if setting else ())}
        if not flags.isdisjoint(book["reserved"][kind]):
            yield Finding(name, BAD_VALUE, "is set by the toolkit, from the instance", "Leave it out.")


@dataclass(frozen=True)
class _Client:
    """The benchmark client of one release, and those of the others."""

    table: FlagTable
    clients: BenchClients

    @property
    def book(self) -> Mapping[str, Any]:
        """Return the neutral arguments."""
        return self.clients.book

    @property
    def kind(self) -> str:
        """Return the kind of benchmark."""
        return self.clients.kind

    def put(self, words: dict[str, list[str]], arguments: Mapping[str, Value]) -> list[Finding]:
        """Add the words of each argument under its flag, and return the findings."""
        findings = []
        for name, value in arguments.items():
            found, flags = self._argument(name, value)
            words.update(flags)
            if found.status != OK:
                findings.append(found)
        return findings

    def carried(self, serve: FlagTable, served: Sequence[str]) -> dict[str, list[str]]:
        """Return the options of the server's command line that the client needs too, as they are written there."""
        rule = self.book["carried"][self.kind]
        groups: dict[str, list[str]] = {}
        group: list[str] = []
        for word in served:
            if word.startswith("--"):
                hit = serve.get(word.partition("=")[0])
                group = groups.setdefault(hit[0].name, []) if hit and self.table.get(hit[0].name) else []
            group.append(word)
        names = rule.get("flags") or [name for name in groups if serve.flags[name].engine]
        return {name: groups[name] for name in names if name in groups and name not in rule.get("not", ())}

    def _argument(self, name: str, value: Value) -> tuple[Finding, Mapping[str, list[str]]]:
        """Return the words of an argument by flag; a flag that the release has is passed as written."""
        key = self._setting(name)
        setting = self.book["settings"].get(key, {})
        wrong = wrong_value(setting, value) if setting else ""
        spoken = _spoken(setting, value)
        flags: Mapping[str, Value]
        if self.table.get(name):
            found, flags = check(self.table, name, spoken), {name: spoken}
            if found.status == BAD_CHOICE:
                found = self._later(name, [{"args": {_option(name): PLACE}}], value) or found
        elif not setting or (wrong and key != name):
            found, flags = absence_finding(self.table, _option(name)), {_option(name): spoken}
            if found.status == UNKNOWN:
                found = self._later(name, [{"args": {_option(name): PLACE}}], value) or self._unknown(found)
        elif wrong:
            choices = setting.get("choices")
            fix = f"Valid: {', '.join(choices)}." if choices else ""
            return Finding(name, BAD_VALUE, wrong, fix), {}
        else:
            found, flags = self._expressed(setting, name, value)
        if found.is_error:
            return found, {}
        return found, {self._flag(flag): flag_argv(self.table, flag, item) for flag, item in flags.items()}

    def _expressed(
        self, setting: Mapping[str, Any], name: str, value: Value
    ) -> tuple[Finding, Mapping[str, Value]]:
        """Return a setting in the first of its forms that this release supports."""
        line, index = self.table.line, self.table.release.index
        for form in setting["forms"]:
            if form.get("kind", self.kind) == self.kind and applies_to_release(line, index, form, value):
                flags = {
                    flag: fill_template(item, _spoken(setting, value))
                    for flag, item in form.get("args", {}).items()
                }
                if all(flag in self.table.options for flag in flags):
                    return Finding(name, OK), flags
        optional = bool(setting.get("optional"))
        later = self._later(name, setting["forms"], value, optional)
        if later:
            return later, {}
        what, release = self._inexpressible(value), self.table.release
        return Finding(name, GONE, what, "Leave it out.", "", release.exact, optional), {}

    def _later(
        self, name: str, forms: Sequence[Mapping[str, Any]], value: Value, optional: bool = False
    ) -> Finding | None:
        """Return that a later release's client can express a value, if one can."""
        setting = self.book["settings"].get(self._setting(name), {})
        first = self.clients.first_after(forms, _spoken(setting, value), value)
        if first is None:
            return None
        what = f"{self._inexpressible(value)}; {first} is the first release that can"
        return Finding(name, NOT_YET, what, "Leave it out.", "", self.table.release.exact, optional)

    def _inexpressible(self, value: Value) -> str:
        return f"{token(value)} cannot be expressed with vLLM {self.table.release.requested}'s client"

    def _unknown(self, found: Finding) -> Finding:
        """Return the finding with the nearest name of any release's client."""
        near = nearest(found.subject.lstrip("-"), self.clients.names())
        return replace(found, fix=f"Did you mean {near}?") if near else found

    def _flag(self, name: str) -> str:
        hit = self.table.get(name)
        return hit[0].name if hit else name

    def _setting(self, name: str) -> str:
        """Return the setting that a name stands for: its own name or one of its flags."""
        flag = _option(name)
        for key, setting in self.book["settings"].items():
            if self.kind in setting["kinds"] and (key == name or flag in flags_of_setting(setting)):
                return str(key)
        return ""


def _option(name: str) -> str:
    """Return the option of a name: random_input_len → --random-input-len."""
    return f"--{name.lstrip('-').replace('_', '-')}"


def flags_of_setting(setting: Mapping[str, Any]) -> set[str]:
    """Return the flags that carry a setting's value in any release."""
    forms = (form.get("args", {}) for form in setting["forms"])
    return {flag for form in forms for flag, item in form.items() if item == PLACE}


def _spoken(setting: Mapping[str, Any], value: Value) -> Value:
    """Return a list or map in the form that the client parses, if it has one of its own."""
    if "pair" in setting and isinstance(value, Mapping):
        return [setting["pair"].format(*item) for item in value.items()]
    if "join" in setting and isinstance(value, (list, tuple)):
        return setting["join"].join(str(item) for item in value)
    return value
