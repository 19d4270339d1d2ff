# SPDX-License-Identifier: Apache-2.0
"""Find what a client of the endpoint needs, such as that of a benchmark: an API key, and the certificate to trust."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.credentials.api_keys import HASHED
from .secrets import CERTIFICATE, DIRECTORY

if TYPE_CHECKING:
    from .assets import VaultReader

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


def client_secrets(
    balancer: str, planned: Mapping[str, Any], declared: Mapping[str, Any], files: VaultReader
) -> dict[str, str]:
    """Return key and ca of a load balancer, each "" if none is needed. Raise FleetError, without any secret.

    planned: its part of plan.json. declared: its load_balancer_api_keys. ca is the fleet's own certificate, without its
    private key; for another certificate, the client's image decides what to trust.
    """
    try:
        keys = dict(declared)
        if planned.get("keys_file"):
            keys = dict(files.data(files.text(Path(planned["keys_file"]))) or {})
        path = Path(planned.get("certificate_file") or "")
        own = path.parts[-2:] == (DIRECTORY, CERTIFICATE)
        ca = "".join(_CERTIFICATE.findall(files.text(path))) if own else ""
    except (OSError, ValueError) as error:
        what = f"the API key or the certificate of load balancer {balancer} cannot be read: {error}."
        raise FleetError([Problem((), what, "Run fetch_secrets.yml, or decrypt them.")]) from None
    plain = [str(key) for key in keys.values() if not str(key).startswith(HASHED)]
    if keys and not plain:
        what = f"only the SHA-256 hashes of the API keys of load balancer {balancer} are known here."
        raise FleetError([Problem((), what, "Add one in plain text, vaulted, to load_balancer_api_keys.")])
    return {"key": plain[0] if plain else "", "ca": ca}
