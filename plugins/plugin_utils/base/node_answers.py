# SPDX-License-Identifier: Apache-2.0
"""Check a node's answer before files of the control node are read or written because of it.

A compromised host answers what it likes: a hash that is a path, a name with "..", a file without an end.
"""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

MOST = 2**50
"""More bytes than any file has."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME_LENGTH = 200
_SHOWN = 80


class AnswerError(Exception):
    """A node's answer that cannot have been given in good faith. The message says what is wrong with it."""


def sha256_in(answer: Mapping[str, Any], key: str = "sha256") -> str:
    """Return a SHA-256 of an answer, in hex digits."""
    value = answer.get(key)
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise AnswerError(f"the host answered {_shown(value)} for {key}, which is not a SHA-256")
    return str(value)


def size_in(answer: Mapping[str, Any], key: str, most: int = MOST) -> int:
    """Return a size or a count from an answer, at most `most`."""
    value = answer.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise AnswerError(
            f"the host answered {_shown(value)} for {key}, which is not a number from 0 to {most}"
        )
    return int(value)


def path_in(answer: Mapping[str, Any], key: str = "path") -> str:
    """Return a relative path from an answer, which does not lead out of its directory."""
    value = answer.get(key)
    parts = value.split("/") if isinstance(value, str) else [""]
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in str(value):
        raise AnswerError(
            f"the host answered {_shown(value)} for {key}, which is not a path inside a directory"
        )
    return str(value)


def known_request(value: object, known: Collection[str]) -> str:
    """Return what a node asks for, which must be one of the known things."""
    if not isinstance(value, str) or value not in known:
        raise AnswerError(f"the host asks for {_shown(value)}, which it was not offered")
    return str(value)


def file_name(*parts: object) -> str:
    """Return parts joined by two underscores as the name of a file, without its ending.

    Characters that paths may not have are replaced, no part begins with a dot, and the name is not too long.
    """
    safe = (re.sub(r"[^A-Za-z0-9._=-]", "_", str(part)).lstrip(".") or "_" for part in parts)
    return "__".join(safe)[:_NAME_LENGTH]


def fetch(connection: Any, source: str, target: Path, size: int) -> None:
    """Copy a file from a node, up to `size` bytes, and check that it has this size.

    Raise AnswerError if it is longer or shorter, AnsibleError or OSError if it cannot be copied; then nothing is left.
    """
    try:
        with _files_up_to(size):
            connection.fetch_file(source, str(target))
        there = target.stat().st_size
        if there != size:
            raise AnswerError(f"{source} has {there} bytes, not {size} as the host said")
    except (AnsibleError, AnswerError, OSError) as error:
        full = target.exists() and target.stat().st_size >= size
        target.unlink(missing_ok=True)
        if full:
            raise AnswerError(
                f"{source} is longer than the {size} bytes that the host said: {error}"
            ) from error
        raise


@contextlib.contextmanager
def _files_up_to(size: int) -> Iterator[None]:
    """Let no file that this process or its children write grow beyond `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limits = [size, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
