# SPDX-License-Identifier: Apache-2.0
"""Attention backends on ROCm: which one a release takes, how it is named, and the log line that proves it.

The data is catalog/vllm/backends.yml; nothing here reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .versions import Release, Timeline

DENSE = "dense"
MLA = "mla"


@dataclass(frozen=True)
class Backends:
    """The attention backends of one release."""

    release: Release
    line: Timeline
    data: Mapping[str, Any]

    @property
    def era(self) -> Mapping[str, Any]:
        """The rules that hold for this release."""
        found: Mapping[str, Any] = next(
            item
            for item in self.data["eras"]
            if self.line.inside(item["since"], item["until"], self.release.index)
        )
        return found

    def expected(self, attention: str, facts: Mapping[str, bool]) -> str:
        """The backend that the release chooses by itself; `facts` are the conditions of backends.yml.

        A condition that `facts` lacks counts as false, so {} is vLLM without any variable set.
        """
        for candidate in self.era[attention]:
            if all(facts.get(key, False) == value for key, value in candidate.get("if", {}).items()):
                return str(candidate["backend"])
        return str(self.era[attention][-1]["backend"])

    def named_by(self) -> str | None:
        """The flag or variable that names a backend; None where none does."""
        rules = self.data["named_by"]
        inside = (
            rule for rule in rules if self.line.inside(rule["since"], rule["until"], self.release.index)
        )
        by: str | None = next(inside)["by"]
        return by

    def vllm_name(self, backend: str) -> str | None:
        """vLLM's own name of a backend; None where the release does not have it by name."""
        entry = self.data["backends"][backend]
        if "name" not in entry or self.line.order[entry["named_since"]] > self.release.index:
            return None
        return str(entry["name"])

    def log_lines(self, backend: str) -> tuple[str, ...]:
        """Texts in the log of the starting server, any of which proves the backend. Empty: none is known."""
        lines = self.era["lines"]
        if backend in lines:
            return tuple(lines[backend])
        name = self.vllm_name(backend)
        return tuple(text.replace("{name}", name) for text in lines.get("any", ())) if name else ()

    def in_log(self, log: Iterable[str]) -> tuple[str, ...]:
        """The backends that a log proves, in the order of their first lines."""
        patterns = {
            backend: [re.compile(re.escape(text)) for text in self.log_lines(backend)]
            for backend in self.data["backends"]
        }
        found: dict[str, None] = {}
        for text in log:
            for backend, compiled in patterns.items():
                if any(pattern.search(text) for pattern in compiled):
                    found.setdefault(backend)
        return tuple(found)

    def block_size_1(self, backend: str) -> str:
        """What a backend demands of --block-size 1: required, natural (others are split into it), free."""
        rules = self.data["backends"][backend].get("block_size_1", ())
        return next(
            (
                str(rule["is"])
                for rule in rules
                if self.line.inside(rule["since"], rule["until"], self.release.index)
            ),
            "free",
        )

    def misfits(self, backend: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
        """Why a model's shape or the configuration keeps a backend from being used; empty for nothing.

        facts: head_size, block_size, dtype, kv_cache_dtype, sinks, kv_connector; what is missing is not
        judged.
        """
        needs = self.data["backends"][backend].get("needs", {})
        found: list[str] = []
        for fact, key in (
            ("head_size", "head_sizes"),
            ("dtype", "dtypes"),
            ("kv_cache_dtype", "kv_cache_dtypes"),
        ):
            if key in needs and fact in facts and facts[fact] not in needs[key]:
                valid = ", ".join(str(item) for item in needs[key])
                found.append(f"{fact} {facts[fact]} is not among {valid}")
        multiple = needs.get("block_multiple")
        if multiple and "block_size" in facts and facts["block_size"] % multiple:
            found.append(f"block_size {facts['block_size']} is no multiple of {multiple}")
        for fact in ("sinks", "kv_connector"):
            if fact in needs and facts.get(fact, False) and not needs[fact]:
                found.append(
                    "attention sinks are not supported" if fact == "sinks" else "KV connectors are not"
                )
        return tuple(found)
