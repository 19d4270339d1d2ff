# SPDX-License-Identifier: Apache-2.0
"""Programs that use GPUs, and may be stopped for a change of modes and started again."""

from __future__ import annotations

# Services that only watch GPUs, and may be stopped and started again: ROCm/device-metrics-exporter (its device config
# manager stops the first two for the same purpose), ROCm/rdc, amd/amd_smi_exporter. Display managers use the GPU for a
# login screen, which is dispensable on a server; rocm-smi stops gdm as well.
MONITOR_UNITS = (
    "amd-metrics-exporter.service",
    "gpuagent.service",
    "rdc.service",
    "amd_smi_exporter.service",
    "amd-smi-exporter.service",
    "display-manager.service",
    "gdm.service",
    "gdm3.service",
    "lightdm.service",
    "sddm.service",
)
MONITOR_IMAGES = ("device-metrics-exporter", "amd_smi_exporter", "amd-smi-exporter")
# Their processes belong to a login session, not to the display manager's unit.
DISPLAY_SERVERS = ("Xorg", "Xwayland", "gnome-shell", "gdm-x-session", "gdm-wayland-session")
DISPLAY_MANAGER = "display-manager.service"
