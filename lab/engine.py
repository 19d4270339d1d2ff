# SPDX-License-Identifier: Apache-2.0
"""The machine's own Docker engine: found, or installed from the distribution and started."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

import docker
from docker.errors import DockerException

from .config import Config, LabError

PACKAGES = {"mmdebstrap": "mmdebstrap", "ssh": "openssh-client", "iptables": "iptables"}
PID_FILES = (Path("/var/run/docker.pid"), Path("/var/run/docker/containerd/containerd.pid"))
FREE_BYTES = 15 * 2**30


def check_machine(config: Config) -> None:
    """Raise LabError unless this is root on Linux x86_64 with space for images (15 GiB)."""
    if os.geteuid() != 0:
        raise LabError("the lab creates containers and mounts: run it as root")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise LabError(f"the lab runs on Linux x86_64, this is {platform.system()} {platform.machine()}")
    config.state.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(config.state).free
    if free < FREE_BYTES and not any(config.layers.glob("vllm-*.tar")):
        raise LabError(
            f"{config.state} has {free / 2**30:.1f} GiB free and the lab needs 15: make room, or set LAB_DIR"
        )


def connect() -> docker.DockerClient | None:
    """Return a client, or None if no engine answers."""
    try:
        client = docker.DockerClient(base_url="unix:///var/run/docker.sock", timeout=600)
        client.ping()
    except DockerException:
        return None
    return client


def install(*packages: str) -> None:
    """Install packages of the distribution. Raise LabError with the end of apt's output if that fails."""
    if not shutil.which("apt-get"):
        raise LabError(f"install {', '.join(packages)} first: there is no apt-get here")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-1500:]}")


def ensure(config: Config) -> docker.DockerClient:
    """Return a client for the Docker engine; install the engine and the lab's few tools if they are missing."""
    missing = [package for tool, package in PACKAGES.items() if not shutil.which(tool)]
    client = connect()
    if client is None and not shutil.which("dockerd"):
        missing.append("docker.io")
    if missing:
        install(*missing)
    return client or connect() or _start(config)


def _start(config: Config) -> docker.DockerClient:
    if Path("/run/systemd/system").is_dir():
        subprocess.run(["systemctl", "start", "docker"], check=False)
    else:
        for pid_file in PID_FILES:
            _forget(pid_file)
        log = (config.state / "dockerd.log").open("ab")
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
        (config.state / "dockerd.pid").write_text(f"{process.pid}\n")
    for _ in range(600):
        if client := connect():
            return client
        time.sleep(0.5)
    raise LabError(f"dockerd did not answer within five minutes: see {config.state / 'dockerd.log'}")


def _forget(pid_file: Path) -> None:
    """Remove the pid file of a killed daemon: its number may belong to another process now."""
    if pid_file.exists():
        command = Path(f"/proc/{pid_file.read_text().strip()}/comm")
        if not command.exists() or command.read_text().strip() not in ("dockerd", "containerd"):
            pid_file.unlink()


def stop(config: Config) -> None:
    """Stop the Docker engine if the lab started it."""
    pid_file = config.state / "dockerd.pid"
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    command = Path(f"/proc/{pid}/cmdline")
    if command.exists() and b"dockerd" in command.read_bytes():
        os.kill(pid, 15)
        while command.exists() and command.read_bytes():
            time.sleep(0.2)
    pid_file.unlink()
