# SPDX-License-Identifier: Apache-2.0
"""Faults on demand. The first rule that matches a request applies, and expires after `count` requests:

{"match": "*/resolve/*", "method": "GET", "count": 2, "status": 429, "retry_after": 1}
{"match": "*.safetensors", "bytes_per_second": 500000, "drop_after": 1000000, "delay": 0.5}
"""

from __future__ import annotations

import difflib
import threading
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from ipaddress import ip_address, ip_network
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A fault for requests whose path matches. `count` None: until it is removed."""

    match: str = "*"
    method: str | None = None
    count: int | None = None
    status: int | None = None
    retry_after: int | None = None
    bytes_per_second: int | None = None
    drop_after: int | None = None  # bytes of the body, then the connection is closed
    delay: float = 0.0  # seconds before any answer
    client: str | None = None  # network of the affected clients, 172.30.78.0/24; None: all clients

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Fault:
        """Parse a fault from JSON. Raise ValueError for an unknown key, TypeError for anything but an object."""
        if not isinstance(data, dict):
            raise TypeError(f"{data!r} is not a fault")
        names = [field.name for field in fields(cls)]
        for key in data:
            if key not in names:
                near = difflib.get_close_matches(key, names, 1) or names
                raise ValueError(f"fault has no key {key!r}; did you mean {near[0]!r}?")
        return cls(**data)


class Faults:
    """The active rules; several connections use them at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Fault] = []

    def set(self, *rules: Fault, client: str | None = None) -> None:
        """Replace the rules for the clients of one network; the rules for others stay."""
        with self._lock:
            others = [rule for rule in self._rules if rule.client != client]
            self._rules = [*(replace(rule, client=client) for rule in rules), *others]

    def list(self) -> list[Fault]:
        with self._lock:
            return list(self._rules)

    def take(self, method: str, path: str, address: str) -> Fault | None:
        """Return the rule for this request and count the request; `address`: the client's."""
        with self._lock:
            for index, rule in enumerate(self._rules):
                if rule.client is not None and ip_address(address) not in ip_network(rule.client):
                    continue
                if rule.method in (None, method) and fnmatch(path, rule.match):
                    if rule.count is not None:
                        left = replace(rule, count=rule.count - 1)
                        self._rules[index : index + 1] = [left] if left.count else []
                    return rule
        return None
