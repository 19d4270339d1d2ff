# SPDX-License-Identifier: Apache-2.0
"""The key that the load balancers send to instances, so that these answer nobody else.

A node keeps it in one file for its owner only, which the instances' launch scripts read: it is in no container's spec,
no command line and no plan. Their spec has its mark, so that instances with another key are known.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field

from .files import read_text
from .paths import KEYS_DIR

VARIABLE = "VLLM_API_KEY"
NAME = "instances"
FILE = f"{KEYS_DIR}/{NAME}"
UNMADE = "made by the first run"
"""The mark of a key that a real run is going to make."""
_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{20,512}")
_LINE = re.compile(rf"^{VARIABLE}=(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class InstanceKey:
    """The key between load balancers and instances: its file on the control node.

    mark: what new instances have of it in their spec; "": they have no key. sent: balancers send one. map: HAProxy's
    file with it; None: it is yet to be made.
    """

    file: str = ""
    mark: str = ""
    sent: bool = False
    map: str | None = field(default=None, repr=False)


NO_KEY = InstanceKey()


def mark(key: str) -> str:
    """By what a key can be recognised that cannot be guessed."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def key_wrong(key: str) -> str:
    """What is wrong with a key; "" when nothing is. Does not repeat it. Needs no quoting in a shell, map or header."""
    if _KEY.fullmatch(key):
        return ""
    return "does not hold a key: 20 to 512 letters, digits and ._~+/=- in one line"


def node_key(directory: str = KEYS_DIR) -> str:
    """The node's key; "" when it has none. Only root can read it."""
    found = _LINE.search(read_text(os.path.join(directory, NAME)) or "")
    return found.group(1) if found else ""


def header_map(key: str) -> str:
    """instance.map: what HAProxy sends as Authorization, kept out of its configuration, which is in the plan."""
    return f"key Bearer {key}\n"
