# SPDX-License-Identifier: Apache-2.0
"""Find how two sides of a comparison differ apart from their speed: options, environment, software, hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.json_record import JsonRecord
from .cells import Side, by_cell
from .commands import OWN, options
from .rows import Row

_OWN_VARIABLES = ("VISIBLE_DEVICES", "VLLM_HOST_IP")
# Words of the kernel command line that name a host's own disks.
_OWN_WORDS = ("BOOT_IMAGE=", "root=", "resume=", "initrd=")
_GPU = ("model", "vbios", "link_speed", "link_width")


@dataclass(frozen=True)
class Difference(JsonRecord):
    """One difference. what: option, environment, image, version, host or client; a, b: values, "" for none."""

    what: str
    name: str
    a: str
    b: str

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `differences` in compare.json."""
        return {**super().to_json(), "a": self.a or None, "b": self.b or None}


def differences(a: Side, b: Side) -> list[Difference]:
    """Return how the sides differ, over the cells that both measured."""
    cells = [by_cell(side) for side in (a, b)]
    rows = [[row for key in own if key in cells[0] and key in cells[1] for row in own[key]] for own in cells]
    found: list[Difference] = []
    for what, read in (
        ("image", _image),
        ("version", _versions),
        ("option", lambda row: _without(options(row.get("serve_command")), OWN)),
        ("environment", _environment),
        ("client", lambda row: {"image": (row.get("client") or {}).get("image")}),
    ):
        found += _differing(what, *([read(row) for row in own] for own in rows))
    facts = [_hosts(side, own) for side, own in zip((a, b), rows, strict=True)]
    return [*found, *_differing("host", *facts)]


def _differing(
    what: str, a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:
    """Yield the names whose set of values is not the same on both sides."""
    for name in sorted({name for item in (*a, *b) for name in item}):
        ours, theirs = (_values(item.get(name) for item in side) for side in (a, b))
        if ours != theirs:
            yield Difference(what, name, ", ".join(ours), ", ".join(theirs))


def _values(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values if value not in (None, "")})


def _without(named: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: value for name, value in named.items() if name not in set(names)}


def _image(row: Row) -> dict[str, Any]:
    return {"name": row.get("image"), "digest": row.get("digest")}


def _versions(row: Row) -> dict[str, Any]:
    return dict(row.get("versions") or {})


def _environment(row: Row) -> dict[str, Any]:
    return {key: value for key, value in (row.get("env") or {}).items() if not key.endswith(_OWN_VARIABLES)}


def _hosts(side: Side, rows: Sequence[Row]) -> list[dict[str, Any]]:
    names = {row["host"] for row in rows}
    return [_host(facts) for name, facts in side.hosts.items() if name in names]


def _host(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a host by name: its scalars, what its GPUs have in common or not, and the kernel's words."""
    found = {name: value for name, value in facts.items() if isinstance(value, (str, int, float, bool))}
    if isinstance(facts.get("cpu"), Mapping):
        found["cpu"] = facts["cpu"].get("model")
    gpus = [gpu for gpu in facts.get("gpus") or () if isinstance(gpu, Mapping)]
    found |= {f"gpu {name}": " ".join(_values(gpu.get(name) for gpu in gpus)) for name in _GPU}
    words = [word for word in facts.get("cmdline") or () if not str(word).startswith(_OWN_WORDS)]
    return {**found, "kernel command line": " ".join(words)}
