# SPDX-License-Identifier: Apache-2.0
"""An image built from a git ref with a Dockerfile and build arguments, as AMD's documents do it: once for all nodes."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
from dxf import DXF

from lab.config import SERVICES_ADDRESS

from .conftest import LAB, Lab, Run
from .helpers import STANDIN, completion, deployment, wait_for

# Two builds of it have other bytes: the layer is random.
REPOSITORY = f"""
set -e
rm -rf /srv/git && mkdir -p /srv/git/vllm && cd /srv/git/vllm
git init -q -b main .
printf 'ARG BASE={STANDIN}\\nFROM $BASE\\nARG USE_CYTHON=0\\nLABEL use_cython=$USE_CYTHON\\n' > Dockerfile.rocm
echo 'RUN head -c 3000000 /dev/urandom > /srv/random' >> Dockerfile.rocm
git add -A
git -c user.name=lab -c user.email=lab@example.com commit -qm image
git tag v1
"""
LISTENING = "ss -ltnH 'sport >= 29870 and sport < 30500'"
BUILD = {
    "repo": "file:///srv/git/vllm",
    "ref": "v1",
    "dockerfile": "docker/Dockerfile.rocm",  # it is at the root, and found there
    "args": {"USE_CYTHON": "1", "USE_CYTON": "2"},
    "tag": "local/vllm:v1",
}


def _want(lab: Lab, **args: str) -> None:
    lab.write_vars(
        vllm_deployments=[deployment(image=None, build={**BUILD, "args": {**BUILD["args"], **args}})]
    )


def _play(lab: Lab, name: str, *more: str) -> Run:
    run = lab.play(name, *more)
    assert run.rc == 0, run.out[-6000:]
    return run


def _image(lab: Lab, host: str) -> str:
    """The id of the image that was built last."""
    return lab.on(host, "docker images --no-trunc -q local/vllm | head -1").strip()


def _nothing_listens(lab: Lab, host: str) -> bool:
    return not lab.on(host, LISTENING).strip()


def _builders(run: Run) -> list[str]:
    return [host for host, actions in run.actions().items() if any("git clone" in item for item in actions)]


@pytest.mark.deep
def test_one_node_builds_and_the_others_get_its_bytes(fresh_lab: Lab) -> None:
    lab, (builder, *others) = fresh_lab, fresh_lab.hosts
    lab.on(builder, REPOSITORY)  # on one node alone: no other can build
    _want(lab)
    plan = _play(lab, "plan")
    assert f"{builder} builds it" in plan.out

    run = _play(lab, "build")
    assert _builders(run) == [builder]
    assert "USE_CYTON is not an ARG of Dockerfile.rocm" in run.out
    assert "Did you mean USE_CYTHON?" in run.out
    ids = {_image(lab, host) for host in lab.hosts}
    assert len(ids) == 1, ids
    (pin,) = json.loads((lab.inventory / "fleet.lock.json").read_text())["builds"].values()
    assert {pin["image_id"]} == ids
    assert pin["commit"] == lab.on(builder, "git -C /srv/git/vllm rev-parse v1").strip()
    assert list(pin["bases"]) == [STANDIN]
    assert "@sha256:" in pin["bases"][STANDIN]
    assert pin["software"]["vllm"]
    for host in others:
        assert "instinct-fleet/built" not in lab.on(host, "docker images"), "the name of the way is gone"

    again = _play(lab, "build")
    assert again.changed() == []
    assert "transfers" not in again.plan()
    served = _play(lab, "site", "--skip-tags", "benchmark")
    assert _builders(served) == []
    for host in lab.hosts:
        assert used_cython(lab, host) == "1"
        assert completion(lab, host, 8000)["usage"]["completion_tokens"] == 4
    assert _play(lab, "site", "--skip-tags", "benchmark").changed() == []

    # A node that lost it gets it from the one that has it, wherever it was built.
    lab.on(
        builder,
        "docker rm -f instinct-llama-0; docker rmi -f $(docker images -q local/vllm) && rm -rf /srv/git",
    )
    healed = _play(lab, "site", "--skip-tags", "benchmark")
    assert _builders(healed) == []
    assert {_image(lab, host) for host in lab.hosts} == ids

    # Another argument is another image, though the tag asked for is the same. Its ports may be the same ones, on which
    # the transfer of a moment ago says for five seconds yet that it is complete.
    for host in lab.hosts:
        wait_for("the end of the transfer", partial(_nothing_listens, lab, host))
    lab.on(builder, REPOSITORY)
    _want(lab, USE_CYTHON="2")
    changed = _play(lab, "site", "--skip-tags", "benchmark")
    assert _builders(changed) == [builder]
    for host in lab.hosts:
        assert used_cython(lab, host) == "2"


@pytest.mark.deep
def test_the_next_run_goes_on(fresh_lab: Lab) -> None:
    """What was built is not built again where it did not arrive."""
    lab, (builder, *others) = fresh_lab, fresh_lab.hosts
    lab.on(builder, REPOSITORY)
    _want(lab)
    broken = lab.play("build", "--skip-tags", "distribution")
    assert broken.rc != 0
    assert "is built on another node, and did not arrive here" in broken.out
    made = _image(lab, builder)
    assert made
    assert not _image(lab, others[0])
    run = _play(lab, "build")
    assert _builders(run) == []
    assert {_image(lab, host) for host in lab.hosts} == {made}


PUSHED = "registry.lab:5000/lab/built"


def _registry() -> DXF:
    return DXF(f"{SERVICES_ADDRESS}:5000", "lab/built", insecure=True)


def _forget_pushed() -> None:
    """Let the lab's registry lose what was pushed to it; what other repositories have of it stays."""
    shutil.rmtree(LAB.registry / "docker/registry/v2/repositories/lab/built", ignore_errors=True)


def _pushers(run: Run) -> list[str]:
    return [host for host, actions in run.actions().items() if any("/push?tag=" in item for item in actions)]


@pytest.mark.deep
def test_what_is_built_is_pushed_once_and_pulled_by_digest(fresh_lab: Lab) -> None:
    lab, (builder, *others) = fresh_lab, fresh_lab.hosts
    _forget_pushed()
    lab.on(builder, REPOSITORY)
    wanted = {**BUILD, "push_to": "hub.lab:8080/no/registry"}
    lab.write_vars(vllm_deployments=[deployment(image=None, build=wanted)], fetch_from="peers")
    refused = lab.play("build")
    assert refused.rc != 0
    assert "Registry hub.lab:8080 cannot be reached from this node" in refused.out
    assert "was not pushed to hub.lab:8080/no/registry" in refused.out
    made = _image(lab, builder)
    assert made, "what was built is kept"
    assert not any(_image(lab, host) for host in others)

    wanted["push_to"] = PUSHED
    lab.write_vars(vllm_deployments=[deployment(image=None, build=wanted)], fetch_from="peers")
    run = _play(lab, "build")
    assert (_builders(run), _pushers(run)) == ([], [builder])
    assert {_image(lab, host) for host in lab.hosts} == {made}
    (pin,) = json.loads((lab.inventory / "fleet.lock.json").read_text())["builds"].values()
    name, _at, digest = pin["pushed"]["image"].partition("@")
    assert name == PUSHED
    assert json.loads(_registry().get_manifest(digest))["config"]["digest"] == made
    for host in others:
        assert pin["pushed"]["image"] in lab.on(
            host, "docker images --digests --format '{{.Repository}}@{{.Digest}}'"
        )
    again = _play(lab, "build")
    assert again.changed() == []
    served = _play(lab, "site", "--skip-tags", "benchmark")
    assert (_builders(served), _pushers(served)) == ([], [])
    for host in lab.hosts:
        assert completion(lab, host, 8000)["usage"]["completion_tokens"] == 4

    # The registry lost it: build.yml looks, and who has the image pushes it; nobody else does anything.
    _forget_pushed()
    assert _play(lab, "site", "--skip-tags", "benchmark").changed() == []
    healed = _play(lab, "build")
    assert _pushers(healed) == [builder]
    assert {host for host, _unused in (item.split(": ", 1) for item in healed.changed())} == {builder}
    assert _registry().get_manifest(digest)
    assert _play(lab, "build").changed() == []


SLOW = """
cd /srv/git/vllm && printf 'RUN sleep 20\n' >> Dockerfile.rocm
git -c user.name=lab -c user.email=lab@example.com commit -qam slow && git tag -f v1
"""
BUILDING = "pgrep -f '[d]ocker build .*-t local/vllm'"


@pytest.mark.deep
@pytest.mark.parametrize("victim", ["module", "docker build"])
def test_a_killed_build_leaves_nothing_and_the_next_run_goes_on(fresh_lab: Lab, victim: str) -> None:
    lab, builder = fresh_lab, fresh_lab.hosts[0]
    lab.on(builder, REPOSITORY)
    lab.on(builder, SLOW)
    _want(lab)
    run = lab.start("build")
    wait_for("the build", lambda: lab.on(builder, BUILDING, check=False).strip() != "")
    process = lab.on(builder, BUILDING).split()[0]
    if victim == "module":
        process = lab.on(builder, f"ps -o ppid= -p {process}").strip()
    lab.on(builder, f"kill -9 {process}")
    text, _unused = run.communicate(timeout=600)
    assert run.returncode != 0, text[-3000:]
    wait_for("the end of the build", lambda: lab.on(builder, BUILDING, check=False).strip() == "", 15)
    lab.on(builder, "sleep 25")  # longer than the step that it was in
    assert not _image(lab, builder), "a build that nobody waits for goes on"

    again = _play(lab, "build")
    assert _builders(again) == [builder]
    assert len({_image(lab, host) for host in lab.hosts}) == 1
    assert len(lab.on(builder, "docker images -q local/vllm").split()) == 1
    assert lab.on(builder, "ls -A /var/lib/instinct-fleet/build").strip() == ""
    assert _play(lab, "build").changed() == []


def used_cython(lab: Lab, host: str) -> str:
    """The build argument of the image that the instance runs, from its label."""
    image = "$(docker inspect -f '{{.Image}}' instinct-llama-0)"
    return lab.on(host, f"docker inspect -f '{{{{.Config.Labels.use_cython}}}}' {image}").strip()
