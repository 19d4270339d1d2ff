# SPDX-License-Identifier: Apache-2.0
"""Numbers of generations, holds, trials and rollbacks in the plan."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    RESTART,
    ROLLBACK,
    UPGRADE,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.sources import (
    choose_sources,
)

from tests.worlds.generations_world import (
    BACK,
    HELD,
    TRIAL,
    WHY,
    States,
    bind,
    llama,
    only,
    planned,
    run,
    turn,
    two,
    upgraded,
)
from tests.worlds.plan_world import (
    COMMIT,
    PULL,
    REPO,
    actions,
    deployment,
    fleet,
    gpus,
    state,
)


def numbers(states: States, name: str = "llama") -> dict[str, list[int]]:
    """The generations that hosts keep."""
    return {
        host: [one["generation"] for item in found.get("generations", ()) if item["deployment"] == name
               for one in item["kept"]]
        for host, found in states.items()
    }  # fmt: skip


def problems(states: States, wanted: Any, request: OperationRequest, **keys: Any) -> list[str]:
    with pytest.raises(FleetError) as caught:
        planned(states, wanted, request, **keys)
    return [problem.text() for problem in caught.value.problems]


def reasons(states: States, wanted: Any, request: OperationRequest) -> set[str]:
    """Why hosts are left out."""
    return {why for _unused, why in planned(states, wanted, request).excluded}


BAD = "generation 1 of llama cannot be restored"


# ---- numbers -----------------------------------------------------------------------------------------


def test_the_first_generation_and_the_next() -> None:
    first = planned(two(), llama())
    assert turn(first) == {
        "deployment": "llama", "choice": "inventory", "generation": 1, "before": None, "new": True, "known": False,
        "why": "first deployment", "held": None, "ignored": False, "trial": None,
        "hosts": {name: {"from": None, "to": 1, "record": True} for name in ("n1", "n2")},
    }  # fmt: skip
    states = run(two(), llama())
    second = turn(planned(states, llama(16)))
    assert (second["generation"], second["before"], second["new"], second["why"]) == (2, 1, True, WHY)
    assert second["hosts"]["n1"] == {"from": 1, "to": 2, "record": True}
    after = run(states, llama(16))
    settled = planned(after, llama(16))
    assert (settled.changes, numbers(after)) == (0, {"n1": [1, 2], "n2": [1, 2]})
    assert (turn(settled)["generation"], turn(settled)["known"]) == (2, True)


def test_a_record_comes_before_anything_stops() -> None:
    data = planned(run(two(), llama()), llama(16)).to_json()["hosts"]["n1"]
    assert actions(data) == ["generation llama", "server llama-0", "server llama-1"]
    assert data["actions"][0]["reason"] == WHY
    assert [item["needed"] for item in data["generations"]] == [[1]]  # what runs is not pruned meanwhile


@pytest.mark.parametrize("cut", ["n1", "n2"])
def test_a_run_that_reached_one_host_is_joined_by_the_other(cut: str) -> None:
    """With --limit, or when the run was cut off between them."""
    states = run(two(), llama())
    states = {**states, **run(only(states, cut), llama(16))}
    assert numbers(states)[cut] == [1, 2]
    joined = turn(planned(states, llama(16)))
    assert (joined["generation"], joined["new"], joined["why"]) == (2, False, WHY)
    after = run(states, llama(16))
    assert numbers(after) == {"n1": [1, 2], "n2": [1, 2]}


def test_another_change_after_a_run_that_reached_one_host() -> None:
    states = run(two(), llama())
    states = {**states, **run(only(states, "n1"), llama(16))}
    after = run(states, llama(32))
    assert numbers(after) == {"n1": [1, 2, 3], "n2": [1, 3]}


def test_a_host_that_is_new_joins_and_one_that_changes_alone_goes_on() -> None:
    states = {**upgraded(), "n3": state(hostname="n3")}
    states = run(states, llama(16))
    assert numbers(states) == {"n1": [1, 2], "n2": [1, 2], "n3": [2]}
    own = {"n3": {"vllm_deployments": llama(16, gpus=[4, 5])}}
    alone = run(states, llama(16), own=own)
    assert numbers(alone) == {"n1": [1, 2], "n2": [1, 2], "n3": [2, 3]}
    assert (
        turn(planned(states, llama(16), own=own))["why"]
        == "GPUs renderD128, renderD136 → renderD160, renderD168"
    )
    # Changed everywhere, the others leave a number out.
    assert numbers(run(alone, llama(32))) == {"n1": [1, 2, 4], "n2": [1, 2, 4], "n3": [2, 3, 4]}


def test_what_was_before_comes_again_under_a_new_number() -> None:
    again = turn(planned(upgraded(), llama()))
    assert (again["generation"], again["why"]) == (3, "generation 1 again")


def test_a_deployment_that_goes_and_comes_back() -> None:
    states = run(two(), llama())
    gone = planned(states, [])
    assert (turn(gone)["generation"], turn(gone)["why"]) == (2, "no deployment defines it here any more")
    after = run(states, [])
    assert planned(after, []).changes == 0
    assert turn(planned(after, llama()))["why"] == "generation 1 again"


def test_a_bare_fleet_that_is_planned_offline_starts_at_one() -> None:
    plan = planned({"n1": None}, llama(vllm_version="0.11.1"), offline=True,
                   instinct_gpus={"model": "MI300X", "count": 8})  # fmt: skip
    assert turn(plan)["generation"] == 1


def test_the_text_says_numbers_and_why() -> None:
    text = explain(planned(run(two(), llama()), llama(16)))
    assert (
        f"   1. record llama as generation 2 (now 1), so it can be rolled back to\n      change: {WHY}\n"
        in text
    )


# ---- rollback ----------------------------------------------------------------------------------------


def test_back_to_a_generation_without_a_network() -> None:
    states = upgraded()
    # The inventory wants an image that nobody has pinned: nothing is to be asked of it.
    wanted = llama(16, image="registry.lab:5000/lab/vllm:new")
    assert [item.deployments for item in choose_sources(fleet(states, wanted), BACK).fleet.hosts] == [(), ()]
    plan = planned(states, wanted, BACK)
    data = plan.to_json()["hosts"]["n1"]
    assert actions(data) == ["hold llama", "server llama-0", "server llama-1"]
    assert data["servers"][0] == {
        "name": "llama-0", "deployment": "llama", "generation": 1, "image": PULL, "port": 8000, "served_model": REPO,
        "headless": False, "stop_timeout": data["servers"][0]["stop_timeout"],
        "spec_hash": states["n1"]["generations"][0]["kept"][0]["members"][0]["spec_hash"],
    }  # fmt: skip
    assert data["bindings"] == [
        {
            "deployment": "llama",
            "held": {
                "generation": 1,
                "why": "answers got worse",
                "since": "",
                "failed": [2],
                "together": [],
            },
        }
    ]
    assert data["generations"] == []
    reported = turn(plan)
    assert (reported["choice"], reported["generation"], reported["before"]) == ("rollback", 1, 2)
    assert "Deployment llama on n1, n2: generation 1, from the nodes' own records" in explain(plan)
    after = run(states, wanted, BACK)
    assert planned(after, wanted, BACK).changes == 0


def test_without_a_number_the_newest_before_what_runs() -> None:
    third = run(upgraded(), llama(32))
    back = OperationRequest(ROLLBACK, frozenset(["llama"]))
    assert turn(planned(third, llama(32), back))["generation"] == 2
    # A rollout that was cut off: n1 runs 4 already.
    fourth = run(only(third, "n1"), llama(64))
    assert turn(planned({**third, **fourth}, llama(64), back))["generation"] == 3
    # Back at 1, with 2 and 3 still there.
    first = run(third, llama(32), BACK)
    (text,) = problems(first, llama(32), back)
    assert text.startswith(
        "llama: there is no generation before the running one. Kept: 1 (2026-11-21T22:00:00Z: first"
    )


@pytest.mark.parametrize(
    ("number", "kept", "text"),
    [
        (7, [1, 2], "llama: generation 7 is kept on no host. Kept: 1 (2026-11-21T22:00:00Z: first deployment); "
                    f"2 (2026-11-21T22:00:00Z: {WHY})."),
        (1, [2], f"llama: generation 1 was pruned. Kept: 2 (2026-11-21T22:00:00Z: {WHY})."),
        (1, [], "llama: generation 1 is kept on no host. site.yml and upgrade.yml record every generation that they "
                "start."),
    ],
)  # fmt: skip
def test_a_number_that_cannot_come_back(number: int, kept: list[int], text: str) -> None:
    states = upgraded()
    for found in states.values():
        history = found["generations"][0]
        history["kept"] = [item for item in history["kept"] if item["generation"] in kept]
    assert problems(states, llama(16), OperationRequest(ROLLBACK, frozenset(["llama"]), number)) == [text]


def test_a_deployment_that_does_not_exist() -> None:
    (text,) = problems(upgraded(), llama(16), OperationRequest(ROLLBACK, frozenset(["lama"])))
    assert text == "there is no deployment 'lama'. Did you mean llama?"


def test_a_rollback_names_its_deployment() -> None:
    """All at once is nobody's wish, and what each of them lacks would hide what is missing."""
    (text,) = problems(upgraded(), llama(16), OperationRequest(ROLLBACK))
    assert text == (
        "deployment: is required: rollback.yml needs the name of a deployment. -e deployment=NAME; there are: llama."
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"images": []}, f"host n1: {BAD}: its image registry.lab:5000/lab/vllm:1 is no "
                         f"longer on the host. docker pull {PULL} there, or choose another generation."),
        ({"models": []}, f"host n1: {BAD}: the weights of {REPO} at {COMMIT[:12]} are incomplete in "
                         "/var/lib/instinct-fleet/hf. Download them again (a deployment with that revision, "
                         "site.yml --tags hf_model), or choose another generation."),
        ({"gpus": gpus()[1:]}, f"host n1: {BAD}: its GPU renderD128 is missing. Check the node's GPUs (audit.yml), "
                       "or choose another generation."),
    ],
)  # fmt: skip
def test_a_host_without_what_a_generation_needs_is_left_out(change: dict[str, Any], text: str) -> None:
    states = upgraded()
    states["n1"].update(change)
    plan = planned(states, llama(16), BACK)
    assert [f"host {name}: {why}" for name, why in plan.excluded] == [text]
    assert actions(plan.to_json()["hosts"]["n2"]) == ["hold llama", "server llama-0", "server llama-1"]


def test_what_runs_already_is_not_asked_for() -> None:
    """An image that is gone does no harm as long as its container runs."""
    after = run(upgraded(), llama(16), BACK)
    after["n1"]["images"] = []
    assert planned(after, llama(16), BACK).changes == 0


def test_other_partition_modes() -> None:
    states = upgraded()
    moved = {
        name: run({name: found}, llama(16), gpu_partition_compute="CPX")[name]
        for name, found in states.items()
    }
    plan = planned(moved, llama(16), BACK, gpu_partition_compute="CPX")
    assert plan.hosts == ()
    assert {why.partition(". ")[0] for _unused, why in plan.excluded} == {
        f"{BAD}: it ran on GPUs in SPX NPS1, but they are now in CPX NPS1"
    }


def test_a_rollback_leaves_the_host_itself() -> None:
    """Modes that the inventory wants, and the host has not yet, are for partition.yml."""
    states = upgraded()
    states["n1"]["numa_balancing"] = {"runtime": 1, "persisted": 1, "file": None}
    data = planned(states, llama(16), BACK, gpu_partition_compute="CPX").to_json()["hosts"]["n1"]
    assert actions(data) == ["hold llama", "server llama-0", "server llama-1"]


def test_gpus_and_ports_that_another_deployment_has_now() -> None:
    states = run(run(two(), llama()), llama(16, gpus=[4, 5]))
    wanted = [*llama(16, gpus=[4, 5]), deployment(name="other", gpus=[0], port=9000)]
    states = run(states, wanted)
    assert reasons(states, wanted, BACK) == {
        "instance llama-0 of generation 1 and instance other-0 of generation 1 would both use renderD128. Choose "
        "another generation, or change the other deployment first."
    }
    moved = [*llama(16, gpus=[4, 5], port=9100), deployment(name="other", gpus=[2], port=8001)]
    (text,) = reasons(run(states, moved), moved, BACK)
    assert (
        "instance llama-1 of generation 1 and instance other-0 of generation 2 would both listen on port 8001"
        in text
    )


def test_a_host_that_did_not_have_it_then() -> None:
    states = run({**run(two(), llama()), "n3": state(hostname="n3")}, llama(16))
    plan = planned(states, llama(16), BACK)
    assert actions(plan.to_json()["hosts"]["n3"]) == [
        "hold llama",
        "remove_server llama-0",
        "remove_server llama-1",
    ]
    assert "n3: llama did not exist here as of generation 1: its instances are removed" in explain(plan)


def test_other_deployments_stay_as_they_run() -> None:
    wanted = [*llama(), deployment(name="other", gpus=[7], port=9000)]
    states = run(run(two(), wanted), [*llama(16), wanted[1]])
    later = [
        *llama(16),
        deployment(name="other", gpus=[6], port=9000, image="registry.lab:5000/lab/vllm:new"),
    ]
    plan = planned(states, later, BACK)
    assert turn(plan, "other")["choice"] == "running"
    data = plan.to_json()["hosts"]["n1"]
    assert actions(data) == ["hold llama", "server llama-0", "server llama-1"]
    assert [item["name"] for item in data["instances"]] == ["llama-0", "llama-1", "other-0"]
    # One that no record knows is left alone, too.
    states["n1"]["instances"].append({**states["n1"]["instances"][-1], "name": "odd-0", "deployment": "odd"})
    assert actions(planned(states, later, BACK).to_json()["hosts"]["n1"]) == actions(data)
    # Nor does a rollback of llama start what has crashed of another deployment.
    next(item for item in states["n1"]["instances"] if item["name"] == "other-0")["state"] = "exited"
    assert actions(planned(states, later, BACK).to_json()["hosts"]["n1"]) == actions(data)


def test_halves_of_a_gpu_are_not_in_the_way() -> None:
    def half(name: str, **keys: Any) -> dict[str, Any]:
        return deployment(name=name, instances_per_gpu=2, gpus=[0], **keys)

    old = half("llama", instances_per_host=1)
    states = run(two(), [old])
    wanted = [{**old, "gpus": [1]}, half("other", instances_per_host=1, port=9000)]
    states = run(states, wanted)
    assert len(planned(states, wanted, BACK).to_json()["hosts"]["n1"]["servers"]) == 1
    both = [{**old, "gpus": [1]}, half("other", instances_per_host=2, port=9000)]
    (text,) = reasons(run(states, both), both, BACK)
    assert "instance llama-0 of generation 1" in text
    assert "would both use renderD128" in text


def test_an_engine_over_hosts_goes_back_as_a_whole() -> None:
    wanted = [deployment(nodes=2, tensor_parallel_size=2, pipeline_parallel_size=2, engine_args={"seed": 1})]
    keys = {"own": {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}}
    first = run(two(), [deployment(nodes=2, tensor_parallel_size=2, pipeline_parallel_size=2)], **keys)
    states = run(first, wanted, **keys)
    whole = planned(states, wanted, BACK, **keys).to_json()["hosts"]
    assert [actions(whole[name]) for name in ("n1", "n2")] == [["hold llama", "server llama-0"]] * 2
    assert whole["n1"]["spans"] == ["llama-0"]
    limited = {"groups": {"instinct": ["n1", "n2"]}, **keys}
    assert problems(only(states, "n1"), [{**wanted[0], "hosts": ["n1", "n2"]}], BACK, **limited) == [
        "host n1: llama spans n1, n2, but this run does not include n2. Add them to --limit."
    ]
    away = planned({**states, "n2": None}, wanted, BACK, **keys).to_json()["hosts"]["n1"]
    assert actions(away) == ["hold llama"]
    assert "llama spans n1, n2, but this run does not include n2; it is left as it is" in away["warnings"][0]
    held = run(states, wanted, BACK, **keys)
    held["n1"]["instances"][0]["state"] = "exited"
    left = planned({**held, "n2": None}, wanted, **keys).to_json()["hosts"]["n1"]  # type: ignore[dict-item]
    assert (actions(left), left["remove"]) == ([], [])


# ---- holds and trials --------------------------------------------------------------------------------


def test_a_held_deployment_is_left_and_repaired() -> None:
    states = run(upgraded(), llama(16), BACK)
    plan = planned(states, llama(16))
    assert (plan.changes, plan.warnings) == (0, ())
    (line,) = plan.ignored
    assert line.startswith(
        "llama is held at generation 1 since 2026-11-21T22:00:00Z: generation 2 was turned back (answers got worse). "
        "Its definition in the inventory is ignored. It ends when"
    )
    assert explain(plan).startswith(f"Held: {line[:80]}")  # before all else
    states["n1"]["instances"][0].update(state="exited", exit_code=1)
    assert actions(planned(states, llama(16)).to_json()["hosts"]["n1"]) == ["server llama-0"]


def test_a_host_that_was_away_during_the_rollback_follows() -> None:
    states = upgraded()
    states = {**states, **run(only(states, "n1"), llama(16), BACK)}
    data = planned(states, llama(16)).to_json()["hosts"]["n2"]
    assert actions(data) == ["hold llama", "server llama-0", "server llama-1"]
    assert {item["generation"] for item in data["servers"]} == {1}


def test_a_new_host_has_nothing_of_a_held_deployment() -> None:
    states = {**run(upgraded(), llama(16), BACK), "n3": state(hostname="n3")}
    assert [
        item for item in actions(planned(states, llama(16)).to_json()["hosts"]["n3"]) if "llama" in item
    ] == []


def test_a_definition_that_is_what_is_held_lets_go() -> None:
    states = run(upgraded(), llama(16), BACK)
    plan = planned(states, llama())
    assert (plan.warnings, turn(plan)["choice"]) == ((), "inventory")
    data = plan.to_json()["hosts"]["n1"]
    assert actions(data) == ["generation llama", "hold llama"]  # nothing stops
    assert data["bindings"] == [{"deployment": "llama", "held": None}]
    assert planned(run(states, llama()), llama()).changes == 0


def test_a_hold_that_was_lifted_elsewhere_does_not_count() -> None:
    states = bind(upgraded(), "n2", held=HELD)
    states = bind(states, "n1", held=None, lifted="2026-11-21T23:30:00Z")
    data = planned(states, llama(16)).to_json()["hosts"]
    assert (actions(data["n1"]), actions(data["n2"])) == ([], ["hold llama"])
    assert data["n2"]["bindings"] == [{"deployment": "llama", "held": None}]


def test_a_held_deployment_that_the_inventory_has_no_longer_goes() -> None:
    states = run(upgraded(), llama(16), BACK)
    data = planned(states, []).to_json()["hosts"]["n1"]
    assert actions(data) == [
        "generation llama",
        "hold llama",
        "remove_server llama-0",
        "remove_server llama-1",
    ]


def test_an_upgrade_lifts_the_hold_but_not_for_what_was_turned_back() -> None:
    states = run(upgraded(), llama(16), BACK)
    upgrade = OperationRequest(UPGRADE)
    again = planned(states, llama(16), upgrade)
    assert (again.changes, len(again.ignored)) == (0, 1)
    assert again.ignored[0].endswith("To retry the same definition: upgrade.yml -e retry=true.")
    retried = planned(states, llama(16), OperationRequest(UPGRADE, retry=True)).to_json()["hosts"]["n1"]
    assert actions(retried) == ["hold llama", "server llama-0", "server llama-1"]
    other = planned(states, llama(32), upgrade)
    assert (turn(other)["generation"], turn(other)["before"], turn(other)["why"]) == (
        3,
        1,
        "--max-num-seqs 32 (new)",
    )
    after = run(states, llama(32), upgrade)
    assert planned(after, llama(32)).changes == 0


@pytest.mark.parametrize("operation", [DEPLOY, UPGRADE])
@pytest.mark.parametrize(
    ("wanted", "number", "changed", "since"),
    [
        (llama(16), 2, ["n2"], ""),  # as it was begun
        (llama(32), 3, ["n1", "n2"], "3"),  # the inventory was changed again
        (llama(), 3, ["n1"], "3"),  # and changed back
        ([], 3, ["n1", "n2"], "3"),  # and has it no longer
    ],
)
def test_an_unfinished_rollout_goes_on_to_what_the_inventory_wants(
    operation: str, wanted: Any, number: int, changed: list[str], since: str
) -> None:
    states = run(two(), llama())
    states = {**states, **run(only(states, "n1"), llama(16))}
    plan = planned(bind(states, "n1", "n2", trial=TRIAL), wanted, OperationRequest(operation))
    goes_on = turn(plan)
    assert (goes_on["choice"], goes_on["generation"]) == ("inventory", number)
    assert [host.host.name for host in plan.hosts if host.start or host.remove] == changed
    (warning,) = [text for text in plan.warnings if "unfinished" in text]
    other = f", and the inventory has since changed to generation {since}" if since else ""
    assert warning == (
        f"deployment llama has an unfinished upgrade to generation 2 since 2026-11-21T23:00:00Z ({WHY}){other}: "
        "site.yml, deploy.yml and upgrade.yml continue it, rollback.yml -e deployment=llama undoes it"
    )


@pytest.mark.parametrize("operation", [RESTART, "stop"])
def test_what_only_restarts_is_planned_as_it_runs(operation: str) -> None:
    states = upgraded()
    plan = planned(states, llama(32, image="registry.lab:5000/lab/vllm:new"), OperationRequest(operation))
    assert (plan.changes, turn(plan)["choice"]) == (0, "running")
    data = plan.to_json()["hosts"]["n1"]
    assert [item["generation"] for item in data["instances"]] == [2, 2]


def test_a_deploy_of_one_deployment_leaves_the_others() -> None:
    wanted = [*llama(), deployment(name="other", gpus=[7], port=9000)]
    states = run(two(), wanted)
    changed = [*llama(16), deployment(name="other", gpus=[7], port=9000, engine_args={"max_num_seqs": 16})]
    data = planned(states, changed, OperationRequest(DEPLOY, frozenset(["other"]))).to_json()["hosts"]["n1"]
    assert actions(data) == ["generation other", "server other-0"]


# ---- what is kept ------------------------------------------------------------------------------------


def test_what_only_kept_generations_need_is_told() -> None:
    second = "registry.lab:5000/lab/vllm:2"
    states = upgraded()
    assert planned(states, llama(16)).to_json()["hosts"]["n1"]["kept"] == []  # the same image serves
    for found in states.values():
        for made in found["generations"][0]["kept"][:1]:
            made.update(image=f"{second}@sha256:22", image_ref=second)
    plan = planned(states, llama(16))
    assert plan.to_json()["hosts"]["n1"]["kept"] == [
        {"kind": "image", "name": f"{second}@sha256:22", "generations": ["llama 1"]}
    ]
    assert f"  n1, n2: image {second}@sha256:22: generation 1 of llama" in explain(plan, full=True)
    assert "Kept for a rollback" not in explain(plan)
