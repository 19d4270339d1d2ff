# SPDX-License-Identifier: Apache-2.0
"""A Docker engine's HTTP API on a unix socket, with images and containers that exist only in memory.

What a started container does is a function given in `programs`, by the start of the container's name: it runs
in a thread, writes the log and ends by returning an exit code. `faults` has answers of which the second half never
comes.
"""

from __future__ import annotations

import hashlib
import json
import select
import socket
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from ansible_collections.instinct.fleet.plugins.module_utils.content.probe_output import MARK


@dataclass
class FakeContainer:
    """A container; `program` threads watch `stopping`."""

    name: str
    body: dict[str, Any]
    id: str
    status: str = "created"
    exit_code: int = 0
    restarts: int = 0
    log: str = ""
    oom_killed: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def inspect(self) -> dict[str, Any]:
        status = self.status  # once: its program may end meanwhile
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Image": "sha256:" + "1" * 64,
            "RestartCount": self.restarts,
            "Config": {
                "Image": self.body.get("Image"),
                "Labels": self.body.get("Labels") or {},
                "StopTimeout": self.body.get("StopTimeout"),
                "Env": self.body.get("Env") or [],
                "Entrypoint": self.body.get("Entrypoint"),
            },
            "HostConfig": self.body.get("HostConfig") or {},
            "State": {
                "Status": status,
                "Running": status in ("running", "restarting", "paused"),
                "Restarting": status == "restarting",
                "ExitCode": self.exit_code,
                "OOMKilled": self.oom_killed,
                "StartedAt": "2026-01-01T00:00:00Z",
                "Error": "",
            },
        }


Program = Callable[[FakeContainer], int]


def serve_until_stopped(container: FakeContainer) -> int:
    """A program that runs until it is asked to stop."""
    container.stopping.wait()
    return 143


ANSWER = {
    "vllm": "0.11.2+rocm700", "platform": "rocm", "rocm": "7.0.0", "pytorch": "2.9.0", "python": "3.12.11",
    "gfx": ["gfx942", "gfx950"],
}  # fmt: skip


def answer_what_is_in_it(container: FakeContainer) -> int:
    """The program of a container that asks its image."""
    container.log = f"a warning\n{MARK}{json.dumps(ANSWER)}\n"
    return 0


CUT, STALLED = "cut", "stalled"
"""How an answer ends in its middle: the connection is closed, or nothing more comes and it stays open."""


class FakeDocker:
    """The engine. Use as a context manager; `path` is its socket."""

    PROGRAMS: ClassVar[dict[str, Program]] = {"instinct-ask-": answer_what_is_in_it}

    def __init__(self, directory: Path, api: str = "1.41") -> None:
        self.path = str(directory / "docker.sock")
        self.api = api
        self.root_dir = str(directory)
        self.images: dict[str, dict[str, Any]] = {}
        self.containers: dict[str, FakeContainer] = {}
        self.programs: dict[str, Program] = dict(self.PROGRAMS)
        self.pull_events: list[dict[str, Any]] = [{"status": "Pulling"}, {"status": "Download complete"}]
        self.pull_status = 200
        self.pull_rest = b""  # of a pull that breaks off: what is sent after the last whole event
        self.pulled: dict[str, Any] | None = None
        self.push_to: Any = None  # the BlobRegistry that has an image after it was pushed
        self.push_error = ""
        self.push_lists = True  # whether the engine lists the digest afterwards
        self.saved: dict[str, bytes] = {}  # what docker save gives out, by an image's id
        self.errors: dict[str, tuple[int, str]] = {}
        self.faults: dict[str, str] = {}  # by the start of "METHOD /path"
        self.over = threading.Event()
        self.stalled = threading.Event()
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.before_stop: Callable[[], object] = bool
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args: object) -> None: ...

            def address_string(self) -> str:
                return "unix"

            def version_string(self) -> str:
                return "Docker/20.10.24 (linux)"

            def do_GET(self) -> None:
                engine.answer(self)

            do_POST = do_DELETE = do_GET

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_args: object) -> None:
                """A client that hangs up is no error of the daemon."""

        self.server = Server(self.path, Handler)

    def __enter__(self) -> FakeDocker:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over.set()
        for container in list(self.containers.values()):
            container.stopping.set()
        self.server.shutdown()
        self.server.server_close()

    # ---- helpers of tests ------------------------------------------------------------------------

    def add_image(self, *names: str, **fields: Any) -> dict[str, Any]:
        """An image with these names (tags, or repository@digest)."""
        number = len({image["Id"] for image in self.images.values()}) + 1
        image = {
            "Id": f"sha256:{number:064x}",
            "RepoTags": [name for name in names if "@" not in name],
            "RepoDigests": [name for name in names if "@" in name],
            "Size": 1000,
            "Config": {"Labels": {}},
            **fields,
        }
        for name in (*names, image["Id"]):
            self.images[name] = image
        return image

    def add_container(self, name: str, body: dict[str, Any], status: str = "running") -> FakeContainer:
        container = FakeContainer(name, body, f"{len(self.containers) + 1:064x}", status)
        self.containers[name] = container
        if status == "running":
            self._run(container)
        return container

    def hasty(self) -> type[socket.socket]:
        """Sockets for a client whose time is over once an answer has STALLED and what was sent of it is read.

        A limit in seconds, short enough to be waited for, would be over on a busy machine before anything is sent.
        """
        engine = self

        class Hasty(socket.socket):
            def recv_into(self, *args: Any) -> int:
                end = time.monotonic() + (self.gettimeout() or 0)
                while not select.select([self], [], [], 0.01)[0]:
                    if engine.stalled.is_set() and not select.select([self], [], [], 0)[0]:
                        engine.stalled.clear()
                        assert self.gettimeout(), "nobody would ever stop waiting"
                        raise TimeoutError
                    if self.gettimeout() and time.monotonic() > end:
                        raise TimeoutError
                return super().recv_into(*args)

        return Hasty

    def changes(self) -> list[str]:
        """Requests that change something, without the version prefix."""
        return [
            request for request in self.requests if not request.startswith("GET") and "/wait" not in request
        ]

    # ---- the API ---------------------------------------------------------------------------------

    def answer(self, http: BaseHTTPRequestHandler) -> None:
        length = int(http.headers.get("Content-Length") or 0)
        body = json.loads(http.rfile.read(length)) if length else None
        parts = urlsplit(http.path)
        path = unquote(parts.path)
        prefix = f"/v{self.api}"
        path = path[len(prefix) :] if path.startswith(prefix) else path
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.requests.append(f"{http.command} {path}" + (f"?{unquote(parts.query)}" if parts.query else ""))
        self.headers.append(dict(http.headers))
        for start, (status, message) in list(self.errors.items()):
            if f"{http.command} {path}".startswith(start):
                return self.send(http, status, {"message": message})
        handler = getattr(self, f"_{http.command.lower()}_{path.strip('/').split('/')[0].strip('_')}")
        handler(http, path, query, body)
        return None

    def send(self, http: BaseHTTPRequestHandler, status: int, data: Any = None, raw: bytes = b"") -> None:
        payload = json.dumps(data).encode() if data is not None else raw
        http.send_response(status)
        http.send_header("Api-Version", self.api)
        http.send_header("Content-Length", str(len(payload)))
        http.end_headers()
        fault = self.fault_of(http)
        http.wfile.write(payload[: len(payload) // 2] if fault else payload)
        if fault:
            self.break_off(http, fault)

    def stream(
        self,
        http: BaseHTTPRequestHandler,
        parts: Sequence[bytes],
        rest: bytes = b"",
        done: Callable[[], object] = bool,
    ) -> None:
        """An answer in chunks, of which nobody knows how many come; done: what has come to be when its end is sent."""
        http.send_response(200)
        http.send_header("Transfer-Encoding", "chunked")
        http.end_headers()
        fault = self.fault_of(http)
        for part in parts:
            http.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if fault:
            http.wfile.write(rest)
            self.break_off(http, fault)
        else:
            done()
            http.wfile.write(b"0\r\n\r\n")

    def fault_of(self, http: BaseHTTPRequestHandler) -> str:
        """What is to go wrong with the answer of a request; "" for nothing."""
        asked = f"{http.command} {unquote(urlsplit(http.path).path).removeprefix(f'/v{self.api}')}"
        return next((fault for start, fault in list(self.faults.items()) if asked.startswith(start)), "")

    def break_off(self, http: BaseHTTPRequestHandler, fault: str) -> None:
        """Send nothing more."""
        http.wfile.flush()
        if fault == STALLED:
            self.stalled.set()
            self.over.wait()
        http.close_connection = True
        http.connection.shutdown(socket.SHUT_RDWR)

    def _get_ping(self, http: Any, *_rest: Any) -> None:
        self.send(http, 200, raw=b"OK")

    def _get_info(self, http: Any, *_rest: Any) -> None:
        self.send(http, 200, {"DockerRootDir": self.root_dir})

    def _get_images(self, http: Any, path: str, query: dict[str, str], _body: Any) -> None:
        if path == "/images/json":
            wanted = json.loads(query.get("filters") or "{}").get("label") or []
            label, _, value = "".join(wanted[:1]).partition("=")
            found = {
                image["Id"]: {**image, "Labels": image["Config"]["Labels"]}
                for image in list(self.images.values())
                if not wanted or image["Config"]["Labels"].get(label) == value
            }
            return self.send(http, 200, list(found.values()))
        if path.endswith("/get"):
            saved = self.saved.get(path[len("/images/") : -len("/get")])
            return (
                self.send(http, 200, raw=saved)
                if saved
                else self.send(http, 404, {"message": "no such image"})
            )
        name = path[len("/images/") : -len("/json")]
        if name not in self.images:
            return self.send(http, 404, {"message": f"No such image: {name}"})
        return self.send(http, 200, self.images[name])

    def _delete_images(self, http: Any, path: str, _query: Any, _body: Any) -> None:
        """A name is taken away; with its last one goes the image, unless a container has it."""
        name = path[len("/images/") :]
        image = self.images.get(name)
        if image is None:
            return self.send(http, 404, {"message": f"No such image: {name}"})
        names = [*image["RepoTags"], *image["RepoDigests"]]
        if any(container.body.get("Image") in names for container in self.containers.values()):
            return self.send(
                http, 409, {"message": f"conflict: unable to remove {name}: a container uses it"}
            )
        for key in ("RepoTags", "RepoDigests"):
            image[key] = [item for item in image[key] if item != name]
        left = [*image["RepoTags"], *image["RepoDigests"]]
        for gone in [name, *([] if left else [image["Id"]])]:
            self.images.pop(gone, None)
        return self.send(http, 200, [])

    def _post_images(self, http: Any, path: str, query: dict[str, str], _body: Any) -> None:
        if path == "/images/create":
            return self._pull(http, query)
        if path.endswith("/push"):
            return self._push(http, path, query)
        name = path[len("/images/") : -len("/tag")]
        tag = f"{query['repo']}:{query['tag']}"
        for image in self.images.values():
            image["RepoTags"] = [item for item in image["RepoTags"] if item != tag]
        self.images[name]["RepoTags"].append(tag)
        self.images[tag] = self.images[name]
        return self.send(http, 201)

    def _pull(self, http: Any, query: dict[str, str]) -> None:
        if self.pull_status != 200:
            return self.send(http, self.pull_status, self.pull_events[0])
        lines = [json.dumps(event).encode() + b"\r\n" for event in self.pull_events]

        def pulled() -> None:
            if not any("error" in event for event in self.pull_events):
                self.add_image(f"{query['fromImage']}@{query['tag']}", **(self.pulled or {}))

        self.stream(http, lines, self.pull_rest, pulled)

    def _push(self, http: Any, path: str, query: dict[str, str]) -> None:
        repository = path[len("/images/") : -len("/push")]
        image = self.images.get(f"{repository}:{query['tag']}")
        if image is None:
            return self.send(
                http, 404, {"message": f"An image does not exist locally with the tag: {repository}"}
            )
        if self.push_error:
            self.stream(http, [json.dumps({"errorDetail": {"message": self.push_error}}).encode() + b"\r\n"])
            return None
        content = self.push_to.image if self.push_to else b"{}"
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"

        def pushed() -> None:
            if self.push_to:
                self.push_to.contents.update({digest: content, query["tag"]: content})
            if self.push_lists:
                name = f"{repository}@{digest}"
                image["RepoDigests"] = [*dict.fromkeys([*image["RepoDigests"], name])]
                self.images[name] = image

        said = json.dumps({"status": "Pushed", "aux": {"Digest": digest}}).encode() + b"\r\n"
        return self.stream(http, [said], done=pushed)

    def _find(self, http: Any, path: str) -> FakeContainer | None:
        name = path.split("/")[2]
        for container in list(self.containers.values()):  # a test may change them meanwhile
            if name in (container.name, container.id):
                return container
        self.send(http, 404, {"message": f"No such container: {name}"})
        return None

    def _get_containers(self, http: Any, path: str, query: dict[str, str], _body: Any) -> None:
        if path == "/containers/json":
            label = next(iter(json.loads(query.get("filters") or "{}").get("label") or ()), "")
            running = [
                {
                    **container.inspect(),
                    "Names": [f"/{container.name}"],
                    "ImageID": self.images.get(str(container.body.get("Image")), {}).get("Id"),
                    "Labels": container.body.get("Labels") or {},
                    "Mounts": (container.body.get("HostConfig") or {}).get("Mounts") or [],
                    "State": container.status,
                }
                for container in list(self.containers.values())
                if (container.status == "running" or query.get("all") == "true")
                and (not label or label in (container.body.get("Labels") or {}))
            ]
            return self.send(http, 200, running)
        container = self._find(http, path)
        if container is None:
            return None
        if path.endswith("/json"):
            kept = f"{self.root_dir}/containers/{container.id}/hostname"
            never = container.status == "created"
            return self.send(http, 200, {**container.inspect(), "HostnamePath": "" if never else kept})
        data = container.log.encode()
        frames = [data[i : i + 1000] for i in range(0, len(data), 1000)]
        self.stream(http, [b"\1\0\0\0" + len(frame).to_bytes(4, "big") + frame for frame in frames])
        return None

    def _post_containers(self, http: Any, path: str, query: dict[str, str], body: Any) -> None:
        if path == "/containers/create":
            if query["name"] in self.containers:
                return self.send(
                    http, 409, {"message": f"Conflict. The container name {query['name']} is in use"}
                )
            if body["Image"] not in self.images:
                return self.send(http, 404, {"message": f"No such image: {body['Image']}"})
            container = self.add_container(query["name"], body, "created")
            return self.send(http, 201, {"Id": container.id, "Warnings": []})
        container = self._find(http, path)
        if container is None:
            return None
        verb = path.rsplit("/", 1)[1]
        if verb == "start":
            if container.status == "running":
                return self.send(http, 304)
            container.stopping.clear()
            container.ended.clear()
            container.status = "running"
            self._run(container)
        elif verb == "stop":
            if container.status not in ("running", "restarting"):
                return self.send(http, 304)
            self.before_stop()
            container.stopping.set()
            self._until_ended(container)
        elif verb == "update":
            container.body = {
                **container.body,
                "HostConfig": {**(container.body.get("HostConfig") or {}), **body},
            }
            return self.send(http, 200, {"Warnings": None})
        elif verb == "rename":
            self.containers[query["name"]] = self.containers.pop(container.name)
            container.name = query["name"]
        elif verb == "wait":
            self._until_ended(container)
            return self.send(http, 200, {"StatusCode": container.exit_code})
        return self.send(http, 204)

    def _until_ended(self, container: FakeContainer) -> None:
        """For as long as it takes: how long is waited is the client's affair."""
        while not container.ended.wait(1) and not self.over.is_set():
            pass

    def _delete_containers(self, http: Any, path: str, _query: Any, _body: Any) -> None:
        container = self._find(http, path)
        if container is None:
            return None
        if container.status == "running":
            return self.send(http, 409, {"message": "You cannot remove a running container"})
        del self.containers[container.name]
        return self.send(http, 204)

    def _run(self, container: FakeContainer) -> None:
        program: Program = next(
            (p for start, p in self.programs.items() if container.name.startswith(start)), serve_until_stopped
        )

        def run() -> None:
            container.exit_code = 1
            try:
                container.exit_code = program(container)
            except Exception:  # whoever waits for it is to see the test fail, and not to wait for ever
                container.log += traceback.format_exc()
            if container.status == "running":
                container.status = "exited"
            container.ended.set()

        threading.Thread(target=run, daemon=True).start()
