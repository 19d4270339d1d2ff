# SPDX-License-Identifier: Apache-2.0
"""Describe how two generations of a deployment differ. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from ....module_utils.service.generations import Generation

MAX_DIFFERENCES = 6  # the maximum number of differences in a text


def describe_changes(old: Generation, new: Generation) -> str:
    """Return the changes as text: "image lab/x:1 → lab/x:2; --max-num-seqs 256 → 512"."""
    found = [
        *_image(old, new),
        *_pair("vLLM", old.vllm, new.vllm),
        *_pair("model", old.model, new.model),
        *(_pair("commit", old.commit[:12], new.commit[:12]) if old.model == new.model else ()),
        *_words(_flags(old.command), _flags(new.command)),
        *_words(_variables(old.env), _variables(new.env)),
        *_members(old, new),
        *_pair("GPUs in", old.modes, new.modes),
    ]
    if len(found) > MAX_DIFFERENCES:
        found = [*found[: MAX_DIFFERENCES - 1], f"{len(found) - MAX_DIFFERENCES + 1} more"]
    return "; ".join(found) or "the content of its files changes"


def changed_names(old: Generation, new: Generation) -> tuple[str, ...]:
    """Return the names of the flags and variables that differ, with "environment" before those of variables."""
    pairs = (
        (_flags(old.command), _flags(new.command), ""),
        (_variables(old.env), _variables(new.env), "environment "),
    )
    return tuple(
        f"{kind}{name}"
        for before, after, kind in pairs
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


def _pair(what: str, old: str, new: str) -> Iterable[str]:
    if old != new:
        yield f"{what} {old or 'unknown'} → {new or 'unknown'}"


def _image(old: Generation, new: Generation) -> Iterable[str]:
    if old.image_ref != new.image_ref:
        yield f"image {old.image_ref} → {new.image_ref}"
    elif old.image != new.image:
        short = [item.image.rpartition("@")[2][:19] for item in (old, new)]
        yield f"image {new.image_ref}, {short[0]} → {short[1]}"


def _flags(command: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in shlex.split(command):
        if word.startswith("--"):
            values = found.setdefault(word, [])
        else:
            values.append(word)
    return {flag: " ".join(words) for flag, words in found.items()}


def _variables(env: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in shlex.split(env))
    return {name: value for name, _unused, value in pairs}


def _words(old: Mapping[str, str], new: Mapping[str, str]) -> Iterable[str]:
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if before is None:
            yield f"{name} {after}".rstrip() + " (new)"
        elif after is None:
            yield f"{name} {before}".rstrip() + " (gone)"
        else:
            yield f"{name} {before or 'on'} → {after or 'on'}"


def _members(old: Generation, new: Generation) -> Iterable[str]:
    if len(old.members) != len(new.members):
        yield f"instances {len(old.members)} → {len(new.members)}"
        return
    before, after = ([node for item in each.members for node in item.render_nodes] for each in (old, new))
    if before != after:
        yield f"GPUs {_list(before)} → {_list(after)}"
    elif old.specs.keys() != new.specs.keys():
        yield f"instances {', '.join(old.specs)} → {', '.join(new.specs)}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(names)})"
