# SPDX-License-Identifier: Apache-2.0
"""Token, accounts, run key and signing key on the control node: not in output, command lines, environments, or files.

The playbook and all modules are the real ones, on this machine in the place of a host; what they reach never answers.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.helpers.eventually import GENEROUS, eventually
from tests.unit.action.test_two_operators import Operators, copied, operators

__all__ = ["copied", "operators"]  # the fixtures

DIGEST = "sha256:" + "1" * 64
MANIFEST = {"name": f"image {DIGEST}", "files": [{"path": "x", "size": 1, "sha256": "2" * 64}]}
MEMBERS = [{"name": "n1", "address": "127.0.0.1", "port": 1}]


@pytest.fixture
def silent() -> Iterator[tuple[int, list[socket.socket]]]:
    """The port of a server that takes connections and says nothing, and these."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1], taken
        server.shutdown(socket.SHUT_RDWR)
    for each in taken:
        each.close()


class Watch(threading.Thread):
    """Looks again and again into what every process was started with that was not there before the secrets were."""

    def __init__(self, wanted: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.wanted, self.found, self.over = wanted, set[str](), threading.Event()
        self.before = set(os.listdir("/proc"))

    def run(self) -> None:
        while not self.over.wait(0.02):
            for process in (Path("/proc", name) for name in os.listdir("/proc") if name not in self.before):
                for what in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        content = (process / what).read_bytes()
                        self.found |= {
                            f"{name} in {what}"
                            for name, text in self.wanted.items()
                            if text.encode() in content
                        }


@pytest.fixture
def vault(tmp_path: Path) -> dict[str, str]:
    """The secrets, by their names; the operator has them in a directory of his."""
    place = tmp_path / "vault"
    place.mkdir(mode=0o700)
    kinds = ("token", "registry_password", "proxy_password", "signing_password")
    found = {name: f"canary-{name[:5]}-{secrets.token_hex(12)}" for name in kinds}
    found["run_key"] = secrets.token_hex(32)
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(found["signing_password"].encode()),
    )
    (place / "key.pem").write_bytes(key)
    (place / "key.pem").chmod(0o600)
    (place / "vars.yml").write_text(yaml.safe_dump({f"vault_{name}": text for name, text in found.items()}))
    return {**found, "signing_key": key.decode().splitlines()[1]}


def tasks(port: int, place: Path, *names: str) -> list[dict[str, Any]]:
    """Each step that is given a secret."""
    proxy = {"https_proxy": "http://ann:{{ vault_proxy_password }}@127.0.0.1:" + str(port)}
    pull = f"127.0.0.1:{port}/lab/vllm@{DIGEST}"
    account = {"pull": pull, "username": "ann", "password": "{{ vault_registry_password }}", "insecure": True}
    steps: dict[str, dict[str, Any]] = {
        "blob_fetch": {"image": account, "proxy": proxy},
        "blob_swarm": {"state": "started", "manifest": MANIFEST, "own": "n1", "members": MEMBERS,
                       "key": "{{ vault_run_key }}", "store": str(place / "store")},
        "hf_model": {"repo": "a/b", "commit": "1" * 40, "image": "x:1", "files": {"config.json": 9}, "proxy": proxy,
                     "token": "{{ vault_token }}", "endpoint": f"http://127.0.0.1:{port}",
                     "docker_socket": str(place / "none.sock"), "cache_dir": str(place / "hf")},
        "vllm_image": {"pull": pull, "registry_username": "ann", "docker_socket": str(place / "none.sock"),
                       "registry_password": "{{ vault_registry_password }}", "proxy": proxy},
        "model_quantize": {"model": str(place / "model"), "image": "x:1", "docker_socket": str(place / "none.sock"),
                           "signing_key_file": str(place / "vault/key.pem"),
                           "signing_key_password": "{{ vault_signing_password }}"},
    }  # fmt: skip
    return [
        {"name": name, f"instinct.fleet.{name}": steps[name], "ignore_errors": True, "timeout": 20}
        for name in names or steps
    ]


@contextlib.contextmanager
def started(fleet: Operators, steps: list[dict[str, Any]]) -> Iterator[subprocess.Popen[str]]:
    """A run at -vvv with a home directory of its own."""
    home = fleet.place / "home"
    home.mkdir()
    options = fleet.options
    env = {**options["env"], "HOME": str(home), "ANSIBLE_HOME": str(home / ".ansible"), "TMPDIR": str(home),
           "ANSIBLE_LOG_PATH": str(home / "ansible.log"), "ANSIBLE_PIPELINING": "1"}  # fmt: skip
    command = fleet.command(
        "secrets.yml", "-vvv", "--diff", "-e", f"@{fleet.place}/vault/vars.yml", tasks=steps
    )
    with (home / "output").open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, **{**options, "env": env}
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(GENEROUS)


def left(place: Path, wanted: dict[str, str]) -> set[str]:
    """Which secrets files have that are not the operator's own, and modules with their parameters, packed."""
    found = set()
    for directory, _unused, names in os.walk(place):
        for path in (Path(directory, name) for name in names):
            if place / "vault" in path.parents or not path.is_file():
                continue
            content = path.read_bytes()
            found |= {f"{name} in {path.name}" for name, text in wanted.items() if text.encode() in content}
            found |= {f"{path.name} is left"} if path.name.startswith("AnsiballZ") else set()
    return found


def test_a_run_that_fails_shows_no_secret(
    operators: Operators, silent: tuple[int, list[socket.socket]], vault: dict[str, str]
) -> None:
    watch = Watch(vault)
    watch.start()
    with started(operators, tasks(silent[0], operators.place)) as process:
        process.wait(GENEROUS)
    watch.over.set()
    watch.join()
    said = (operators.place / "home/output").read_text()
    for name in ("blob_fetch", "blob_swarm", "hf_model", "vllm_image", "model_quantize"):
        assert f"TASK [{name}]" in said, said[-3000:]
    assert (
        len(re.findall(r"VALUE_SPECIFIED_IN_NO_LOG_PARAMETER|\*{6,}", said)) >= 4
    )  # parameters are shown, masked
    assert watch.found == set()
    assert left(operators.place, vault) | left(operators.node, vault) == set()


def test_a_killed_run_leaves_no_secret(
    operators: Operators, silent: tuple[int, list[socket.socket]], vault: dict[str, str]
) -> None:
    watch, (port, taken) = Watch(vault), silent
    watch.start()
    with started(operators, tasks(port, operators.place, "blob_fetch")) as process:
        eventually("its request", lambda: bool(taken) or process.poll() is not None)
        assert process.poll() is None, (operators.place / "home/output").read_text()[-3000:]
    watch.over.set()
    watch.join()
    assert watch.found == set()
    assert left(operators.place, vault) | left(operators.node, vault) == set()


def test_the_search_finds_what_is_there(tmp_path: Path, vault: dict[str, str]) -> None:
    (tmp_path / "some").write_text(f"x{vault['run_key']}x")
    assert left(tmp_path, vault) == {"run_key in some"}
    watch = Watch(vault)
    watch.start()
    for kind, command, env in (("cmdline", vault["token"], {}), ("environ", "", {"KEY": vault["run_key"]})):
        with subprocess.Popen(["sh", "-c", "sleep 60; true", command], env={**os.environ, **env}) as process:
            eventually(kind, lambda kind=kind: any(kind in text for text in watch.found))  # type: ignore[misc]
            process.kill()
    watch.over.set()
    assert watch.found == {"token in cmdline", "run_key in environ"}
