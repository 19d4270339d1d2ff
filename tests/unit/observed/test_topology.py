# SPDX-License-Identifier: Apache-2.0
"""Logical GPUs: the catalogue's arithmetic against what real and captured nodes show."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.observe.gpus import read_gpus
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import NodeState
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.topology import (
    LogicalGpu,
    declared_gpus,
    observed_gpus,
)

from tests import ROOT
from tests.helpers.some import some
from tests.worlds.gpu_tree import Tree
from tests.worlds.plan_world import GIB, VRAM, catalog, gpus, problems, state

DATA = yaml.safe_load((ROOT / "catalog/gpus.yml").read_text(encoding="utf-8"))


def test_catalogue_fits_its_schema() -> None:
    schema = json.loads((ROOT / "catalog/schemas/gpus.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(DATA)


def test_every_validated_pair_is_a_valid_one() -> None:
    for name, model in some(DATA["models"].items()):
        for pair in model["validated"]:
            assert pair["memory"] in model["compute_partitions"][pair["compute"]]["memory"], name


def test_partitions_follow_the_drivers_rules() -> None:
    """aqua_vanjaram.c: never more memory partitions than compute partitions, DPX ÷4, TPX 6 and QPX 8 XCDs."""
    for name, model in some(DATA["models"].items()):
        xcds = model["xcds"]
        for mode, entry in model["compute_partitions"].items():
            expected = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": xcds}[mode]
            assert entry["count"] == expected, (name, mode)
            assert all(int(memory[3:]) <= expected for memory in entry["memory"]), (name, mode)
        modes = set(model["compute_partitions"])
        assert ("DPX" in modes) == (xcds % 4 == 0)
        assert ("TPX" in modes) == (xcds == 6)
        assert ("QPX" in modes) == (xcds == 8)


# Of the matrix cores, for each CU and clock (CDNA 3, 4), and the peak engine clock in MHz.
CORES = {
    "gfx942": {"bf16": 2048, "fp16": 2048, "fp8": 4096},
    "gfx950": {"bf16": 4096, "fp16": 4096, "fp8": 8192, "mxfp4": 16384},
}
CLOCKS = {"MI300X": 2100, "MI325X": 2100, "MI300A": 2100, "MI350X": 2200, "MI355X": 2400}


def test_peak_rates_follow_from_clock_and_compute_units() -> None:
    stated = {
        name: model["peak"]["dense_tflops"] for name, model in DATA["models"].items() if "peak" in model
    }
    assert stated == {
        name: {
            kind: pytest.approx(flops * model["xcds"] * model["cus_per_xcd"] * CLOCKS[name] / 1e6, rel=1e-4)
            for kind, flops in CORES[model["gfx"]].items()
        }
        for name, model in DATA["models"].items()
        if name in CLOCKS
    }


@pytest.mark.parametrize(
    ("model", "mode", "hbm", "fp8"),
    [
        ("MI300X", "SPX", 5.3e12, 2614.9e12),
        ("MI300X", "CPX", 5.3e12 / 8, 2614.9e12 / 8),
        ("MI300A", "TPX", 5.3e12 / 3, 1961.2e12 / 3),
        ("MI325X", "DPX", 3e12, 2614.9e12 / 2),
        ("MI355X", "QPX", 2e12, 5033.2e12 / 4),
    ],
)
def test_a_partition_has_an_equal_part_of_the_peak_rates(
    model: str, mode: str, hbm: float, fp8: float
) -> None:
    product = catalog().by_name(model)
    assert product
    peak = product.peak_of(mode)
    assert peak
    assert (peak.hbm, dict(peak.flops)["fp8"]) == pytest.approx((hbm, fp8))


def test_no_peak_rates_without_a_document_or_a_mode() -> None:
    known, unknown = catalog().by_name("MI300X"), catalog().by_name("MI308X")
    assert known
    assert unknown
    assert known.peak_of("TPX") is None
    assert unknown.peak_of("SPX") is None


@pytest.mark.parametrize(
    ("model", "mode", "count", "gib"),
    [
        ("MI300X", "SPX", 8, 192),
        ("MI300X", "CPX", 64, 24),
        ("MI325X", "DPX", 16, 128),
        ("MI325X", "CPX", 64, 32),
        ("MI350X", "QPX", 32, 72),
        ("MI355X", "CPX", 64, 36),
        ("MI308X", "CPX", 32, 48),
    ],
)
def test_declared(model: str, mode: str, count: int, gib: int) -> None:
    found = catalog().by_name(model)
    assert found
    logical = declared_gpus(found, 8, mode, catalog())
    assert [gpu.index for gpu in logical] == list(range(count))
    # The driver keeps a little of the product's memory for itself.
    assert gib * GIB * 0.999 < logical[0].memory_bytes <= gib * GIB
    assert logical[0].render_node == "renderD128"
    assert logical[-1].render_minor == 128 + 8 * 7 + count // 8 - 1


def test_mi300a_has_three_partitions() -> None:
    model = catalog().by_name("MI300A")
    assert model
    assert [gpu.render_minor for gpu in declared_gpus(model, 2, "TPX", catalog())] == [
        128,
        129,
        130,
        136,
        137,
        138,
    ]


def observed(**changes: object) -> tuple[LogicalGpu, ...]:
    mode = changes.pop("mode", None)
    found = NodeState.from_json(state(**changes))
    return observed_gpus(found.gpus, mode, catalog())  # type: ignore[arg-type]


def test_what_is_there_is_taken_as_it_is() -> None:
    logical = observed(gpus=gpus("CPX", 2, first=140))
    assert [gpu.render_minor for gpu in logical] == [*range(140, 148), *range(148, 156)]
    assert {gpu.memory_bytes for gpu in logical} == {VRAM // 8}


def test_a_change_keeps_each_gpus_block_of_render_nodes() -> None:
    logical = observed(gpus=gpus("SPX", 2, first=130), mode="DPX")
    assert [(gpu.gpu, gpu.partition, gpu.render_minor) for gpu in logical] == [
        (0, 0, 130),
        (0, 1, 131),
        (1, 0, 138),
        (1, 1, 139),
    ]
    assert {gpu.memory_bytes for gpu in logical} == {VRAM // 2}


def test_a_lost_partition_is_not_invented() -> None:
    """With a BMC's display taking a DRM minor, a node in CPX shows 63 partitions."""
    found = gpus("CPX")
    found[7]["partitions"].pop()
    assert len(observed(gpus=found)) == len(observed(gpus=found, mode="CPX")) == 63
    # After a change of mode the driver is asked again, so the plan counts on all.
    assert len(observed(gpus=found, mode="QPX")) == 32


def test_mixed_modes_are_numbered_gpu_by_gpu() -> None:
    mixed = [*gpus("CPX", 1), *gpus("SPX", 2)[1:]]
    assert [(gpu.index, gpu.gpu, gpu.partition) for gpu in observed(gpus=mixed)][-2:] == [
        (7, 0, 7),
        (8, 1, 0),
    ]


def none_available() -> list[dict[str, object]]:
    return [{**gpu, "compute_partition": None, "available_compute_partitions": []} for gpu in gpus()]


@pytest.mark.parametrize(
    ("changes", "variables", "text"),
    [
        (
            {},
            {"gpu_partition_compute": "CPQ"},
            "gpu_partition_compute (host n1): 'CPQ' is not valid. Valid: SPX, DPX, TPX, CPX, QPX.",
        ),
        (
            {},
            {"gpu_partition_compute": "TPX"},
            "gpu_partition_compute (host n1): GPU 0 does not offer TPX. It offers SPX, DPX, QPX, CPX.",
        ),
        (
            {"gpus": none_available()},
            {"gpu_partition_compute": "CPX"},
            "gpu_partition_compute (host n1): GPU 0 offers no compute partition modes. Partitioning needs "
            "a driver that offers them (amdgpu 6.12.12 or newer); or leave the variable out.",
        ),
        (
            {"gpus": none_available(), "virtual_machine": True},
            {"gpu_partition_compute": "CPX"},
            "gpu_partition_compute (host n1): this is a virtual machine, and GPU 0 is not in CPX. Set the mode on "
            "the hypervisor's host, or leave the variable out.",
        ),
        (
            {"gpus": gpus(device_id=0x1234)},
            {"gpu_partition_compute": "CPX"},
            "gpu_partition_compute (host n1): GPU 0 (1002:1234) is not in the catalogue with CPX. Add it to "
            "catalog/gpus.yml.",
        ),
        (
            {"gpus": [], "driver": {"loaded": False}},
            {"gpu_partition_compute": "SPX"},
            "host n1: amdgpu is not loaded. Check dmesg and lspci -d 1002:, load the driver (modprobe amdgpu), and "
            "run again.",
        ),
        (
            {"gpus": []},
            {"gpu_partition_compute": "SPX"},
            "host n1: the amdgpu driver shows no GPU. Check dmesg and lspci -d 1002:, load the driver (modprobe "
            "amdgpu), and run again.",
        ),
        ({"gpus": []}, {}, None),
        ({"gpus": none_available()}, {}, None),
        ({"gpus": gpus("CPX", device_id=0x1234)}, {"gpu_partition_compute": "CPX"}, None),
    ],
)
def test_modes_that_cannot_be(
    changes: dict[str, object], variables: dict[str, object], text: str | None
) -> None:
    assert problems({"n1": state(**changes)}, [], **variables) == ([text] if text else [])


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {},
            "instinct_gpus (host n1): is not set, and the host was not contacted, so its GPUs are unknown. Add "
            "instinct_gpus: {model: MI300X, count: 8}.",
        ),
        (
            {"instinct_gpus": {"model": "MI300"}},
            "instinct_gpus.model (host n1): 'MI300' is not valid. Valid: MI300X, MI325X, MI350X, MI355X, "
            "MI300A, MI308X.",
        ),
        (
            {"instinct_gpus": {"model": "MI308X"}, "gpu_partition_compute": "QPX"},
            "gpu_partition_compute (host n1): MI308X has no QPX. It has SPX, DPX, CPX.",
        ),
        (
            {"instinct_gpus": {"modell": "MI308X"}},
            "instinct_gpus.modell (host n1): unknown key. Did you mean model?",
        ),
    ],
)
def test_declared_wrongly(variables: dict[str, object], text: str) -> None:
    assert text in problems({"n1": None}, [], offline=True, **variables)


@pytest.mark.parametrize("mode", ["SPX", "DPX", "QPX", "CPX"])
def test_the_arithmetic_is_what_a_node_shows_after_the_change(tmp_path: Path, mode: str) -> None:
    """The planned GPUs against those that node_state reads from a tree of captured files in that mode."""
    before = read_gpus(Source(str(Tree(tmp_path / "before").build().root)))
    after = read_gpus(Source(str(Tree(tmp_path / "after").build([mode] * 8).root)))
    assert observed(gpus=before, mode=mode) == observed(gpus=after)
