# SPDX-License-Identifier: Apache-2.0
"""What a plan is made of: one thing to do on a host."""

from __future__ import annotations

from dataclasses import dataclass

from .node_state import NodeState

# Docker's own states of a container that is, or may soon be, using its GPUs and port.
ALIVE = ("running", "restarting", "paused")
DEBIAN = ("debian", "ubuntu")


@dataclass(frozen=True)
class Action:
    """One thing to do on a host: what (kind, target), by which role, from what to what, and why."""

    kind: str
    role: str
    target: str
    before: str
    after: str
    reason: str
    source: str

    def to_json(self) -> dict[str, str]:
        """Return an entry of `actions` in plan.json."""
        return {
            "kind": self.kind,
            "role": self.role,
            "target": self.target,
            "before": self.before,
            "after": self.after,
            "reason": self.reason,
            "source": self.source,
        }


def has_image(state: NodeState | None, ref: str) -> bool:
    """The engine knows an image by this reference, be it a tag or a digest."""
    return state is not None and any(ref in image.digests or ref in image.tags for image in state.images)


def size(count: int | None) -> str:
    """Bytes for people, in binary units."""
    if count is None:
        return "unknown size"
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
