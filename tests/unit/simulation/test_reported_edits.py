# SPDX-License-Identifier: Apache-2.0
"""Edits that once lost requests, could not succeed, or were refused without need: each alone, and with another edit."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import names_of

from tests.worlds import mishaps
from tests.worlds.edited_fleet import Inventory, Planned, Site, carried_out, edited, planned, settled
from tests.worlds.plan_world import deployment

MODEL = "lab/tiny-llama"
BALANCER = {"n1": "192.0.2.11"}
HOSTS = {**BALANCER, "n2": "192.0.2.12"}
ELSEWHERE = {"lb": "192.0.2.1"}
FLAG = {"engine_args": {"max_num_seqs": 64}}


def llama(**keys: Any) -> dict[str, Any]:
    """Two instances on each host."""
    return deployment(**{"gpus": [0, 1], "instances_per_host": 2, **keys})


BASE = Inventory(HOSTS, BALANCER, (llama(),))


def fewest(base: Inventory = BASE, site: Site | None = None, **changes: Any) -> dict[str, int]:
    """The fewest engines of the model in service in each load balancer, by its name.

    Nothing is violated on the way, and a second plan is empty.
    """
    inventory, before = edited(base, **changes), site or settled(base)
    done = planned(inventory, before)
    found = done.simulate()
    assert found.violations == ()
    assert planned(inventory, carried_out(done, inventory, before)).plan.changes == 0
    return {balancer: count for (balancer, model), count in found.least.items() if model == MODEL}


@pytest.mark.parametrize("more", [{}, FLAG, {"port": 8200}, {"gpus": [2, 3]}])
def test_a_deployment_that_is_renamed_keeps_its_model_in_service(more: dict[str, Any]) -> None:
    """Finding W1: the old name's instances stopped before those of the new one served."""
    assert fewest(deployments=(llama(name="chat", **more),))["n1"] >= 2


@pytest.mark.parametrize("more", [{}, FLAG, {"name": "chat"}, {"served_model_name": [MODEL, "chat"]}])
def test_a_port_that_changes_is_asked_as_long_as_an_instance_listens_there(more: dict[str, Any]) -> None:
    """Finding W2: load balancers asked instances at ports that these were to have later."""
    assert fewest(deployments=(llama(port=8200, **more),))["n1"] >= 2
    assert fewest(deployments=(llama(port=8001, **more),))["n1"] >= 2  # another one's as long as that runs


@pytest.mark.parametrize("more", [{}, FLAG, {"port": 8200}, {"name": "chat"}])
def test_a_second_load_balancer_changes_where_instances_listen(more: dict[str, Any]) -> None:
    """Finding W7: its instances' addresses change, which was configured before they had them."""
    both = {**BALANCER, **ELSEWHERE}
    found = fewest(balancers=both, deployments=(llama(**more),))
    assert found["n1"] >= 2


@pytest.mark.parametrize("more", [{}, FLAG, {"port": 8200}, {"name": "chat"}])
@pytest.mark.parametrize("balancers", [BALANCER, ELSEWHERE])
def test_the_first_load_balancer_comes_before_what_changes_is_drained_from_it(
    balancers: dict[str, str], more: dict[str, Any]
) -> None:
    """Finding L1: instances were drained from a load balancer that the run had yet to install."""
    fewest(edited(BASE, balancers={}), balancers=balancers, deployments=(llama(**more),))


# ---- what counts as capacity -------------------------------------------------------------------------

AGAIN = {"n2": "192.0.2.12", "n3": "192.0.2.13"}
FOUR = Inventory({**BALANCER, **AGAIN}, BALANCER, (llama(),), {"n2": "CPX", "n3": "CPX"})
"""Two instances in the load balancer, and four on hosts that come back to the fleet."""


def come_back() -> Site:
    """What FOUR runs, after n2 and n3 had left the inventory: they serve on, and no load balancer sends requests."""
    alone = edited(FOUR, hosts=BALANCER)
    return Site(settled(FOUR).states, settled(alone).seen)


@pytest.mark.parametrize("more", [{}, FLAG])
@pytest.mark.parametrize("serial", [["100%"], [1]])
def test_what_no_load_balancer_has_is_no_capacity(more: dict[str, Any], serial: list[Any]) -> None:
    """Finding W8: six of six "served", so that no four of them were allowed to stop for another partition mode."""
    inventory = edited(FOUR, modes={"n2": "SPX", "n3": "SPX"}, deployments=(llama(**more),))
    found = planned(inventory, come_back(), partition_serial=serial).simulate(partition_serial=serial)
    assert found.violations == ()
    # Those of n2 and n3 serve in their new mode before the two of n1 change.
    assert (found.required["n1", MODEL].first, found.least["n1", MODEL]) == (2, 2)


def test_what_a_load_balancer_has_is_capacity() -> None:
    """The same hosts with their instances in the load balancer may not stop all at once."""
    inventory, site = edited(FOUR, modes={"n2": "SPX", "n3": "SPX"}), settled(FOUR)
    with pytest.raises(FleetError, match="would leave 2, and 3 must stay"):
        planned(inventory, site, partition_serial=["100%"])


# ---- a reference that has changed already ------------------------------------------------------------


def test_a_reference_leaves_as_what_it_is_by_then() -> None:
    """Two deployments exchange ports; who listens at one's former port was drained with the other's reference."""
    ada = deployment(
        name="ada", gpus=[0, 1], instances_per_host=2, port=8000, served_model_name="chat", hosts=["n1"]
    )
    bob = deployment(name="bob", gpus=[2, 3, 4], instances_per_host=3, port=8020, served_model_name="chat")
    before = Inventory({**HOSTS, "n3": "192.0.2.13"}, ELSEWHERE, (ada, bob))
    after = edited(
        before, deployments=({**ada, "port": 8020}, {**bob, "port": 8000, "served_model_name": "talk"})
    )
    found = planned(after, settled(before)).simulate()
    assert found.violations == ()
    assert found.least["lb", "chat"] == 2


def test_what_an_engine_has_on_hosts_that_answer_stays_in_service() -> None:
    """Its other host does not answer: it is neither changed nor removed, and counts before and after the run."""
    span = deployment(
        name="wide", nodes=2, tensor_parallel_size=1, pipeline_parallel_size=2, hosts=["n1", "n2"], gpus=[0], port=8100
    )  # fmt: skip
    base = Inventory(HOSTS, ELSEWHERE, (span, llama(gpus=[2], instances_per_host=1)))
    before = settled(base)
    without = Site({**before.states, "n2": None}, before.seen)
    flagged = edited(base, deployments=(span, llama(gpus=[2], instances_per_host=1, **FLAG)))
    with pytest.raises(FleetError) as error:
        planned(flagged, without)
    assert "2 of 3" in error.value.problems[0].text()
    assert planned(flagged, without, min_available=1).simulate(min_available=1).violations == ()


def test_what_a_change_of_partition_modes_takes_is_gone_before_the_batches() -> None:
    """It counted as in service in each of them, so that they took too many others."""
    four = {f"n{number}": f"192.0.2.{10 + number}" for number in range(1, 5)}
    ada = deployment(name="ada", gpus=[0, 1, 2], instances_per_host=3, hosts=["n4"])
    bob = deployment(name="bob", gpus=[3], instances_per_host=1, port=8020)
    base = Inventory(four, ELSEWHERE, (ada, bob), dict.fromkeys(four, "CPX"))
    less = ({**ada, "port": 8020}, {**bob, "port": 8400, "hosts": ["n1", "n2"]})
    assert fewest(base, deployments=less, modes={**base.modes, "n3": "SPX"})["lb"] >= 4


RENAMED = {**BALANCER, "second": HOSTS["n2"]}


def test_a_host_of_another_name_is_no_capacity_twice() -> None:
    """Load balancers name its instances by its former name until they are configured anew."""
    base = edited(BASE, balancers=ELSEWHERE, deployments=(llama(hosts=["n2"]),))
    after = edited(base, hosts=RENAMED, deployments=(llama(gpus=[1, 0], hosts=["second"]),))
    with pytest.raises(FleetError) as error:  # both change together
        planned(after, settled(base).renamed({"n2": "second"}))
    assert "must change together" in error.value.problems[0].text()


def test_what_the_operator_drained_stays_so_under_another_name_of_its_host() -> None:
    base = edited(BASE, balancers=ELSEWHERE)
    before = settled(base)
    server = next(
        name for name in before.seen["lb"]["config"]["backends"][0]["servers"] if name["host"] == "n2"
    )
    before.seen["lb"]["out"] = {f"llama/{server['name']}": {"state": "drain", "by": "operator", "since": "x"}}
    after = edited(base, hosts=RENAMED, deployments=(llama(**FLAG),))
    done = planned(after, before.renamed({"n2": "second"}))
    assert done.simulate().violations == ()


def test_what_the_operator_drained_and_the_run_removes_is_one_of_all() -> None:
    """It goes before the batches; of three engines two must stay, as long as two can."""
    three = llama(gpus=[0, 1, 2], instances_per_host=3, hosts=["n1"])
    base = edited(BASE, balancers=ELSEWHERE, deployments=(three,))
    before = settled(base)
    before.seen["lb"]["out"] = {"llama/n1.llama-2:8002": {"state": "drain", "by": "operator", "since": "x"}}
    two = edited(base, deployments=(llama(hosts=["n1"], **FLAG),))
    with pytest.raises(FleetError) as error:
        planned(two, before)
    assert "requires 2 of 3 engines" in error.value.problems[0].text()
    assert planned(two, before, min_available=1).simulate(min_available=1).violations == ()


def test_what_gives_a_name_up_changes_after_what_keeps_it() -> None:
    """Else too few would be left for the others to change; it was refused, though another order does it."""
    green = llama(name="green", gpus=[2, 3], port=8020)
    base = edited(BASE, deployments=(llama(), green))
    found = fewest(base, deployments=(llama(served_model_name="next"), {**green, **FLAG}))
    assert found["n1"] >= 4


def test_a_server_of_an_instance_that_works_for_another_one_is_no_engine() -> None:
    """Wherever a run dies that makes two engines of one over two hosts, the next one goes on."""
    span = {"nodes": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    one = deployment(name="wide", hosts=["n1", "n2"], gpus=[0], **span)
    two = deployment(name="wide", hosts=["n1", "n2"], gpus=[0])
    base = edited(BASE, balancers=ELSEWHERE, deployments=(one,))
    wanted, before = edited(base, deployments=(two,)), settled(base)
    done = planned(wanted, before)
    for moment in mishaps.moments(done):
        there = mishaps.died_at(moment, done, wanted, before)
        assert planned(wanted, there).simulate().violations == (), moment.step


@pytest.mark.parametrize(
    "more", [{"served_model_name": "chat"}, {"name": "chat", "served_model_name": "chat"}]
)
def test_a_canary_that_serves_again_is_not_drained_again(more: dict[str, Any]) -> None:
    """Nobody asks for its old name afterwards, so it may change. The run dies; its new name has a minimum of one."""
    base = Inventory(HOSTS, ELSEWHERE, (llama(instances_per_host=1, gpus=[0], hosts=["n2"]),))
    renamed = edited(base, deployments=(llama(instances_per_host=1, gpus=[0], hosts=["n2"], **more),))
    site = settled(base)
    done = planned(renamed, site, "upgrade", min_available=2)
    moments = mishaps.moments(done)
    assert any("phase watch" in moment.step for moment in moments)
    for moment in moments:
        there = mishaps.died_at(moment, done, renamed, site)
        again = planned(renamed, there, "upgrade", min_available=2)
        assert again.simulate(min_available=2).violations == (), moment.step


def test_an_engine_over_two_hosts_that_the_operator_drained_is_one() -> None:
    """The server on its second host, which gets no requests, counted as an engine that starts."""
    span = {"nodes": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    wide = deployment(name="wide", hosts=["n1", "n2"], gpus=[4], port=8100, **span)
    base = edited(BASE, balancers=ELSEWHERE, deployments=(wide, llama()))
    before = settled(base)
    (backend,) = before.seen["lb"]["config"]["backends"]
    server = next(item["name"] for item in backend["servers"] if item["instance"] == "wide-0")
    entry = {"state": "drain", "by": "operator", "since": "x"}
    before.seen["lb"]["out"] = {f"{backend['name']}/{server}": entry}
    assert fewest(base, before, deployments=({**wide, **FLAG}, llama(**FLAG)))["lb"] >= 3


def test_two_engines_over_two_hosts_one_of_which_the_operator_drained_do_not_both_leave() -> None:
    """The server on its second host counted as one that enters service when the first one had changed."""
    span = {"nodes": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 2, "hosts": ["n1", "n2"]}
    ada, bob = (
        deployment(name=name, gpus=[gpu], port=port, **span)
        for name, gpu, port in (("ada", 4, 8100), ("bob", 5, 8120))
    )
    other = llama(served_model_name="other", hosts=["n1"])
    base = edited(BASE, balancers=ELSEWHERE, deployments=(ada, bob, other))
    before = settled(base)
    backend = next(item for item in before.seen["lb"]["config"]["backends"] if MODEL in item["models"])
    server = next(item["name"] for item in backend["servers"] if item["instance"] == "bob-0")
    entry = {"state": "drain", "by": "operator", "since": "x"}
    before.seen["lb"]["out"] = {f"{backend['name']}/{server}": entry}
    wanted = edited(base, deployments=({**ada, **FLAG}, {**bob, "port": 8000}, {**other, "port": 8120}))
    with pytest.raises(FleetError, match="only 1 of 2 engines of ada and bob serve"):
        planned(wanted, before)


@pytest.mark.parametrize("operation", ["deploy", pytest.param("upgrade", marks=pytest.mark.deep)])
def test_what_is_reached_by_another_server_again_is_drained_before_it_is_forgotten(operation: str) -> None:
    """An instance that listens on all addresses answered at the one of a run that died, too."""
    base = edited(BASE, balancers=HOSTS, deployments=(llama(listen="0.0.0.0"),))
    before, wanted = settled(base), edited(base, deployments=(llama(),))
    done = planned(wanted, before, operation)
    for moment in mishaps.moments(done):
        there = mishaps.died_at(moment, done, wanted, before)
        again = planned(base, there, operation)
        assert again.simulate().violations == (), moment.step
        assert planned(base, carried_out(again, base, there)).plan.changes == 0


@pytest.mark.parametrize("more", [{}, {"gpus": [6]}])
def test_an_engine_over_hosts_that_are_partitioned_one_after_the_other_is_awaited_after_them(
    more: dict[str, Any],
) -> None:
    """It was awaited when its first host had changed, and starts when all have."""
    span = {"nodes": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 2, "hosts": ["n1", "n2"]}
    wide = deployment(name="wide", gpus=[4], port=8100, **span)
    hosts = {**HOSTS, "n3": "192.0.2.13"}
    base = edited(BASE, hosts=hosts, balancers=ELSEWHERE, deployments=(wide, llama(hosts=["n3"])))
    modes = {"n1": "CPX", "n2": "CPX"}
    assert fewest(base, deployments=({**wide, **more}, llama(hosts=["n3"])), modes=modes)["lb"] >= 2


@pytest.mark.parametrize("operation", ["deploy", pytest.param("upgrade", marks=pytest.mark.deep)])
def test_what_a_run_that_died_left_drained_changes_first(operation: str) -> None:
    """Two of three must stay, and two serve: the third takes nothing out of service."""
    base = edited(BASE, hosts=BALANCER, deployments=(llama(gpus=[0, 1, 2], instances_per_host=3),))
    before, wanted = (
        settled(base),
        edited(base, deployments=(llama(gpus=[0, 1, 2], instances_per_host=3, **FLAG),)),
    )
    done = planned(wanted, before, operation)
    for moment in mishaps.moments(done):
        there = mishaps.died_at(moment, done, wanted, before)
        assert planned(wanted, there, operation).simulate().violations == (), moment.step


@pytest.mark.parametrize(
    ("names", "count"),
    [pytest.param(["n1", "n2"], 3, marks=pytest.mark.deep), (["n1", "n2", "n3"], 1)],
)
def test_a_load_balancer_keeps_enough_of_what_it_reaches(names: list[str], count: int) -> None:
    """The first ones come, the run dies: each has its own host's instances alone, and those of all were counted."""
    hosts = {name: f"192.0.2.1{name[1:]}" for name in names}
    gpus = {"gpus": list(range(count)), "instances_per_host": count}
    base = Inventory(hosts, {}, (llama(listen="127.0.0.1", **gpus),))
    wanted = edited(base, balancers=hosts, deployments=(llama(**gpus),))
    before = settled(base)
    done = planned(wanted, before)
    for moment in mishaps.moments(done):
        there = mishaps.died_at(moment, done, wanted, before)
        again = planned(wanted, there)
        assert again.simulate().violations == (), moment.step
        assert planned(wanted, carried_out(again, wanted, there)).plan.changes == 0


HANDED_ON: dict[str, tuple[list[Any], list[Any]]] = {
    "to another": (["one", "two"], ["three", "one"]),
    "exchanged": (["one", "two"], ["two", "one"]),
    "in a ring": (["one", "two", "three"], ["two", "three", "one"]),
    "from hand to hand": (["one", "two", "three"], ["new", "one", "two"]),
    "one of several": ([["one", "x"], "two"], ["one", ["two", "x"]]),
}


@pytest.mark.deep
@pytest.mark.parametrize("names", HANDED_ON)
def test_a_name_that_another_deployment_takes_over_is_served_whatever_happens(names: str) -> None:
    """The run dies anywhere, and the next one goes on. The release of either fails its verdict, with the run before or
    without: whoever gave the name up keeps it with a taker that is turned back.
    """

    def named(served: list[Any]) -> Inventory:
        return edited(
            BASE,
            balancers=ELSEWHERE,
            deployments=tuple(
                llama(name=f"d{at}", served_model_name=one, gpus=[2 * at, 2 * at + 1], port=8000 + 100 * at)
                for at, one in enumerate(served)
            ),
        )

    before, after = HANDED_ON[names]
    wanted, site = named(after), settled(named(before))
    done = planned(wanted, site)
    asked = done.simulate().required.keys()
    turned: list[tuple[Planned, Site]] = [(done, site)]
    for moment in {str(sorted(one.drained["lb"])) + one.step: one for one in mishaps.moments(done)}.values():
        there = mishaps.died_at(moment, done, wanted, site)
        again = planned(wanted, there)
        assert again.simulate().violations == (), moment.step
        turned.append((again, there))
    for run, there in turned:
        for batch in run.rollout.batches if run.rollout else ():
            back = mishaps.turned_back(run, wanted, there, (batch, "watch")) if batch["holds"] else None
            if back is None:
                continue
            then = planned(wanted, back)
            ends: list[dict[tuple[str, str], int]] = []
            found = then.simulate(lambda _step, model, ends=ends: ends.append(dict(model.counts)))
            assert found.violations == (), batch["text"]
            assert all(ends[-1].get(one) for one in asked), batch["text"]


@pytest.mark.parametrize("host", ["n1", "n2"])
def test_a_load_balancer_that_comes_again_awaits_what_runs_and_what_it_lacks(host: str) -> None:
    """It knows the host by another instance, and took one that runs for one that is still to come."""
    base = edited(BASE, balancers={**BALANCER, **ELSEWHERE})
    wanted = edited(base, deployments=(llama(), deployment(name="eve", gpus=[4], port=8300, hosts=[host])))
    without, before = edited(wanted, balancers=ELSEWHERE), settled(base)
    there = carried_out(planned(without, before), without, before)
    done = planned(wanted, there)
    (again,) = [item for item in done.plan.balancers if item.actions]
    assert [server.coming for server in names_of(again.during).values()] == [False] * 5
    assert done.simulate().violations == ()
    assert planned(wanted, carried_out(done, wanted, there)).plan.changes == 0


def test_what_the_operator_drained_in_one_load_balancer_serves_in_the_others() -> None:
    """Each sends requests to two of four; none counted as in service, and all were replaced at once."""
    four = {"gpus": [0, 1, 2, 3], "instances_per_host": 4, "hosts": ["n1"]}
    base = edited(BASE, balancers={**BALANCER, **ELSEWHERE}, deployments=(llama(**four),))
    before, entry = settled(base), {"state": "drain", "by": "operator", "since": "x"}
    for balancer, out in (("n1", (0, 1)), ("lb", (2, 3))):
        servers = before.seen[balancer]["config"]["backends"][0]["servers"]
        before.seen[balancer]["out"] = {f"llama/{servers[index]['name']}": entry for index in out}
    wanted = edited(base, deployments=(llama(**four, **FLAG),))
    with pytest.raises(FleetError) as error:
        planned(wanted, before)
    assert "only 2 of 4 engines of llama behind lb serve" in " ".join(
        one.what for one in error.value.problems
    )
    assert fewest(wanted, before, rollout={"min_available": 1}) == {"n1": 1, "lb": 1}
