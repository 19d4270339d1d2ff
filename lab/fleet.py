# SPDX-License-Identifier: Apache-2.0
"""The lab's containers: one with the registry and the hub, and the nodes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import docker
import paramiko
import yaml
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool, Mount

from .config import (
    LABEL,
    NETWORK,
    SERVICES,
    SERVICES_ADDRESS,
    SUBNET,
    Config,
    LabError,
    node_address,
    node_name,
)

HOSTS = {"registry.lab": SERVICES_ADDRESS, "hub.lab": SERVICES_ADDRESS}


def network(client: docker.DockerClient) -> None:
    """The private network; LabError when its addresses are taken by another one."""
    if client.networks.list(names=[f"^{NETWORK}$"]):
        return
    pool = IPAMPool(subnet=SUBNET)
    try:
        client.networks.create(
            NETWORK, driver="bridge", ipam=IPAMConfig(pool_configs=[pool]), labels={LABEL: "network"}
        )
    except APIError as error:
        raise LabError(f"the lab's network {SUBNET} cannot be made: {error.explanation}") from error


def _find(client: docker.DockerClient, name: str) -> Container | None:
    try:
        return client.containers.get(name)
    except NotFound:
        return None


def _ensure(client: docker.DockerClient, name: str, image: str, address: str, **options: Any) -> Container:
    """A running container of this image; one of another image is replaced."""
    found = _find(client, name)
    if found is not None and found.labels.get(f"{LABEL}.image") != image:
        found.remove(force=True, v=True)
        found = None
    if found is None:
        # Through the low-level API: only it takes a fixed address at creation.
        own = options.pop("host_config", {})
        host_config = client.api.create_host_config(init=True, extra_hosts=HOSTS, **own)
        if own.get("security_opt"):
            # What the command line calls systempaths=unconfined.
            host_config |= {"MaskedPaths": [], "ReadonlyPaths": []}
        endpoint = client.api.create_endpoint_config(ipv4_address=address)
        networking = {"EndpointsConfig": {NETWORK: endpoint}}
        made = client.api.create_container(
            image, name=name, hostname=name, labels={LABEL: "container", f"{LABEL}.image": image},
            host_config=host_config, networking_config=networking, stop_signal="SIGTERM", **options,
        )  # fmt: skip
        found = client.containers.get(made["Id"])
    if found.status != "running":
        found.start()
    return found


def services(client: docker.DockerClient, config: Config, image: str) -> None:
    """Registry and hub, their data on this machine's disk."""
    for directory in (config.registry, config.hub):
        directory.mkdir(parents=True, exist_ok=True)
    binds = [f"{config.registry}:/srv/registry", f"{config.hub}:/srv/hub:ro"]
    _ensure(client, SERVICES, image, SERVICES_ADDRESS, host_config={"binds": binds})
    name_services(True)
    for port in (5000, 8080):
        wait_for(f"port {port} of {SERVICES}", partial(_answers, SERVICES_ADDRESS, port))


def node(client: docker.DockerClient, config: Config, image: str, index: int) -> Container:
    """One node, with its own Docker engine; what its engine stores goes with it."""
    return _ensure(
        client, node_name(index), image, node_address(index),
        host_config={
            "cap_add": ["ALL"], "cap_drop": ["SYS_RESOURCE"], "cgroupns": "host",
            "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
            "devices": ["/dev/fuse:/dev/fuse:rwm"],
            "shm_size": "8g",
            "restart_policy": {"Name": "on-failure"},  # a node that reboots itself comes back
            "mounts": [Mount("/var/lib/docker", None)],
            "binds": [
                "/sys/fs/cgroup:/sys/fs/cgroup:rw",
                f"{config.key}.pub:/etc/ssh/lab_authorized_keys:ro",
            ],
        },
    )  # fmt: skip


def nodes(client: docker.DockerClient) -> list[Container]:
    """The nodes that exist, running or not, by number."""
    found = client.containers.list(all=True, filters={"label": f"{LABEL}=container"})
    numbered = [(name_number(str(c.name)), c) for c in found]
    return [c for number, c in sorted(numbered, key=lambda pair: pair[0]) if number]


def name_number(name: str) -> int:
    """The number of a node's name, 0 for another name."""
    number = name.removeprefix("lab-n")
    return int(number) if number != name and number.isdigit() else 0


def bring_up(client: docker.DockerClient, config: Config, image: str) -> list[str]:
    """As many nodes as wanted, all ready; nodes beyond that go."""
    wanted = {node_name(i): i for i in range(1, config.nodes + 1)}
    for container in nodes(client):
        if container.name not in wanted:
            container.remove(force=True, v=True)
    with ThreadPoolExecutor(8) as pool:
        for container in pool.map(lambda i: node(client, config, image, i), wanted.values()):
            del container
        list(pool.map(lambda name: ready(client, name), wanted))
    write_known_hosts(config)
    write_inventory(config)
    return list(wanted)


def reset(client: docker.DockerClient) -> None:
    """Remove the nodes, so that bringing up makes them anew."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda c: c.remove(force=True, v=True), nodes(client)))


def ready(client: docker.DockerClient, name: str) -> None:
    """Wait until a node's SSH, GPUs and Docker engine answer."""
    container = client.containers.get(name)

    def check() -> bool:
        result = container.exec_run(
            ["sh", "-c", "test -e /run/gpusim/ready && docker version > /dev/null 2>&1"]
        )
        return bool(result.exit_code == 0)

    address = container.attrs["NetworkSettings"]["Networks"][NETWORK]["IPAMConfig"]["IPv4Address"]
    wait_for(f"SSH on {name}", lambda: _answers(address, 22))
    wait_for(f"{name}'s GPUs and Docker engine (docker exec {name} cat /var/log/gpusim.log)", check)


def reboot(client: docker.DockerClient, name: str) -> None:
    """Stop a node and start it again; the processes on it get no warning beyond SIGTERM."""
    container = client.containers.get(name)
    container.restart(timeout=20)
    ready(client, name)


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise LabError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.2)


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2):
            return True
    except OSError:
        return False


def make_key(config: Config) -> None:
    """The key that opens the nodes, made once."""
    if config.key.exists():
        return
    config.key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(config.key))
    config.key.with_suffix(".pub").write_text(f"{key.get_name()} {key.get_base64()} instinct-lab\n")


def write_known_hosts(config: Config) -> None:
    """Ask every node for its host key: the lab's network is this machine, so asking is safe here."""
    lines = []
    for index in range(1, config.nodes + 1):
        with paramiko.Transport((node_address(index), 22)) as transport:
            transport.get_security_options().key_types = ("ssh-ed25519",)
            transport.start_client(timeout=20)
            key = transport.get_remote_server_key()
        lines.append(f"{node_address(index)} {key.get_name()} {key.get_base64()}")
    config.known_hosts.write_text("\n".join(lines) + "\n")


def write_inventory(config: Config) -> None:
    inventory = {
        "instinct": {
            "hosts": {node_name(i): {"ansible_host": node_address(i)} for i in range(1, config.nodes + 1)},
            "vars": {
                "ansible_user": "ops",
                "ansible_ssh_private_key_file": str(config.key),
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={config.known_hosts}",
            },
        }
    }
    text = "---\n# Written by `python -m lab up`.\n" + yaml.safe_dump(inventory, sort_keys=False)
    if not config.inventory.exists() or config.inventory.read_text() != text:
        config.inventory.write_text(text)


MARK = "# instinct-lab"


def name_services(present: bool) -> None:
    """Let this machine, which is the control node, know the registry and the hub by the names that the nodes use."""
    path = Path("/etc/hosts")
    before = path.read_text()
    lines = [line for line in before.splitlines() if not line.endswith(MARK)]
    if present:
        lines += [f"{SERVICES_ADDRESS} {' '.join(HOSTS)} {MARK}"]
    after = "\n".join(lines) + "\n"
    if after != before:
        path.write_text(after)  # in place: it may be a mount, which cannot be replaced


def forget_old_pins(config: Config, digests: list[str]) -> None:
    """Drop the lab's pins when one of its images was made anew: its tags mean something else now."""
    pins = config.inventory.with_name("fleet.lock.json")
    if pins.exists():
        images = json.loads(pins.read_text())["images"].values()
        if not {image["digest"] for image in images} <= set(digests):
            pins.unlink()


def remove(client: docker.DockerClient, config: Config) -> None:
    """Remove the containers, the network, the inventory and the line in /etc/hosts."""
    name_services(False)
    reset(client)
    if container := _find(client, SERVICES):
        container.remove(force=True, v=True)
    for found in client.networks.list(filters={"label": f"{LABEL}=network"}):
        wait_for(f"network {NETWORK} to be free of containers", partial(_removed, found), 15)
    config.inventory.unlink(missing_ok=True)


def _removed(network: Network) -> bool:
    """Remove a network; False while the engine still takes a container off it."""
    try:
        network.remove()
    except NotFound:
        return True
    except APIError:
        return False
    return True


def remove_images(client: docker.DockerClient) -> None:
    for image in client.images.list(filters={"reference": "instinct-lab/*"}):
        for tag in image.tags:
            client.images.remove(tag, force=True)
