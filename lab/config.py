# SPDX-License-Identifier: Apache-2.0
"""Names, addresses and paths of the lab, for any checkout from which it was started.

Several labs can run on one machine, distinguished by LAB_NUMBER. Nodes have the same host names in each (lab-n1,
lab-n2), so that tests and inventories fit all labs; containers, networks and addresses differ. Layers, registry and hub
are shared: they only grow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LABEL = "instinct-lab"
SERVICES = "instinct-lab-services"
SERVICES_ADDRESS = "172.30.77.2"  # in the first lab's network, which exists while any lab does
REGISTRY = "registry.lab:5000"
HUB = "http://hub.lab:8080"
VLLM_VERSION = "0.32.0"
VLLM_REPOSITORY, VLLM_TAG = "lab/vllm", f"cpu_vllm_{VLLM_VERSION}"
STANDIN_REPOSITORY, STANDIN_TAG = "lab/standin", "latest"
RAY_TAG = "ray"  # of the stand-in with Ray
MAX_NODES = 100
MAX_LABS = 8


class LabError(Exception):
    """The lab cannot continue; the message says what to do."""


@dataclass(frozen=True)
class Config:
    """The settings in the environment."""

    nodes: int = 2
    number: int = 1
    state: Path = Path("/var/lib/instinct-lab")
    pip_args: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def of_environment(cls) -> Config:
        """Read LAB_NODES, LAB_NUMBER, LAB_DIR and LAB_PIP_ARGS.

        Raise LabError for a number that is invalid or out of range.
        """
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
        """Return the directory of the tar files from which images are assembled, by content key."""
        return self.state / "layers"

    @property
    def registry(self) -> Path:
        return self.state / "registry"

    @property
    def hub(self) -> Path:
        return self.state / "hub"

    @property
    def stores(self) -> Path:
        """Return the directory for the Docker data of all labs' nodes; in memory if the machine has enough."""
        return self.state / "stores"

    @property
    def lock(self) -> Path:
        """Return the path of the lock that is held while shared files are created."""
        return self.state / "lock"

    @property
    def inventory(self) -> Path:
        """Return the path of this lab's hosts.yml: the first lab's is in the checkout, next to the demo's variables."""
        return (
            ROOT / "inventory/lab/hosts.yml" if self.number == 1 else self.state / f"hosts{self.suffix}.yml"
        )

    @property
    def suffix(self) -> str:
        """Return the suffix that distinguishes this lab's names from the first one's."""
        return "" if self.number == 1 else str(self.number)

    @property
    def network(self) -> str:
        return f"instinct-lab{self.suffix}"

    @property
    def subnet(self) -> str:
        return f"{self._prefix}0/24"

    @property
    def services_address(self) -> str:
        """Return the address at which this lab's nodes reach registry and hub."""
        return f"{self._prefix}2"

    @property
    def _prefix(self) -> str:
        return f"172.30.{76 + self.number}."

    def container(self, node: str) -> str:
        """Return the container's name for a node's host name: lab2-n1 for lab-n1."""
        return node.replace("lab-", f"lab{self.suffix}-", 1)

    def address(self, index: int) -> str:
        """Return the address of node `index`, counted from 1."""
        return f"{self._prefix}{10 + index}"


def _number(name: str, default: str, most: int) -> int:
    text = os.environ.get(name, default)
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise LabError(f"{name}={text!r} is not a number from 1 to {most}")
    return int(text)


def node_name(index: int) -> str:
    """Return the name of node `index`, counted from 1: its host name, also in the inventory."""
    return f"lab-n{index}"


def name_number(name: str) -> int:
    """Return the number in a node's name, 0 for any other name."""
    number = name.removeprefix("lab-n")
    return int(number) if number != name and number.isdigit() else 0
