# SPDX-License-Identifier: Apache-2.0
"""The kernel's command line: its words, those of the next boot, and the toolkit's GRUB drop-in. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

DROP_IN = "/etc/default/grub.d/60-instinct-fleet.cfg"
GRUB_CFG = "/boot/grub/grub.cfg"
BLS_DIR = "/boot/loader/entries"
_LINE = re.compile(r'^GRUB_CMDLINE_LINUX="\$GRUB_CMDLINE_LINUX((?: [^\s"]+)*)"$')
_WORD = re.compile(r"[A-Za-z0-9_.,:=@/+-]+")


def is_word(text: str) -> bool:
    """Return whether a text is safe on a command line without quotes."""
    return bool(_WORD.fullmatch(text))


def words(line: str) -> tuple[str, ...]:
    """Return the parameters of a command line. pci= takes a list: pci=bfsort,realloc=off counts as two."""
    found: list[str] = []
    for word in line.split():
        if word.startswith("pci="):
            found += [f"pci={part}" for part in word[4:].split(",") if part]
        else:
            found.append(word)
    return tuple(found)


def grub_lines(config: str) -> tuple[str, ...]:
    """Return the command lines of a grub.cfg's entries, the default first, without recovery entries."""
    found = []
    for line in config.splitlines():
        parts = line.split(None, 2)
        if len(parts) == 3 and parts[0] in ("linux", "linuxefi", "linux16"):
            found.append(parts[2])
    normal = [line for line in found if not {"single", "recovery"} & set(line.split())]
    return tuple(normal or found)


def bls_line(entry: str, environment: str = "") -> str | None:
    """Return the command line of an entry in /boot/loader/entries; `environment` is the text of grubenv."""
    options = [line.split(None, 1)[1] for line in entry.splitlines() if re.match(r"options\s+\S", line)]
    if not options:
        return None
    variables = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], ""), " ".join(options))


def common(lines: Iterable[str]) -> tuple[str, ...] | None:
    """Return the words that all lines share, in the first one's order; None without lines."""
    split = [words(line) for line in lines]
    if not split:
        return None
    return tuple(word for word in split[0] if all(word in other for other in split))


def drop_in_words(text: str) -> tuple[str, ...]:
    """Return the words that the toolkit's drop-in adds; none for a file in another form."""
    matches = (_LINE.match(line) for line in text.splitlines())
    return next((tuple(match[1].split()) for match in matches if match), ())


def drop_in(added: Sequence[str]) -> str:
    """Return the text of the toolkit's drop-in, from which GRUB's configuration is generated."""
    return (
        "# Written by instinct-fleet. After a change: update-grub, and a reboot.\n"
        f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(added)}"\n'
    )
