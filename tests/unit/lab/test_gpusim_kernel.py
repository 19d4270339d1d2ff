# SPDX-License-Identifier: Apache-2.0
"""The simulated driver's rules, as tables: what a request changes and which errno it gets."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.gpusim import serve as serving
from lab.gpusim.driver import faults, kernel
from lab.gpusim.machine import settings
from lab.gpusim.machine.models import MODELS
from lab.gpusim.machine.paths import Paths
from lab.gpusim.machine.state import Holder, Node, StateError, from_json, make_node, to_json
from tests.helpers.some import some

KFD = (Holder(7, "gpuagent"),)
RENDER_ONLY = (Holder(8, "Xorg", minors=(128,), kfd=False),)


def node(count: int = 2, **fields: Any) -> Node:
    return replace(make_node(count), **fields)


# Kernel table: which compute mode goes with which memory mode.
@pytest.mark.parametrize(
    ("model", "memory", "modes"),
    [
        ("MI300X", "NPS1", "SPX DPX QPX CPX"),
        ("MI300X", "NPS2", "DPX"),
        ("MI300X", "NPS4", "QPX CPX"),
        ("MI325X", "NPS4", "QPX CPX"),
        ("MI355X", "NPS1", "SPX DPX QPX CPX"),
        ("MI355X", "NPS2", "DPX QPX CPX"),
        ("MI308X", "NPS1", "SPX DPX CPX"),
    ],
)
def test_available_compute_modes(model: str, memory: str, modes: str) -> None:
    assert kernel.available_compute(node(model=model, memory=memory)) == tuple(modes.split())


@pytest.mark.parametrize(
    ("fields", "text", "holders", "number", "mode"),
    [
        ({}, "CPX", (), 0, "CPX"),
        ({}, "cpx", (), 0, "CPX"),
        ({}, "CPX and more", (), 0, "CPX"),  # the driver compares a prefix
        ({}, "CP", (), errno.EINVAL, "SPX"),
        ({}, "XPX", (), errno.EINVAL, "SPX"),
        ({}, "", (), errno.EINVAL, "SPX"),
        ({}, "TPX", (), errno.EINVAL, "SPX"),  # needs six XCCs
        ({"model": "MI308X"}, "QPX", (), errno.EINVAL, "SPX"),  # needs eight
        ({"memory": "NPS4"}, "DPX", (), errno.EINVAL, "SPX"),
        ({}, "CPX", KFD, errno.EBUSY, "SPX"),
        ({}, "SPX", KFD, 0, "SPX"),  # the present mode is fine even while busy
        ({}, "XPX", KFD, errno.EINVAL, "SPX"),  # invalid is found before busy
        ({}, "CPX", RENDER_ONLY, 0, "CPX"),  # only KFD users count
    ],
)
def test_set_compute(fields: dict[str, Any], text: str, holders: Any, number: int, mode: str) -> None:
    before = node(**fields)
    after, got = kernel.set_compute(before, 0, text, holders)
    assert got == number
    assert [g.compute for g in after.gpus] == [mode, "SPX"]
    assert (after.generation > before.generation) == (mode != "SPX")


def test_gpu_in_reset_answers_eperm() -> None:
    assert kernel.set_compute(node().gpu_set(0, reset=True), 0, "SPX", ()).errno == errno.EPERM


def test_refusal_is_in_the_kernel_log() -> None:
    after, _ = kernel.set_compute(node(memory="NPS4"), 0, "SPX", ())
    assert after.log[-1].endswith(
        "Invalid compute partition mode requested, requested: SPX, available memory partitions: 4"
    )


def test_newer_drivers_look_at_the_users_of_the_device_only() -> None:
    made = settings.apply(node(), {"busy": "device"})
    on_first = (Holder(7, "vllm", minors=(128,)),)
    assert kernel.set_compute(made, 0, "CPX", on_first).errno == errno.EBUSY
    assert kernel.set_compute(made, 1, "CPX", on_first).errno == 0
    assert kernel.set_compute(node(), 1, "CPX", on_first).errno == errno.EBUSY


@pytest.mark.parametrize(
    ("text", "number", "requested"),
    [
        ("NPS4", 0, "NPS4"),
        ("nps4", 0, "NPS4"),
        ("NPS1", 0, None),  # the present one
        ("NPS2", errno.EINVAL, None),  # not offered by this firmware
        ("NPS8", errno.EINVAL, None),
        ("4", errno.EINVAL, None),
    ],
)
def test_set_memory_is_only_noted(text: str, number: int, requested: str | None) -> None:
    after, got = kernel.set_memory(node(), 0, text)
    assert (got, after.memory, after.memory_requested) == (number, "NPS1", requested)


def test_asking_for_the_present_memory_mode_leaves_a_request_standing() -> None:
    asked = kernel.set_memory(node(), 0, "NPS4").node
    assert kernel.set_memory(asked, 1, "NPS1").node.memory_requested == "NPS4"


@pytest.mark.parametrize(
    ("memory", "model", "compute"),
    [("NPS1", "MI300X", "SPX"), ("NPS4", "MI300X", "CPX"), ("NPS2", "MI355X", "DPX")],
)
def test_reload_brings_the_memory_mode_and_its_compute_mode(memory: str, model: str, compute: str) -> None:
    made = node(model=model, memory="NPS1" if memory != "NPS1" else "NPS4")
    made = kernel.set_memory(made, 0, memory).node.gpu_set(1, stranded=5)
    made, number = kernel.unload(made, ())
    assert (number, made.driver.loaded) == (0, False)
    made, number = kernel.load(made)
    assert (number, made.memory, made.memory_requested) == (0, memory, None)
    assert {g.compute for g in made.gpus} == {compute}
    assert {g.stranded for g in made.gpus} == {0}


def test_reload_without_a_request_resets_the_compute_mode() -> None:
    made = kernel.set_compute(node(), 0, "DPX", ()).node
    made = kernel.load(kernel.unload(made, ()).node).node
    assert [g.compute for g in made.gpus] == ["SPX", "SPX"]


@pytest.mark.parametrize("holders", [KFD, RENDER_ONLY])
def test_module_in_use_is_not_unloaded(holders: Any) -> None:
    after, number = kernel.unload(node(), holders)
    assert (number, after.driver.loaded) == (errno.EBUSY, True)


# ---------------------------------------------------------------- faults and settings


def with_faults(*names: str) -> Node:
    made = node()
    for name in names:
        made = faults.add(made, name)
    return made


def test_passing_busy_is_used_up_by_changes_only() -> None:
    made = with_faults("busy-transient=2")
    assert kernel.set_compute(made, 0, "SPX", ()).node == made
    made, first = kernel.set_compute(made, 0, "CPX", ())
    made, second = kernel.set_compute(made, 0, "CPX", ())
    assert (first, second) == (errno.EBUSY, errno.EBUSY)
    assert kernel.set_compute(made, 0, "CPX", ()).errno == 0


@pytest.mark.parametrize(
    ("fault", "errors"),
    [("compute-errno=EIO", [errno.EIO, errno.EIO]), ("compute-errno=EBUSY@1", [0, errno.EBUSY])],
)
def test_forced_errno_hits_the_named_gpus(fault: str, errors: list[int]) -> None:
    made = with_faults(fault)
    assert [kernel.set_compute(made, i, "CPX", ()).errno for i in range(2)] == errors


def test_ignored_set_lies() -> None:
    after, number = kernel.set_compute(with_faults("set-ignored"), 0, "CPX", ())
    assert (number, after.gpus[0].compute) == (0, "SPX")


@pytest.mark.parametrize(
    ("fault", "unloads", "loads"),
    [("reload=refused", errno.EBUSY, None), ("reload=fail", 0, errno.EINVAL)],
)
def test_reload_faults(fault: str, unloads: int, loads: int | None) -> None:
    made, number = kernel.unload(with_faults(fault), ())
    assert number == unloads
    if loads is not None:
        assert kernel.load(made).errno == loads
        assert not kernel.load(made).node.driver.loaded


def test_memory_change_that_the_firmware_does_not_carry_out() -> None:
    made = kernel.set_memory(with_faults("nps-change-fails"), 0, "NPS4").node
    made = kernel.load(kernel.unload(made, ()).node).node
    assert (made.memory, made.memory_requested) == ("NPS1", None)
    assert made.log[-1] == "amdgpu: NPS mode change request failed"


def test_cleared_faults_leave_nothing() -> None:
    made = with_faults("holder=7:rdc", "stranded=100@1", "gpu-reset=0", "reload=fail")
    assert made.gpus[1].stranded == 100 * 1024 * 1024
    assert faults.clear(made) == node()
    assert faults.clear(made, "stranded").gpus[0].reset


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("relaod=fail", "did you mean 'reload'"),
        ("reload=later", "refused, fail, fail-once, hang"),
        ("compute-errno=EWHAT", "EWHAT"),
        ("compute-errno=EBUSY@9", "no GPU 9"),
        ("compute-errno", "needs a value"),
        ("set-ignored=2", "takes no value"),
        ("holder=rdc", "PID:NAME"),
        ("stranded=much", "number"),
        ("gpu-reset=x", "numbers separated"),
    ],
)
def test_bad_faults_are_refused(text: str, says: str) -> None:
    with pytest.raises(StateError, match=says):
        faults.add(node(), text)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["releas=7.0.0"], "did you mean 'release'"),
        (["release=5.0"], "6.0.0, 6.1.1"),
        (["driver=nouveau"], "dkms, inbox"),
        (["ast"], "KEY=VALUE"),
        (["memory_modes=NPS1,NPS3"], "NPS3"),
        (["driver_version=new"], "version"),
    ],
)
def test_bad_settings_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(StateError, match=says):
        settings.apply(node(), settings.split(words))


# ---------------------------------------------------------------- state file


def test_state_survives_its_json() -> None:
    made = with_faults("holder=7:rdc:128,129", "compute-errno=EBUSY@1")
    made = settings.apply(made, {"driver": "inbox", "platform": "guest", "memory_modes": "NPS1,NPS2"})
    made = kernel.set_memory(made, 0, "NPS2").node
    assert from_json(to_json(made)) == made


@pytest.mark.parametrize(("text", "says"), [("nonsense", "not JSON"), ("{}", "schema 2"), ("[]", "schema 2")])
def test_other_files_are_refused(text: str, says: str) -> None:
    with pytest.raises(StateError, match=says):
        from_json(text)


def test_unknown_keys_in_the_state_are_refused() -> None:
    with pytest.raises(StateError, match="did you mean 'model'"):
        from_json(to_json(node()).replace('"model"', '"modell"'))


def test_models_are_consistent() -> None:
    for model in some(MODELS.values()):
        assert model.compute_modes[0] == "SPX"
        for mode in model.compute_modes:
            assert model.xcc % model.parts(mode) == 0
            assert "NPS1" in model.memory_for(mode)
        for memory in model.memory_modes:
            assert memory in model.memory_for(model.auto_compute(memory))


@pytest.mark.parametrize(("count", "model"), [(0, "MI300X"), (9, "MI300X"), (8, "MI100")])
def test_impossible_nodes_are_refused(count: int, model: str) -> None:
    with pytest.raises(StateError):
        make_node(count, model)


def test_serving_is_refused_on_a_machine_that_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It covers parts of /sys, which would hide real GPUs."""
    monkeypatch.setattr(serving, "CONTAINER_MARKS", ())
    with pytest.raises(StateError, match="GPUSIM_ROOT"):
        serving.serve(Paths(Path("/")), make_node())
