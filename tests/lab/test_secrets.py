# SPDX-License-Identifier: Apache-2.0
"""The hub token is nowhere but in its file, on success and on failure; the fleet's secrets come back from its hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import Lab
from .endpoint import HOST
from .helpers import GATED, TOKEN, deployment
from .leaks import (
    NobodysSearch,
    RunKeys,
    Sampler,
    files_with,
    found_on,
    kept_results,
    runs_kept,
    search_by_nobody_works,
    search_works,
)
from .test_distribution import ENGINE

NIGHTLY = ("engine fails", "gated model refused")
CASES = ("right token", *(pytest.param(case, marks=pytest.mark.deep) for case in NIGHTLY))


@pytest.mark.parametrize("case", CASES)
def test_no_secret_anywhere(fresh_lab: Lab, tmp_path: Path, case: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    token_file = secret / "hf_token"
    token_file.write_text(TOKEN + ("x" if case == "gated model refused" else "") + "\n")
    token_file.chmod(0o600)
    env = {"STANDIN_FAIL": "oom"} if case == "engine fails" else {}
    fresh_lab.write_vars(
        vllm_deployments=[deployment(model=GATED, env=env)],
        hf_model_token_file=str(token_file),
        hf_model_insecure=True,
    )
    sampler = Sampler(TOKEN)
    sampler.start()
    sampler.works(fresh_lab)
    results = tmp_path / "results"
    run = fresh_lab.play(
        "site",
        "-vvv",
        "--diff",
        "-e",
        f"benchmark_results_dir={results}",
        "-e",
        f"plan_file={tmp_path}/plan.json",
    )
    seen = sampler.end()

    assert (run.rc == 0) is (case == "right token"), run.out
    assert any("instinct-fetch" in p or "snapshot" in p or "docker-init" in p for p in sampler.processes)
    assert seen == set()
    assert "hf_model" in run.modules() or case == "gated model refused"  # the one that is given the token
    assert TOKEN not in run.out
    for host in fresh_lab.hosts:
        assert found_on(fresh_lab, host, [TOKEN]) == set(), host
        search_works(fresh_lab, host)
    assert (results / "latest/summary.json").exists() is (case == "right token")
    places = [path for path in (tmp_path, Path.home() / ".ansible") if path.exists()]
    assert files_with(TOKEN, *places) == [str(token_file)]


@pytest.mark.deep
def test_neither_token_nor_run_key_of_a_transfer_anywhere(fresh_lab: Lab, tmp_path: Path) -> None:
    """While hosts pass a gated model and the image on, deploy and measure, and afterwards."""
    lab, vault = fresh_lab, tmp_path / "secret"
    vault.mkdir(mode=0o700)
    token_file = vault / "hf_token"
    token_file.write_text(TOKEN + "\n")
    token_file.chmod(0o600)
    for host in lab.hosts:
        lab.on(host, ENGINE)
        search_by_nobody_works(lab, host)
    lab.write_vars(
        vllm_deployments=[deployment(model=GATED)],
        hf_model_token_file=str(token_file),
        hf_model_insecure=True,
        fetch_from="peers",
    )
    sampler, nobody = Sampler(TOKEN), NobodysSearch(lab, TOKEN)
    sampler.start()
    sampler.works(lab)
    nobody.start()
    run_keys = RunKeys(lab, lab.hosts[1], nobody.wanted.append)
    run_keys.start()
    with kept_results(lab):
        run = lab.play("site", "-vvv", "--diff", "-e", f"plan_file={tmp_path}/plan.json")
    assert run.rc == 0, run.out[-4000:]
    assert "ignoring" not in run.out
    keys, seen, read = run_keys.end(), sampler.end(), nobody.end()

    plans = [record["result"]["plan"] for record in run.records if record["module"] == "fleet_plan"]
    assert {item["kind"] for plan in plans for item in plan["transfers"]} == {"image", "model"}
    assert len(keys) == 2
    assert "vllm_bench" in run.modules()
    assert any("swarm" in process for process in sampler.processes)  # it looked while there was a transfer
    assert (seen | {what for key in keys for what in sampler.had(key)}, read) == (set(), set())
    for secret in (TOKEN, *keys):
        assert secret.lower() not in run.out.lower()
    for host in lab.hosts:
        assert runs_kept(lab, host), host
        assert found_on(lab, host, [TOKEN, *keys]) == set(), host
        search_works(lab, host)
    assert (tmp_path / "results/latest/summary.json").exists()
    places = [path for path in (tmp_path, Path.home() / ".ansible") if path.exists()]
    assert files_with(TOKEN, *places) == [str(token_file)]
    for key in keys:
        assert files_with(key, *places) == []


RUNNING = "docker ps -q --no-trunc --filter label=instinct-fleet.instance | sort"
LOST = """
systemctl disable --now instinct-balancer instinct-balancer-agent
rm -rf /etc/instinct-fleet/balancer /var/lib/instinct-fleet/balancer /etc/systemd/system/instinct-balancer*
systemctl daemon-reload
"""
"""The load balancer's host is installed anew; as a GPU host it stays."""


def checkout(lab: Lab, name: str) -> Lab:
    """Another checkout of the inventory, without what git ignores."""
    inventory = lab.tmp / name / "inventory"
    shutil.copytree(lab.inventory, inventory, ignore=shutil.ignore_patterns(".secrets"))
    return Lab(inventory, inventory.parent, lab.hosts)


def refused(lab: Lab) -> str:
    """What a deploy says that made nothing."""
    run = lab.play("deploy")
    assert (run.rc != 0, run.changed(), (lab.inventory / ".secrets").exists()) == (True, [], False), run.out
    return run.out


def nothing_to_do(lab: Lab) -> None:
    run = lab.play("deploy")
    assert (run.rc, run.changed()) == (0, []), run.out[-3000:]


def fetch(lab: Lab) -> set[str]:
    """The names of the files that a checkout has then."""
    run = lab.play("fetch_secrets", "-vvv")
    assert run.rc == 0, run.out[-3000:]
    secrets = lab.inventory / ".secrets"
    key = (secrets / "instance-key").read_text().strip() if (secrets / "instance-key").exists() else TOKEN
    assert key not in run.out
    return {path.name for path in secrets.iterdir()}


@pytest.mark.deep
def test_another_checkout_fetches_the_fleets_secrets(fresh_lab: Lab) -> None:
    lab = fresh_lab
    lab.write_vars(vllm_deployments=[deployment()])
    assert lab.play("deploy").rc == 0
    # Without a load balancer a fleet has no secrets, and its checkouts need none.
    alone = checkout(lab, "alone")
    nothing_to_do(alone)
    assert fetch(alone) == set()

    lab.write_balancer(HOST)
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-3000:]
    second = checkout(lab, "second")
    assert refused(second).count("-e new_secrets=") == 3
    assert fetch(second) == {"api-keys.yml", "endpoint.pem", "instance-key"}
    nothing_to_do(second)

    # All load balancers are lost: the nodes still have the key of their instances, which go on.
    engines = {host: lab.on(host, RUNNING) for host in lab.hosts}
    lab.on(HOST, LOST)
    third = checkout(lab, "third")
    assert refused(third).count("-e new_secrets=") == 1
    assert fetch(third) == {"instance-key"}
    run = third.play("deploy")
    assert run.rc == 0, run.out[-3000:]
    assert {host: lab.on(host, RUNNING) for host in lab.hosts} == engines
    nothing_to_do(third)
