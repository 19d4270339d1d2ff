# SPDX-License-Identifier: Apache-2.0
"""The lab's containers: one with the registry and the hub, and the nodes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import docker
import paramiko
import yaml
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool

from .config import (
    LABEL,
    SERVICES,
    SERVICES_ADDRESS,
    Config,
    LabError,
    name_number,
    node_name,
)

SERVICE_NAMES = ("registry.lab", "hub.lab")
# Unpacking an image takes half as long in memory as on disk. Two nodes with the real vLLM store 4 GB.
STORES_IN_MEMORY = 16 << 30  # of a machine's memory; with less, nodes store on disk
WAIT_SECONDS = 300.0  # for steps that take seconds on an idle machine
NUMBER = f"{LABEL}.number"  # label: the number of a node's lab


def network(client: docker.DockerClient, config: Config) -> Network:
    """Return the lab's private network; create it if necessary. Raise LabError if another network has its addresses."""
    if found := client.networks.list(names=[f"^{config.network}$"]):
        return found[0]
    pool = IPAMPool(subnet=config.subnet)
    try:
        return client.networks.create(
            config.network, driver="bridge", ipam=IPAMConfig(pool_configs=[pool]), labels={LABEL: "network"}
        )
    except APIError as error:
        raise LabError(f"the lab's network {config.subnet} cannot be created: {error.explanation}") from error


def _find(client: docker.DockerClient, name: str) -> Container | None:
    try:
        return client.containers.get(name)
    except NotFound:
        return None


@dataclass(frozen=True)
class Wanted:
    """A container to create: its name, host name, network and address."""

    name: str
    hostname: str
    network: str
    address: str
    labels: dict[str, str] = field(default_factory=dict)


def _ensure(client: docker.DockerClient, wanted: Wanted, image: str, **host_options: Any) -> Container:
    """Return a running container of this image; replace one of another image."""
    found = _find(client, wanted.name)
    if found is not None and found.labels.get(f"{LABEL}.image") != image:
        _discard(found)
        found = None
    if found is None:
        # Through the low-level API: only that accepts a fixed address at creation.
        host_config = client.api.create_host_config(init=True, **host_options)
        if host_options.get("security_opt"):
            # The command line calls this systempaths=unconfined.
            host_config |= {"MaskedPaths": [], "ReadonlyPaths": []}
        endpoint = client.api.create_endpoint_config(ipv4_address=wanted.address, aliases=[wanted.hostname])
        networking = {"EndpointsConfig": {wanted.network: endpoint}}
        made = client.api.create_container(
            image, name=wanted.name, hostname=wanted.hostname, host_config=host_config,
            labels={LABEL: "container", f"{LABEL}.image": image, **wanted.labels},
            networking_config=networking, stop_signal="SIGTERM",
        )  # fmt: skip
        found = client.containers.get(made["Id"])
    if found.status != "running":
        found.start()
    return found


def services(client: docker.DockerClient, config: Config, image: str) -> None:
    """Run registry and hub, with their data on this machine's disk, in one container in the network of every lab."""
    for directory in (config.registry, config.hub):
        directory.mkdir(parents=True, exist_ok=True)
    _make_stores(config)
    binds = [f"{config.registry}:/srv/registry", f"{config.hub}:/srv/hub:ro"]
    first = replace(config, number=1)
    network(client, first)
    wanted = Wanted(SERVICES, SERVICES, first.network, SERVICES_ADDRESS)
    container = _ensure(client, wanted, image, binds=binds)
    own = network(client, config)
    container.reload()
    if own.name not in container.attrs["NetworkSettings"]["Networks"]:
        own.connect(container, ipv4_address=config.services_address)
    name_services(True)
    for port in (5000, 8080):
        wait_for(f"port {port} of {SERVICES}", partial(_answers, SERVICES_ADDRESS, port))


def node(client: docker.DockerClient, config: Config, image: str, index: int) -> Container:
    """Run a node with its own Docker engine; the engine's data are removed with the node."""
    name = node_name(index)
    store = config.stores / config.container(name)
    store.mkdir(exist_ok=True)
    wanted = Wanted(
        config.container(name), name, config.network, config.address(index), {NUMBER: str(config.number)}
    )
    return _ensure(
        client, wanted, image,
        extra_hosts=dict.fromkeys(SERVICE_NAMES, config.services_address),
        cap_add=["ALL"], cap_drop=["SYS_RESOURCE"], cgroupns="host",
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
        devices=["/dev/fuse:/dev/fuse:rwm"],
        shm_size="8g",
        restart_policy={"Name": "on-failure"},  # a node that reboots itself starts again
        binds=[
            f"{store}:/var/lib/docker",
            "/sys/fs/cgroup:/sys/fs/cgroup:rw",
            f"{config.key}.pub:/etc/ssh/lab_authorized_keys:ro",
        ],
    )  # fmt: skip


def nodes(client: docker.DockerClient, config: Config | None = None) -> list[Container]:
    """Return the existing nodes of this lab (without config: of all labs), running or not, by number."""
    label = NUMBER if config is None else f"{NUMBER}={config.number}"
    found = client.containers.list(all=True, filters={"label": label})
    return sorted(found, key=lambda c: (c.labels[NUMBER], name_number(c.attrs["Config"]["Hostname"])))


def bring_up(client: docker.DockerClient, config: Config, image: str) -> list[str]:
    """Start the configured number of nodes and wait until all are ready; remove further nodes. Return their names."""
    numbers = range(1, config.nodes + 1)
    names = [node_name(index) for index in numbers]
    for container in nodes(client, config):
        if container.attrs["Config"]["Hostname"] not in names:
            _discard(container)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: node(client, config, image, index), numbers))
        list(pool.map(lambda name: ready(client, config, name), names))
    write_known_hosts(config)
    write_inventory(config)
    return names


def reset(client: docker.DockerClient, config: Config) -> None:
    """Remove the nodes, so that the next start creates new ones."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_discard, nodes(client, config)))


def _discard(container: Container) -> None:
    """Remove a container and, for a node, its Docker engine's data."""
    stores = [bind.partition(":")[0] for bind in container.attrs["HostConfig"]["Binds"] or []]
    _insist(f"{container.name} to be removed", partial(container.remove, force=True, v=True))
    for store in stores:
        if store.endswith(f"/stores/{container.name}"):
            shutil.rmtree(store)


def _make_stores(config: Config) -> None:
    """Create the directory of the nodes' stores, in memory if the machine has enough."""
    config.stores.mkdir(parents=True, exist_ok=True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory >= STORES_IN_MEMORY and not config.stores.is_mount() and not any(config.stores.iterdir()):
        options = "mode=0711,size=75%"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, LABEL, str(config.stores)], check=True)


def _drop_stores(config: Config) -> None:
    if config.stores.is_mount():
        subprocess.run(["umount", str(config.stores)], check=True)


def ready(client: docker.DockerClient, config: Config, name: str) -> None:
    """Wait until a node's GPUs, Docker engine and SSH answer and its boot has finished."""
    container = client.containers.get(config.container(name))

    # A single process that polls: starting one in the container costs more than the check. Docker is checked first:
    # once its engine runs, the marks of an earlier boot are gone.
    marks = "test -e /run/gpusim/ready && test -e /run/lab/booted"
    look = f"until docker version > /dev/null 2>&1 && {marks}; do sleep 0.3; done"

    def check() -> bool:
        return bool(container.exec_run(["timeout", "30", "sh", "-c", look]).exit_code == 0)

    address = config.address(name_number(name))
    wait_for(f"{name}'s GPUs and Docker engine (docker exec {container.name} cat /var/log/gpusim.log)", check)
    wait_for(f"SSH on {name}", lambda: _answers(address, 22))


def reboot(client: docker.DockerClient, config: Config, name: str) -> None:
    """Stop a node and start it again; its processes get no warning beyond SIGTERM."""
    container = client.containers.get(config.container(name))
    _insist(f"{name} to restart", partial(container.restart, timeout=20))
    ready(client, config, name)


def _insist(what: str, do: Callable[[], None], seconds: float = WAIT_SECONDS) -> None:
    """Retry a Docker request until it succeeds: on a busy machine, ten seconds may not end a killed process."""
    end = time.monotonic() + seconds
    while True:
        try:
            return do()
        except NotFound:
            return None
        except APIError as error:
            if time.monotonic() > end:
                raise LabError(f"waited {seconds:.0f} s for {what}: {error.explanation}") from error
            time.sleep(1)


def wait_for(what: str, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
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
    """Create the key that opens the nodes, unless it exists."""
    if config.key.exists():
        return
    config.key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(config.key))
    config.key.with_suffix(".pub").write_text(f"{key.get_name()} {key.get_base64()} instinct-lab\n")


def write_known_hosts(config: Config) -> None:
    """Fetch every node's host key: the lab's network is on this machine, so this is safe."""
    lines = []
    for index in range(1, config.nodes + 1):
        with paramiko.Transport((config.address(index), 22)) as transport:
            transport.get_security_options().key_types = ("ssh-ed25519",)
            # The default is fifteen seconds for each step.
            transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = WAIT_SECONDS
            transport.start_client(timeout=WAIT_SECONDS)
            key = transport.get_remote_server_key()
        lines.append(f"{config.address(index)} {key.get_name()} {key.get_base64()}")
    config.known_hosts.write_text("\n".join(lines) + "\n")


def write_inventory(config: Config) -> None:
    inventory = {
        "instinct": {
            "hosts": {node_name(i): {"ansible_host": config.address(i)} for i in range(1, config.nodes + 1)},
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
    """Add the nodes' names for registry and hub to this machine, which is the control node."""
    path = Path("/etc/hosts")
    before = path.read_text()
    lines = [line for line in before.splitlines() if not line.endswith(MARK)]
    if present:
        lines += [f"{SERVICES_ADDRESS} {' '.join(SERVICE_NAMES)} {MARK}"]
    after = "\n".join(lines) + "\n"
    if after != before:
        path.write_text(after)  # in place: it may be a mount, which cannot be replaced


def forget_old_pins(config: Config, digests: list[str]) -> None:
    """Remove the lab's pins if one of its images was rebuilt: its tags now name another image."""
    pins = config.inventory.with_name("fleet.lock.json")
    if pins.exists():
        images = json.loads(pins.read_text())["images"].values()
        if not {image["digest"] for image in images} <= set(digests):
            pins.unlink()


def remove(client: docker.DockerClient, config: Config) -> None:
    """Remove this lab's nodes, network and inventory, and with the last lab the shared parts, except for the files."""
    reset(client, config)
    config.inventory.unlink(missing_ok=True)
    if not nodes(client):
        name_services(False)
        if shared := _find(client, SERVICES):
            shared.remove(force=True, v=True)
        _drop_stores(config)
        gone = client.networks.list(filters={"label": f"{LABEL}=network"})
    elif config.number == 1:
        gone = []  # every lab reaches the services through it
    else:
        gone = client.networks.list(names=[f"^{config.network}$"])
        for found in gone:
            found.disconnect(SERVICES, force=True)
    for found in gone:
        wait_for(f"network {found.name} to be free of containers", partial(_removed, found))


def _removed(network: Network) -> bool:
    """Remove a network; return False while Docker is still disconnecting a container from it."""
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
