# SPDX-License-Identifier: Apache-2.0
"""A measurement through the load balancer: where its client runs, and what it may not be without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    BENCHMARK,
    DEPLOY,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.client_secrets import (
    client_secrets,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.live import (
    explain_live,
    live_targets,
    live_todo,
    parse_rate,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import (
    OPTIONS,
    check_request,
    requested_live,
    requested_rollout,
)

from tests.worlds.balancer_world import applied, host
from tests.worlds.plan_world import REPO, deployment
from tests.worlds.rollout_balancer_world import PAIR, SPANNING, planned, served

REQUEST = OperationRequest(BENCHMARK)


@pytest.mark.parametrize(
    ("live", "given", "rate", "said"),
    [
        (False, None, 0.0, ""),
        (True, 2, 2.0, ""),
        (True, "0.5", 0.5, ""),
        (True, None, 0.0, "is required with live"),
        (True, 0, 0.0, "0 is not a number of requests per second."),
        (True, -1.0, 0.0, "-1.0 is not a number of requests per second."),
        (True, "inf", 0.0, "'inf' is not a number"),
        (True, "nan", 0.0, "'nan' is not a number"),
        (True, "fast", 0.0, "'fast' is not a number"),
        (
            False,
            2,
            0.0,
            "is the load of a measurement through the load balancer, which this run does not make.",
        ),
    ],
)
def test_a_rate_is_named(live: bool, given: Any, rate: float, said: str) -> None:
    found, problems = parse_rate(live, given)
    assert found == rate
    assert bool(problems) == bool(said)
    assert said in "".join(problem.text() for problem in problems)


def test_each_deployment_has_one_client_beside_one_that_is_ready() -> None:
    wanted = [*PAIR, deployment(name="other", served_model_name="other", gpus=[5], port=9000)]
    states, balancers = served(wanted)
    for item in states["n1"]["instances"]:
        if item["name"] == "llama-0":
            item["ready"] = False
    plan = planned(states, wanted, balancers, REQUEST)
    targets, problems = live_targets(plan)
    assert problems == ()
    assert [(item.model, item.deployments, item.host, item.instance) for item in targets] == [
        ("lab/tiny-llama", ("llama",), "n1", "llama-1"),
        ("other", ("other",), "n1", "other-0"),
    ]
    (item,) = live_todo(plan.to_json(), targets)
    assert (item["name"], item["groups"]) == ("n1", ["todo_benchmark"])
    endpoint = {"balancer": "lb", "url": "https://192.0.2.1:8443"}
    assert [(one["name"], one["endpoint"]) for one in item["plan"]["measure"]] == [
        ("llama-1", endpoint), ("other-0", endpoint),
    ]  # fmt: skip
    text = " ".join(" ".join(explain_live(targets, 2.0)).split())
    assert "llama through load balancer lb (https://192.0.2.1:8443), at 2 requests per second" in text
    assert [item.deployments for item in live_targets(plan, "other")[0]] == [("other",)]


@pytest.mark.parametrize("deployment_name", [None, "green"])
def test_deployments_that_share_a_name_are_measured_once_and_together(deployment_name: str | None) -> None:
    """A second client would send the rate again to the same instances."""
    green = deployment(name="green", served_model_name=[REPO, "green"], gpus=[5], port=9000)
    apart = deployment(name="apart", gpus=[6], port=9100, endpoint=False)
    states, balancers = served([*PAIR, green, apart])
    plan = planned(states, [*PAIR, green, apart], balancers, REQUEST)
    targets, problems = live_targets(plan, deployment_name)
    first = "green-0" if deployment_name else targets[0].instance
    assert problems == ()
    assert [(item.model, item.deployments, item.instance) for item in targets] == [
        (REPO, ("green", "llama"), first)
    ]
    text = " ".join(" ".join(explain_live(targets, 2.0)).split())
    assert f"{REPO} (green and llama together) through load balancer lb" in text
    (item,) = live_todo(plan.to_json(), targets)
    (client,) = item["plan"]["measure"]
    assert client["endpoint"]["deployments"] == "green:llama"


def test_a_rank_without_requests_is_no_client() -> None:
    states, balancers = served([SPANNING])
    targets, _ = live_targets(planned(states, [SPANNING], balancers, REQUEST))
    assert [(item.host, item.instance) for item in targets] == [("n1", "llama-0")]


def test_where_nothing_can_be_measured() -> None:
    states, (balancer,) = served(PAIR)
    there = planned(states, PAIR, [balancer]).balancers[0]
    down = host(applied(there, running=False))
    for balancers in ([], [down]):
        found, (problem,) = live_targets(planned(states, PAIR, balancers, REQUEST))
        assert found == ()
        assert "this run includes no load balancer" in problem.text()
    for item in (one for state in states.values() for one in state["instances"]):
        item["ready"] = False
    found, (problem,) = live_targets(planned(states, PAIR, [balancer], REQUEST), "llama")
    assert "no instance of llama behind load balancer lb is ready." in problem.text()


def options(**given: Any) -> dict[str, Any]:
    found = {name: option.get("default") for name, option in OPTIONS.items()}
    return {**found, "operation": BENCHMARK, "live": True, "rate": 2.0, **given}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ""),
        ({"rate": None}, "rate: is required with live"),
        ({"kinds": ["latency"]}, "live: the offline benchmarks send no requests"),
        ({"operation": DEPLOY}, "live: is an option of benchmark.yml."),
        ({"live": False}, "rate: is the load of a measurement through the load balancer"),
    ],
)
def test_what_makes_no_sense(given: dict[str, Any], said: str) -> None:
    problems = [problem.text() for problem in check_request(options(**given))]
    assert bool(problems) == bool(said), problems
    assert said in "".join(problems)


def test_nothing_is_drained_for_it() -> None:
    states, balancers = served(PAIR)
    plan = planned(states, PAIR, balancers, REQUEST)
    assert requested_rollout(options(), plan, None) is None
    assert requested_rollout(options(live=False, rate=None), plan, None) is not None
    assert [item.host for item in requested_live(options(), plan)] == ["n1"]
    assert requested_live(options(live=False), plan) == ()
    with pytest.raises(FleetError, match="this run includes no load balancer"):
        requested_live(options(), planned(states, PAIR, [], REQUEST))


# ---- the client's key and trust ----------------------------------------------------------------------


class Files:
    """Files of the control node, in place of VaultReader."""

    def text(self, path: Path) -> str:
        return path.read_text(encoding="utf-8")

    def data(self, text: str) -> Any:
        return dict(line.split(": ") for line in text.splitlines())


PEM = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n"
PRIVATE = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"
HASHED = "sha256:" + "a" * 64


def test_the_client_gets_a_key_and_the_fleets_own_certificate_without_its_private_key(tmp_path: Path) -> None:
    directory = tmp_path / ".secrets"
    directory.mkdir()
    (directory / "api-keys.yml").write_text(f"hashed: {HASHED}\ndefault: sk-one\n")
    (directory / "endpoint.pem").write_text(PRIVATE + PEM)
    own = {"keys_file": str(directory / "api-keys.yml"), "certificate_file": str(directory / "endpoint.pem")}
    assert client_secrets("lb", own, {}, Files()) == {"key": "sk-one", "ca": PEM}  # type: ignore[arg-type]
    # Whom to trust for another certificate, its issuer decides; without keys, none is needed.
    theirs = {"keys_file": None, "certificate_file": str(tmp_path / "theirs.pem")}
    assert client_secrets("lb", theirs, {"a": "sk-two"}, Files()) == {"key": "sk-two", "ca": ""}  # type: ignore[arg-type]
    assert client_secrets("lb", {}, {}, Files()) == {"key": "", "ca": ""}  # type: ignore[arg-type]


def test_what_is_not_known_here_is_said_without_a_secret(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="only the SHA-256 hashes of the API keys of load balancer"):
        client_secrets("lb", {}, {"a": HASHED}, Files())  # type: ignore[arg-type]
    with pytest.raises(FleetError, match="cannot be read"):
        client_secrets("lb", {"keys_file": str(tmp_path / "none.yml")}, {}, Files())  # type: ignore[arg-type]
