# SPDX-License-Identifier: Apache-2.0
"""What the benchmark clients of all releases have: which arguments, and since when.

The data is catalog/vllm/{bench.json, bench_settings.yml}; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ....module_utils.benchmarks.bench_results import KINDS
from ....module_utils.common.errors import suggest
from ..vllm.findings import UNKNOWN, Finding
from ..vllm.flag_values import Value
from ..vllm.flags import FlagTable
from ..vllm.settings import applies_to_release, fill_template


def unknown_arguments(
    serve: FlagTable, data: Mapping[str, Any], book: Mapping[str, Any], kind: str, names: Iterable[str]
) -> tuple[Finding, ...]:
    """Return a finding, with the nearest name, for each name that the clients of no release have.

    `serve` is the table of any release: the answer does not depend on it. Raise ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of benchmark. {suggest(kind, KINDS)}")
    known = BenchClients(serve, data, book, kind).names()
    keys = {name: name.lstrip("-").replace("-", "_") for name in names}
    return tuple(
        Finding(name, UNKNOWN, f"is not an argument of vLLM's {kind} benchmark", suggest(key, known))
        for name, key in keys.items()
        if key not in known
    )


@dataclass(frozen=True)
class BenchClients:
    """The clients of one kind of benchmark in all releases."""

    serve: FlagTable
    data: Mapping[str, Any]
    book: Mapping[str, Any]
    kind: str

    def command(self, index: int) -> Mapping[str, Any]:
        """Return the entry of `commands` that a release runs."""
        found: Mapping[str, Any] = next(
            item
            for item in self.book["commands"][self.kind]
            if self.serve.line.inside(item.get("since"), item.get("until"), index)
        )
        return found

    def names(self) -> set[str]:
        """Return every name that an argument has in any release: settings, flags, and other spellings of flags."""
        found = {name for name, setting in self.book["settings"].items() if self.kind in setting["kinds"]}
        for item in self.book["commands"][self.kind]:
            entry = self.data["commands"][item["table"]]
            engine = {name: flag for name, flag in self.serve.ever.items() if flag.get("engine")}
            for name, flag in {**(engine if entry["engine_args"] else {}), **entry["flags"]}.items():
                spelled = (names for key in ("aliases", "negatives") for _unused, names in flag.get(key, ()))
                found.update(
                    option.lstrip("-").replace("-", "_") for option in (name, *chain.from_iterable(spelled))
                )
        return found

    def first_after(self, forms: Sequence[Mapping[str, Any]], spoken: Value, value: Value) -> str | None:
        """Return the first later release that can express a value in one of these forms; None if there is none."""
        line = self.serve.line
        for index in range(self.serve.release.index + 1, len(line.releases)):
            entry = self.data["commands"][self.command(index)["table"]]
            flags = flags_in_any_release(self.serve, entry)
            for form in forms:
                args = form.get("args", {}).items()
                if (
                    form.get("kind", self.kind) == self.kind
                    and applies_to_release(line, index, form, value)
                    and all(
                        self._takes(flags.get(flag), index, fill_template(item, spoken))
                        for flag, item in args
                    )
                ):
                    return line.releases[index]
        return None

    def _takes(self, flag: Mapping[str, Any] | None, index: int, value: Value) -> bool:
        line = self.serve.line
        if flag is None or not line.within(flag["present"], index):
            return False
        choices = line.value(flag.get("choices", ()), index)
        return choices is None or value in choices


def flags_in_any_release(serve: FlagTable, entry: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the flags that a command of bench.json, `entry`, has in any release."""
    return {**serve.ever, **entry["flags"]} if entry["engine_args"] else entry["flags"]
