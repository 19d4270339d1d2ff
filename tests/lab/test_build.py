# SPDX-License-Identifier: Apache-2.0
"""An image built from a git ref with a Dockerfile and build arguments, as AMD's documents do it."""

from __future__ import annotations

import pytest

from .conftest import Lab
from .helpers import STANDIN, completion, deployment

REPOSITORY = f"""
set -e
rm -rf /srv/git && mkdir -p /srv/git/vllm/docker && cd /srv/git/vllm
git init -q -b main .
printf 'FROM {STANDIN}\\nARG USE_CYTHON=0\\nLABEL use_cython=$USE_CYTHON\\n' > docker/Dockerfile.rocm
git add -A
git -c user.name=lab -c user.email=lab@example.com commit -qm image
git tag v1
"""


@pytest.mark.deep
def test_build_from_a_git_ref(lab: Lab) -> None:
    for host in lab.hosts:
        lab.on(host, f"docker pull -q {STANDIN}")  # the Dockerfile's base
        lab.on(host, REPOSITORY)
    build = {
        "repo": "file:///srv/git/vllm",
        "ref": "v1",
        "dockerfile": "docker/Dockerfile.rocm",
        "args": {"USE_CYTHON": "1"},
        "tag": "local/vllm:v1",
    }
    lab.write_vars(vllm_deployments=[deployment(image=None, build=build)])
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out
    for host in lab.hosts:
        assert used_cython(lab, host) == "1"
        assert completion(lab, host, 8000)["usage"]["completion_tokens"] == 4
    again = lab.play("site", "--skip-tags", "benchmark")
    assert again.changed() == []

    # Another argument is another image, though the tag asked for is the same.
    lab.write_vars(vllm_deployments=[deployment(image=None, build={**build, "args": {"USE_CYTHON": "2"}})])
    changed = lab.play("site", "--skip-tags", "benchmark")
    assert changed.rc == 0, changed.out
    for host in lab.hosts:
        assert used_cython(lab, host) == "2"


def used_cython(lab: Lab, host: str) -> str:
    """The build argument of the image that the instance runs, from its label."""
    image = "$(docker inspect -f '{{.Image}}' instinct-llama-0)"
    return lab.on(host, f"docker inspect -f '{{{{.Config.Labels.use_cython}}}}' {image}").strip()
