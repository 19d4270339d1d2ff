# SPDX-License-Identifier: Apache-2.0
"""Take part in a swarm: move the blobs of a manifest between the stores of nodes. Argument: the file of the job.

It runs with the system's Python and the distribution's libtorrent, by itself: the controller may be gone.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from ..swarm.swarm_job import read_job
from ..swarm.swarm_run import SwarmRun


def _ended(*_: object) -> NoReturn:
    raise SystemExit(1)


def main() -> int:
    """Run until all members are complete, or until it is stopped; then record for the next run what arrived."""
    signal.signal(signal.SIGTERM, _ended)
    path = sys.argv[1]
    job = read_job(path)
    os.unlink(path)  # the key of the run is nowhere on disk from now on
    return 0 if SwarmRun(job, os.path.dirname(path)).run().finished else 1
