# SPDX-License-Identifier: Apache-2.0
"""Names, addresses and places of the lab, whatever checkout it was started from.

Several labs can stand side by side on one machine, told apart by LAB_NUMBER. Nodes have the same host names in each
(lab-n1, lab-n2), so that what is written for one holds in all; containers, networks and addresses differ. Layers,
registry and hub are shared: they only grow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LABEL = "instinct-lab"
SERVICES = "instinct-lab-services"
SERVICES_ADDRESS = "172.30.77.2"  # in the first lab's network, which is there whenever one of the labs is
REGISTRY = "registry.lab:5000"
HUB = "http://hub.lab:8080"
VLLM_VERSION = "0.32.0"
VLLM_REPOSITORY, VLLM_TAG = "lab/vllm", f"cpu_vllm_{VLLM_VERSION}"
STANDIN_REPOSITORY, STANDIN_TAG = "lab/standin", "latest"
RAY_TAG = "ray"  # of the stand-in with Ray
MAX_NODES = 100
MAX_LABS = 8


class LabError(Exception):
    """The lab cannot go on; the message says what to do."""


@dataclass(frozen=True)
class Config:
    """What the environment asks for."""

    nodes: int = 2
    number: int = 1
    state: Path = Path("/var/lib/instinct-lab")
    pip_args: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def of_environment(cls) -> Config:
        """LAB_NODES, LAB_NUMBER, LAB_DIR and LAB_PIP_ARGS; LabError for a number that is none, or out of range."""
        return cls(
            nodes=_number("LAB_NODES", "2", MAX_NODES),
            number=_number("LAB_NUMBER", "1", MAX_LABS),
            state=Path(os.environ.get("LAB_DIR", "/var/lib/instinct-lab")),
            pip_args=tuple(os.environ.get("LAB_PIP_ARGS", "").split()),
        )

    @property
    def key(self) -> Path:
        return self.state / "ssh/id_ecdsa"

    @property
    def known_hosts(self) -> Path:
        return self.state / f"known_hosts{self.suffix}"

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
    def stores(self) -> Path:
        """What the Docker engines of all labs' nodes store, a directory per node; in memory where there is enough."""
        return self.state / "stores"

    @property
    def lock(self) -> Path:
        """Held while what all labs share is made."""
        return self.state / "lock"

    @property
    def inventory(self) -> Path:
        """hosts.yml of this lab: the first one's stands in the checkout, where the demo's variables are."""
        return (
            ROOT / "inventory/lab/hosts.yml" if self.number == 1 else self.state / f"hosts{self.suffix}.yml"
        )

    @property
    def suffix(self) -> str:
        """What tells this lab's names from the first one's."""
        return "" if self.number == 1 else str(self.number)

    @property
    def network(self) -> str:
        return f"instinct-lab{self.suffix}"

    @property
    def subnet(self) -> str:
        return f"{self._prefix}0/24"

    @property
    def services_address(self) -> str:
        """Registry and hub, as the nodes of this lab reach them."""
        return f"{self._prefix}2"

    @property
    def _prefix(self) -> str:
        return f"172.30.{76 + self.number}."

    def container(self, node: str) -> str:
        """The container that is the node of this host name: lab2-n1 of lab-n1."""
        return node.replace("lab-", f"lab{self.suffix}-", 1)

    def address(self, index: int) -> str:
        """Address of node `index`, from 1."""
        return f"{self._prefix}{10 + index}"


def _number(name: str, default: str, most: int) -> int:
    text = os.environ.get(name, default)
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise LabError(f"{name}={text!r} is no number from 1 to {most}")
    return int(text)


def node_name(index: int) -> str:
    """Name of node `index`, from 1: its host name, and what the inventory calls it."""
    return f"lab-n{index}"


def name_number(name: str) -> int:
    """The number of a node's name, 0 for another name."""
    number = name.removeprefix("lab-n")
    return int(number) if number != name and number.isdigit() else 0
