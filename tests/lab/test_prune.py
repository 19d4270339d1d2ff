# SPDX-License-Identifier: Apache-2.0
"""Seven generations of image and weights: after prune.yml each kept one serves again without registry and hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lab import models
from lab.hub.make import Commit, write_repo

from .conftest import LAB, Lab, Run
from .helpers import completion, deployment
from .offline import cut_off, nobody_asked, publish_other, routes_restored
from .test_distribution import ENGINE, STORE

MADE, KEPT = 7, range(3, 8)
SHARED = (2, 6)
"""Generations whose bytes the hosts pass on to each other, so that a content store has them too."""
REPO, TAG = "lab/seven-llama", "seven"
IMAGE = f"registry.lab:5000/lab/standin:{TAG}"


@dataclass(frozen=True)
class Released:
    """What a generation was made of: an image by its digest, weights by their commit."""

    digest: str
    commit: str


def _release(number: int) -> Released:
    """Move the image's tag and the model's main branch on: to another layer, and to other weights."""
    digest, _bytes = publish_other(TAG, 100_000, seed=number)
    commits = [Commit(f"Revision {at}", models.tiny_llama(at)) for at in range(1, number + 1)]
    return Released(digest, write_repo(LAB.hub, REPO, commits)[-1])


def _deploy(lab: Lab, number: int) -> Released:
    made = _release(number)
    lab.write_vars(
        vllm_deployments=[deployment(image=IMAGE, model=REPO, name="seven")],
        fetch_from="peers" if number in SHARED else "origin",
    )
    run = lab.play("deploy", "-e", "refresh=true")
    assert run.rc == 0, run.out[-4000:]
    assert "ignoring" not in run.out
    assert bool(run.plan().get("transfers")) is (number in SHARED)
    return made


@pytest.fixture
def no_route(fresh_lab: Lab) -> Iterator[Lab]:
    """A lab that is cut off from registry and hub later: what is deployed comes from there."""
    for host in fresh_lab.hosts:
        fresh_lab.on(host, ENGINE)
    with routes_restored():
        yield fresh_lab


def _prune(lab: Lab, *args: str) -> Run:
    run = lab.play("prune", *args)
    assert run.rc == 0, run.out[-4000:]
    return run


def _there(lab: Lab, host: str) -> tuple[set[str], set[str], str]:
    """The digests of the deployment's images, the commits of its model, and what a store has manifests of."""
    images = lab.on(host, "docker images --digests --format '{{.Repository}} {{.Digest}}'")
    digests = {
        line.split()[1] for line in images.splitlines() if line.startswith("registry.lab:5000/lab/standin ")
    }
    hub = f"/var/lib/instinct-fleet/hf/hub/models--{REPO.replace('/', '--')}"
    commits = lab.on(host, f"ls {hub}/snapshots").split()
    markers = lab.on(host, f"ls {hub}/.instinct-fleet").split()
    assert {f"{commit}.json" for commit in commits} == set(markers)
    return digests, set(commits), lab.on(host, f"cat {STORE}/manifests/*.json 2> /dev/null; true")


def _serves(lab: Lab, host: str, number: int, made: Released) -> None:
    """The host's instance is that generation by its record, image and weights, and generates tokens."""
    assert completion(lab, host, 8000, REPO)["usage"]["completion_tokens"]
    (found,) = json.loads(lab.on(host, "docker inspect instinct-seven-0"))
    (image,) = json.loads(lab.on(host, f"docker inspect {found['Image']}"))
    assert made.digest in {name.partition("@")[2] for name in image["RepoDigests"]}
    assert f"--revision {made.commit}" in lab.on(host, "docker top instinct-seven-0 -eo pid,args")
    record = json.loads(lab.on(host, f"cat /etc/instinct-fleet/generations/seven/{number}.json"))
    assert [item["spec_hash"] for item in record["members"]] == [
        found["Config"]["Labels"]["instinct-fleet.spec"]
    ]


@pytest.mark.deep
def test_every_kept_generation_rolls_back_without_a_network(no_route: Lab) -> None:
    lab = no_route
    made = {number: _deploy(lab, number) for number in range(1, MADE + 1)}
    assert (
        len({item.digest for item in made.values()}) == len({item.commit for item in made.values()}) == MADE
    )
    every, kept = set(made.values()), {made[number] for number in KEPT}
    for host in lab.hosts:
        assert lab.on(host, "ls /etc/instinct-fleet/generations/seven").split() == [
            *(f"{number}.json" for number in KEPT), "summary.json"
        ]  # fmt: skip
        digests, commits, _stored = _there(lab, host)
        assert digests == {item.digest for item in every}
        assert commits == {item.commit for item in every}

    shown = _prune(lab)
    assert "would remove" in shown.out
    for gone in every - kept:
        assert shown.out.count(f"weights {REPO}@{gone.commit[:12]}") == len(lab.hosts)
    assert not any(item.commit[:12] in shown.out for item in kept)
    for host in lab.hosts:
        assert {item.digest for item in every} == _there(lab, host)[0]  # it only said so
    _prune(lab, "-e", "apply=true")
    for host in lab.hosts:
        digests, commits, stored = _there(lab, host)
        assert digests == {item.digest for item in kept}
        assert commits == {item.commit for item in kept}
        assert not any(item.commit in stored or item.digest in stored for item in every - kept)
        assert made[6].commit in stored
    assert "would remove" not in _prune(lab).out

    cut_off(lab)
    for number in (1, 2):
        refused = lab.play("rollback", "-e", "deployment=seven", "-e", f"generation={number}")
        assert refused.rc != 0
        assert f"generation {number} was pruned" in refused.out
        assert "Kept: 3 (" in refused.out
    for number in KEPT:
        run = lab.play(
            "rollback", "-e", "deployment=seven", "-e", f"generation={number}", "-e", "rollout_soak=0"
        )
        assert run.rc == 0, run.out[-5000:]
        for host in lab.hosts:
            _serves(lab, host, number, made[number])
    assert "would remove" not in _prune(lab).out
    nobody_asked(lab)
