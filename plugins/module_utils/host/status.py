# SPDX-License-Identifier: Apache-2.0
"""Read what runs on a node: containers, what their supervisors say, /metrics twice, and the load balancer's servers.

It judges nothing: plugin_utils/operations/status does, on the control node.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..common import paths
from ..common.files import read_text
from ..common.module_main import NodeError
from ..common.redact import Redactor
from ..credentials.env_files import env_secrets
from ..docker.client import SOCKET, DockerClient, Json, Query
from ..docker.logs import container_log
from ..endpoint.installed import Balancer
from ..engines.failure_signatures import SIGNATURES
from ..engines.failures import classify
from ..observe.engine import read_images
from ..observe.generations import read_generations
from ..observe.held_bytes import held_bytes
from ..observe.source import Source
from ..observe.supervisor_file import supervisor_file
from ..serving.attention import ATTENTION_FILE, Proof
from ..serving.instance import LABELS, READY_FILE

INTERVAL = 1.0
"""Seconds between the two looks at /metrics that give tokens/s."""
TIMEOUT = 5.0
"""Seconds for an answer of an instance."""
ANSWER_BYTES = 8 << 20  # of one answer at most; vLLM's metrics have some hundred kilobytes
LOG_LINES = 2000

# Sums over the engines of an instance, but the cache's use, of which the fullest counts. Two names for that: up to
# 0.10.2, and since 0.9.2.
SUMS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "generated": "vllm:generation_tokens_total",
    "prompted": "vllm:prompt_tokens_total",
}
KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


@dataclass(frozen=True)
class StatusPaths:
    """Where things are on a node."""

    state_dir: str = paths.STATE_DIR
    data_dir: str = paths.DATA_DIR
    docker_socket: str = SOCKET
    interval: float = INTERVAL
    cache_dirs: tuple[str, ...] = ()  # of weights; the data directory's own if none are named


def read_node(node: StatusPaths) -> dict[str, Any]:
    """Return everything. What could not be read is in `problems`, as a sentence."""
    problems: list[str] = []
    found = _containers(node, problems)
    instances = [_instance(node, name, container) for name, container in sorted(found.items())]
    _ask_all(node, instances)
    return {
        "schema": 1,
        "now": time.time(),
        "instances": instances,
        "generations": _generations(node, problems),
        "balancer": _balancer(node, problems),
        "disks": _disks(node, found.values()),
        "held_bytes": _held(node),
        "problems": problems,
    }


def _disks(node: StatusPaths, containers: Iterable[Json]) -> list[dict[str, Any]]:
    """Return how full the file systems are that images, weights, caches and records fill, each once."""
    mounts = [str(item.get("Source") or "") for found in containers for item in found.get("Mounts") or ()]
    found: dict[int, dict[str, Any]] = {}
    for path in (
        paths.DOCKER_ROOT,
        f"{node.data_dir}/store",
        f"{node.data_dir}/hf",
        node.data_dir,
        node.state_dir,
        *mounts,
    ):
        with contextlib.suppress(OSError):  # not there
            device, space = os.stat(path).st_dev, os.statvfs(path)
            used = space.f_blocks - space.f_bfree
            # As df has it: root's reserve counts as used up.
            percent = math.ceil(100 * used / max(1, used + space.f_bavail))
            entry = {"path": path, "percent": percent, "free_bytes": space.f_bavail * space.f_frsize}
            found.setdefault(device, entry)
    return list(found.values())


def _held(node: StatusPaths) -> int | None:
    """Return the bytes that store_quota limits, of images, weights and content store; None without Docker."""
    client = DockerClient(node.docker_socket)
    try:
        images = read_images(Source(), node.data_dir, client.json("GET", "/images/json"))
    except NodeError:
        return None
    finally:
        client.close()
    own = sum(int(item["bytes"] or 0) for item in images if item["software"] is not None or item.get("build"))
    return own + held_bytes(node.data_dir, list(node.cache_dirs) or [f"{node.data_dir}/hf"])


# ---- containers --------------------------------------------------------------------------------------


def _containers(node: StatusPaths, problems: list[str]) -> dict[str, Json]:
    """Return the instances' containers as Docker inspects them, by instance; a successor that waits does not count."""
    client = DockerClient(node.docker_socket)
    query: Query = {"all": True, "filters": json.dumps({"label": [LABELS[0]]})}
    found = {}
    try:
        for entry in client.json("GET", "/containers/json", query):
            container = client.container(entry["Id"])
            name = container["Config"]["Labels"][LABELS[0]] if container else ""
            if container and container["Name"] == f"/{paths.container_name(name)}":
                found[name] = container
    except NodeError as error:
        if _has_instances(node):  # a load balancer's host needs no engine
            problems.append(str(error))
    finally:
        client.close()
    return found


def _has_instances(node: StatusPaths) -> bool:
    try:
        return bool(os.listdir(f"{node.state_dir}/instances"))
    except OSError:
        return False


def _instance(node: StatusPaths, name: str, container: Json) -> dict[str, Any]:
    directory = f"{node.state_dir}/instances/{name}"
    config, state = container["Config"], container["State"]
    redact = Redactor(env_secrets(read_text(f"{directory}/env") or ""))
    supervisor = redact.data(supervisor_file(f"{node.data_dir}/cache/{name}"))
    software = read_json(
        f"{node.data_dir}/{paths.software_file(container['Image'])[len(paths.DATA_DIR) + 1 :]}"
    )
    proof = Proof.from_text(read_text(f"{directory}/{ATTENTION_FILE}") or "", container["Id"])
    found = {
        "name": name,
        "deployment": config["Labels"].get(LABELS[1]) or "",
        "status": state["Status"],
        "exit_code": state["ExitCode"],
        "oom_killed": bool(state.get("OOMKilled")),
        "started": seconds(state.get("StartedAt")),
        "finished": seconds(state.get("FinishedAt")),
        "restarts": int(container.get("RestartCount") or 0),
        "spec_hash": config["Labels"].get(LABELS[2]) or "",
        "image": config.get("Image") or "",
        "vllm": (software or {}).get("vllm"),
        "endpoint": endpoint_of(read_text(f"{directory}/serve.sh") or ""),
        "ready": (read_text(f"{directory}/{READY_FILE}") or "").strip() == container["Id"],
        "attention": {"planned": proof.planned, "running": list(proof.running)} if proof else None,
        "start": read_json(f"{directory}/start.json"),
        "supervisor": supervisor,
        "health": None,
        "metrics": None,
        "failure": None,
    }
    if not (supervisor or {}).get("failures") and _failed(found):
        client = DockerClient(node.docker_socket)
        try:
            text = container_log(client, paths.container_name(name), LOG_LINES)
        except NodeError:
            text = ""
        finally:
            client.close()
        finding = classify(SIGNATURES, text, found["exit_code"], found["oom_killed"])
        found["failure"] = redact.data(
            {"kind": finding.kind, "line": finding.line, "next_step": finding.next_step}
        )
    return found


def _failed(found: Mapping[str, Any]) -> bool:
    """Return whether a container ended by itself, so that its log says why; 143 and 0 are ends that were asked for."""
    return found["status"] == "restarting" or (
        found["status"] in ("exited", "dead") and found["exit_code"] not in (0, 143)
    )


def endpoint_of(serve_sh: str) -> dict[str, Any] | None:
    """Return where an instance listens by its launch script, as this node reaches it; None for one without a port."""
    try:
        words = shlex.split(serve_sh, comments=True)
    except ValueError:
        return None
    if "serve" in words:  # the supervisor's own options come before
        words = words[words.index("serve") :]
    options: dict[str, str] = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--host", "--port"):
            options[name] = value if equals else "".join(words[place + 1 : place + 2])
    if not options.get("--port", "").isdigit():
        return None
    host = options.get("--host", "0.0.0.0")
    return {"host": {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), "port": int(options["--port"])}


def read_json(path: str) -> dict[str, Any] | None:
    """Return a file's JSON object; None if the file is missing or holds something else."""
    try:
        data = json.loads(read_text(path) or "null")
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def seconds(stamp: Any) -> float | None:
    """Return Docker's time stamp as seconds since the epoch; None for the year 1, which stands for never."""
    import calendar

    try:
        parsed = time.strptime(str(stamp)[:19], "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return None
    return float(calendar.timegm(parsed)) if parsed.tm_year > 1 else None


# ---- /health and /metrics ----------------------------------------------------------------------------


def _ask_all(node: StatusPaths, instances: Sequence[dict[str, Any]]) -> None:
    asked = [item for item in instances if item["status"] == "running" and item["endpoint"]]
    if asked:
        with ThreadPoolExecutor(max_workers=len(asked)) as pool:
            list(pool.map(lambda item: _ask(node, item), asked))


def _ask(node: StatusPaths, instance: dict[str, Any]) -> None:
    """Note /health (0: no answer), and what /metrics says of load and speed."""
    where = instance["endpoint"]
    instance["health"] = get(where, "/health")[0]
    if instance["health"] == 0:
        return
    begun = time.monotonic()
    first = read_metrics(get(where, "/metrics")[1])
    if first is None:
        return
    time.sleep(max(0.0, node.interval - (time.monotonic() - begun)))
    again = time.monotonic()
    second = read_metrics(get(where, "/metrics")[1])
    instance["metrics"] = load_and_speed(first, second or first, again - begun)


def get(where: Mapping[str, Any], path: str) -> tuple[int, str]:
    """Return status and text of one request; 0 when there was no answer."""
    connection = http.client.HTTPConnection(where["host"], where["port"], timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{.*\})? ([0-9.eE+-]+)(?: \d+)?$", re.MULTILINE)


def read_metrics(text: str) -> dict[str, float] | None:
    """Return what the status needs of a /metrics page; None if the page is not vLLM's."""
    values: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        values.setdefault(name, []).append(float(value))
    if SUMS["running"] not in values:
        return None
    found = {key: sum(values.get(name, ())) for key, name in SUMS.items()}
    kv = next((values[name] for name in KV if name in values), None)
    if kv:
        found["kv"] = max(kv)
    return found


def load_and_speed(first: Mapping[str, float], second: Mapping[str, float], elapsed: float) -> dict[str, Any]:
    """Return the load at the second look, and tokens/s in between; None where a counter fell, as in a new process."""

    def rate(key: str) -> float | None:
        grown = second[key] - first[key]
        return round(grown / elapsed, 1) if grown >= 0 and elapsed > 0 else None

    return {
        "running": int(second["running"]),
        "waiting": int(second["waiting"]),
        "kv": round(second["kv"], 4) if "kv" in second else None,
        "tokens_per_second": rate("generated"),
        "prompt_tokens_per_second": rate("prompted"),
        "generated": int(second["generated"]),
    }


def _generations(node: StatusPaths, problems: list[str]) -> list[dict[str, Any]]:
    """Return what the node keeps of each deployment, as node_state has it, without command lines."""
    found = read_generations(Source(), node.state_dir)
    for item in found:
        if item["broken"]:
            problems.append(f"record of generations: {item['broken']}")
        item["kept"] = [{**kept, "command": "", "env": ""} for kept in item["kept"]]
    return found


# ---- the load balancer -------------------------------------------------------------------------------


def _balancer(node: StatusPaths, problems: list[str]) -> dict[str, Any] | None:
    """Return the servers of the load balancer on this host; None where there is none."""
    balancer = Balancer(f"{node.state_dir}/balancer", f"{node.data_dir}/balancer")
    try:
        servers = balancer.servers()
    except NodeError:
        return None
    found: dict[str, Any] = {"error": "", "servers": []}
    try:
        states, loads, out = (
            balancer.haproxy.servers(),
            balancer.loads(),
            balancer.drain_record.read(),
        )
    except NodeError as error:
        return {"error": str(error), "servers": [_listed(name, item) for name, item in servers.items()]}
    for name, item in servers.items():
        listed = _listed(name, item)
        if name in states and name in loads:
            load = loads[name]
            listed.update(state=states[name].state, up=states[name].up, check=load.check)
            listed["requests"] = load.running + load.waiting
        found["servers"].append({**listed, "out": out.get(name)})
    return found


def _listed(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("host", "instance", "deployment")
    return {
        "name": name,
        **{key: item[key] for key in keys},
        "state": "",
        "up": False,
        "check": "",
        "requests": 0,
    }
