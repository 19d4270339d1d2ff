# SPDX-License-Identifier: Apache-2.0
"""Stopped instances stay stopped when Docker or the host starts again, and started ones come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.docker.lifecycle import (
    start_again,
    stop_gracefully,
)
from ansible_collections.instinct.fleet.plugins.module_utils.engines.restart_policy import (
    RESTART_LABEL,
    docker_policy,
    policy_word,
)

from tests.worlds.fake_docker import FakeDocker

NAME = "instinct-llama-0"
C = f"/containers/{NAME}"


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path) as fake:
        yield fake


def add(docker: FakeDocker, status: str, policy: str, own: str | None) -> None:
    labels = {} if own is None else {RESTART_LABEL: own}
    docker.add_container(
        NAME, {"Labels": labels, "HostConfig": {"RestartPolicy": docker_policy(policy)}}, status
    )


def present(docker: FakeDocker) -> str:
    return policy_word(docker.containers[NAME].body["HostConfig"]["RestartPolicy"])


@pytest.mark.parametrize(
    ("word", "policy"),
    [
        ("always", {"Name": "always"}),
        ("no", {"Name": "no"}),
        ("on-failure:3", {"Name": "on-failure", "MaximumRetryCount": 3}),
    ],
)
def test_a_policy_as_a_word(word: str, policy: dict[str, Any]) -> None:
    assert (docker_policy(word), policy_word(policy)) == (policy, word)
    assert policy_word({**policy, "MaximumRetryCount": policy.get("MaximumRetryCount", 0)}) == word


@pytest.mark.parametrize("missing", [None, {}, {"Name": ""}])
def test_no_policy_is_no(missing: dict[str, Any] | None) -> None:
    assert policy_word(missing) == "no"


@pytest.mark.parametrize(
    ("status", "before", "own", "after_stop", "requests"),
    [
        ("running", "always", "always", "no", ["update", "stop?t=7"]),
        ("running", "on-failure:3", "on-failure:3", "no", ["update", "stop?t=7"]),
        ("running", "no", "no", "no", ["stop?t=7"]),
        ("running", "no", "always", "no", ["stop?t=7"]),  # an earlier stop was interrupted
        ("exited", "always", "always", "no", ["update"]),  # Docker would start it at the next boot
        ("exited", "no", "always", "no", []),
        ("running", "unless-stopped", None, "unless-stopped", ["stop?t=7"]),  # somebody else's
        ("exited", "unless-stopped", None, "unless-stopped", []),
    ],
)
def test_a_stop_lasts_and_so_does_a_start(
    docker: FakeDocker, status: str, before: str, own: str | None, after_stop: str, requests: list[str]
) -> None:
    add(docker, status, before, own)
    client = DockerClient(docker.path)
    assert stop_gracefully(client, NAME, 7) == ""
    assert docker.changes() == [f"POST {C}/{request}" for request in requests]
    assert present(docker) == after_stop
    docker.requests.clear()
    start_again(client, NAME)
    update = [f"POST {C}/update"] if own not in (None, after_stop) else []
    assert docker.changes() == [*update, f"POST {C}/start"]
    assert present(docker) == (own or before)
    assert docker.containers[NAME].status == "running"


def test_a_policy_that_docker_keeps_is_a_warning_and_the_stop_goes_on(docker: FakeDocker) -> None:
    add(docker, "running", "always", "always")
    docker.errors[f"POST {C}/update"] = (500, "so")
    said = stop_gracefully(DockerClient(docker.path), NAME, 7)
    assert said.endswith("keeps its restart policy, and Docker starts it again when its daemon starts: so")
    assert docker.containers[NAME].status == "exited"


def test_what_is_not_there_is_not_stopped(docker: FakeDocker) -> None:
    assert stop_gracefully(DockerClient(docker.path), NAME, 7) == ""
    assert docker.changes() == []
