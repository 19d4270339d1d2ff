#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serve a directory of repositories (see store.py) as the Hugging Face hub would.

Standard library only, so that it runs in a bare Debian container: `python3 lab/hub --root DIR --port 8080`.

As on the real hub, the file list of a gated repository is public and its files are not; an unknown token is refused
(401) even if none is needed; a missing repository is 401 for strangers and 404 for users. Files that .gitattributes
assigns to LFS have their SHA-256 as ETag; no X-Xet-Hash header is sent, so clients download over plain HTTP.

Requests fail or crawl on demand: `PUT /_lab/faults` with a fault or a list of them (see faults.py), `{}` for none. `GET
/_lab/requests` lists the requests (never a header); `DELETE` on either clears it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .faults import Fault, Faults
from .store import File, HubError, Repository, lfs_pointer, read_json

CHUNK = 64 * 1024
INVALID_TOKEN = "Invalid credentials in Authorization header"


class Hub(ThreadingHTTPServer):
    """The server. In tests: `with Hub(root) as hub: …hub.url…`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int = 0, *, quiet: bool = True) -> None:
        super().__init__((host, port), Handler)
        self.root = root
        self.quiet = quiet
        self.faults = Faults()
        self.requests: deque[dict[str, Any]] = deque(maxlen=10_000)
        self._answering = 0  # requests in progress: their status and size are not known yet
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def answering(self) -> int:
        """Return the number of requests in progress: each is listed as it arrives, and completed after its answer."""
        return self._answering

    def take(self, more: int) -> None:
        """Change the number of requests in progress by 1 or -1."""
        with self._lock:
            self._answering += more

    def tokens(self) -> dict[str, Any]:
        tokens: dict[str, Any] = read_json(self.root / "hub.json", {}).get("tokens", {})
        return tokens

    def repository(self, name: str) -> Repository | None:
        directory = self.root / name
        return Repository(directory, name) if (directory / "refs.json").exists() else None

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


_NAME = r"(?P<repo>[\w.-]+/[\w.-]+)"
_ROUTES = [
    (re.compile(pattern), handler)
    for pattern, handler in [
        (r"/api/whoami-v2", "whoami"),
        (rf"/api/models/{_NAME}", "info"),
        (rf"/api/models/{_NAME}/revision/(?P<revision>[^/]+)", "info"),
        (rf"/api/models/{_NAME}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", "tree"),
        (rf"/api/models/{_NAME}/paths-info/(?P<revision>[^/]+)", "paths_info"),
        (rf"/api/models/{_NAME}/commits/(?P<revision>[^/]+)", "commits"),
        (rf"/api/models/{_NAME}/refs", "refs"),
        (rf"/api/models/{_NAME}/auth-check", "auth_check"),
        (rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
        (r"/_lab/faults", "lab_faults"),
        (r"/_lab/requests", "lab_requests"),
    ]
]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Hub
    fault: Fault | None = None
    user: dict[str, Any] | None = None
    status = 0
    sent = 0

    def handle_request(self) -> None:
        """Answer one request of any method."""
        self.server.take(1)
        try:
            self.answer_request()
        finally:
            self.server.take(-1)

    def answer_request(self) -> None:
        """List the request, answer it, then complete its entry: the list has the order in which requests came."""
        target = urlsplit(self.path)
        self.query = parse_qs(target.query)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lab = target.path.startswith("/_lab/")
        self.fault = (
            None if lab else self.server.faults.take(self.command, target.path, self.client_address[0])
        )
        self.status = self.sent = 0
        entry: dict[str, Any] = {
            "method": self.command,
            "path": target.path,
            "range": self.headers.get("Range"),
        }
        if not lab:
            self.server.requests.append(entry)
        try:
            if self.fault:
                time.sleep(self.fault.delay)
                if self.fault.status:
                    after = self.fault.retry_after
                    headers = {} if after is None else {"Retry_After": str(after)}
                    raise HubError(self.fault.status, "asked for by the lab", **headers)
            self.route(target.path)
        except HubError as error:
            self.answer_error(error)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            entry |= {"status": self.status, "bytes": self.sent}

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    def route(self, path: str) -> None:
        for pattern, name in _ROUTES:
            match = pattern.fullmatch(path)
            if match:
                parts = {key: unquote(value) for key, value in match.groupdict().items() if value}
                if not name.startswith("lab_"):
                    self.user = self.authenticate(required=name == "whoami")
                if "repo" in parts:
                    parts["repo"] = self.find(parts["repo"])
                getattr(self, name)(**parts)
                return
        raise HubError(404, f"Cannot {self.command} {path}")

    def authenticate(self, *, required: bool) -> dict[str, Any] | None:
        """Return the token's user; None without a token."""
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        if not token:
            if required:
                raise HubError(401, "Invalid username or password.")
            return None
        user: dict[str, Any] | None = self.server.tokens().get(token) if scheme.lower() == "bearer" else None
        if user is None:
            raise HubError(401, "Invalid username or password." if required else INVALID_TOKEN)
        return user

    def find(self, name: str) -> Any:
        repo = self.server.repository(name)
        if repo is None and self.user is None:
            raise HubError(401, "Invalid username or password.", "RepoNotFound")
        if repo is None:
            raise HubError(404, "Repository not found", "RepoNotFound")
        return repo

    def check_access(self, repo: Repository) -> None:
        """Raise HubError unless the user may read the files of this repository."""
        if not repo.gated:
            return
        if self.user is None:
            raise HubError(
                401,
                f"Access to model {repo.name} is restricted. You must have access to it and be authenticated"
                " to access it. Please log in.",
                "GatedRepo",
            )
        if repo.name not in self.user.get("gated", []):
            raise HubError(
                403,
                f"Access to model {repo.name} is restricted and you are not in the authorized list. Visit"
                f" https://huggingface.co/{repo.name} to ask for access.",
                "GatedRepo",
            )

    # The endpoints.

    def whoami(self) -> None:
        assert self.user is not None
        name = self.user["name"]
        access = {"type": "access_token", "accessToken": {"displayName": name, "role": "read"}}
        self.answer({"type": "user", "id": name, "name": name, "fullname": name, "orgs": [], "auth": access})

    def info(self, repo: Repository, revision: str = "main") -> None:
        commit = repo.commit(revision)
        files = repo.files(commit)
        history = repo.history(commit)
        siblings: list[dict[str, Any]] = [{"rfilename": name} for name in files]
        if "blobs" in self.query:
            for entry, file in zip(siblings, files.values(), strict=True):
                entry.update(size=file.size, blobId=file.blob_id)
                if file.sha256:
                    pointer = len(lfs_pointer(file.sha256, file.size))
                    entry["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": pointer}
        scanned = repo.security and "securityStatus" in self.query
        self.answer(
            {
                "_id": hashlib.md5(repo.name.encode()).hexdigest()[:24],
                "id": repo.name,
                "modelId": repo.name,
                "author": repo.name.split("/")[0],
                "sha": commit,
                "lastModified": history[0]["date"],
                "createdAt": history[-1]["date"],
                "private": False,
                "gated": repo.gated,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": ["safetensors", "llama"],
                "pipeline_tag": "text-generation",
                "siblings": siblings,
                **({"cardData": repo.card} if repo.card else {}),
                **({"securityRepoStatus": repo.security} if scanned else {}),
            }
        )

    def tree_entry(self, file: File) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "oid": file.blob_id, "size": file.size, "path": file.name}
        if file.sha256:
            pointer = len(lfs_pointer(file.sha256, file.size))
            entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": pointer}
        return entry

    def tree(self, repo: Repository, revision: str, path: str = "") -> None:
        commit = repo.commit(revision)
        recursive = (self.query.get("recursive") or ["false"])[0].lower() in ("true", "1")
        prefix = path.rstrip("/") + "/" if path else ""
        folders: dict[str, None] = {}
        entries = []
        for name, file in repo.files(commit).items():
            if not name.startswith(prefix):
                continue
            inner = name[len(prefix) :].split("/")[:-1]
            for depth in range(1, len(inner) + 1 if recursive else min(len(inner), 1) + 1):
                folders[prefix + "/".join(inner[:depth])] = None
            if recursive or not inner:
                entries.append(self.tree_entry(file))
        if path and not entries and not folders:
            raise HubError(404, f"{path} does not exist on {revision!r}", "EntryNotFound")
        self.answer([*(self.folder(commit, name) for name in folders), *entries])

    def folder(self, commit: str, name: str) -> dict[str, Any]:
        oid = hashlib.sha1(f"{commit}/{name}".encode()).hexdigest()
        return {"type": "directory", "oid": oid, "size": 0, "path": name}

    def paths_info(self, repo: Repository, revision: str) -> None:
        commit = repo.commit(revision)
        files = repo.files(commit)
        if "json" in (self.headers.get("Content-Type") or ""):
            paths = json.loads(self.body).get("paths", [])
        else:
            paths = parse_qs(self.body.decode()).get("paths", [])
        out = [self.tree_entry(files[path]) for path in paths if path in files]
        for path in paths:
            if any(name.startswith(path.rstrip("/") + "/") for name in files):
                out.append(self.folder(commit, path.rstrip("/")))
        self.answer(out)

    def refs(self, repo: Repository) -> None:
        def listed(refs: dict[str, str], prefix: str) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"{prefix}/{n}", "targetCommit": c} for n, c in refs.items()]

        branches, tags = listed(repo.branches, "refs/heads"), listed(repo.tags, "refs/tags")
        self.answer({"branches": branches, "converts": [], "tags": tags, "pullRequests": []})

    def commits(self, repo: Repository, revision: str) -> None:
        self.answer(
            [
                {
                    **{k: entry[k] for k in ("id", "title", "date")},
                    "message": "",
                    "authors": [{"user": "lab"}],
                }
                for entry in repo.history(repo.commit(revision))
            ]
        )

    def auth_check(self, repo: Repository) -> None:
        self.check_access(repo)
        self.answer({})

    def resolve(self, repo: Repository, revision: str, path: str) -> None:
        self.check_access(repo)
        commit = repo.commit(revision)
        file = repo.files(commit).get(path)
        if file is None:
            raise HubError(404, "Entry not found", "EntryNotFound", X_Repo_Commit=commit)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if file.sha256:
            headers |= {"X-Linked-ETag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
        start, end, status = 0, file.size, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted:
            start = int(wanted[1])
            end = min(int(wanted[2]) + 1, file.size) if wanted[2] else file.size
            if start >= end:
                raise HubError(416, "Range not satisfiable", Content_Range=f"bytes */{file.size}")
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
            status = 206
        if self.command == "GET" and file.path is None:
            raise HubError(503, f"{path} is only declared: nobody is meant to download it")
        self.start(status, {**headers, "Content-Length": str(end - start)})
        if self.command == "GET" and file.path is not None:
            self.send_file(file.path, start, end)

    def lab_faults(self) -> None:
        """Read or replace the faults; ?client=NETWORK: only those for its addresses."""
        client = next(iter(self.query.get("client", ())), None)
        if self.command == "PUT":
            try:
                wanted = json.loads(self.body)
                if isinstance(wanted, dict):
                    wanted = [wanted] if wanted else []
                rules = [Fault.parse(rule) for rule in wanted]
            except (ValueError, TypeError) as error:
                raise HubError(400, f"expected a fault or a list of faults as JSON: {error}") from error
            self.server.faults.set(*rules, client=client)
        elif self.command == "DELETE":
            self.server.faults.set(client=client)
        self.answer([asdict(rule) for rule in self.server.faults.list()])

    def lab_requests(self) -> None:
        if self.command == "DELETE":
            self.server.requests.clear()
        self.answer([entry for entry in list(self.server.requests) if "status" in entry])

    # Answers.

    def start(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, data: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        base = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.start(status, {**base, **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)
            self.sent += len(body)

    def answer_error(self, error: HubError) -> None:
        headers = {**error.headers, "X-Error-Message": str(error)}
        if error.code:
            headers["X-Error-Code"] = error.code
        self.answer({"error": str(error)}, error.status, headers)

    def send_file(self, path: Path, start: int, end: int) -> None:
        fault = self.fault or Fault()
        limit = end if fault.drop_after is None else min(end, start + fault.drop_after)
        # A slow transfer is slow throughout, not in bursts of a chunk.
        rate = fault.bytes_per_second
        chunk = CHUNK if rate is None else max(1, min(CHUNK, rate // 20))
        begun = time.monotonic()
        with path.open("rb") as file:
            file.seek(start)
            while start + self.sent < limit:
                self.wfile.write(file.read(min(chunk, limit - start - self.sent)))
                self.sent += min(chunk, limit - start - self.sent)
                if rate is not None:
                    time.sleep(max(0.0, begun + self.sent / rate - time.monotonic()))
        if limit < end:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        if not self.server.quiet:
            super().log_message(format, *args)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a directory as the Hugging Face hub would.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    # The first process of a container has no default action for SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Hub(arguments.root, arguments.host, arguments.port, quiet=False).serve_forever()


if __name__ == "__main__":
    main()
