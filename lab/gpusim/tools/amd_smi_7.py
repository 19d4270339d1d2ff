# SPDX-License-Identifier: Apache-2.0
"""amd-smi of ROCm 7.0 and 7.2.

The default view, list, and the prompt and failure of `set -M` of 7.0 are recorded. The rest follows the changelogs of
ROCm 7, the documented outputs and the notes. Where those leave it open:

* usage errors exit with 0, as in 6.x (the changelog changes that only after 7.2);
* `static --partition` prints ACCELERATOR_PARTITION, as in the documentation since then;
* a successful `set -M` adds "reload driver when ready";
* a partition other than the first shows its mode in the partition tables but no memory mode.

Commands that need real hardware (topology, xgmi, event, firmware, bad-pages, ras, profile) are refused with a message
and exit code 64, in all releases.
"""

from __future__ import annotations

from .amd_metrics import AmdMetrics
from .amd_partition import AmdPartitions
from .amd_views import AmdViews


class AmdSmi70(AmdViews, AmdMetrics, AmdPartitions):
    """amd-smi 26.0 of ROCm 7.0."""

    version = "26.0.0+37d158ab"
    library = "26.0.0"


class AmdSmi72(AmdSmi70):
    """amd-smi 26.2 of ROCm 7.2: VBIOS is now IFWI; from 7.0.2 on nothing else differs here."""

    version = "26.2.0+021c61fc"
    library = "26.2.0"
    hsmp = "hsmp version"
    firmware = "ifwi"
    vbios_option = "-V/-I/--vbios/--ifwi"
