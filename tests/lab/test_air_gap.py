# SPDX-License-Identifier: Apache-2.0
"""A bundle that was made where registry and hub are serves tokens in a network that has no way to them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Lab, Run, container, reset_lab
from .helpers import STANDIN, completion, deployment
from .offline import cut_off, nobody_asked, publish_other, routes_restored
from .test_distribution import ENGINE

OTHER = "registry.lab:5000/lab/standin:air-gap"
BUNDLES = "/var/tmp/bundles"
LAYER_BYTES = 3_000_000
ENVIRONMENT = "docker exec $(docker ps -q) sh -c 'cat /proc/[0-9]*/environ' | tr '\\0' '\\n' | sort | uniq"


def _changed_weights(lab: Lab) -> int:
    """Bytes of the files that differ between the two commits of the model, by the hashes of the lock."""
    pins = json.loads((lab.inventory / "fleet.lock.json").read_text(encoding="utf-8"))["models"]
    old, new = (next(pin for key, pin in pins.items() if key.endswith(f"@{name}")) for name in ("v1", "main"))
    return sum(size for path, size in new["files"].items() if old["hashes"].get(path) != new["hashes"][path])


def _carry_out(host: str, to: Path) -> None:
    with to.open("wb") as file:
        command = ["docker", "exec", container(host), "tar", "-C", BUNDLES, "-cf", "-", "."]
        subprocess.run(command, check=True, stdout=file)


def _carry_in(host: str, source: Path) -> None:
    with source.open("rb") as file:
        command = ["docker", "exec", "-i", container(host), "bash", "-c"]
        subprocess.run([*command, f"mkdir -p {BUNDLES} && tar -C {BUNDLES} -xf -"], check=True, stdin=file)


@pytest.fixture
def no_route(fresh_lab: Lab) -> Iterator[Lab]:
    """A lab that is cut off from registry and hub later: the bundle is made before."""
    with routes_restored():
        yield fresh_lab


def _ok(run: Run) -> Run:
    assert run.rc == 0, run.out[-5000:]
    return run


def _create(lab: Lab, host: str, name: str, *more: str) -> int:
    """Make a bundle on a host, and return its size in bytes."""
    place = f"{BUNDLES}/{name}"
    _ok(
        lab.play(
            "bundle_create",
            "--limit",
            host,
            "-e",
            f"bundle_dir={place}",
            "-e",
            "bundle_volume_size=67108864",
            *more,
        )
    )
    return int(lab.on(host, f"cat {place}/* | wc -c"))


@pytest.mark.deep
def test_a_bundle_serves_where_no_registry_and_no_hub_is(no_route: Lab, tmp_path: Path) -> None:
    lab, (maker, other) = no_route, no_route.hosts[:2]
    first = deployment(image=STANDIN, revision="v1")
    second = deployment(image=OTHER)
    _digest, added = publish_other("air-gap", LAYER_BYTES)

    lab.write_vars(vllm_deployments=[first])
    _ok(lab.play("deploy", "--limit", maker))
    whole = _create(lab, maker, "first")
    lab.write_vars(vllm_deployments=[second])
    _ok(lab.play("deploy", "--limit", maker))
    base = f"bundle_base={BUNDLES}/first/bundle.json"
    difference = _create(lab, maker, "second", "-e", base)
    changed = added + _changed_weights(lab)
    print(
        f"first bundle {whole:,} bytes; changed {changed:,}, second {difference:,}: {difference / changed:.4f}"
    )
    assert LAYER_BYTES < changed < difference <= 1.01 * changed
    again = _ok(lab.play("bundle_create", "--limit", maker, "-e", f"bundle_dir={BUNDLES}/second", "-e", base,
                         "-e", "bundle_volume_size=67108864"))  # fmt: skip
    assert again.changed() == []
    _carry_out(maker, tmp_path / "carried.tar")

    reset_lab()
    for host in lab.hosts:
        lab.on(host, ENGINE)
    _carry_in(maker, tmp_path / "carried.tar")
    lock = lab.inventory / "fleet.lock.json"
    shutil.move(lock, tmp_path / "lock.json")
    lab.write_vars(vllm_deployments=[second], air_gap=True)
    cut_off(lab)

    place = ["--limit", maker, "-e", f"bundle_dir={BUNDLES}/second"]
    refused = lab.play("bundle_load", *place)
    assert refused.rc != 0
    assert "Copy fleet.lock.json of the bundle" in refused.out
    lock.write_text(lab.on(maker, f"cat {BUNDLES}/second/fleet.lock.json"), encoding="utf-8")
    refused = lab.play("bundle_load", *place)
    assert refused.rc != 0
    assert "Load the earlier bundle" in refused.out
    refused = lab.play("deploy")
    assert refused.rc != 0
    assert "Load a bundle that has it" in refused.out

    _ok(lab.play("bundle_verify", *place))
    first_place = ["--limit", maker, "-e", f"bundle_dir={BUNDLES}/first"]
    assert lab.killed_at("Write, verify or load the bundle", "bundle_load", *first_place)
    for name in ("first", "second"):
        _ok(lab.play("bundle_load", "--limit", maker, "-e", f"bundle_dir={BUNDLES}/{name}"))
    run = _ok(lab.play("deploy"))
    assert "ignoring" not in run.out
    assert {(item["seed"], item["origin"]) for item in run.plan()["transfers"]} == {(maker, None)}
    for host in lab.hosts:
        assert completion(lab, host, 8000)["usage"]["completion_tokens"]
        assert "HF_HUB_OFFLINE=1" in lab.on(host, ENVIRONMENT)
    assert any(one.startswith("link lab/tiny-llama@") for one in run.actions()[other])
    assert _ok(lab.play("deploy")).changed() == []
    nobody_asked(lab)
