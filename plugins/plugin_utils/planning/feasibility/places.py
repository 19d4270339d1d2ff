# SPDX-License-Identifier: Apache-2.0
"""Say where in a deployment a refused value stands, and what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ....module_utils.common.errors import Path
from ..desired.deployment import Deployment


def operators_key(deployment: Deployment, names: Iterable[str]) -> Path:
    """Return the operator's first key that takes part; the deployment where a recipe or the model chose it."""
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
