# SPDX-License-Identifier: Apache-2.0
"""Say what one instance gets of a host: GPUs, memory, CPUs, ports. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..desired.deployment import Deployment
from .gpu_groups import Gpus
from .network import Network
from .ranks import Rank


@dataclass(frozen=True)
class Slot:
    """The resources of one instance.

    Attributes:
        cpus: those of its GPUs' NUMA node, as a list in the kernel's form; "" for any.
        share: the fraction of each GPU's memory for this instance.
        rank: its position in an engine of several servers.
        network: what an engine over several hosts uses on this one.
    """

    deployment: Deployment = field(hash=False)  # it may hold maps
    index: int
    gpus: Gpus
    cpus: str = ""
    share: float = 1.0
    rank: Rank | None = None
    network: Network | None = None

    @property
    def name(self) -> str:
        """Return the instance's name."""
        return f"{self.deployment.name}-{self.index}"

    @property
    def port(self) -> int:
        """Return the instance's port; a headless instance does not listen there."""
        return self.deployment.port + self.index

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports where it listens that are known before it starts."""
        if self.rank is None:
            return (self.port,)
        http = () if self.rank.headless else (self.port,)
        return (*http, self.rank.master_port, self.rank.group_port) if self.rank.number == 0 else http
