# SPDX-License-Identifier: Apache-2.0
"""Read the build arguments and base images of a Dockerfile, and pin the images. Pure.

Source: docs.docker.com/reference/dockerfile, sections ARG, FROM, Parser directives and Here-documents.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..common.errors import suggest

PREDEFINED = re.compile(
    r"(?i:(?:https?|ftp|no|all)_proxy)|BUILDKIT_\w+|SOURCE_DATE_EPOCH|(?:TARGET|BUILD)(?:PLATFORM|OS|ARCH|VARIANT)"
)
"""Arguments that every Dockerfile takes without an ARG line."""

_HEREDOC = re.compile(r"<<-?(['\"]?)([A-Za-z_]\w*)\1")
_FROM = re.compile(r"(?i)(\s*FROM\s+(?:--\S+\s+)*)(\S+)(?:\s+AS\s+(\S+))?\s*")
_ARG = re.compile(r"([A-Za-z_]\w*)(?:=(\"[^\"]*\"|'[^']*'|\S*))?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile. arguments: of its ARG lines. bases: images that it begins from, as it and `args` name them."""

    arguments: tuple[str, ...]
    bases: tuple[str, ...]


@dataclass(frozen=True)
class _From:
    """A FROM line. line: its number. external: it begins from an image, and not from an earlier stage."""

    line: int
    found: re.Match[str]
    base: str
    external: bool


def read_dockerfile(text: str, args: Mapping[str, str]) -> Dockerfile:
    """Return what a Dockerfile declares, with these build arguments; a base whose name stays empty is left out."""
    arguments, stages = _read(text, args)
    return Dockerfile(arguments, tuple(dict.fromkeys(item.base for item in stages if item.external)))


def pin_bases(text: str, args: Mapping[str, str], digests: Mapping[str, str]) -> str:
    """Return the Dockerfile with base images named by digest; digests: by the names of read_dockerfile()."""
    lines = text.splitlines()
    for item in _read(text, args)[1]:
        if item.external and item.base in digests and _FROM.fullmatch(lines[item.line]):
            end = item.found.string[item.found.end(2) :]
            lines[item.line] = f"{item.found[1]}{digests[item.base]}{end}"
    return "\n".join(lines) + "\n"


def _read(text: str, args: Mapping[str, str]) -> tuple[tuple[str, ...], list[_From]]:
    """Return the names of all ARG lines, and the FROM lines."""
    names: dict[str, str] = {}
    arguments: dict[str, None] = {}
    stages: list[_From] = []
    called: set[str] = set()
    for number, line in _instructions(text):
        word, _unused, rest = line.strip().partition(" ")
        if word.upper() == "ARG":
            for name, default in _ARG.findall(rest):
                arguments[name] = None
                if not stages:  # FROM sees those before the first one only
                    names[name] = args.get(name, _expanded(default.strip("\"'"), names))
        found = _FROM.fullmatch(line)
        if found:
            base = _expanded(found[2].strip("\"'"), names)
            external = bool(base) and base != "scratch" and base.lower() not in called
            stages.append(_From(number, found, base, external))
            called.add((found[3] or "").lower())
    return tuple(arguments), stages


def unknown_arguments(given: Sequence[str], declared: Sequence[str], dockerfile: str) -> list[str]:
    """Return a warning for each build argument that the Dockerfile has no ARG line for: docker ignores it."""
    return [
        f"build.args: {name} is not an ARG of {dockerfile}, so it changes nothing. {suggest(name, declared)}".rstrip()
        for name in given
        if name not in declared and not PREDEFINED.fullmatch(name)
    ]


def candidates(path: str) -> tuple[str, ...]:
    """Return where a Dockerfile may be: as named, or else at the root or in docker/, as vLLM had and has it."""
    directory, name = posixpath.split(path)
    other = {"docker": name, "": f"docker/{name}"}.get(directory)
    return (path, other) if other else (path,)


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction's first line number and its text, continued lines joined, here-documents left out."""
    escape, end, begun = "\\", "", 0
    parts: list[str] = []
    directive = re.match(r"\s*#\s*escape\s*=\s*(\S)", text, re.IGNORECASE)
    if directive:
        escape = directive[1]
    for number, line in enumerate(text.splitlines()):
        if end:
            end = "" if line.strip() == end else end
            continue
        if line.lstrip().startswith("#") or (parts and not line.strip()):
            continue
        begun = begun if parts else number
        parts.append(line.rstrip())
        if parts[-1].endswith(escape):
            parts[-1] = parts[-1][:-1]
            continue
        whole, parts = " ".join(parts), []
        heredoc = _HEREDOC.search(whole)
        end = heredoc[2] if heredoc and re.match(r"(?i)\s*(?:RUN|COPY|ADD)\s", whole) else ""
        if whole.strip():
            yield begun, whole


def _expanded(text: str, names: Mapping[str, str]) -> str:
    """Return a text with its variables: $NAME, ${NAME}, ${NAME:-default} and ${NAME:+other}."""

    def value(found: re.Match[str]) -> str:
        own, way = names.get(found[1] or found[2], ""), (found[3] or "")[-1:]
        if way == "-":
            return own or found[4]
        return (found[4] if own else "") if way == "+" else own

    return _VARIABLE.sub(value, text)
