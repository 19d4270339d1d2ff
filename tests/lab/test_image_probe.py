# SPDX-License-Identifier: Apache-2.0
"""Images of which nobody knows what is in them: asked once on a node, and known to the whole fleet from then on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.config import REGISTRY, VLLM_REPOSITORY, VLLM_TAG, VLLM_VERSION
from lab.standin.knobs import Knobs

from .conftest import Lab, Run, reset_lab
from .helpers import STANDIN, completion, deployment, node_state

VLLM = f"{REGISTRY}/{VLLM_REPOSITORY}:{VLLM_TAG}"
SKIP = ("--skip-tags", "benchmark")
ANSWERS = "cd /var/lib/instinct-fleet/images && for f in *.json; do stat -c '%a %U' $f; cat $f; done"


def answers(lab: Lab, host: str) -> list[dict[str, Any]]:
    """What images answered on a node; their files can be read by everybody and written by root."""
    lines = lab.on(host, ANSWERS).splitlines()
    assert set(lines[::2]) == {"644 root"}
    return [json.loads(line) for line in lines[1::2]]


def locked(lab: Lab) -> dict[str, Any]:
    images: dict[str, Any] = json.loads((lab.inventory / "fleet.lock.json").read_text())["images"]
    return images


def plans(run: Run) -> list[dict[str, Any]]:
    """The results of fleet_plan in a run, in order."""
    return [record["result"] for record in run.records if record["module"] == "fleet_plan"]


@pytest.mark.deep
def test_an_unknown_image_is_deployed_in_one_run(fresh_lab: Lab) -> None:
    lab = fresh_lab
    lab.write_vars(vllm_deployments=[deployment()])
    before = {
        host: lab.on(host, "docker ps -aq; ls /var/lib/instinct-fleet 2>/dev/null || true")
        for host in lab.hosts
    }
    predicted = lab.play("site", "--check", "--diff", *SKIP)
    assert predicted.rc == 0, predicted.out
    assert [result["partial"] for result in plans(predicted)] == [
        [STANDIN]
    ]  # what follows cannot be predicted
    assert before == {
        host: lab.on(host, "docker ps -aq; ls /var/lib/instinct-fleet 2>/dev/null || true")
        for host in lab.hosts
    }

    run = lab.play("site", *SKIP)
    assert run.rc == 0, run.out
    first, second = plans(run)
    assert (first["partial"], second["partial"]) == ([STANDIN], [])
    assert {item["name"] for item in second["todo"]} == set(lab.hosts)
    for host in lab.hosts:
        assert run.modules(host).count("node_state") == 2
        assert run.actions()[host][: len(predicted.actions()[host])] == predicted.actions()[host]
        assert completion(lab, host, 8000)["usage"]["completion_tokens"] == 4
        assert [answer["vllm"] for answer in answers(lab, host)] == [Knobs.version]
        assert lab.on(host, "docker ps -aq --filter label=instinct-fleet.ask") == ""
    assert locked(lab)[STANDIN]["software"]["vllm"] == Knobs.version

    # The next run observes once, and has nothing to do.
    again = lab.play("site", *SKIP)
    assert again.rc == 0, again.out
    assert again.changed() == []
    assert len(plans(again)) == 1
    assert all(again.modules(host).count("node_state") == 1 for host in lab.hosts)


@pytest.mark.deep
def test_what_one_node_answered_is_known_of_another(fresh_lab: Lab) -> None:
    """The lock file carries it: a new host is planned whole, in check mode too."""
    lab = fresh_lab
    one, other = lab.hosts[:2]
    lab.write_vars(vllm_deployments=[deployment()])
    run = lab.play("site", "--limit", one, *SKIP)
    assert run.rc == 0, run.out
    before = node_state(lab)[other]
    predicted = lab.play("site", "--limit", other, "--check", "--diff", *SKIP)
    assert predicted.rc == 0, predicted.out
    assert node_state(lab)[other] == before
    done = lab.play("site", "--limit", other, *SKIP)
    assert done.rc == 0, done.out
    assert done.actions() == predicted.actions()
    assert [result["partial"] for result in plans(done)] == [[]]


@pytest.mark.deep
def test_the_real_image_answers(lab: Lab) -> None:
    host = lab.hosts[0]
    lab.write_vars(vllm_deployments=[deployment(image=VLLM)])
    run = lab.play("site", "--limit", host, "--tags", "vllm_image")
    assert run.rc == 0, run.out
    found = [answer for answer in answers(lab, host) if answer["vllm"] == f"{VLLM_VERSION}+cpu"]
    assert len(found) == 1
    assert found[0]["platform"] == "cpu"
    assert found[0]["pytorch"].partition("+")[2] == "cpu"
    assert found[0]["python"].startswith("3.11.")
    assert (found[0]["rocm"], found[0]["gfx"]) == (None, None)


DOCKERFILE = f"""\
FROM {STANDIN}
ENV PYTORCH_ROCM_ARCH="gfx942;gfx950" STANDIN_VERSION=0.31.0
RUN rm -r /usr/local/lib/python3.11/dist-packages/vllm-*.dist-info && mkdir -p /opt/rocm/.info \
    && echo 7.0.2-56 > /opt/rocm/.info/version
ENTRYPOINT ["/bin/false"]
"""
REPOSITORY = f"""
set -e
rm -rf /srv/git/odd && mkdir -p /srv/git/odd && cd /srv/git/odd && git init -q -b main .
cat > Dockerfile <<'EOF'
{DOCKERFILE}EOF
git add -A && git -c user.name=lab -c user.email=lab@example.com commit -qm image && git tag v1
"""


def test_an_image_that_is_built_is_asked_too(lab: Lab) -> None:
    """This one has vLLM without its package's metadata, so the command is asked; and an entrypoint of its own."""
    host = lab.hosts[0]
    lab.on(host, f"docker pull -q {STANDIN}")  # the Dockerfile's base
    lab.on(host, REPOSITORY)
    build = {"repo": "file:///srv/git/odd", "ref": "v1", "dockerfile": "Dockerfile", "tag": "local/odd:v1"}
    lab.write_vars(vllm_deployments=[deployment(image=None, build=build)])
    run = lab.play("site", "--limit", host, "--tags", "vllm_image")
    assert run.rc == 0, run.out
    found = next(answer for answer in answers(lab, host) if answer["vllm"] == "0.31.0")
    assert (found["rocm"], found["gfx"]) == ("7.0.2", ["gfx942", "gfx950"])


NO_DOCKER = """
set -e
for f in /usr/bin/dockerd /usr/sbin/dockerd /usr/local/bin/dockerd; do if [ -e $f ]; then mv $f $f.away; fi; done
kill $(pidof dockerd) && while pidof dockerd > /dev/null; do sleep 0.2; done
rm -f /var/run/docker.sock
"""


@pytest.fixture
def without_docker(fresh_lab: Lab) -> Iterator[Lab]:
    """The first node has no Docker engine. Made anew afterwards: it cannot be used any more."""
    fresh_lab.on(fresh_lab.hosts[0], NO_DOCKER)
    yield fresh_lab
    reset_lab()


@pytest.mark.deep
@pytest.mark.parametrize("version", [Knobs.version, None])
def test_check_mode_of_a_server_without_docker(without_docker: Lab, version: str | None) -> None:
    """The engine is installed by the run that is predicted, so nothing is there yet."""
    lab, host = without_docker, without_docker.hosts[0]
    lab.write_vars(vllm_deployments=[deployment(vllm_version=version)])
    run = lab.play("site", "--limit", host, "--check", "--diff", *SKIP)
    assert run.rc == 0, run.out
    roles = ["host_prep", "vllm_image"] + (["hf_model", "vllm_serve"] if version else [])
    assert run.plan()["hosts"][host]["todo"] == roles
    done = [module for module in run.modules(host) if module in ("vllm_image", "hf_model", "vllm_server")]
    assert done == ["vllm_image", "hf_model", "vllm_server"][: len(roles) - 1]
