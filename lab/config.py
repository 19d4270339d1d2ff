# SPDX-License-Identifier: Apache-2.0
"""Names, addresses and places of the lab. It is one per machine, whatever checkout it was started from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LABEL = "instinct-lab"
NETWORK = "instinct-lab"
SUBNET = "172.30.77.0/24"
SERVICES = "instinct-lab-services"
SERVICES_ADDRESS = "172.30.77.2"
REGISTRY = "registry.lab:5000"
HUB = "http://hub.lab:8080"
VLLM_VERSION = "0.32.0"
VLLM_REPOSITORY, VLLM_TAG = "lab/vllm", f"cpu_vllm_{VLLM_VERSION}"
STANDIN_REPOSITORY, STANDIN_TAG = "lab/standin", "latest"
RAY_TAG = "ray"  # of the stand-in with Ray
MAX_NODES = 100


class LabError(Exception):
    """The lab cannot go on; the message says what to do."""


@dataclass(frozen=True)
class Config:
    """What the environment asks for."""

    nodes: int = 2
    state: Path = Path("/var/lib/instinct-lab")
    pip_args: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def of_environment(cls) -> Config:
        """LAB_NODES, LAB_DIR and LAB_PIP_ARGS; LabError when LAB_NODES is no number from 1 to 100."""
        text = os.environ.get("LAB_NODES", "2")
        if not text.isdigit() or not 1 <= int(text) <= MAX_NODES:
            raise LabError(f"LAB_NODES={text!r} is no number from 1 to {MAX_NODES}")
        return cls(
            nodes=int(text),
            state=Path(os.environ.get("LAB_DIR", "/var/lib/instinct-lab")),
            pip_args=tuple(os.environ.get("LAB_PIP_ARGS", "").split()),
        )

    @property
    def key(self) -> Path:
        return self.state / "ssh/id_ecdsa"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def layers(self) -> Path:
        """Tar files that images are made of, by content key."""
        return self.state / "layers"

    @property
    def registry(self) -> Path:
        return self.state / "registry"

    @property
    def hub(self) -> Path:
        return self.state / "hub"

    @property
    def inventory(self) -> Path:
        return ROOT / "inventory/lab/hosts.yml"


def node_name(index: int) -> str:
    """Name of node `index`, from 1: its host name, and what the inventory calls it."""
    return f"lab-n{index}"


def node_address(index: int) -> str:
    return f"172.30.77.{10 + index}"
