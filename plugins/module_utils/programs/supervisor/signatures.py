# SPDX-License-Identifier: Apache-2.0
"""Read the failure signatures that vllm_server has written next to the supervisor."""

from __future__ import annotations

import json
import re

from ...engines.failures import SCHEMA, Signature


def parse_signatures(text: str) -> tuple[Signature, ...]:
    """Parse the text of failures.to_text().

    Raise ValueError for anything else, invalid regular expressions included.
    """
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}")
        found = tuple(
            Signature(str(item["kind"]), tuple(map(str, item["patterns"])), str(item["next_step"]))
            for item in data["signatures"]
        )
        for pattern in (pattern for signature in found for pattern in signature.patterns):
            re.compile(pattern)
    except (KeyError, TypeError, re.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return found
