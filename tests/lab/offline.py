# SPDX-License-Identifier: Apache-2.0
"""A network without registry and hub, in which packets to them are counted; and images that are a small layer apart."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import socket
import subprocess
import tarfile
from collections.abc import Iterator

from dxf import DXF

from lab.config import SERVICES_ADDRESS

from .conftest import LAB, Lab, reset_lab

GROUP = 54321
"""A group of the control node's processes in such a test alone, as others ask the same registry and hub meanwhile."""
PLACES = sorted({LAB.services_address, SERVICES_ADDRESS})


def publish_other(tag: str, layer_bytes: int, seed: int = 1) -> tuple[str, int]:
    """Give the stand-in's image another layer, under a tag of its own; return its digest and the bytes that are new."""
    registry = DXF(f"{SERVICES_ADDRESS}:5000", "lab/standin", insecure=True)
    manifest = json.loads(registry.get_manifest("latest"))
    config = json.loads(b"".join(registry.pull_blob(manifest["config"]["digest"])))
    tar = io.BytesIO()
    # A tar file with one file of random bytes: what cannot be compressed is sent as it is.
    with tarfile.open(fileobj=tar, mode="w") as stream:
        info = tarfile.TarInfo(tag)
        info.size = layer_bytes
        stream.addfile(info, io.BytesIO(random.Random(seed).randbytes(layer_bytes)))
    layer = tar.getvalue()
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config["rootfs"]["diff_ids"].append(digest)
    config["history"].append({"created": "2026-01-01T00:00:00Z", "comment": tag})
    text = json.dumps(config, sort_keys=True).encode()
    name = f"sha256:{hashlib.sha256(text).hexdigest()}"
    manifest["config"] = {**manifest["config"], "size": len(text), "digest": name}
    manifest["layers"].append({**manifest["layers"][0], "size": len(layer), "digest": digest})
    registry.push_blob(data=iter([layer]), digest=digest, check_exists=True)
    registry.push_blob(data=iter([text]), digest=name, check_exists=True)
    whole = json.dumps(manifest)
    registry.set_manifest(tag, whole)
    return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}", len(layer) + len(text) + len(whole)


def _rule(place: str, *owner: str) -> list[str]:
    return ["POSTROUTING", "-d", place, *owner, "-j", "DROP"]


@contextlib.contextmanager
def routes_restored() -> Iterator[None]:
    """Undo cut_off() in the end, whatever happened; the nodes are made anew."""
    own = os.getgid()
    try:
        yield
    finally:
        os.setregid(own, own)
        for place in PLACES:
            rule = _rule(place, "-m", "owner", "--gid-owner", str(GROUP))
            subprocess.run(["iptables", "-t", "mangle", "-D", *rule], check=False)
        reset_lab()


def cut_off(lab: Lab) -> None:
    """From now on nothing leaves the nodes, nor the control node's processes of GROUP, for registry and hub."""
    for place in PLACES:
        rule = _rule(place, "-m", "owner", "--gid-owner", str(GROUP))
        subprocess.run(["iptables", "-t", "mangle", "-I", *rule], check=True)
        for host in lab.hosts:
            lab.on(host, f"iptables -t mangle -I {' '.join(_rule(place))}")
    os.setregid(GROUP, GROUP)


def tried(lab: Lab) -> dict[str, int]:
    """Packets to registry and hub since they were cut off, of each node and of the control node."""
    listing = "iptables -t mangle -L POSTROUTING -v -n -x"
    texts = {host: lab.on(host, listing) for host in lab.hosts}
    texts["control node"] = subprocess.run(
        listing.split(), text=True, check=True, stdout=subprocess.PIPE
    ).stdout
    found = {}
    for name, text in texts.items():
        lines = [
            line.split()
            for line in text.splitlines()
            if "DROP" in line and any(f" {p} " in f"{line} " for p in PLACES)
        ]
        assert len(lines) >= len(PLACES), text
        found[name] = sum(int(line[0]) for line in lines)
    return found


def nobody_asked(lab: Lab) -> None:
    """No packet went to registry or hub since they were cut off; and one that is sent now is counted everywhere."""
    before = tried(lab)
    print(f"packets to registry and hub: {before}")
    assert set(before.values()) == {0}
    for host in lab.hosts:
        lab.on(host, f"timeout 2 bash -c '</dev/tcp/{LAB.services_address}/8080'", check=False)
    with contextlib.suppress(OSError):
        socket.create_connection((SERVICES_ADDRESS, 5000), timeout=2)
    assert min(tried(lab).values()) > 0
