# SPDX-License-Identifier: Apache-2.0
"""A bundle that was made where registry and hub are serves tokens in a network that has no way to them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.model_manifest import (
    MODELS,
    commit_of,
    statement,
    statement_text,
)

from .conftest import Lab, Run, container, reset_lab
from .helpers import STANDIN, completion, deployment
from .offline import cut_off, nobody_asked, publish_other, routes_restored
from .test_distribution import ENGINE

OTHER = "registry.lab:5000/lab/standin:air-gap"
BUNDLES = "/var/tmp/bundles"
SUITE = """\
schema: 1
suite: talks
title: Conversations
repeats: {warmups: 0, blocks: 1, most: 1, half_width: 0.5}
percentiles: [50]
groups:
  - title: Conversations
    kind: serve
    dataset: sharegpt
    load: {concurrency: [2]}
    num_prompts: {count: 8}
    args: {temperature: 0}
"""
CHATS = [{"conversations": [{"value": f"Count to {at}"}, {"value": "one two " * 8}]} for at in range(2_000)]
FILES = {
    "chats.json": json.dumps(CHATS).encode(),
    "talks.yml": SUITE.encode(),
    "wheels/one.whl": random.Random(1).randbytes(40_000),
    "wheels/two.whl": random.Random(2).randbytes(5_000),
}
PLACED = {
    "benchmark_suite/talks.yml": "talks.yml",
    "benchmark_suite_args/chats.json": "chats.json",
    "accuracy_lm_eval_packages/wheels/one.whl": "wheels/one.whl",
    "accuracy_lm_eval_packages/wheels/two.whl": "wheels/two.whl",
}
"""The files beside the inventory inside, with their names outside."""
LAYER_BYTES = 3_000_000
WITHOUT_OFFLINE = (
    "for id in $(docker ps -q); do docker exec $id sh -c 'cat /proc/[0-9]*/environ' | tr '\\0' '\\n' "
    "| grep -qx HF_HUB_OFFLINE=1 || echo $id; done"
)
"""Names the containers that could ask a hub."""


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


def _make_model(lab: Lab, host: str) -> str:
    """Make a model of the downloaded one on a host, as quantize.yml leaves it, and return its path."""
    fresh = f"{MODELS}/made/fresh"
    lab.on(
        host, f"mkdir -p {fresh} && cp -rL /var/lib/instinct-fleet/hf/hub/models--*/snapshots/*/. {fresh}/"
    )
    lines = lab.on(host, f"cd {fresh} && find . -type f -printf '%P\\n' | xargs sha256sum").splitlines()
    files = {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}
    commit = commit_of(files)
    command = ["docker", "exec", "-i", container(host), "tee", f"{fresh}/manifest.json"]
    subprocess.run(
        command,
        check=True,
        input=statement_text(statement("made", files)).encode(),
        stdout=subprocess.DEVNULL,
    )
    lab.on(host, f"mv {fresh} {MODELS}/made/{commit}")
    config = lab.inventory / "models/made"
    config.mkdir(parents=True)
    (config / "config.json").write_text(
        lab.on(host, f"cat {MODELS}/made/{commit}/config.json"), encoding="utf-8"
    )
    return f"{MODELS}/made/{commit}"


def _write_files(outside: Path) -> None:
    for name, content in FILES.items():
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_bytes(content)


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

    outside = tmp_path / "outside"
    _write_files(outside)
    named = {
        "benchmark_suite": str(outside / "talks.yml"),
        "benchmark_suite_args": {"dataset_path": str(outside / "chats.json")},
        "accuracy_lm_eval_packages": str(outside / "wheels"),
    }
    lab.write_vars(vllm_deployments=[first])
    _ok(lab.play("deploy", "--limit", maker))
    path = _make_model(lab, maker)
    made = deployment(
        name="made", model=path, model_config="models/made", served_model_name="made", port=8100, gpus=[1]
    )
    lab.write_vars(vllm_deployments=[first, made], **named)
    _ok(lab.play("deploy", "--limit", maker))
    whole = _create(lab, maker, "first")
    lab.write_vars(vllm_deployments=[second, made], **named)
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
    shutil.rmtree(outside)
    shutil.rmtree(lab.inventory / "models")
    inside = lab.inventory / ".bundle_files"
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
    assert "Copy fleet.lock.json from the bundle" in refused.out
    lock.write_text(lab.on(maker, f"cat {BUNDLES}/second/fleet.lock.json"), encoding="utf-8")
    refused = lab.play("bundle_load", *place)
    assert refused.rc != 0
    assert "Load the earlier bundle" in refused.out
    refused = lab.play("deploy")
    assert refused.rc != 0
    assert "Load a bundle that has it" in refused.out

    _ok(lab.play("bundle_verify", *place))
    first_place = ["--limit", maker, "-e", f"bundle_dir={BUNDLES}/first"]
    wanted = {f"place {path}", *(f"place {name} in {inside}" for name in PLACED)}
    assert wanted <= set(_ok(lab.play("bundle_load", *first_place, "--check")).actions()[maker])
    assert not inside.exists()
    assert lab.killed_at("Write, verify or load the bundle", "bundle_load", *first_place)
    for bundle in ("first", "second"):
        loaded = _ok(lab.play("bundle_load", "--limit", maker, "-e", f"bundle_dir={BUNDLES}/{bundle}"))
        assert f"accuracy_lm_eval_packages: {inside}/accuracy_lm_eval_packages/wheels" in loaded.out
        for name, source in PLACED.items():
            assert (inside / name).read_bytes() == FILES[source]
        for more in ([], ["--check"]):
            again = _ok(
                lab.play("bundle_load", "--limit", maker, "-e", f"bundle_dir={BUNDLES}/{bundle}", *more)
            )
            assert again.changed() == []
    made["model_config"] = ".bundle_files/vllm_deployments/made"
    brought = {
        "benchmark_suite": str(inside / "benchmark_suite/talks.yml"),
        "benchmark_suite_args": {"dataset_path": str(inside / "benchmark_suite_args/chats.json")},
    }
    lab.write_vars(vllm_deployments=[second, made], air_gap=True, **brought)
    run = _ok(lab.play("deploy"))
    assert "ignoring" not in run.out
    assert {(item["seed"], item["origin"]) for item in run.plan()["transfers"]} == {(maker, None)}
    for host in lab.hosts:
        assert completion(lab, host, 8000)["usage"]["completion_tokens"]
        assert completion(lab, host, 8100, "made")["usage"]["completion_tokens"]
        assert len(lab.on(host, "docker ps -q").split()) == 2
        assert lab.on(host, WITHOUT_OFFLINE) == ""
    assert any(one.startswith("link lab/tiny-llama@") for one in run.actions()[other])
    assert _ok(lab.play("deploy")).changed() == []
    _ok(lab.play("benchmark", "-e", "benchmark_run=inside"))
    rows = (lab.tmp / "results/inside/runs.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {(row["host"], row["suite"], row["cell"]) for row in map(json.loads, rows)}
    assert measured == {(host, "talks", "sharegpt-c2") for host in lab.hosts}
    nobody_asked(lab)
