# SPDX-License-Identifier: Apache-2.0
"""The secret variables of a deployment in its specification: their fingerprint, and never their values. Pure."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ....module_utils.common.hashing import canonical
from ....module_utils.credentials.instance_key import InstanceKey, key_of_map
from ....module_utils.credentials.secret_files import NAMES
from ..desired.deployment import Deployment


def secrets_mark(deployment: Deployment, key: InstanceKey) -> str:
    """Return the fingerprint of a deployment's secrets; "" if it has none.

    It is in plans and records. The instances' key is part of it, so that nobody without that key can try values
    against it; where there is none, scrypt makes each trial expensive.
    """
    if not deployment.secrets:
        return ""
    salt = key_of_map(key.map) if deployment.endpoint and key.mark and key.map is not None else ""
    return _fingerprint(canonical([deployment.name, list(deployment.secrets)]), salt)


@cache
def _fingerprint(text: str, salt: str) -> str:
    found = hashlib.scrypt(
        text.encode(), salt=f"instinct-fleet {salt}".encode(), n=1 << 14, r=8, p=1, dklen=8
    )
    return found.hex()


def secret_sets(servers: list[Mapping[str, Any]], deployments: Any) -> dict[str, dict[str, str]]:
    """Return what vllm_server writes for these servers of the plan: texts by fingerprint, by deployment.

    deployments: the host's vllm_deployments, which the plan has checked. Only the plan knows the fingerprints; servers
    of a recorded generation have theirs on the node.
    """
    marks = {str(item["deployment"]): str(item["secrets"]) for item in servers if item.get("secrets")}
    found = {}
    for item in deployments or ():
        if item["name"] in marks:
            values = sorted((str(name), str(value)) for name, value in item["secrets"].items())
            found[str(item["name"])] = {marks[item["name"]]: secrets_text(values)}
    return found


def secrets_text(values: Iterable[tuple[str, str]]) -> str:
    """Return the file of a set, as a shell reads it."""
    pairs = list(values)
    lines = [*pairs, (NAMES, " ".join(name for name, _value in pairs))]
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in lines)
