# SPDX-License-Identifier: Apache-2.0
"""The key that load balancers send to instances, so that these reject all other clients.

A node keeps it in one file that only its owner can read, and the instances' launch scripts read it from there. It
appears in no container's spec, command line or plan. The spec has only its mark, which shows which instances have
another key.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from ..common.paths import KEYS_DIR
from .node_key import NAME

FILE = f"{KEYS_DIR}/{NAME}"
UNMADE = "made by the first run"
"""The mark of a key that the first real run will create."""
_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{20,512}")


@dataclass(frozen=True)
class InstanceKey:
    """The key between load balancers and instances: its file on the control node.

    Attributes:
        mark: the part that new instances have in their spec; "" for no key
        sent: whether balancers send one
        map: the text of HAProxy's file with it; None if the key does not exist yet
    """

    file: str = ""
    mark: str = ""
    sent: bool = False
    map: str | None = field(default=None, repr=False)

    @property
    def sent_mark(self) -> str:
        """The fingerprint of the key that balancers send, whether or not new instances ask for it; "" for none."""
        if self.map is not None:
            return mark(key_of_map(self.map))
        return self.mark or (UNMADE if self.sent else "")


NO_KEY = InstanceKey()


def mark(key: str) -> str:
    """Return a fingerprint of a key, from which the key cannot be guessed."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def key_wrong(key: str) -> str:
    """Return what is wrong with a key, without repeating it; "" if it is valid.

    A valid key needs no quoting in a shell, a map or a header.
    """
    if _KEY.fullmatch(key):
        return ""
    return "does not hold a key: 20 to 512 letters, digits and ._~+/=- in one line"


def header_map(key: str) -> str:
    """Return the text of instance.map: the Authorization header that HAProxy sends.

    It is kept out of HAProxy's configuration, because that is in the plan.
    """
    return f"key Bearer {key}\n"


def key_of_map(text: str) -> str:
    """Return the key in the text of instance.map."""
    return text.split()[-1]
