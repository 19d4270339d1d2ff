# SPDX-License-Identifier: Apache-2.0
"""Faults on demand. The first rule that matches a request is used, and used up after `count` requests:

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
    """What to do with requests whose path matches. `count` None: until taken away."""

    match: str = "*"
    method: str | None = None
    count: int | None = None
    status: int | None = None
    retry_after: int | None = None
    bytes_per_second: int | None = None
    drop_after: int | None = None  # bytes of the body, then the connection is closed
    delay: float = 0.0  # seconds before anything is answered
    client: str | None = None  # network that it holds for, 172.30.78.0/24; None: for everybody

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Fault:
        """A fault as JSON has it; ValueError for a key that means nothing, TypeError for another thing."""
        if not isinstance(data, dict):
            raise TypeError(f"{data!r} is no fault")
        names = [field.name for field in fields(cls)]
        for key in data:
            if key not in names:
                near = difflib.get_close_matches(key, names, 1) or names
                raise ValueError(f"fault has no key {key!r}; did you mean {near[0]!r}?")
        return cls(**data)


class Faults:
    """The rules in force; several connections take from them at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Fault] = []

    def set(self, *rules: Fault, client: str | None = None) -> None:
        """Replace the rules for the clients of one network; those for others stay."""
        with self._lock:
            others = [rule for rule in self._rules if rule.client != client]
            self._rules = [*(replace(rule, client=client) for rule in rules), *others]

    def list(self) -> list[Fault]:
        with self._lock:
            return list(self._rules)

    def take(self, method: str, path: str, address: str) -> Fault | None:
        """The rule for this request, one of its requests used up; `address`: the client's."""
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
