# SPDX-License-Identifier: Apache-2.0
"""A node with seven generations of a deployment, of which five are kept, and with what each of them was made of."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.record import (
    StoreUpdate,
    change,
)
from ansible_collections.instinct.fleet.plugins.module_utils.generation_store.store_writer import (
    GenerationWriter,
)
from ansible_collections.instinct.fleet.plugins.module_utils.host.prune_node import PrunePaths
from ansible_collections.instinct.fleet.plugins.module_utils.observe.engine import read_images
from ansible_collections.instinct.fleet.plugins.module_utils.observe.generations import read_generations
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.observe.storage import read_models
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import (
    Manifest,
    ManifestFile,
    manifest_of,
)

from tests.worlds.fake_docker import FakeDocker
from tests.worlds.plan_world import deployment, plan, state

MADE, KEPT = 7, 5
REPO = "a/b"
OTHERS = "ubuntu:24.04"


def hexed(content: bytes) -> str:
    return sha256(content).hexdigest()


def digest(number: int) -> str:
    return f"sha256:{hexed(b'manifest %d' % number)}"


def commit(number: int) -> str:
    return f"{number:x}" * 40


def weights(number: int) -> dict[str, bytes]:
    """Its files; all generations share one, neighbours another."""
    own = b"weights %d" % number
    return {
        "tokenizer.json": b"tokenizer",
        "config.json": b"config %d" % (number // 2),
        "model.safetensors": own,
    }


def layers(number: int) -> tuple[bytes, ...]:
    return (b"base", b"layer %d" % number, b"manifest %d" % number)


@dataclass
class PrunedNode:
    """The node. kept: the generations that stay."""

    top: Path
    docker: FakeDocker

    def __post_init__(self) -> None:
        self.node = PrunePaths((str(self.top / "hf"),), str(self.top / "etc"), str(self.top / "var"))
        self.store, self.hub = self.node.store, self.top / "hf/hub/models--a--b"
        self.kept = range(MADE - KEPT + 1, MADE + 1)
        for number in range(1, MADE + 1):
            self._generation(number)
        self.docker.add_image(OTHERS)
        self._write(self.top / "var/bench/run-1/llama-0/result.json", b"1")
        self._write(self.top / "var/dataset/12ab/chats.json", b"2")
        self._write(self.top / f"var/images/{'f' * 64}.json", b"{}")  # of an image that is gone
        self.store.put(b"loose", hexed(b"loose"))
        self.begun = self._began(f"image {digest(MADE)}", b"begun")
        self._began(f"image {digest(99)}", b"dropped")

    def _write(self, path: Path, content: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def _recorded(self, name: str, contents: dict[str, bytes]) -> Manifest:
        for content in contents.values():
            self.store.put(content, hexed(content))
        found = manifest_of(
            name, [ManifestFile(path, len(item), hexed(item)) for path, item in contents.items()]
        )
        self.store.record(found)
        return found

    def _began(self, name: str, content: bytes) -> Manifest:
        """A transfer that was interrupted: one blob is there, another one in part."""
        files = [ManifestFile("1", len(content), hexed(content)), ManifestFile("2", 99, hexed(content * 2))]
        found = manifest_of(name, files)
        self.store.put(content, hexed(content))
        (Path(self.store.incoming(found)) / hexed(content * 2)).write_bytes(b"a part")
        return found

    def _generation(self, number: int) -> None:
        image = self.docker.add_image(f"r.example/vllm:{number}", f"r.example/vllm@{digest(number)}")
        self._write(self.top / f"var/images/{image['Id'].partition(':')[2]}.json", b"{}")
        self._recorded(
            f"image {digest(number)}", {f"layer {at}": item for at, item in enumerate(layers(number))}
        )
        self._recorded(f"model {REPO}@{commit(number)} 12ab", weights(number))
        for name, content in weights(number).items():
            blob = self.hub / "blobs" / hexed(content)
            blob.parent.mkdir(parents=True, exist_ok=True)
            if not blob.exists():
                os.link(self.store.path(hexed(content)), blob)
            link = self.hub / "snapshots" / commit(number) / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        self._write(self.hub / f"refs/v{number}", commit(number).encode())
        self._write(self.hub / f".instinct-fleet/{commit(number)}.json", self._marker(number))
        self._write(self.top / f"var/cache/llama-{number}/triton/x", b"cache")
        self._record(number)

    def _marker(self, number: int) -> bytes:
        files = {name: len(content) for name, content in weights(number).items()}
        found = {"repo": REPO, "revision": "main", "commit": commit(number), "files": files}
        return json.dumps({**found, "bytes": sum(files.values()), "exclude": [], "include": []}).encode()

    def _record(self, number: int) -> None:
        """Record it as a deploy does; the sixth drops the first, and so on."""
        host = copy.deepcopy(plan({"n1": state()}, [deployment(name="llama")]).to_json()["hosts"]["n1"])
        (record,) = host["generations"]
        record |= {"generation": number, "image": f"r.example/vllm@{digest(number)}"}
        record["weights"] = [[REPO, commit(number)]]
        for item in (*record["members"], *host["instances"]):
            item["name"] = f"llama-{number}"
        update = StoreUpdate(record=host["generations"], instances=host["instances"], keep=KEPT)
        change(GenerationWriter(self.node.state_dir), update, False)

    # ---- what is to be seen ------------------------------------------------------------------------------

    def lost(self) -> list[str]:
        """What a kept generation lacks to be started without a network."""
        names = {item.name for item in self.store.manifests()}
        images = {name for image in self.docker.images.values() for name in image["RepoDigests"]}
        found, records = [], GenerationWriter(self.node.state_dir)
        for number in self.kept:
            members = records.generation("llama", number)["members"]
            there = {
                "record": [item["name"] for item in members] == [f"llama-{number}"]
                and bool(members[0]["server"]),
                "image": f"r.example/vllm@{digest(number)}" in images,
                "stored image": f"image {digest(number)}" in names,
                "stored model": f"model {REPO}@{commit(number)} 12ab" in names,
                "marker": (self.hub / f".instinct-fleet/{commit(number)}.json").exists(),
                "ref": (self.hub / f"refs/v{number}").exists(),
                "cache": (self.top / f"var/cache/llama-{number}/triton/x").exists(),
            }
            for name, content in weights(number).items():
                path = self.hub / "snapshots" / commit(number) / name
                there[name] = path.exists() and path.read_bytes() == content
            wanted = [hexed(item) for item in (*layers(number), *weights(number).values())]
            there["blobs"] = all(self.store.size(name) is not None for name in wanted)
            found += [f"{what} of generation {number}" for what, is_there in there.items() if not is_there]
        if (
            self.store.unfinished().get(self.begun.id) != self.begun
            or self.store.size(hexed(b"begun")) is None
        ):
            found.append("what came of an interrupted transfer of a kept generation")
        return [*found, *self.store.verify()]

    def everything(self) -> dict[str, list[str]]:
        """The names of all that is there."""
        here: dict[str, list[str]] = {}
        for top in ("hf", "var"):
            for directory, _unused, names in os.walk(self.top / top):
                if names:
                    here[os.path.relpath(directory, self.top)] = sorted(names)
        here["images"] = sorted({name for image in self.docker.images.values() for name in image["RepoTags"]})
        return here

    def wanted(self) -> dict[str, list[str]]:
        """The names of all that is to be there after pruning."""
        files = {hexed(item) for number in self.kept for item in weights(number).values()}
        blobs = files | {hexed(item) for number in self.kept for item in layers(number)} | {hexed(b"begun")}
        ids = {str(image["Id"]).partition(":")[2] for name, image in self.docker.images.items()
               if name.startswith("r.example/vllm@") and name.partition("@")[2] in map(digest, self.kept)}  # fmt: skip
        kept = {
            "hf/hub/models--a--b/blobs": sorted(files),
            "hf/hub/models--a--b/refs": [f"v{number}" for number in self.kept],
            "hf/hub/models--a--b/.instinct-fleet": [f"{commit(number)}.json" for number in self.kept],
            "var/images": sorted(f"{name}.json" for name in ids),
            "var/store/blobs/sha256": sorted(blobs),
            f"var/store/incoming/{self.begun.id}": sorted([hexed(b"begun" * 2), "manifest.json"]),
            "images": sorted([OTHERS, *(f"r.example/vllm:{number}" for number in self.kept)]),
        }
        for number in self.kept:
            kept[f"hf/hub/models--a--b/snapshots/{commit(number)}"] = sorted(weights(number))
            kept[f"var/cache/llama-{number}/triton"] = ["x"]
        names = {item.name: item.id for item in self.store.manifests()}
        wanted = [f"image {digest(number)}" for number in self.kept]
        wanted += [f"model {REPO}@{commit(number)} 12ab" for number in self.kept]
        kept["var/store/manifests"] = sorted(f"{names[name]}.json" for name in wanted)
        return kept

    def observed(self) -> dict[str, Any]:
        """What node_state reads of it, as of a node on which all is where it usually is."""
        source = Source()
        entries = {image["Id"]: image for image in self.docker.images.values()}
        models, _unused = read_models(source, list(self.node.caches))
        return state(
            images=read_images(source, self.node.data_dir, list(entries.values())),
            models=[{**item, "cache_dir": "/var/lib/instinct-fleet/hf"} for item in models],
            generations=read_generations(source, self.node.state_dir),
        )

    def given(self) -> str:
        """What the program of a test needs to know of the node, as JSON."""
        params: dict[str, Any] = {"cache_dirs": list(self.node.caches), "docker_socket": self.docker.path}
        places = {
            "state_dir": self.node.state_dir,
            "data_dir": self.node.data_dir,
            "lock": str(self.top / "lock"),
        }
        return json.dumps({"params": params, **places})
