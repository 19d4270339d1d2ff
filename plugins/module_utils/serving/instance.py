# SPDX-License-Identifier: Apache-2.0
"""An instance as it should be, as it is, and the steps between the two. Pure, but for look()."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..common import paths
from ..common.files import read_text
from ..common.module_main import NodeError
from ..credentials.env_files import env_assignments, mask_env
from ..credentials.node_key import node_key
from ..docker.client import ALIVE, DockerClient, Json
from ..docker.lifecycle import own_policy, policy_action, present_policy
from ..engines.names import NAME
from ..engines.restart_policy import NEVER
from ..observe import supervisor
from .attention import ATTENTION_FILE, ExpectedBackend, parse_expected
from .health import ServerAddress
from .start_lines import START_FILE

LABELS = ("instinct-fleet.instance", "instinct-fleet.deployment", "instinct-fleet.spec")
SPEC_FILE = "spec.sha256"
LOG_FILE = "startup.log"
READY_FILE = "ready"  # the id of the container that generated tokens; node_state reads it


@dataclass(frozen=True)
class TextFile:
    """A file of the artefact."""

    text: str
    mode: int


@dataclass(frozen=True)
class ServerSpec:
    """SERVER of the plan. Only name and stop_timeout are set for a server that is merely stopped.

    headless: it works for a server on another host, and has no port. attention: the backend that its log should
    prove; None: nothing is expected. secrets: the fingerprint of its secret variables, "" for none. memory:
    recorded with what it measures.
    """

    name: str
    deployment: str
    directory: str
    cache_directory: str
    files: Mapping[str, TextFile]
    spec_hash: str
    body: Json
    endpoint: ServerAddress
    headless: bool
    ready_timeout: int
    stop_timeout: int
    attention: ExpectedBackend | None = None
    secrets: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)

    @property
    def container(self) -> str:
        """Return the container's name."""
        return paths.container_name(self.name)

    @property
    def next_container(self) -> str:
        """Return the name of its successor, from its creation until the old one is gone."""
        return self.container + ".next"


@dataclass(frozen=True)
class ObservedServer:
    """What is there: the container's Docker state ("" for none), what it was made from, and its restarts.

    `successor`: whether a container of an interrupted replacement is left. policy: its restart policy; own_policy: the
    one that it has while it should run, "" if that is left to Docker.
    """

    successor: bool
    status: str
    spec: str
    image: str
    restarts: int
    contents: Mapping[str, str]
    modes: Mapping[str, int]
    gave_up: bool = False  # its supervisor runs, and no longer tries
    policy: str = NEVER
    own_policy: str = ""

    @property
    def alive(self) -> bool:
        """Return whether it has, or may soon have, processes."""
        return self.status in ALIVE


@dataclass(frozen=True)
class ServerSteps:
    """What to do with one server. `replace`: make the successor, and remove the old one once it has stopped.

    `tidy`: first remove a successor that an earlier run left. `keep_down`: before the stop, keep Docker from starting
    it again. `policy`: the restart policy to give back, "" for none.
    """

    tidy: bool = False
    replace: bool = False
    keep_down: bool = False
    stop: bool = False
    write: tuple[str, ...] = ()
    create: bool = False
    policy: str = ""
    start: bool = False


# ---- reading the parameters --------------------------------------------------------------------------


def parse_server(data: Mapping[str, Any], state: str) -> ServerSpec:
    """Return a server from the module's parameters; the wanted state says what must be there. Raise NodeError."""
    name = data.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise NodeError(
            f"servers: the name {name!r} is not a lower-case word of letters, digits and hyphens."
        )
    needed = {
        "present": ("directory", "files", "spec_hash", "container", "port", "served_model"),
        "started": ("port", "served_model"),
        "stopped": (),
    }[state]
    for key in needed:
        if not data.get(key):
            raise NodeError(f"servers[{name}]: {key} is missing, but state {state} needs it.")
    directory = str(data.get("directory") or paths.instance_dir(name))
    if not directory.startswith("/") or os.path.basename(directory) != name:
        raise NodeError(
            f"servers[{name}]: the directory {directory!r} is not an absolute path that ends in {name}."
        )
    files = {file: _text_file(name, file, item) for file, item in sorted((data.get("files") or {}).items())}
    body = dict(data.get("container") or {})
    labels = {**(body.get("Labels") or {}), **dict(zip(LABELS, _label_values(data, name)))}
    api_key = env_assignments(files["env"].text).get("VLLM_API_KEY", "") if "env" in files else ""
    api_key = api_key or node_key()
    return ServerSpec(
        name=name,
        deployment=str(data.get("deployment") or ""),
        directory=directory,
        cache_directory=str(data.get("cache_directory") or ""),
        files=files,
        spec_hash=str(data.get("spec_hash") or ""),
        body={**body, "Labels": labels},
        endpoint=ServerAddress(
            str(data.get("host") or "127.0.0.1"),
            _number(data, "port", 0),
            str(data.get("served_model") or ""),
            api_key,
        ),
        headless=bool(data.get("headless")),
        ready_timeout=_number(data, "ready_timeout", 1800),
        stop_timeout=_number(data, "stop_timeout", 120),
        attention=parse_expected(name, data.get("attention")),
        secrets=_mark(name, data.get("secrets")),
        memory=data.get("memory") or {},
    )


def _label_values(data: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    return name, str(data.get("deployment") or ""), str(data.get("spec_hash") or "")


def _number(data: Mapping[str, Any], key: str, default: int) -> int:
    value = data.get(key)
    if value is None:
        return default
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise NodeError(f"servers[{data.get('name')}]: {key} is {value!r}, not a whole number.") from error


def _mark(server: str, value: Any) -> str:
    """Return the value as a fingerprint, which is the name of a file."""
    if value and not re.fullmatch(r"[0-9a-f]{8,64}", str(value)):
        raise NodeError(f"servers[{server}]: secrets is {value!r}, not a fingerprint.")
    return str(value or "")


def _text_file(server: str, name: str, item: Any) -> TextFile:
    if "/" in name or name in (SPEC_FILE, LOG_FILE, READY_FILE, ATTENTION_FILE, START_FILE):
        raise NodeError(f"servers[{server}]: {name!r} is not the name of an artefact's file.")
    try:
        return TextFile(str(item["text"]), int(str(item["mode"]), 8))
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(
            f'servers[{server}]: the file {name} needs text and mode (octal digits, as text: "0600").'
        ) from error


# ---- looking and deciding ----------------------------------------------------------------------------


def observe_server(client: DockerClient, server: ServerSpec) -> ObservedServer:
    """Return what is there of a server."""
    contents: dict[str, str] = {}
    modes: dict[str, int] = {}
    for name in [*server.files, SPEC_FILE]:
        path = os.path.join(server.directory, name)
        text = read_text(path)
        if text is not None:
            contents[name], modes[name] = text, os.stat(path).st_mode & 0o7777
    container = client.container(server.container)
    successor = client.container(server.next_container) is not None
    if container is None:
        return ObservedServer(successor, "", "", "", 0, contents, modes)
    config = container["Config"]
    said = supervisor.read_state(cache_of(server))
    return ObservedServer(
        successor=successor,
        status=str(container["State"]["Status"]),
        spec=str((config.get("Labels") or {}).get("instinct-fleet.spec") or ""),
        image=str(config.get("Image") or ""),
        restarts=int(container.get("RestartCount") or 0),
        contents=contents,
        modes=modes,
        gave_up=said is not None and said.gave_up,
        policy=present_policy(container),
        own_policy=own_policy(container),
    )


def cache_of(server: ServerSpec) -> str:
    """Return the instance's writable directory on the node."""
    return server.cache_directory or paths.cache_dir(server.name)


def wanted_files(server: ServerSpec) -> dict[str, TextFile]:
    """Return the artefact, and the file with its hash; that one is written last, so it vouches for the others."""
    return {**server.files, SPEC_FILE: TextFile(server.spec_hash + "\n", 0o600)}


def decide(server: ServerSpec, observed: ObservedServer, state: str) -> ServerSteps:
    """Return the steps from what is there to the wanted state."""
    steps = replace(_decide(server, observed, state), tidy=observed.successor)
    if not observed.own_policy:
        return steps
    keep_down = observed.policy != NEVER and (steps.stop or state == "stopped")
    stays = state != "stopped" and not steps.replace
    present = NEVER if keep_down else observed.policy
    policy = observed.own_policy if stays and present != observed.own_policy else ""
    return replace(steps, keep_down=keep_down, policy=policy)


def _decide(server: ServerSpec, observed: ObservedServer, state: str) -> ServerSteps:
    if state == "stopped":
        return ServerSteps(stop=observed.alive)
    healthy = observed.status == "running" and not observed.gave_up
    if state == "started":
        return ServerSteps(stop=observed.alive and not healthy, start=not healthy)
    write = tuple(
        name
        for name, file in wanted_files(server).items()
        if observed.contents.get(name) != file.text or observed.modes.get(name) != file.mode
    )
    if not observed.status:
        return ServerSteps(write=write, create=True, start=True)
    if (observed.spec, observed.image) != (
        server.spec_hash,
        str(server.body.get("Image")),
    ) or observed.status == "dead":
        return ServerSteps(replace=True, stop=observed.alive, write=write, start=True)
    if healthy and not write:
        return ServerSteps()
    return ServerSteps(stop=observed.alive, write=write, start=True)


@dataclass(frozen=True)
class ServerActions:
    """The texts of a server's steps, by the phase in which they are done over all servers."""

    prepare: tuple[str, ...]
    stop: tuple[str, ...]
    change: tuple[str, ...]


def actions_of(server: ServerSpec, steps: ServerSteps) -> ServerActions:
    """Return the steps as the result lists them: requests to Docker, and files."""
    name, successor = server.container, server.next_container
    files = wanted_files(server)
    change = [f"POST /containers/create?name={name}"] if steps.create else []
    if steps.replace:
        change += [f"DELETE /containers/{name}", f"POST /containers/{successor}/rename?name={name}"]
    if steps.policy:
        change.append(policy_action(name, steps.policy))
    if steps.start:
        change.append(f"POST /containers/{name}/start")
    prepare = [f"DELETE /containers/{successor} (left by an earlier run)"] if steps.tidy else []
    prepare += [f"write {os.path.join(server.directory, f)} (mode {files[f].mode:04o})" for f in steps.write]
    prepare += [f"POST /containers/create?name={successor}"] if steps.replace else []
    stop = [policy_action(name, NEVER)] if steps.keep_down else []
    stop += [f"POST /containers/{name}/stop?t={server.stop_timeout}"] if steps.stop else []
    return ServerActions(
        prepare=tuple(prepare),
        stop=tuple(stop),
        change=tuple(change),
    )


def diff_of(server: ServerSpec, observed: ObservedServer, steps: ServerSteps, state: str) -> list[Json]:
    """Return before and after, for people: the container's state and the files, secrets masked."""
    if steps == ServerSteps():
        return []
    spec = observed.spec if state != "present" else server.spec_hash
    before = f"{observed.status}, spec {observed.spec[:12]}" if observed.status else "absent"
    after = f"{'exited' if state == 'stopped' else 'running'}, spec {spec[:12]}"
    if steps.policy or (steps.keep_down and not steps.start):
        before += f", restart policy {observed.policy}"
        after += f", restart policy {steps.policy or NEVER}"
    found: list[Json] = [_pair(f"container {server.container}", before + "\n", after + "\n")]
    for name in steps.write:
        path = os.path.join(server.directory, name)
        old, new = observed.contents.get(name, ""), wanted_files(server)[name].text
        if name == "env":
            old, new = mask_env(old), mask_env(new)
        mode, wanted = observed.modes.get(name), wanted_files(server)[name].mode
        if old == new and mode != wanted:
            old, new = f"mode {mode or 0:04o}\n", f"mode {wanted:04o}\n"
        found.append(_pair(path, old, new))
    return found


def _pair(what: str, before: str, after: str) -> Json:
    return {"before_header": what, "after_header": what, "before": before, "after": after}
