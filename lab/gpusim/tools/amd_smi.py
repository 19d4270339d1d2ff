# SPDX-License-Identifier: Apache-2.0
"""The amd-smi of each ROCm release."""

from __future__ import annotations

from ..machine.models import release_of
from ..machine.state import Node
from .amd_smi_6 import AmdSmi62, AmdSmi63, AmdSmi63Dev, AmdSmi64
from .amd_smi_7 import AmdSmi70, AmdSmi72
from .amd_smi_10 import AmdSmi100

_RELEASES: tuple[tuple[tuple[int, ...], type[AmdSmi70]], ...] = (
    ((6, 0), AmdSmi62),
    ((6, 3), AmdSmi63Dev),
    ((6, 3, 1), AmdSmi63),
    ((6, 4), AmdSmi64),
    ((7, 0), AmdSmi70),
    ((7, 1), AmdSmi72),
    ((10, 0), AmdSmi100),
)


def tool_for(node: Node) -> type[AmdSmi70]:
    """Return the amd-smi of the node's ROCm release."""
    release = release_of(node.release)
    return next(tool for since, tool in reversed(_RELEASES) if release >= since)
