# SPDX-License-Identifier: Apache-2.0
"""The lab's images: of nodes and services in this machine's Docker engine, of vLLM in the lab's registry."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO

import docker
from docker.errors import BuildError, ImageNotFound
from dxf import DXF
from dxf.exceptions import DXFUnauthorizedError
from requests.exceptions import HTTPError

from . import layers
from .config import ROOT, SERVICES_ADDRESS, Config, LabError

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"


def base(client: docker.DockerClient, config: Config) -> str:
    """Import the base layer as an image and return its tag."""
    (path,) = layers.base(config)
    tag = f"instinct-lab/base:{path.stem.removeprefix('base-')}"
    try:
        client.images.get(tag)
    except ImageNotFound:
        repository, _, version = tag.partition(":")
        client.api.import_image_from_file(str(path), repository=repository, tag=version)
    return tag


def build(client: docker.DockerClient, config: Config, name: str, context: dict[str, Path]) -> str:
    """Build lab/<name>/Dockerfile on the base image, unless an image of the same inputs exists; return its tag."""
    parent = base(client, config)
    tag = f"instinct-lab/{name}:{layers.content_key(parent, *context.values())}"
    try:
        client.images.get(tag)
        return tag
    except ImageNotFound:
        pass
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "context.tar"
        layers.directory_tar(context, archive)
        with archive.open("rb") as stream:
            try:
                client.images.build(
                    fileobj=stream, custom_context=True, tag=tag, buildargs={"BASE": parent}, network_mode="host",
                    rm=True, forcerm=True,
                )  # fmt: skip
            except BuildError as error:
                output = "".join(line.get("stream", line.get("error", "")) for line in error.build_log)
                raise LabError(f"building {tag} failed: {error}\n{output[-2000:]}") from error
    return tag


# The base's dpkg settings exclude documentation; the last directory is for embedding Python.
COMPILER = f"""\
ARG BASE
FROM ${{BASE}}
RUN apt-get update -q \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends {" ".join(layers.COMPILER_PACKAGES)} \\
 && apt-get clean && rm -rf /var/lib/apt/lists/* /usr/lib/python3.11/config-3.11-*
"""


def compiler(client: docker.DockerClient, config: Config) -> list[Path]:
    """Return the C++ compiler as a layer on the base."""
    key = layers.content_key(COMPILER, *map(str, layers.base(config)))
    return [layers.cached_file(config, "compiler", key, lambda path: _compiler(client, config, path))]


def _compiler(client: docker.DockerClient, config: Config, target: Path) -> None:
    """Install it with Docker, and extract the last layer of the image."""
    dockerfile, saved = target.with_name("Dockerfile"), target.with_name("saved.tar")
    dockerfile.write_text(COMPILER)
    tag = build(client, config, "compiler", {"Dockerfile": dockerfile})
    with saved.open("wb") as stream:
        stream.writelines(client.images.get(tag).save())
    with tarfile.open(saved) as tar:
        (entry,) = json.loads(_member(tar, "manifest.json").read())
        with target.open("wb") as stream:
            shutil.copyfileobj(_member(tar, entry["Layers"][-1]), stream)
    client.images.remove(tag)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    if found is None:
        raise LabError(f"{name} is not a file in what the Docker engine saved")
    return found


def node(client: docker.DockerClient, config: Config) -> str:
    here = ROOT / "lab/node"
    files = {path.name: path for path in sorted(here.iterdir()) if path.is_file()}
    return build(client, config, "node", {**files, "gpusim": ROOT / "lab/gpusim"})


def services(client: docker.DockerClient, config: Config) -> str:
    here = ROOT / "lab/services"
    files = {path.name: path for path in sorted(here.iterdir()) if path.is_file()}
    return build(client, config, "services", {**files, "hub": ROOT / "lab/hub"})


def publish(repository: str, tag: str, paths: list[Path], note: str) -> str:
    """Put layers into the registry as an image, unless the tag has them already; return the image's digest."""
    registry = DXF(f"{SERVICES_ADDRESS}:5000", repository, insecure=True)
    digests = [_digest(path) for path in paths]
    image = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"], "Cmd": ["/bin/bash"]},
            "rootfs": {"type": "layers", "diff_ids": digests},
            "history": [{"created": "2026-01-01T00:00:00Z", "comment": note} for _ in paths],
        },
        sort_keys=True,
    ).encode()
    config_digest = "sha256:" + hashlib.sha256(image).hexdigest()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(image), "digest": config_digest},
            "layers": [
                {"mediaType": LAYER, "size": path.stat().st_size, "digest": digest}
                for path, digest in zip(paths, digests, strict=True)
            ],
        }
    )
    digest = "sha256:" + hashlib.sha256(manifest.encode()).hexdigest()
    if _tag_digest(registry, tag) != digest:
        for path, layer in zip(paths, digests, strict=True):
            registry.push_blob(filename=str(path), digest=layer, check_exists=True)
        registry.push_blob(data=iter([image]), digest=config_digest, check_exists=True)
        registry.set_manifest(tag, manifest)
    return digest


def _tag_digest(registry: DXF, tag: str) -> str | None:
    try:
        return str(registry.head_manifest_and_response(tag)[0])
    except (HTTPError, DXFUnauthorizedError):
        return None


def _digest(path: Path) -> str:
    """Return the digest of a layer, cached in a file: hashing a gigabyte at every start is wasteful."""
    known = path.with_suffix(".digest")
    if not known.exists():
        known.write_text(layers.digest_of(path))
    return known.read_text()
