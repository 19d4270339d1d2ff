# SPDX-License-Identifier: Apache-2.0
"""Hosts with a real HAProxy each, on which playbooks of this checkout run as they do on those of a fleet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.installed import Balancer

from tests import ROOT
from tests.helpers.actions import write_runtime
from tests.playbook_variables import load
from tests.worlds.strangers_world import World

ROOTS = {
    "common/paths.py": ("/etc/instinct-fleet", "/var/lib/instinct-fleet"),
    "leases/run_lock.py": ("/run/instinct-fleet",),
    "leases/lease_file.py": ("/run/instinct-fleet",),
}
"""Directories on hosts, by the file of module_utils that names them."""


class BalancerNode:
    """A load balancer's host below `place`, whose modules work there. given: as of the world of strangers."""

    def __init__(self, place: Path, **given: Any) -> None:
        self.place, self.name = place, place.name
        state, current = place / "var/balancer", place / "etc/balancer/current"
        for path in (state, current):
            path.mkdir(parents=True)
        self.world = World(state, **given)
        (current / "balancer.json").write_text(json.dumps(self.world.data))
        self.balancer = Balancer(str(current.parent), str(state))
        self.python = place / "python"
        self.python.write_text(f'#!/bin/sh\nFAKE_ROOT={place} exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    def states(self) -> dict[str, str]:
        """The state of each server, by "host.instance"."""
        found = self.world.haproxy.servers().values()
        return {item.name.partition("/")[2].rpartition(":")[0]: item.state for item in found}

    def drained(self) -> list[str]:
        """Servers that are not in service."""
        return sorted(name for name, state in self.states().items() if state != "ready")


class Site:
    """An inventory of load balancers and GPU hosts, and this collection, with directories below those of the nodes.

    fakes: texts of modules, in place of the collection's. groups: further ones, with the variables of their hosts.
    """

    def __init__(
        self, tmp: Path, nodes: Sequence[BalancerNode], hosts: Sequence[str], fakes: Mapping[str, str] | None = None,
        **groups: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.tmp, self.nodes = tmp, nodes
        collection = tmp / "collections/ansible_collections/instinct/fleet"
        # With the bytecode, but for what is being written.
        shutil.copytree(ROOT / "plugins", collection / "plugins", ignore=shutil.ignore_patterns("*.pyc.*"))
        for name in ("roles", "galaxy.yml", "catalog", "templates"):
            (collection / name).symlink_to(ROOT / name)
        write_runtime(collection / "meta", fakes or ())
        for file, roots in ROOTS.items():
            path = collection / "plugins/module_utils" / file
            text = path.read_text()
            for root in roots:
                assert f'"{root}"' in text
                text = text.replace(f'"{root}"', f'os.environ["FAKE_ROOT"] + "/{root.split("/")[1]}"')
            path.write_text(text.replace("annotations\n", "annotations\n\nimport os\n", 1))
        for name, text in (fakes or {}).items():
            (collection / f"plugins/modules/{name}.py").write_text(text)
            (collection / f"plugins/action/{name}.py").unlink(missing_ok=True)
        local = {"ansible_connection": "local", "ansible_become": False}
        balancers = {node.name: {"ansible_python_interpreter": str(node.python)} for node in nodes}
        more = {name: {"hosts": dict(found)} for name, found in groups.items()}
        instinct = {"hosts": {host: {} for host in hosts}}
        children = {"load_balancer": {"hosts": balancers}, "instinct": instinct, **more}
        inventory = {"all": {"vars": local, "children": children}}
        (tmp / "hosts.yml").write_text(yaml.safe_dump(inventory))

    def start(self, playbook: str, *args: str) -> Callable[[], tuple[int, str]]:
        """Start a playbook; what is returned waits for its exit code and output."""
        env = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(self.tmp / "collections"),
            "ANSIBLE_NOCOLOR": "1",
            "FAKE_ROOT": str(self.tmp),
        }
        command = [
            str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(self.tmp / "hosts.yml"),
            self.only(playbook) if ": " in playbook else str(ROOT / f"playbooks/{playbook}.yml"), *args,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, env=env, cwd=ROOT, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

        def wait() -> tuple[int, str]:
            out, _ = process.communicate(timeout=180)
            return process.returncode, out

        return wait

    def only(self, name: str) -> str:
        """Write a playbook with the play of this name alone, which stands in "playbook.yml: name"."""
        file, _, title = name.partition(": ")
        path = self.tmp / "play.yml"
        plays = [item for item in load(ROOT / "playbooks" / file) if item["name"] == title]
        path.write_text(yaml.safe_dump(plays, sort_keys=False))
        return str(path)

    def play(self, playbook: str, *args: str) -> tuple[int, str]:
        """Run a playbook; return its exit code and output."""
        return self.start(playbook, *args)()

    def close(self) -> None:
        for node in self.nodes:
            node.world.close()
