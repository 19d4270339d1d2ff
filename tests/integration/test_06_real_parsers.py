# SPDX-License-Identifier: Apache-2.0
"""Real vLLMs refuse nothing that a plan renders: the one of the lab's image, and older ones with its libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.config import REGISTRY, VLLM_REPOSITORY, VLLM_TAG, VLLM_VERSION, Config
from tests.real_parsers import judge
from tests.vllm_wheels import LIBRARIES_NAME, fetch, libraries

from .conftest import container

IMAGE = f"{REGISTRY}/{VLLM_REPOSITORY}:{VLLM_TAG}"
# `make parsers` runs all of them; the parser of this one differs most.
OLDER = ("0.11.2",)
THERE = "/root/parsers"


@pytest.fixture(scope="module")
def node(lab_up: list[str]) -> str:
    """The container of a node that has the image, and the older releases."""
    config, there = Config.of_environment(), container(lab_up[0])
    directory = config.state / "parsers"
    directory.mkdir(exist_ok=True)
    found: list[Path] = [libraries(directory, config.pip_args), *fetch(directory, OLDER, config.pip_args)]
    subprocess.run(["docker", "exec", there, "docker", "pull", "--quiet", IMAGE], check=True)
    subprocess.run(["docker", "exec", there, "mkdir", "-p", THERE], check=True)
    for path in found:
        subprocess.run(["docker", "cp", str(path), f"{there}:{THERE}/{path.name}"], check=True)
    return there


@pytest.mark.parametrize(
    "version", [VLLM_VERSION, *(pytest.param(name, marks=pytest.mark.deep) for name in OLDER)]
)
def test_nothing_that_is_rendered_is_refused(node: str, version: str) -> None:
    path = "" if version == VLLM_VERSION else f"{THERE}/vllm-{version}:{THERE}/{LIBRARIES_NAME}"
    judged = judge(
        [
            *("docker", "exec", "--interactive", node, "docker", "run", "--rm", "--interactive"),
            *("--network", "none", "--volume", f"{THERE}:{THERE}:ro", "--env", f"PYTHONPATH={path}"),
            *(IMAGE, "python3"),
        ],
        version,
    )
    print(judged.text())
    assert sum(judged.rendered.values()) > 500
    assert 0 < judged.accepted < judged.made_up
    assert not judged.refused, judged.text()
    assert not judged.differing, judged.text()
