# SPDX-License-Identifier: Apache-2.0
"""What counts as memory of a GPU that nobody gave back."""

from __future__ import annotations

# VRAM in use while nothing runs: 283 MiB were seen on MI300X. What no process holds beyond this is stranded
# (46 GB per GPU in ROCm/rocm-systems#8263).
IDLE_VRAM = 2 << 30
