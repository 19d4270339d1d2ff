# SPDX-License-Identifier: Apache-2.0
"""The commands of AMD's documents, each with the deployment that expresses it: read, planned and compared.

The data is tests/data/commands, the test tests/unit/repository/test_commands.py; docs/commands.md is made from it by
tests/commands_table.py.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.bench_clients.bench_args import (
    bench_table,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.env_vars import check_env
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import Finding, errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import FlagTable
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import (
    HostInput,
    build_fleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.benchmark import bench_command
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.oracles.vllm_parser import check_argv
from tests.worlds.plan_world import COMMIT, DIGEST, GIB, catalog, gpus, knowledge, state, workshop

DATA = Path(__file__).with_name("data") / "commands"
Items = dict[str, Any]
"""What a command sets: flags ("--name"), variables, options of docker ("docker --name") by name."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
GPUS, PROGRAM = "GPUs", "program"
_ASSIGNMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_DOCKER_VALUES = ("group-add", "security-opt", "cap-add", "device", "e", "v", "ipc", "network", "shm-size")
_MI355X = {"device_id": 0x75A3, "gfx": "gfx950", "vram": 294896 << 20}


@dataclass(frozen=True)
class Difference:
    """Something that a document's command and the toolkit's do not share. None: it is not there."""

    what: str
    document: Any
    toolkit: Any
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for equal differences."""
        return (
            self.what,
            json.dumps(self.document, sort_keys=True),
            json.dumps(self.toolkit, sort_keys=True),
        )


@dataclass(frozen=True)
class Entry:
    """One entry of a document; see the head of tests/data/commands/own.yml."""

    document: Mapping[str, Any]
    data: Mapping[str, Any] = field(hash=False)

    @property
    def id(self) -> str:
        """Unique among all entries."""
        return str(self.data["id"])

    @property
    def vllm(self) -> str:
        """The vLLM version that the command is for."""
        return str(self.data.get("vllm", self.document["vllm"]))

    @property
    def commands(self) -> list[str]:
        """The document's command lines, one per instance that is compared."""
        found = self.data["command"]
        return [found] if isinstance(found, str) else list(found)

    @property
    def deployments(self) -> list[dict[str, Any]]:
        """vllm_deployments."""
        given = self.data.get("deployments") or [self.data["deployment"]]
        image = self.data.get("image", self.document["image"])
        extra = {} if any("build" in item for item in given) else {"image": image}
        return [{"name": item["name"], "model": item["model"], **extra, **item} for item in given]

    @property
    def host(self) -> dict[str, Any]:
        """The host's other variables."""
        return dict(self.data.get("host", {}))

    @property
    def benchmark(self) -> tuple[str, dict[str, Any]] | None:
        """Kind and arguments of the benchmark role, for a benchmark's command."""
        found = self.data.get("benchmark")
        return next(iter(found.items())) if found else None

    @property
    def on_the_host(self) -> Mapping[str, Any] | None:
        """What the host's plan has, for a command that is not vLLM's."""
        found: Mapping[str, Any] | None = self.data.get("plan")
        return found

    @property
    def refused(self) -> str:
        """A part of the planner's message, where it refuses what the document shows."""
        return str(self.data.get("refused", ""))

    @property
    def differences(self) -> list[Difference]:
        """The differences that are known, with their reasons."""
        return [
            Difference(str(item["what"]), item.get("document"), item.get("toolkit"), item["reason"])
            for item in self.data.get("differences", ())
        ]


@functools.cache
def documents() -> tuple[Mapping[str, Any], ...]:
    """The documents with their entries, in the order of own.yml."""
    return tuple(_yaml(f"{name}.yml") for name in own()["documents"])


@functools.cache
def own() -> Mapping[str, Any]:
    """What the toolkit always sets or leaves out, with the reasons."""
    return _yaml("own.yml")


def entries() -> list[Entry]:
    """All commands."""
    return [Entry(document, item) for document in documents() for item in document["commands"]]


def _yaml(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text(encoding="utf-8"))


def lock_of(entry: Entry) -> Lock:
    software = ImageSoftware(*(entry.document["software"].get(key) for key in ("vllm", "platform", "rocm")),
                             None, None, None)  # fmt: skip
    images, pins = {}, {}
    for item in entry.deployments:
        if "image" in item:
            known = None if entry.document.get("tag_known") else software
            images[item["image"]] = ImagePin(DIGEST, 20 * GIB, known)
        if not item["model"].startswith("/"):
            # Sizes are those of the catalogue's shapes of well-known models.
            pins[model_key("", item["model"], item.get("revision", "main"))] = ModelPin(COMMIT, (), None)
    return Lock(images, pins)


def _node(entry: Entry, name: str) -> dict[str, Any]:
    found = gpus(entry.data.get("observed", "SPX"))
    if entry.data.get("gpu", entry.document["gpu"]) == "MI355X":
        found = gpus(device_id=_MI355X["device_id"])
        for gpu in found:
            gpu.update(gfx=_MI355X["gfx"], vram_total=_MI355X["vram"])
            gpu["partitions"] = [{**part, "memory_bytes": _MI355X["vram"]} for part in gpu["partitions"]]
    disk = [
        {"path": path, "free_bytes": 4000 * GIB, "total_bytes": 4000 * GIB, "device": number}
        for number, path in enumerate(("/var/lib/docker", "/var/lib/instinct-fleet/hf", "/data"))
    ]
    return state(gpus=found, hostname=name, disk=disk)


PLANS: dict[str, FleetPlan] = {}
"""What was planned before, by the entry and its changes: the page and several tests ask for the same."""


def plan(entry: Entry, **changes: Any) -> FleetPlan:
    """The entry's plan by the real planner, made once. FleetError when it refuses."""
    key = json.dumps(
        [entry.id, entry.vllm, entry.deployments, entry.host, changes], sort_keys=True, default=str
    )
    if key not in PLANS:
        PLANS[key] = _plan(entry, **changes)
    return PLANS[key]


def _plan(entry: Entry, **changes: Any) -> FleetPlan:
    nodes = entry.deployments[0].get("nodes", 1)
    names = [f"mi300x-{number}" for number in range(1, nodes + 1)]
    wanted = [{**item, **changes} for item in entry.deployments]
    shared = {"vllm_deployments": wanted, **entry.host}
    inputs = {name: HostInput(shared, _node(entry, name), "") for name in names}
    fleet = build_fleet(inputs, {"all": names}, catalog(), False)
    return plan_fleet(check_fleet(fleet), workshop(lock_of(entry)))


def instances(found: FleetPlan) -> list[dict[str, Any]]:
    """Its instances in plan.json's form, by host, deployment and index."""
    hosts = json.loads(json.dumps(found.to_json()))["hosts"].values()
    return [instance for host in hosts for instance in host["instances"]]


@dataclass(frozen=True)
class Compared:
    """A document's command beside the toolkit's."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    found: tuple[Difference, ...]
    wrong: tuple[Finding, ...]


def compare(entry: Entry) -> list[Compared]:
    """Every command of an entry with what the plan has in its place."""
    made = instances(plan(entry))
    return [_compared(entry, text, made[number]) for number, text in enumerate(entry.commands)]


def _compared(entry: Entry, text: str, instance: Mapping[str, Any]) -> Compared:
    serve = knowledge().flags(entry.vllm)
    env: dict[str, str] = dict(instance["env"])
    words = shlex.split(text)
    argv, table = list(instance["argv"]), serve
    if words[:2] == ["docker", "run"]:
        there = _docker(words[2:])
        here = {**env, **_body(instance["server"]["container"])}
        return Compared(tuple(argv), env, _different(there, here, "docker"), ())
    if entry.benchmark:
        kind, arguments = entry.benchmark
        argv = list(bench_command(knowledge(), kind, instance, arguments).argv)
        client = " ".join(argv[:3]) if argv[0] == "vllm" else "benchmarks/" + Path(argv[1]).name
        found = bench_table(serve, knowledge().bench, client)
        if found is None:
            raise AssertionError(f"vLLM {entry.vllm} has no {client}")
        table = found
    there = _items(words, table)
    here = {**env, **_items(argv, table), GPUS: ",".join(str(gpu) for gpu in instance["gpus"])}
    if GPUS not in there:
        del here[GPUS]
    wrong = errors(check_argv(table, argv[3:] if entry.benchmark and argv[0] == "vllm" else argv[2:]))
    wrong += errors(check_env(knowledge().env(entry.vllm), name, value) for name, value in env.items())
    return Compared(tuple(argv), env, _different(there, here, "bench" if entry.benchmark else "serve"), wrong)


def _different(there: Items, here: Items, kind: str) -> tuple[Difference, ...]:
    """What differs, but for what the toolkit always does (own.yml)."""
    added, replaced = own()["added"][kind], own()["replaced"][kind]
    names = [*there, *(name for name in here if name not in there)]
    return tuple(
        Difference(name, there.get(name), here.get(name))
        for name in names
        if there.get(name) != here.get(name)
        and not (name not in there and name in added)
        and not (name in there and name in replaced)
    )


def _items(words: Sequence[str], table: FlagTable) -> Items:
    """Variables in front, the program, flags by the names that the release's parser gives them."""
    found: Items = {}
    position = 0
    while position < len(words) and (words[position] == "export" or _ASSIGNMENT.fullmatch(words[position])):
        match = _ASSIGNMENT.fullmatch(words[position])
        if match:
            found[GPUS if match[1] in VISIBLE else match[1]] = match[2]
        position += 1
    program: list[str] = []
    while position < len(words) and not words[position].startswith("-"):
        program.append(words[position])
        position += 1
    if program[:2] == ["vllm", "serve"] and len(program) == 3:
        found["model"] = program.pop()
    if program:
        found[PROGRAM] = " ".join(program).replace("python3", "python")
    for name, values in _groups(words[position:], table):
        found[name] = values
    return found


def _groups(words: Sequence[str], table: FlagTable) -> list[tuple[str, Any]]:
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            name, sign, value = word.partition("=")
            groups.append((name, [value] if sign else []))
        else:
            groups[-1][1].append(word)
    found: list[tuple[str, Any]] = []
    for name, values in groups:
        hit = table.get(name)
        if hit and not hit[0].takes_value:
            found.append((hit[0].name, hit[1]))
        else:
            bare = hit[0].name if hit else name.replace("_", "-")
            plain = [_plain(value) for value in values]
            found.append((bare, True if not plain else plain[0] if len(plain) == 1 else plain))
    return found


def _plain(text: str) -> Any:
    """JSON as what it means, so that spaces and 1.0 for 1 do not count."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _docker(words: Sequence[str]) -> Items:
    """Options of docker run; those that may be repeated as sorted lists."""
    found: dict[str, list[str]] = {}
    env: dict[str, str] = {}
    position = 0
    while words[position].startswith("-"):
        name, sign, value = words[position].lstrip("-").partition("=")
        position += 1
        if not sign and name in _DOCKER_VALUES:
            value = words[position]
            position += 1
        if name == "e":
            key, _, text = value.partition("=")
            env[key] = text
        else:
            dashes = "-" if name in ("it", "v") else "--"
            found.setdefault(f"docker {dashes}{name}", []).append(value)
    items: Items = {name: ",".join(sorted(values)) or "on" for name, values in found.items()}
    return {**env, **items, "docker image": words[position]}


def _body(body: Mapping[str, Any]) -> Items:
    """A create body of the Docker Engine as options of docker run."""
    host = body["HostConfig"]
    items = {
        "docker --ipc": host["IpcMode"],
        "docker --network": host["NetworkMode"],
        "docker --group-add": ",".join(sorted(host["GroupAdd"])),
        "docker --cap-add": ",".join(sorted(host["CapAdd"])),
        "docker --security-opt": ",".join(sorted(host["SecurityOpt"])),
        "docker --device": ",".join(item["PathOnHost"] for item in host["Devices"]),
        "docker -v": ",".join(host["Binds"]),
        "docker image": body["Image"].partition("@")[0],
    }
    if host.get("Privileged"):
        items["docker --privileged"] = "on"
    return items


def items_of(entry: Entry, instance: Mapping[str, Any]) -> Items:
    """Flags and variables of a planned instance, by the names that the release's parser gives them."""
    return {**instance["env"], **_items(instance["argv"], knowledge().flags(entry.vllm))}


def recipes_add(entry: Entry) -> dict[str, list[str]]:
    """What a plan with recipes sets besides, as --flag value and NAME=value, by the source that says so."""
    plain, rich = instances(plan(entry))[0], instances(plan(entry, recipes=True))[0]
    before, after = (items_of(entry, item) for item in (plain, rich))
    sources = {item["setting"]: str(item["source"]).partition("#")[0] for item in rich["reasons"]}
    found: dict[str, list[str]] = {}
    for name, value in sorted(after.items(), key=lambda item: not item[0].startswith("-")):
        if before.get(name) != value:
            text = json.dumps(value) if isinstance(value, dict) else value
            said = name if value is True else f"{name} {text}" if name.startswith("-") else f"{name}={text}"
            found.setdefault(sources.get(name, ""), []).append(said)
    return found


def with_reasons(entry: Entry, found: Sequence[Difference]) -> list[Difference]:
    """The differences with the reasons that the entry gives; "" where it gives none."""
    reasons = {item.key: item.reason for item in entry.differences}
    return [replace(item, reason=reasons.get(item.key, "")) for item in found]
