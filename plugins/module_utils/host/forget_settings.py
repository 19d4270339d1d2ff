# SPDX-License-Identifier: Apache-2.0
"""The settings and units that the toolkit gave a host, and how a host is without them.

Lines of other files that the toolkit turned off are turned on again: it marked them, so what was there is known. Values
of the running kernel stay until a reboot, as nobody recorded them.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..common import paths
from ..common.checked_program import run_checked
from ..common.files import read_text, write_atomic
from ..observe.kernel_cmdline import DROP_IN as GRUB_DROP_IN
from ..observe.sysctl import HEADER, TURNED_OFF
from . import persistent_files
from .forget_parts import Part, file_part

UNITS = (paths.PARTITION_LINK, paths.PARTITION_UNIT, persistent_files.WANTED_BY, persistent_files.UNIT)
DROP_INS = persistent_files.DROP_IN.format("*").replace("60-instinct-fleet.conf", "60-instinct-fleet*.conf")
FILES = (persistent_files.TMPFILES, persistent_files.LIMITS)
SYSCTLS = ("/etc/sysctl.d/*.conf", "/etc/sysctl.conf")
UPDATE_SECONDS = 600  # it may look for other systems on every disk
RELOAD_SECONDS = 90

Run = Callable[[Sequence[str], float], object]


@dataclass(frozen=True)
class SettingsFiles:
    """The host's files below a root, and how programs are run there; tests use others."""

    root: str = ""
    run: Run = run_checked
    find: Callable[[str], str | None] = shutil.which

    def parts(self) -> Iterator[Part]:
        """Yield what the toolkit has in the host's settings."""
        units = [self.root + path for path in UNITS if os.path.lexists(self.root + path)]
        units += self._there(DROP_INS)
        yield from map(file_part, units)
        if units:
            yield Part(
                "systemctl daemon-reload",
                partial(self._program, ["systemctl", "daemon-reload"], RELOAD_SECONDS),
            )
        yield from (file_part(self.root + path) for path in FILES if os.path.lexists(self.root + path))
        for path in dict.fromkeys(found for pattern in SYSCTLS for found in self._there(pattern)):
            yield from self._sysctl_file(path)
        grub = self.root + GRUB_DROP_IN
        if os.path.lexists(grub):
            yield file_part(grub)
            yield Part("update-grub", partial(self._program, ["update-grub"], UPDATE_SECONDS))

    def left(self) -> Iterator[str]:
        """Yield what stays although the toolkit set it, and until when."""
        yield (
            "what prepare.yml and partition.yml set in the running kernel, on GPUs and in Docker's process (NUMA "
            "balancing, other sysctls, CPU governor, partition modes, limits, proxy), until a reboot"
        )
        if self.find("grubby"):
            yield "words that prepare.yml put on the kernel command line with grubby (grubby --info=ALL shows them)"
        yield "packages that were installed for it, such as Docker, HAProxy and keepalived"

    def _there(self, pattern: str) -> list[str]:
        return sorted(glob.glob(glob.escape(self.root) + pattern))

    def _sysctl_file(self, path: str) -> Iterator[Part]:
        text = read_text(path) or ""
        if text.startswith(HEADER):
            yield file_part(path)
            return
        count = sum(line.startswith(TURNED_OFF) for line in text.splitlines())
        if count:
            yield Part(f"turn on again {count} lines of {path}", partial(_turn_on, path))

    def _program(self, words: Sequence[str], seconds: float) -> None:
        if self.find(words[0]):
            self.run(words, seconds)


def _turn_on(path: str) -> None:
    """Uncomment the lines of a file that the toolkit commented out."""
    real = os.path.realpath(path)
    lines = (read_text(real) or "").splitlines(keepends=True)
    text = "".join(line[len(TURNED_OFF) :] if line.startswith(TURNED_OFF) else line for line in lines)
    write_atomic(real, text, os.stat(real).st_mode & 0o777)
