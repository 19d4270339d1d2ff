# SPDX-License-Identifier: Apache-2.0
"""vllm_server and Docker's restart policy: what is stopped stays so over any restart, and what serves comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.engines.restart_policy import (
    RESTART_LABEL,
    docker_policy,
    policy_word,
)
from ansible_collections.instinct.fleet.plugins.module_utils.serving.instance import (
    ObservedServer,
    ServerSteps,
    decide,
    parse_server,
)
from ansible_collections.instinct.fleet.plugins.modules import vllm_server

from tests.worlds.fake_docker import FakeDocker
from tests.worlds.fake_vllm import crash, vllm
from tests.worlds.serving_world import IMAGE, args, docker, new_spec, spec, statuses

__all__ = ["docker"]  # a fixture

NAME = "instinct-llama-0"
C = f"/containers/{NAME}"
DOWN, UP = f"POST {C}/update (restart policy no)", f"POST {C}/update (restart policy always)"
STOP, START = f"POST {C}/stop?t=7", f"POST {C}/start"


def kept(**more: Any) -> dict[str, Any]:
    """SERVER of a plan, with a restart policy."""
    server = spec(**more)
    server["container"] = {
        **server["container"],
        "Labels": {**server["container"]["Labels"], RESTART_LABEL: "always"},
        "HostConfig": {"RestartPolicy": docker_policy("always")},
    }
    return server


def policy(docker: FakeDocker) -> str:
    return policy_word(docker.containers[NAME].body["HostConfig"]["RestartPolicy"])


def set_policy(docker: FakeDocker, word: str) -> None:
    body = docker.containers[NAME].body
    docker.containers[NAME].body = {**body, "HostConfig": {"RestartPolicy": docker_policy(word)}}


@pytest.mark.parametrize("own", ["always", "on-failure:3", "no", ""])
@pytest.mark.parametrize("present", ["same", "no"])
@pytest.mark.parametrize("status", ["running", "restarting", "exited"])
@pytest.mark.parametrize("state", ["stopped", "started", "present", "replaced"])
def test_steps(state: str, status: str, present: str, own: str) -> None:
    server = parse_server(spec(), "present")
    same = {name: file.text for name, file in server.files.items()} | {"spec.sha256": f"{'1' * 64}\n"}
    modes = {name: file.mode for name, file in server.files.items()} | {"spec.sha256": 0o600}
    word = "no" if present == "no" else own or "unless-stopped"
    observed = ObservedServer(
        successor=False, status=status, spec="2" * 64 if state == "replaced" else "1" * 64, image=IMAGE, restarts=0,
        contents=same, modes=modes, policy=word, own_policy=own,
    )  # fmt: skip
    steps = decide(server, observed, "present" if state == "replaced" else state)
    assert steps.stop == (
        status == "restarting" or (status == "running" and state in ("stopped", "replaced"))
    )
    # Whatever is to stay down, or is stopped for a moment, does not come back by itself …
    stops = steps.stop or state == "stopped"
    assert steps.keep_down == (stops and own not in ("", "no") and word != "no")
    # … and whatever runs in the end, and was not made anew, has its own policy.
    runs_on = state in ("started", "present")
    differs = word != own or steps.keep_down
    assert steps.policy == (own if runs_on and own and differs else "")
    assert (steps == ServerSteps()) == (
        not steps.stop and not steps.start and not steps.keep_down and not steps.policy
    )


def run(docker: FakeDocker, run_module: Any, server: dict[str, Any], state: str = "present") -> list[str]:
    """Run the module in check mode and in earnest; return the actions, which are the requests."""
    docker.requests.clear()
    given = args(docker, server, state=state)
    predicted, failed = run_module(vllm_server.main, given, check=True, diff=True)
    assert (failed, docker.changes()) == (False, [])
    result, failed = run_module(vllm_server.main, given, diff=True)
    assert not failed, result["msg"]
    assert (result["actions"], result["diff"]) == (predicted["actions"], predicted["diff"])
    assert result["changed"] is predicted["changed"] is bool(result["actions"])
    actions = [text for text in result["actions"] if not text.startswith("write ")]
    assert [text.partition(" (restart")[0] for text in actions] == [
        request.replace("?v=true", "") for request in docker.changes()
    ]
    assert run_module(vllm_server.main, given)[0]["changed"] is False
    return actions


def test_stopped_and_started_again(docker: FakeDocker, run_module: Any) -> None:
    server = kept()
    docker.programs["instinct-"] = vllm(server["port"])
    run(docker, run_module, server)
    assert policy(docker) == "always"
    for state in ("started", "present"):
        assert run(docker, run_module, server, "stopped") == [DOWN, STOP]
        assert (policy(docker), statuses(docker)) == ("no", {NAME: "exited"})
        assert run(docker, run_module, server, state) == [UP, START]
        assert (policy(docker), statuses(docker)) == ("always", {NAME: "running"})


def test_one_that_has_ended_by_itself_is_stopped_for_good(docker: FakeDocker, run_module: Any) -> None:
    server = kept()
    docker.add_container(NAME, server["container"], "exited")
    assert run(docker, run_module, server, "stopped") == [DOWN]
    assert policy(docker) == "no"


@pytest.mark.parametrize("state", ["present", "started"])
def test_a_stop_that_was_interrupted_leaves_no_instance_without_its_policy(
    docker: FakeDocker, run_module: Any, state: str
) -> None:
    """Between the two requests, or between those of a start: it runs, and Docker would not start it again."""
    server = kept()
    docker.programs["instinct-"] = vllm(server["port"])
    run(docker, run_module, server)
    made = docker.containers[NAME].id
    set_policy(docker, "no")
    assert run(docker, run_module, server, state) == [UP]
    assert (policy(docker), docker.containers[NAME].id, statuses(docker)) == (
        "always",
        made,
        {NAME: "running"},
    )
    assert docker.containers[NAME].restarts == 0


def test_files_that_changed_and_a_replacement(docker: FakeDocker, run_module: Any) -> None:
    server = kept()
    docker.programs["instinct-"] = vllm(server["port"])
    run(docker, run_module, server)
    Path(server["directory"], "env").write_text("A='c'\n")
    assert run(docker, run_module, server) == [DOWN, STOP, UP, START]
    new_spec(server)
    assert run(docker, run_module, server) == [
        f"POST /containers/create?name={NAME}.next",
        DOWN,
        STOP,
        f"DELETE {C}",
        f"POST {C}.next/rename?name={NAME}",
        START,
    ]
    assert policy(docker) == "always"


def test_one_that_fails_to_start_stays_down(docker: FakeDocker, run_module: Any) -> None:
    docker.programs["instinct-"] = crash("RuntimeError: so\n")
    assert run_module(vllm_server.main, args(docker, kept()))[1]
    assert (policy(docker), statuses(docker)) == ("no", {NAME: "exited"})


def test_a_removal_says_it_too(docker: FakeDocker, run_module: Any) -> None:
    docker.add_container(NAME, kept()["container"], "running")
    given = args(docker, remove=["llama-0"])
    predicted, _ = run_module(vllm_server.main, given, check=True)
    result, failed = run_module(vllm_server.main, given)
    assert not failed
    assert predicted["actions"] == result["actions"] == [DOWN, STOP, f"DELETE {C}"]
