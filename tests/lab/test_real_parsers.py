# SPDX-License-Identifier: Apache-2.0
"""Real vLLMs refuse nothing that a plan renders: older ones with the lab's libraries. The lab's own: test_main_job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.config import REGISTRY, VLLM_REPOSITORY, VLLM_TAG, Config
from tests.oracles.vllm_wheels import LIBRARIES_NAME, fetch, libraries

from .conftest import container
from .helpers import assert_agrees

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


@pytest.mark.deep
@pytest.mark.parametrize("version", OLDER)
def test_nothing_that_is_rendered_is_refused(node: str, version: str) -> None:
    path = f"{THERE}/vllm-{version}:{THERE}/{LIBRARIES_NAME}"
    image = ("--volume", f"{THERE}:{THERE}:ro", "--env", f"PYTHONPATH={path}", IMAGE)
    assert_agrees(node, version, *image)
