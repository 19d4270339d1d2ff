# SPDX-License-Identifier: Apache-2.0
"""Read what is on a node and what refers to it, remove what prune.py names, and check that it is gone."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..common import paths
from ..common.disk_space import human_size
from ..common.files import read_text
from ..common.module_main import NodeError
from ..content.image_ref import BUILD_LABEL
from ..content.prune import (
    IMAGE,
    JOB,
    PROBE,
    STORED,
    TEXTS,
    WEIGHTS,
    FoundImage,
    FoundThings,
    Leftover,
    Roots,
    removals,
)
from ..disk.beneath import remove_below, remove_tree
from ..disk.hub_files import HubRepository
from ..disk.tree_bytes import file_bytes, tree_bytes
from ..docker import image_api
from ..docker.client import Conflict, DockerClient, Json, NotFound, Query
from ..leases.run_lock import Busy, run_lock
from ..observe.generations import read_generations
from ..observe.source import Source, listing
from ..serving.cache_marker import warm_key
from ..store.blobs import Store
from .prune_store import found_stored, remove_stored
from .prune_weights import found_weights, remove_weights

OURS = "instinct-fleet."  # every label of the toolkit begins so
FETCH, MEASURE, QUANTIZE = OURS + "fetch", OURS + "bench", OURS + "quantize"
LOCKS = ("vllm_image", "hf_model", "blob_fetch", "vllm_bench")  # modules that make what is removed here
LOCK_SECONDS = 30
_JOB = re.compile(r"[0-9a-f]{16}")
_COMMIT = re.compile(r"\b[0-9a-f]{40}\b")


@dataclass(frozen=True)
class PrunePaths:
    """Where things are on a node. caches: of weights."""

    caches: tuple[str, ...] = (paths.HF_CACHE,)
    state_dir: str = paths.STATE_DIR
    data_dir: str = paths.DATA_DIR

    @property
    def texts(self) -> str:
        """Return where calibration data of the control node are, while a job is prepared."""
        return f"{self.data_dir}/quantize/calibration"

    @property
    def jobs(self) -> str:
        """Return where quantizations work, each in a directory of its own."""
        return f"{self.data_dir}/models/.work"

    @property
    def store(self) -> Store:
        """Return the content store."""
        return Store(f"{self.data_dir}/store")


def converge(client: DockerClient, node: PrunePaths, kept: Roots, check: bool) -> dict[str, Any]:
    """Remove what nothing refers to; in check mode, only name it. kept: what the control node still refers to."""
    with contextlib.ExitStack() as held:
        for name in () if check else LOCKS:
            held.enter_context(run_lock(name, LOCK_SECONDS))
        quantizing = False
        try:
            held.enter_context(contextlib.nullcontext() if check else run_lock("model_quantize", 0))
        except Busy:  # for hours: the rest is removed anyway
            quantizing = True
        containers = node_containers(client)
        found = found_things(client, node, containers)
        roots = _roots(client, node, containers, kept, quantizing)
        todo = removals(found, roots)
        result = {
            "changed": bool(todo),
            "actions": [f"remove {item.kind} {item.target} ({human_size(item.bytes)})" for item in todo],
            "bytes": sum(item.bytes for item in todo),
            "diff": {
                "before": {"removable": [f"{item.kind} {item.target}" for item in todo]},
                "after": {"removable": []},
            },
        }
        if check:
            return result
        for item in todo:
            remove_leftover(client, node, item)
        left = found_things(client, node, containers).names
        still = [f"{item.kind} {item.target}" for item in todo if (item.kind, item.name) in left]
        if still:
            raise NodeError(f"Still there after removal: {', '.join(still)}. Run again.", **result)
        return result


# ---- reading -----------------------------------------------------------------------------------------


def node_containers(client: DockerClient) -> list[Json]:
    query: Query = {"all": True}
    return list(client.json("GET", "/containers/json", query))


def found_things(client: DockerClient, node: PrunePaths, containers: Sequence[Json]) -> FoundThings:
    used = {str(item.get("ImageID")) for item in containers}
    images = tuple(_image(node, item, used) for item in client.json("GET", "/images/json"))
    return FoundThings(
        images=images,
        probes=_probes(node, {item.id for item in images}),
        weights=tuple(item for cache_dir in node.caches for item in found_weights(cache_dir)),
        stored=tuple(found_stored(node.store)),
        caches=_sizes(f"{node.data_dir}/cache"),
        benches=_sizes(f"{node.data_dir}/bench"),
        datasets=_sizes(f"{node.data_dir}/dataset"),
        texts={name: tree_bytes(f"{node.texts}/{name}") for name in listing(node.texts)},
        jobs=_killed_jobs(node),
    )


def _image(node: PrunePaths, item: Json, used: set[str]) -> FoundImage:
    names = [*(item.get("RepoTags") or ()), *(item.get("RepoDigests") or ())]
    return FoundImage(
        id=str(item["Id"]),
        names=tuple(str(name) for name in names if not str(name).startswith("<none>")),
        bytes=int(item.get("Size") or 0),
        built=BUILD_LABEL in (item.get("Labels") or {}),
        probed=os.path.exists(_software(node, str(item["Id"]))),
        used=str(item["Id"]) in used,
    )


def _software(node: PrunePaths, image_id: str) -> str:
    return f"{node.data_dir}/{paths.software_file(image_id)[len(paths.DATA_DIR) + 1 :]}"


def _probes(node: PrunePaths, images: set[str]) -> dict[str, int]:
    """Return the files about images that are gone, with their sizes; a killed write's are among them."""
    known = {os.path.basename(_software(node, image_id)) for image_id in images}
    top = os.path.dirname(_software(node, ""))
    return {name: file_bytes(f"{top}/{name}") for name in listing(top) if name not in known}


def _sizes(directory: str) -> dict[str, int]:
    return {
        name: tree_bytes(f"{directory}/{name}")
        for name in listing(directory)
        if os.path.isdir(f"{directory}/{name}") and not os.path.islink(f"{directory}/{name}")
    }


def _killed_jobs(node: PrunePaths) -> dict[str, int]:
    """Return the bytes of quantizations without a report: those that have one are published by the next run."""
    return {
        name: tree_bytes(f"{node.jobs}/{name}")
        for name in listing(node.jobs)
        if _JOB.fullmatch(name) and not os.path.exists(f"{node.jobs}/{name}/report.json")
    }


def _roots(
    client: DockerClient, node: PrunePaths, containers: Sequence[Json], kept: Roots, quantizing: bool
) -> Roots:
    """Return what the control node refers to, and what this node's own records and containers refer to."""
    source = Source()
    generations = [item for record in _records(node, source) for item in record["kept"]]
    labelled = [dict(item.get("Labels") or {}) for item in containers]
    alive = [labels for labels, item in zip(labelled, containers) if item.get("State") == "running"]
    records = glob.glob(f"{glob.escape(node.state_dir)}/generations/*/[0-9]*.json")
    texts = [
        *_texts(f"{node.state_dir}/instances"),
        *(_servers(read_text(path) or "") for path in records),
    ]
    named = {str(name).lstrip("/") for item in containers for name in item.get("Names") or ()}
    instances = frozenset(
        [
            *(member["name"] for item in generations for member in item["members"]),
            *listing(f"{node.state_dir}/instances"),
            *(name[len("instinct-") :] for name in named if name.startswith("instinct-")),
            *(labels[OURS + "instance"] for labels in labelled if OURS + "instance" in labels),
        ]
    )
    return Roots(
        images=kept.images | {str(item["image"]) for item in generations},
        overrides=kept.overrides,
        pushed=kept.pushed,
        weights=kept.weights
        | {(str(repo), str(commit)) for item in generations for repo, commit in item.get("weights") or ()},
        commits=frozenset(_COMMIT.findall("\n".join(texts))),
        fetching=frozenset(_downloads(client, containers)),
        shared_caches=frozenset(cache for cache in node.caches if mounted_by_others(cache, containers)),
        instances=instances,
        cache_keys=frozenset(warm_key(f"{node.data_dir}/cache/{name}") for name in instances) - {""},
        measuring=any(MEASURE in labels for labels in alive),
        quantizing=quantizing or any(QUANTIZE in labels for labels in labelled),
    )


def _records(node: PrunePaths, source: Source) -> list[Json]:
    found = read_generations(source, node.state_dir)
    broken = [str(item["broken"]) for item in found if item["broken"]]
    if broken:
        raise NodeError(
            f"A record of generations cannot be read, so it is unknown what it keeps: {'; '.join(broken)}. Nothing was "
            "removed. Delete the named file (only that record is lost, nothing that runs), and run again."
        )
    return found


def _texts(top: str) -> Iterator[str]:
    for directory, _unused, names in os.walk(top):
        for name in names:
            yield read_text(os.path.join(directory, name)) or ""


def _servers(record: str) -> str:
    """Return what a generation starts; its description names the commit before it too. All of a damaged record."""
    try:
        return json.dumps([member["server"] for member in json.loads(record)["members"]])
    except (ValueError, KeyError, TypeError):
        return record


def _downloads(client: DockerClient, containers: Sequence[Json]) -> Iterator[str]:
    """Yield the repositories on which downloads work: their configuration is the last word of the command."""
    for item in containers:
        if FETCH in (item.get("Labels") or {}) and item.get("State") == "running":
            container = client.container(str(item["Id"])) or {"Config": {}}
            words = container["Config"].get("Entrypoint") or ["{}"]
            yield str(json.loads(words[-1]).get("repo") or "")


def mounted_by_others(cache: str, containers: Sequence[Json]) -> bool:
    for item in containers:
        if any(str(label).startswith(OURS) for label in item.get("Labels") or {}):
            continue
        for mount in item.get("Mounts") or ():
            source = str(mount.get("Source") or "").rstrip("/")
            if source == cache or f"{cache}/".startswith(f"{source}/") or source.startswith(f"{cache}/"):
                return True
    return False


# ---- removing ----------------------------------------------------------------------------------------


def remove_leftover(client: DockerClient, node: PrunePaths, item: Leftover) -> None:
    if item.kind == IMAGE:
        _remove_image(client, node, item)
    elif item.kind == PROBE:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(os.path.dirname(_software(node, "")), item.name))
    elif item.kind == STORED:
        remove_stored(node.store, item.name)
    elif item.kind == WEIGHTS:
        cache_dir, repo, commit = item.name.split("|")
        remove_weights(HubRepository(cache_dir, f"models--{repo.replace('/', '--')}"), commit)
    elif item.kind == TEXTS:
        remove_below(node.texts, item.name)
    else:
        top = node.jobs if item.kind == JOB else f"{node.data_dir}/{item.kind}"
        remove_tree(f"{top}/{item.name}")


def _remove_image(client: DockerClient, node: PrunePaths, item: Leftover) -> None:
    """Remove an image by its names: Docker refuses what a container uses meanwhile."""
    image = image_api.image(client, item.name) or {}
    names = [*(image.get("RepoTags") or ()), *(image.get("RepoDigests") or ()), item.name]
    try:
        for name in names:
            with contextlib.suppress(NotFound):  # it went with the name before
                client.json("DELETE", f"/images/{quote(str(name), safe='/:@')}")
    except Conflict as error:
        raise NodeError(f"Docker keeps image {item.target}: {error} Run again.", changed=True) from error
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_software(node, item.name))
