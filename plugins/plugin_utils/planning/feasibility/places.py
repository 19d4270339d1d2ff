# SPDX-License-Identifier: Apache-2.0
"""Find where a deployment sets a refused value, and list what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ....module_utils.common.errors import Path
from ..desired.deployment import Deployment


def operators_key(deployment: Deployment, names: Iterable[str]) -> Path:
    """Return the operator's first key that is involved; the deployment if a recipe or the model chose the value."""
    for name in names:
        for part in ("engine_args", "env", "settings"):
            for key, _value in getattr(deployment, part):
                if key.lstrip("-").replace("-", "_") == name or key == name:
                    return (*deployment.path, part, key)
    return deployment.path


def any_of(names: Iterable[str]) -> str:
    """Return names with commas, and "or" before the last."""
    listed = list(dict.fromkeys(names))
    return " or ".join((", ".join(listed[:-1]), listed[-1])) if len(listed) > 1 else "".join(listed)
