# SPDX-License-Identifier: Apache-2.0
"""Plans with changes of partition modes, and hosts whose GPUs are not fit to start anything on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain

from tests.worlds.plan_world import GIB, actions, apply_to_state, deployment, gpus, plan, problems, state

OFFERED = ["NPS1", "NPS4"]


def node(mode: str = "SPX", memory: str = "NPS1", **changes: Any) -> dict[str, Any]:
    """A node with eight MI300X in these modes, nothing else to do on it."""
    found = gpus(mode)
    for gpu in found:
        gpu.update(
            memory_partition=memory, available_memory_partitions=OFFERED, vram_used=283 << 20, users=[]
        )
    quiet = {"runtime": 0, "persisted": 0, "file": "x"}
    return state(gpus=found, numa_balancing=quiet, **changes)


def planned(found: dict[str, Any], deployments: Any = (), **keys: Any) -> dict[str, Any]:
    return plan({"n1": found}, list(deployments), **keys).to_json()["hosts"]["n1"]


def test_memory_and_compute_mode() -> None:
    host = planned(node(), gpu_partition_compute="CPX", gpu_partition_memory="NPS4")
    assert actions(host) == ["memory_partition 8 GPUs", "compute_partition 8 GPUs"]
    assert [(item["before"], item["after"]) for item in host["actions"]] == [
        ("NPS1", "NPS4, which reloads the driver"),
        ("SPX", "CPX"),
    ]
    assert host["partition"]["memory"] == "NPS4"
    assert host["gpus"]["logical"] == 64
    assert not [text for text in host["warnings"] if "validated" in text]


def test_the_memory_mode_alone() -> None:
    host = planned(node("CPX"), gpu_partition_memory="NPS4")
    assert actions(host) == ["memory_partition 8 GPUs"]
    assert host["partition"] == {
        "compute": None, "memory": "NPS4", "clean": False, "interrupted": False, "backend": "auto",
        "stop_servers": [], "serve": [], "remove": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({"gpu_partition_memory": "NPS4", "gpu_partition_compute": "CPX"}, ["memory", "compute"]),
        ({"gpu_partition_compute": "CPX"}, ["compute"]),
        ({"gpu_partition_memory": "NPS1"}, []),  # as it leaves the factory
        ({"gpu_partition_memory": "NPS1", "gpu_partition_compute": "SPX"}, []),
        ({}, []),
    ],
)
def test_an_offline_plan_shows_modes_and_reloads(modes: dict[str, str], expected: list[str]) -> None:
    gpus = {"model": "MI300X", "count": 8}
    found = plan({"n1": None}, [], offline=True, instinct_gpus=gpus, host_prep_numa_balancing=None, **modes)
    host = found.to_json()["hosts"]["n1"]
    assert [item["kind"] for item in host["actions"] if item["role"] == "gpu_partition"] == [
        f"{kind}_partition" for kind in expected
    ]
    text = explain(found)
    changed = "memory partition 8 GPUs: NPS1, as is assumed → NPS4, which reloads the driver"
    assert (changed in text) == ("memory" in expected)
    # A host in other modes is changed all the same, which is said where a mode is asked for.
    assert ("changing the memory mode reloads the driver" in " ".join(text.split())) == bool(modes)


def test_nothing_to_do() -> None:
    host = planned(node("CPX", "NPS4"), gpu_partition_compute="CPX", gpu_partition_memory="NPS4")
    assert host["actions"] == []
    assert host["partition"] is None


def in_nps4(**changes: Any) -> dict[str, Any]:
    found = node("CPX", "NPS4")
    for gpu in found["gpus"]:
        gpu.update({"available_compute_partitions": ["QPX", "CPX"], **changes})
    return found


NOT_SET = (
    "is not set, so GPU 0 keeps NPS4, and with that it offers QPX, CPX, not SPX. Write gpu_partition_memory: NPS1 "
    "next to gpu_partition_compute: SPX."
)
ONLY = "GPU 0 does not offer SPX. It offers QPX, CPX."


@pytest.mark.parametrize(
    ("changes", "mode", "said"),
    [
        ({}, "SPX", f"gpu_partition_memory (host n1): {NOT_SET}"),
        ({}, "DPX", f"gpu_partition_memory (host n1): {NOT_SET.replace('SPX', 'DPX')}"),
        ({}, "TPX", f"gpu_partition_compute (host n1): {ONLY.replace('SPX', 'TPX')}"),
        ({"available_memory_partitions": ["NPS4"]}, "SPX", f"gpu_partition_compute (host n1): {ONLY}"),
        ({"memory_partition": "NPS1"}, "SPX", f"gpu_partition_compute (host n1): {ONLY}"),
        ({"memory_partition": None}, "SPX", f"gpu_partition_compute (host n1): {ONLY}"),
        ({"device_id": 0x1234}, "SPX", f"gpu_partition_compute (host n1): {ONLY}"),
    ],
)
def test_a_compute_mode_that_needs_another_memory_mode(changes: dict[str, Any], mode: str, said: str) -> None:
    assert problems({"n1": in_nps4(**changes)}, [], gpu_partition_compute=mode) == [said]


def test_a_compute_mode_that_is_offered_only_after_the_change_of_memory() -> None:
    assert problems({"n1": in_nps4()}, [], gpu_partition_compute="SPX", gpu_partition_memory="NPS1") == []


def test_a_memory_mode_that_is_not_set_ends_the_run_for_all_hosts() -> None:
    """Else the others would change, although the inventory is wrong, and not the host."""
    hosts = {"n1": in_nps4(), "n2": node()}
    assert problems(hosts, [], gpu_partition_compute="SPX") == [f"gpu_partition_memory (host n1): {NOT_SET}"]
    # A host that lacks the modes is left out.
    old = in_nps4(available_compute_partitions=[], compute_partition=None)
    left_out = dict(plan({"n1": old, "n2": node()}, [], gpu_partition_compute="SPX").excluded)
    assert left_out["n1"].startswith("gpu_partition_compute: GPU 0 offers no compute partition modes.")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gpu_partition_memory": "NPS2"}, "GPU 0 does not offer NPS2. It offers NPS1, NPS4."),
        ({"gpu_partition_memory": "NPS3"}, "'NPS3' is not valid. Valid: NPS1, NPS2, NPS4."),
        (
            {"gpu_partition_memory": "NPS4"},
            "MI300X in SPX cannot be combined with NPS4. Set gpu_partition_compute to QPX or CPX.",
        ),
        (
            {"gpu_partition_memory": "NPS4", "gpu_partition_compute": "DPX"},
            "MI300X in DPX cannot be combined with NPS4. Set gpu_partition_compute to QPX or CPX.",
        ),
        ({"gpu_clean": "maybe"}, "gpu_clean"),
    ],
)
def test_refused(keys: dict[str, Any], says: str) -> None:
    assert any(says in problem for problem in problems({"n1": node()}, [], **keys))


def test_a_declared_host_with_a_mode_that_does_not_go_with_the_other() -> None:
    found = problems(
        {"n1": None}, [], offline=True, instinct_gpus={"model": "MI300X"}, gpu_partition_memory="NPS4"
    )
    assert "MI300X in SPX cannot be combined with NPS4" in found[0]


def test_the_validated_pairs_are_those_of_the_modes_that_will_be() -> None:
    host = planned(node(), gpu_partition_compute="QPX", gpu_partition_memory="NPS4")
    assert any("QPX with NPS4 works, but AMD lists only" in text for text in host["warnings"])


# --- a change that was cut off -----------------------------------------------------------------------------


def test_a_change_that_was_cut_off_is_finished_although_the_modes_are_right() -> None:
    host = planned(node("CPX", partition_change="restore"), gpu_partition_compute="CPX")
    assert actions(host) == ["partition_change 8 GPUs"]
    assert host["actions"][0]["before"] == "interrupted at step restore"
    assert host["partition"]["compute"] == "CPX"


def test_a_change_that_was_cut_off_wants_to_be_told_the_mode() -> None:
    assert problems({"n1": node(partition_change="set")}, []) == [
        "host n1: an earlier partition change was interrupted (step set). Set gpu_partition_compute to the mode you "
        "want, and run partition.yml."
    ]


def test_instances_that_a_run_left_stopped_are_resumed() -> None:
    lone = [deployment()]
    running = apply_to_state(node(), planned(node(), lone))
    assert planned(running, lone)["resume"] == []
    running["instances"][0]["state"] = "exited"
    host = planned(running, lone)
    assert host["partition"] is None
    assert host["resume"] == ["llama-0"]
    host = planned(running, lone, gpu_partition_compute="CPX")
    assert host["partition"]["serve"] == ["llama-0"]
    assert host["resume"] == []


WANTED = [deployment(instances_per_host=2)]
OLD, NEW = "as in SPX", "as in CPX"


def half_done(*runs: str, **changes: Any) -> dict[str, Any]:
    """A node after its modes were changed; what runs of llama-0 and llama-1 there ("": nothing)."""
    old = apply_to_state(node(), planned(node(), WANTED))
    new = apply_to_state(old, planned(old, WANTED, gpu_partition_compute="CPX"))
    found = []
    for number, text in enumerate(runs):
        kind, _, state_of = text.partition(", ")
        if kind:
            there = {OLD: old, NEW: new}[kind]["instances"][number]
            found.append({**there, "state": state_of or "running"})
    return {**new, "instances": found, **changes}


@pytest.mark.parametrize(
    ("runs", "before", "starts", "resumed"),
    [
        ((NEW, NEW), "", [], []),
        ((OLD, OLD), "llama-0, llama-1 as in SPX NPS1", ["llama-0", "llama-1"], []),
        ((NEW, OLD), "llama-1 as in SPX NPS1", ["llama-1"], []),
        (("", OLD), "llama-1 as in SPX NPS1", ["llama-0", "llama-1"], []),
        ((f"{OLD}, exited", NEW), "llama-0 as in SPX NPS1", ["llama-0"], []),
        (
            (f"{OLD}, exited", f"{OLD}, restarting"),
            "llama-0, llama-1 as in SPX NPS1",
            ["llama-0", "llama-1"],
            [],
        ),
        ((NEW, ""), "", ["llama-1"], ["llama-1"]),  # the old one was removed, and the new one not made
        (("", ""), "", ["llama-0", "llama-1"], ["llama-0", "llama-1"]),
        ((f"{NEW}, exited", NEW), "", ["llama-0"], ["llama-0"]),
    ],
)
def test_instances_of_the_earlier_modes_are_replaced(
    runs: tuple[str, str], before: str, starts: list[str], resumed: list[str]
) -> None:
    host = planned(half_done(*runs), WANTED, gpu_partition_compute="CPX")
    assert [item["before"] for item in host["actions"] if item["kind"] == "partition_change"] == [
        before
    ] * bool(before)
    assert [server["name"] for server in host["servers"]] == starts
    assert (host["partition"] or {}).get("serve", []) == (starts if before else [])
    # What runs as it should is left alone: the modes do not change any more.
    assert (host["partition"] or {}).get("stop_servers", []) == []
    assert host["resume"] == resumed


@pytest.mark.parametrize(
    ("wanted", "keys", "removed"),
    [
        ([deployment()], {"gpu_partition_compute": "CPX"}, ["llama-1"]),
        (
            [deployment(instances_per_host=2, port=9000)],
            {"gpu_partition_compute": "CPX"},
            [],
        ),  # changed again
    ],
)
def test_what_the_inventory_wants_by_then_is_what_the_change_ends_with(
    wanted: Any, keys: Any, removed: list[str]
) -> None:
    host = planned(half_done(OLD, OLD), wanted, **keys)
    assert "partition_change 8 GPUs" in actions(host)
    assert host["partition"]["remove"] == removed
    after = apply_to_state(half_done(), host)
    assert actions(planned(after, wanted, **keys)) == []


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        (WANTED, {}),  # the toolkit is not to set the modes
        ([deployment(instances_per_host=2, port=9000)], {"gpu_partition_compute": "CPX"}),  # an upgrade
    ],
)
def test_what_is_no_unfinished_change_is_none(wanted: Any, keys: Any) -> None:
    host = planned(half_done(NEW, NEW) if keys else half_done(OLD, OLD), wanted, **keys)
    assert (host["partition"], host["resume"]) == (None, [])
    assert [server["name"] for server in host["servers"]] == ["llama-0", "llama-1"]


def test_an_instance_that_a_rollout_has_not_reached_is_not_resumed() -> None:
    found = half_done(NEW, "")
    found["generations"][0]["trial"] = {"generation": 2, "why": "", "since": "2026-11-22T10:00:00Z"}
    host = planned(found, WANTED, gpu_partition_compute="CPX")
    assert ([server["name"] for server in host["servers"]], host["resume"]) == (["llama-1"], [])


# --- clean GPUs --------------------------------------------------------------------------------------------


def dirty(**gpu: Any) -> dict[str, Any]:
    """A node of which GPU 3 is as given."""
    found = copy.deepcopy(node())
    found["gpus"][3].update(gpu)
    return found


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            dirty(vram_used=46 * GIB),
            "GPU 3: VRAM in use that no process holds, up to 46 GiB. Run again with -e gpu_clean=true",
        ),
        (dirty(in_reset=True), "GPU 3: a reset of the GPU is in progress. Wait until it ends"),
        (dirty(ecc_uncorrectable=2), "GPU 3: 2 uncorrectable memory errors. Check amd-smi metric --ecc"),
        (node(kfd_zombies=[77]), "zombie processes hold the GPUs (pid 77). Stop its parent"),
    ],
)
def test_a_host_is_set_aside(found: dict[str, Any], says: str) -> None:
    made = plan({"n1": found, "n2": node()}, [deployment()])
    assert [host.host.name for host in made.hosts] == ["n2"]
    assert dict(made.excluded)["n1"].startswith(says)


@pytest.mark.parametrize("found", [dirty(vram_used=160 * GIB, users=[77]), dirty(vram_used=1 * GIB), node()])
def test_a_host_is_not_set_aside(found: dict[str, Any]) -> None:
    assert plan({"n1": found}, []).excluded == ()


def test_with_permission_the_driver_is_reloaded() -> None:
    host = planned(dirty(vram_used=46 * GIB), gpu_clean="true")
    assert actions(host) == ["gpu_clean 8 GPUs"]
    assert host["partition"]["clean"] is True
    assert planned(node(), gpu_clean="true")["actions"] == []


def test_permission_does_not_cure_what_a_reload_does_not() -> None:
    made = plan({"n1": dirty(vram_used=46 * GIB, ecc_uncorrectable=1)}, [], gpu_clean=True)
    assert made.hosts == ()


def test_hosts_that_differ_in_what_runs_are_planned_at_once() -> None:
    """What is in use at the moment does not make hosts different to the planner."""
    made = plan({"n1": dirty(vram_used=160 * GIB, users=[77]), "n2": node()}, [])
    first, second = (host.host.state for host in made.hosts)
    assert first is not None
    assert second is not None
    assert first.gpus == second.gpus
