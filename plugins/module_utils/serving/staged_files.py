# SPDX-License-Identifier: Apache-2.0
"""The files of an instance: written next to the old ones while it still serves, renamed once it has stopped.

So a full disk is noticed while nothing is down, and the renaming needs no space.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ..common import paths
from ..common.files import make_private, sync_directory, write_atomic
from .instance import ServerSpec, wanted_files

SUFFIX = ".next"


def stage(server: ServerSpec, names: Iterable[str]) -> None:
    """Write the named files of the artefact next to the present ones. Raise OSError, and leave none, if one fails."""
    if server.cache_directory:
        os.makedirs(server.cache_directory, mode=0o755, exist_ok=True)
        if server.cache_directory == paths.cache_dir(server.name):
            # A container's root may leave setuid programs there, so users of the host are kept out.
            make_private(os.path.dirname(server.cache_directory))
    wanted = [(_path(server, name) + SUFFIX, wanted_files(server)[name]) for name in names]
    if not wanted:
        return
    make_private(server.directory)
    discard(server)  # of a run that was killed
    try:
        for path, file in wanted:
            write_atomic(path, file.text, file.mode)
    except OSError:
        discard(server)
        raise


def put_in_place(server: ServerSpec, names: Iterable[str]) -> None:
    """Give the staged files their names, in the order of `names`."""
    for name in names:
        os.replace(_path(server, name) + SUFFIX, _path(server, name))
    if os.path.isdir(server.directory):
        sync_directory(server.directory)


def _path(server: ServerSpec, name: str) -> str:
    return os.path.join(server.directory, name)


def discard(server: ServerSpec) -> None:
    """Remove what was staged and is no longer needed."""
    with contextlib.suppress(OSError):
        for name in os.listdir(server.directory):
            if name.endswith(SUFFIX):
                os.unlink(_path(server, name))
