# SPDX-License-Identifier: Apache-2.0
"""The generated files of catalog/vllm: reading one release out of them, and putting one in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.engines.versions import (
    Timeline,
    timeline,
    version_key,
)

from .compare import Difference, differences
from .packing import (
    CHECK_DEFAULTS,
    CHECKPOINT_DEFAULTS,
    ENV_DEFAULTS,
    FIELD_DEFAULTS,
    FLAG_DEFAULTS,
    QUANTIZATION_DEFAULTS,
    REGISTRY_DEFAULTS,
    pack,
    read_json,
    releases_of,
    replace,
    unpack,
    write_table,
    write_versions,
)

PROBE = 2
"""Version of the probe's output that this reads."""


READ: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("quantization", "methods", QUANTIZATION_DEFAULTS),
    ("checkpoints", "checkpoints", CHECKPOINT_DEFAULTS),
    ("architectures", "architectures", {}),
    ("checks", "checks", CHECK_DEFAULTS),
    ("registries", "names", REGISTRY_DEFAULTS),
)
"""Files that hold what was read of the sources: their names, the key of the entries, and what those are by default."""
_NO_CLASS: Mapping[str, Any] = {"flags": [], "fields": {}}


@dataclass(frozen=True)
class Store:
    """The directory catalog/vllm."""

    root: Path

    def line(self) -> Timeline:
        """The releases in versions.json."""
        return timeline(releases_of(self.root / "versions.json"))

    def json_flags(self) -> list[str]:
        """Flags that take JSON in any release."""
        return [
            name
            for name, entry in self._read("flags.json")["flags"].items()
            if any(kind.rstrip("?").endswith(("config", "json")) for _since, kind in entry.get("type", ()))
        ]

    def platform(self, release: str) -> str:
        """What a release's data was taken on; empty for a release that is not there."""
        listed = read_json(self.root / "versions.json")["versions"]
        return next((str(item["platform"]) for item in listed if item["version"] == release), "")

    def compare(self, probe: Mapping[str, Any]) -> Iterator[Difference]:
        """Where the catalogue's entry of the probe's release differs from the probe."""
        line, release = self.line(), probe["version"]

        def against(name: str, packed: Any, probed: Any, defaults: Mapping[str, Any]) -> Iterator[Difference]:
            return differences(name, unpack(line, packed, release, defaults), probed, defaults)

        yield from against("serve", self._read("flags.json")["flags"], probe["serve"], FLAG_DEFAULTS)
        yield from against("env", self._read("env.json")["variables"], probe["env"], ENV_DEFAULTS)
        known = self._read("configs.json")["classes"]
        for name in sorted({*known, *probe["configs"]}):
            fields = known.get(name, _NO_CLASS)["fields"]
            yield from against(name, fields, probe["configs"].get(name, _NO_CLASS)["fields"], FIELD_DEFAULTS)
        for name, body, defaults in READ:
            yield from against(name, self._read(f"{name}.json")[body], probe[name], defaults)
        for name, item in self._read("bench.json")["commands"].items():
            if name in probe["bench"]:
                yield from against(name, item["flags"], probe["bench"][name]["flags"], FLAG_DEFAULTS)

    def put(self, probe: Mapping[str, Any], source: str) -> None:
        """Write the probe's release: a new entry, or in place of the one that is there."""
        release = probe["version"]
        before = self.line()
        after = timeline(sorted({*before.releases, release}, key=version_key))

        def renewed(packed: Any, snapshot: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
            return replace(after, packed, release, snapshot, defaults, before)

        flags = self._read("flags.json")
        flags["flags"] = renewed(flags["flags"], probe["serve"], FLAG_DEFAULTS)
        write_table(self.root / "flags.json", flags, "flags")

        variables = self._read("env.json")
        variables["variables"] = renewed(variables["variables"], probe["env"], ENV_DEFAULTS)
        write_table(self.root / "env.json", variables, "variables")

        self.put_sources(release, probe, before, after)

        bench = self._read("bench.json")
        for name, found in probe["bench"].items():
            empty = {"present": [], "engine_args": found["engine_args"], "flags": {}}
            bench["commands"].setdefault(name, empty)
        for name, item in bench["commands"].items():
            item["present"] = _presence(before, after, item["present"], release, _has(probe, name))
            if name in probe["bench"]:
                item["flags"] = renewed(item["flags"], probe["bench"][name]["flags"], FLAG_DEFAULTS)
        write_table(self.root / "bench.json", bench, "commands", "flags")

        versions = self._read("versions.json")
        entry = {"version": release, "platform": probe["platform"], "source": source}
        others = [item for item in versions["versions"] if item["version"] != release]
        listed = sorted([*others, entry], key=lambda item: version_key(item["version"]))
        write_versions(self.root / "versions.json", versions["source"], listed)

    def put_sources(self, release: str, found: Mapping[str, Any], before: Timeline, after: Timeline) -> None:
        """Write what was read of one release's sources; `before` and `after`: the releases without it and with it."""
        configs = self._read("configs.json")
        classes: dict[str, Any] = {
            name: configs["classes"].get(name, {"flags": [], "fields": {}})
            for name in sorted({*configs["classes"], *found["configs"]})
        }
        for name, item in classes.items():
            given = found["configs"].get(name, _NO_CLASS)
            item["flags"] = sorted({*item["flags"], *given["flags"]})
            item["fields"] = replace(after, item["fields"], release, given["fields"], FIELD_DEFAULTS, before)
        configs |= {"defaults": FIELD_DEFAULTS, "classes": classes}
        write_table(self.root / "configs.json", configs, "classes", "fields")

        for name, body, defaults in READ:
            data = self._read(f"{name}.json")
            data["defaults"] = defaults
            data[body] = replace(after, data[body], release, found[name], defaults, before)
            write_table(self.root / f"{name}.json", data, body)

    def unexplained(self, release: str, replacements: Mapping[str, Any]) -> list[str]:
        """What is no longer there since this release and has no entry in replacements.yml."""
        return [
            name
            for table, known in (
                (self._read("flags.json")["flags"], replacements["flags"]),
                (self._read("env.json")["variables"], replacements["env"]),
            )
            for name, entry in table.items()
            if entry["present"][-1][1] == release and name not in known
        ]

    def _read(self, name: str) -> dict[str, Any]:
        data: dict[str, Any] = read_json(self.root / name)
        return data


def _has(probe: Mapping[str, Any], command: str) -> bool | None:
    """Whether the probe's vLLM has a command; None for scripts, which are never installed."""
    return command in probe["bench"] if command.startswith("vllm ") else None


def _presence(
    before: Timeline, after: Timeline, spans: Any, release: str, has: bool | None
) -> list[list[Any]]:
    """Spans with one release put in; where nothing is known, it is as in the release before."""
    there = {name for index, name in enumerate(before.releases) if before.within(spans, index)}
    if has is None:
        index = after.order[release]
        has = release in there or (index > 0 and after.releases[index - 1] in there)
    there = there | {release} if has else there - {release}
    packed = pack(after, {name: {"": {}} for name in there}, {})
    found: list[list[Any]] = packed[""]["present"] if packed else []
    return found
