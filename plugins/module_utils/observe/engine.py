# SPDX-License-Identifier: Apache-2.0
"""Query the Docker engine and its images over its socket, without an HTTP library."""

from __future__ import annotations

import json
import os

from .source import Source, listing, pairs

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
# Not /version or /info: Docker starts two programs to answer each, and a tenth of a node's state is spent on them.
DOCKER_QUERIES = {
    "images": "/images/json",
    "containers": "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22instinct-fleet.instance%22%5D%7D",
}
BUILD_LABEL = "instinct-fleet.build"
"""Begins the labels of images that were built (see docker/build.py)."""

PLUGINS = ("/usr/libexec", "/usr/lib", "/usr/local/lib", "/usr/local/libexec")


class DockerRequest:
    """A GET to the Docker engine, sent at once and read later, so that Docker works while files are read.

    With HTTP/1.0, Docker answers without chunks and closes the connection: no HTTP library is needed.
    """

    def __init__(self, socket_path: str, path: str, timeout: float = 15.0) -> None:
        import _socket  # the module under socket, without the wrapper's 8 ms of imports

        self.path = path
        self.version: str | None = None
        self.api_version: str | None = None
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(socket_path)
        self.socket.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())

    def answer(self) -> Any:
        """Return the JSON of the answer. Raise OSError or ValueError with Docker's message."""
        parts = []
        while True:
            part = self.socket.recv(1 << 20)
            if not part:
                break
            parts.append(part)
        self.socket.close()
        head, _unused, body = b"".join(parts).partition(b"\r\n\r\n")
        status = head.split(b" ", 2)
        headers = pairs(head.decode("latin-1"), ":")
        self.api_version = headers.get("Api-Version")
        self.version = headers.get("Server", "").partition("Docker/")[2].partition(" ")[0] or None
        if len(status) < 2 or status[1] != b"200":
            said = (body or head)[:300].decode("utf-8", "replace").strip()
            raise ValueError(f"GET {self.path}: {said or 'the engine closed the connection'}")
        return json.loads(body)


def ask_docker(source: Source, socket_path: str) -> tuple[dict[str, Any], dict[str, DockerRequest]]:
    """Send all queries. Return the facts known already, and the pending requests."""
    programs = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd")
    docker: dict[str, Any] = {
        "installed": any(source.exists(path) for path in programs),
        "community": source.exists("/var/lib/dpkg/info/docker-ce.list"),
        "buildx": any(source.exists(f"{place}/docker/cli-plugins/docker-buildx") for place in PLUGINS),
        "available": False,
        "version": None,
        "api_version": None,
        "root_dir": None,
        "error": None,
    }
    try:
        return docker, {name: DockerRequest(socket_path, path) for name, path in DOCKER_QUERIES.items()}
    except OSError as error:
        docker["error"] = f"{socket_path}: {error.strerror or error}"
        return docker, {}


def read_docker(docker: dict[str, Any], requests: dict[str, DockerRequest]) -> tuple[list[Any], list[Any]]:
    """Read the answers: fill `docker`, return images and containers as Docker lists them."""
    try:
        answers = {name: request.answer() for name, request in requests.items()}
        asked = requests["images"]
        docker.update(available=True, version=asked.version, api_version=asked.api_version)
        return answers["images"] or [], answers["containers"] or []
    except (OSError, ValueError, AttributeError) as error:
        docker["error"] = str(error)
        return [], []


def read_images(source: Source, data_dir: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the images for the planner, with the results of their probes (see docker/inspect_image.py)."""
    answers = os.path.join(data_dir, "images")
    asked = set(listing(answers)) if entries else set()
    found = []
    for entry in entries:
        name = f"{str(entry.get('Id')).rpartition(':')[2]}.json"
        software = None
        if name in asked:
            path = os.path.join(answers, name)
            try:
                with open(path, encoding="utf-8") as file:
                    software = json.load(file)
            except (OSError, ValueError) as error:
                source.problem(path, f"broken answer of an image: {error}")
        found.append({**image(entry), "software": software})
    return found


def image(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an image of Docker's list in the form of node_state."""
    labels = entry.get("Labels") or {}
    built = {
        name[len(BUILD_LABEL) :].lstrip(".") or "hash": text
        for name, text in labels.items()
        if name.startswith(BUILD_LABEL)
    }
    return {
        "id": entry.get("Id"),
        "tags": [tag for tag in entry.get("RepoTags") or [] if tag != "<none>:<none>"],
        "digests": [digest for digest in entry.get("RepoDigests") or [] if digest != "<none>@<none>"],
        "bytes": entry.get("Size"),
        **({"build": built} if built else {}),
    }
