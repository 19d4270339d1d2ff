# SPDX-License-Identifier: Apache-2.0
"""node_state on a tree of files: the module as Ansible runs it, and a Docker engine that answers it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.worlds.fake_docker import FakeDocker
from tests.worlds.gpu_tree import SAMPLES, Tree


class Engine(FakeDocker):
    """Also lists all images, and containers by label, with the fields that Docker's lists have."""

    def _get_info(self, http: Any, *_rest: Any) -> None:
        self.send(http, 200, {"DockerRootDir": self.root_dir, "ServerVersion": "20.10.24"})

    def _get_images(self, http: Any, path: str, query: dict[str, str], body: Any) -> None:
        if path != "/images/json" or query:
            return super()._get_images(http, path, query, body)
        return self.send(http, 200, list({image["Id"]: image for image in self.images.values()}.values()))

    def _get_containers(self, http: Any, path: str, query: dict[str, str], body: Any) -> None:
        if path != "/containers/json":
            return super()._get_containers(http, path, query, body)
        label = json.loads(query["filters"])["label"][0]
        entries = [
            {
                "Id": one.id,
                "Names": [f"/{one.name}"],
                "Labels": one.body.get("Labels") or {},
                "State": one.status,
            }
            for one in self.containers.values()
            if query["all"] == "1" and label in (one.body.get("Labels") or {})
        ]
        return self.send(http, 200, entries)


SCRIPT = ROOT / "plugins/modules/node_state.py"
MARKER = "<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>"


def run(args: Any, *, pipe: bool = True) -> dict[str, Any]:
    """Run the script: through stdin with the arguments inside, or as a program with a file of arguments."""
    text = SCRIPT.read_text()
    if pipe:
        command, given = [sys.executable, "-"], text.replace(MARKER, json.dumps(args))
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    else:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "/dev/stdin"], input=json.dumps(args), capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def places(root: Path) -> dict[str, Any]:
    """Arguments that keep the script inside `root`."""
    return {
        "sysfs_root": str(root),
        "docker_socket": str(root / "docker.sock"),
        "state_dir": str(root / "etc/instinct-fleet"),
        "data_dir": str(root / "var/lib/instinct-fleet"),
    }


def observed(root: Path, **args: Any) -> dict[str, Any]:
    result = run({**places(root), **args})
    assert not result.get("failed"), result
    assert result["changed"] is False
    state: dict[str, Any] = result["node_state"]
    return state


def put(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def captured_in_cpx(tree: Tree) -> None:
    """Make KFD's nodes those of a real node's digest: eight GPUs, the last of which lost a partition."""
    nodes = tree.root / "sys/class/kfd/kfd/topology/nodes"
    shutil.rmtree(nodes)
    buses = []
    for line in (SAMPLES / "kfd_mi300x_cpx_all_nodes_digest.txt").read_text().splitlines():
        number, _, rest = line.removeprefix("node=").partition(" ")
        words = rest.split()
        values = dict(zip(words[::2], words[1::2], strict=True))
        put(nodes, f"{number}/gpu_id", "0" if values["simd_count"] == "0" else f"{int(number) + 1000}")
        put(nodes, f"{number}/properties", "".join(f"{key} {value}\n" for key, value in values.items()))
        bus = int(values["location_id"]) >> 8
        if bus and bus not in buses:
            buses.append(bus)
    for index, bus in enumerate(sorted(buses)):
        put(tree.device(index), "uevent", f"PCI_SLOT_NAME=0000:{bus:02x}:00.0\n")
