# SPDX-License-Identifier: Apache-2.0
"""`python -m lab COMMAND`: start, inspect and remove the lab."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import docker

from . import engine, fleet, images, layers
from .ask import question
from .config import (
    HUB,
    MAX_LABS,
    RAY_TAG,
    SERVICES_ADDRESS,
    STANDIN_REPOSITORY,
    STANDIN_TAG,
    VLLM_REPOSITORY,
    VLLM_TAG,
    Config,
    LabError,
    name_number,
)  # fmt: skip


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print a step and the time that it takes."""
    print(f"lab: {what} …", end=" ", flush=True)
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:.0f} s", flush=True)


def up(config: Config) -> None:
    engine.check_machine(config)
    with step("Docker engine"):
        client = engine.ensure(config)
    with _alone(config):
        fleet.make_key(config)
        with step("image layers (Debian, compiler, real vLLM, stand-in)"), ThreadPoolExecutor(3) as pool:
            rest = [pool.submit(make, config) for make in (layers.vllm, layers.standin)]
            base = layers.base(config)
            compiler = images.compiler(client, config)
            vllm, standin = (future.result() for future in rest)
        with step("images of nodes and services"):
            node_image, services_image = images.node(client, config), images.services(client, config)
        with step("registry and hub"):
            write_hub(config)
            fleet.services(client, config, services_image)
            digests = [
                images.publish(VLLM_REPOSITORY, VLLM_TAG, [*base, *compiler, *vllm], "vLLM, CPU build"),
                images.publish(STANDIN_REPOSITORY, STANDIN_TAG, [*base, *standin], "instant engine"),
            ]
            fleet.forget_old_pins(config, digests)
    with step(f"{config.nodes} nodes"):
        names = fleet.bring_up(client, config, node_image)
    print(f"lab: up: {', '.join(names)}; inventory: {config.inventory}", flush=True)


@contextmanager
def _alone(config: Config) -> Iterator[None]:
    """Keep a second `lab up` out while the shared parts are created: layers, images, registry and hub."""
    with config.lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def ray(config: Config) -> None:
    """Publish the stand-in's image with Ray in it, which a single test needs."""
    with _alone(config), step("image of the stand-in with Ray"):
        paths = [*layers.base(config), *layers.standin(config), *layers.ray(config)]
        images.publish(STANDIN_REPOSITORY, RAY_TAG, paths, "instant engine, Ray")


def write_hub(config: Config) -> None:
    from .hub.make import make

    make(config.hub)


def running() -> docker.DockerClient:
    client = engine.connect()
    if client is None:
        raise LabError("no Docker engine answers here, so no lab runs: python -m lab up")
    return client


def reset(config: Config) -> None:
    client = running()
    with step("recreating nodes"):
        with _alone(config):
            image = images.node(client, config)
        fleet.reset(client, config)
        fleet.bring_up(client, config, image)


def down(config: Config) -> None:
    if client := engine.connect():
        with step("removing containers"):
            fleet.remove(client, config)


def purge(config: Config) -> None:
    """Remove all labs of this machine."""
    for number in range(1, MAX_LABS + 1):
        down(replace(config, number=number))
    if client := engine.connect():
        with step("removing images"):
            fleet.remove_images(client)
    with step("removing files, and the Docker engine if the lab started it"):
        engine.stop(config)
        shutil.rmtree(config.state, ignore_errors=True)


def status(config: Config) -> None:
    client = running()
    for container in fleet.nodes(client):
        print(f"{container.name}  {container.status}")
    print(f"state in {config.state}")


def execute(config: Config, host: str, command: list[str]) -> int:
    return subprocess.run(["docker", "exec", config.container(host), *command], check=False).returncode


def ssh(config: Config, host: str, command: list[str]) -> None:
    address = config.address(name_number(host))
    options = ["-i", str(config.key), "-o", f"UserKnownHostsFile={config.known_hosts}"]
    os.execvp("ssh", ["ssh", *options, f"ops@{address}", *command])


def ask(config: Config, where: str, prompt: str) -> None:
    host, _, port = where.partition(":")
    ssh(config, host, [question(int(port or 8000), prompt)])


def hub(config: Config, faults: str) -> None:
    """Set the hub's faults for this lab's nodes. Raise LabError if the hub rejects them."""
    request = urllib.request.Request(
        f"http://{SERVICES_ADDRESS}:8080/_lab/faults?client={config.subnet}",
        data=json.dumps(json.loads(faults)).encode(),
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab", description=f"The lab. Its hub is {HUB} for its nodes."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("up", "bring the lab up, or complete it (LAB_NODES nodes, 2 by default)"),
        ("down", "remove its containers; images, weights and the registry's data stay"),
        ("purge", "remove all of it"),
        ("reset", "recreate the nodes: nothing that was deployed stays"),
        ("status", "list the nodes"),
        ("ray", "publish the stand-in's image with Ray in it"),
        ("summary", "what the demo measured"),
    ):
        commands.add_parser(name, help=text)
    for name, text in (("exec", "run a command on a node, as root"), ("ssh", "log in to a node")):
        command = commands.add_parser(name, help=text)
        command.add_argument("host")
        command.add_argument("words", nargs=argparse.REMAINDER)
    prompt = commands.add_parser("ask", help="ask an instance for text, from its node")
    prompt.add_argument("where", metavar="HOST[:PORT]")
    prompt.add_argument("prompt")
    commands.add_parser("reboot", help="restart a node").add_argument("host")
    commands.add_parser("hub", help="set the hub's faults, as JSON; {} for none").add_argument("faults")
    args = parser.parse_args()
    config = Config.of_environment()
    words = [word for i, word in enumerate(getattr(args, "words", [])) if (i, word) != (0, "--")]
    match args.command:
        case "up" | "down" | "purge" | "reset" | "status" | "ray":
            {"up": up, "down": down, "purge": purge, "reset": reset, "status": status, "ray": ray}[
                args.command
            ](config)
        case "summary":
            from .summary import closing_summary

            print(closing_summary())
        case "exec":
            return execute(config, args.host, words)
        case "ssh":
            ssh(config, args.host, words)
        case "ask":
            ask(config, args.where, args.prompt)
        case "reboot":
            fleet.reboot(running(), config, args.host)
        case "hub":
            hub(config, args.faults)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        print(f"\nlab: {error}", file=sys.stderr)
        sys.exit(1)
