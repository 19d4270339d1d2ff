# SPDX-License-Identifier: Apache-2.0
"""The single place where secrets are masked: every text that a module returns goes through a Redactor.

ansible-core 2.19 masks no_log values in results, but neither in warnings nor in exception texts, and it does not know
secrets that a container prints. So modules redact their own output before Ansible sees it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

MASK = "********"
MIN_LENGTH = 8
"""Characters. A shorter secret cannot be masked without damaging unrelated text."""

_NAME = re.compile(
    r"(^|[_-])((SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIALS?)([_-]|$)|(TOKEN|(API)?KEY|PASS|PW|(?<=.)PWD|AUTH)$)",
    re.I,
)

# Secrets recognised by their context, where the value itself is not known: in logs and in output of tools.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}\b"), "hf_" + MASK),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/-]{8,}=*"), r"\1 " + MASK),
    (re.compile(r"(://)(?:(?<!ssh://)|[^/\s:@]*:)[^/\s'\"]+@"), r"\1" + MASK + "@"),
    (re.compile(r"(--api-key(?:[= ]|', '|\", \"))[^\s'\"]+"), r"\1" + MASK),
    # vLLM prints its arguments as a Python dict or namespace: 'api_key': ['…'], api_key='…'.
    (re.compile(r"(\bapi_key['\"]?\s*[:=]\s*)\[[^\]]*\]"), r"\1[" + MASK + "]"),
    (re.compile(r"(\bapi_key['\"]?\s*[:=]\s*)(['\"])[^'\"]*\2"), r"\1\2" + MASK + r"\2"),
    (re.compile(r"\b([A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|API_KEY)=)(?!\s)\S+"), r"\1" + MASK),
)


def is_secret_name(name: str) -> bool:
    """Return whether a value of this name is a secret: of HF_TOKEN or apiKey, not of TOKENIZERS_PARALLELISM."""
    return _NAME.search(re.sub("(?<=[a-z])(?=[A-Z])", "_", name)) is not None


class Redactor:
    """Replace known secrets, and texts that look like secrets, by a mask."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if secret:
                forms |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
                # A key read from a file often ends with a newline, while the key that is sent does not.
                forms.add(secret.strip())
        # Longest first, so that a secret that contains another one is masked as a whole.
        self._forms = sorted((form for form in forms if form), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with secrets masked."""
        for form in self._forms:
            text = text.replace(form, MASK)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def data(self, value: Any) -> Any:
        """Mask secrets in nested JSON data, keys included."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self.data(key): self.data(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value
