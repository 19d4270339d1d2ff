# SPDX-License-Identifier: Apache-2.0
"""The limit above which GPU memory without an owner counts as stranded."""

from __future__ import annotations

# VRAM in use on an idle GPU: 283 MiB were seen on MI300X. Anything beyond this limit that no process holds is stranded
# (46 GB per GPU in ROCm/rocm-systems#8263).
IDLE_VRAM = 2 << 30
