# SPDX-License-Identifier: Apache-2.0
"""The burn-in's verdicts: against a healthy GPU, against the fleet, and what computes wrong."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import (
    load_acceptance,
    load_gpus,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.burnin.text import burnin_text
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.burnin.verdict import (
    BurninVerdict,
    between_error,
    burnin_verdicts,
)

ACCEPTANCE = load_acceptance()
MODELS = {pci_id: model.name for model in load_gpus().models for pci_id in model.pci_ids}


def result(gpus: int = 8, **more: Any) -> dict[str, Any]:
    """What gpu_burnin returns of a healthy node of MI300X."""
    product = {"products": 9000, "seconds": 30.0, "wrong_elements": 0, "rows_right": True}
    speeds = {"fp16": 620.0, "bf16": 640.0, "fp8": 1150.0}
    devices = [
        {
            "gpu": gpu,
            "name": "AMD Instinct MI300X",
            "bdf": f"0000:{5 + 16 * gpu:02x}:00.0",
            "vendor_id": 0x1002,
            "device_id": 0x74A1,
            "gemm": {kind: {**product, "tflops": speed} for kind, speed in speeds.items()},
            "copy_gbps": 4100.0,
            "peer_gbps": {str(other): 44.0 for other in range(gpus) if other != gpu},
            "telemetry": None,
        }
        for gpu in range(gpus)
    ]
    reduce = [{"gpu": gpu, "rates": {"1": 20.0, "1024": 300.0}} for gpu in range(gpus)]
    tools = {"rvs": None, "all_reduce_perf": None, "TransferBench": None}
    return {
        "device": "gpu", "torch": "2.8", "gpus": devices, "peers_error": None, "reduce": reduce, "tools": tools, **more
    }  # fmt: skip


def judged(fleet: dict[str, Any]) -> dict[tuple[str, int], BurninVerdict]:
    return {(item.host, item.gpu): item for item in burnin_verdicts(fleet, ACCEPTANCE, MODELS)}


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Two nodes, of which GPU 3 of the first has another value."""
    fleet = {"n1": result(), "n2": result()}
    found: Any = fleet["n1"]["gpus"][3]
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    return fleet


def test_healthy_gpus_are_ok_and_have_their_figures() -> None:
    found = judged({"n1": result(), "n2": result()})
    assert {item.verdict for item in found.values()} == {"ok"}
    assert found["n2", 7].measured == {
        "gemm_fp16": 620.0, "gemm_bf16": 640.0, "gemm_fp8": 1150.0, "copy_gbps": 4100.0, "peer_gbps": 44.0,
        "reduce_gbps": 300.0,
    }  # fmt: skip
    assert found["n2", 7].next_step is None


@pytest.mark.parametrize(
    ("path", "value", "verdict", "reason"),
    [
        (("gemm", "bf16", "tflops"), 590.0, "slow", "GEMM bf16 590.0 TFLOPS, 8% below the median of the fleet"),
        (("gemm", "bf16", "tflops"), 625.0, "ok", ""),
        (("copy_gbps",), 3500.0, "slow", "memory copy 3,500.0 GB/s, below 90% of 4,177 (BabelStream copy)"),
        (("peer_gbps",), {"0": 20.0}, "slow", "copies to the other GPUs 20.0 GB/s, below 90% of 33.9"),
        (("gemm", "fp16", "wrong_elements"), 7, "bad", "GEMM fp16: 7 wrong elements in 9,000 products"),
        (("gemm", "fp8", "rows_right"), False, "bad", "GEMM fp8: the product differs from that of the CPU"),
        (("gemm", "fp8"), {"error": "RuntimeError: HIP error"}, "bad", "GEMM fp8: RuntimeError: HIP error"),
        (("gemm", "fp16"), {"error": "RuntimeError: HIP error"}, "bad", "GEMM fp16: RuntimeError: HIP error"),
        (("copy_gbps",), {"error": "OutOfMemoryError: x"}, "bad", "memory copy: OutOfMemoryError: x"),
        (("error",), "not done in time: the GPU hangs", "bad", "test: not done in time: the GPU hangs"),
        (
            ("peer_gbps", "5"), {"error": "ValueError: the copy differs from what was sent"}, "bad",
            "copy to GPU 5: ValueError: the copy differs",
        ),
        (("telemetry",), {"throttled": {"hbm_thermal": 0.2}}, "bad", "throttled by temperature (hbm_thermal 20.0%"),
        (("telemetry",), {"ecc_uncorrectable": 3}, "bad", "3 uncorrectable memory errors"),
        (("telemetry",), {"throttled": {"ppt": 0.9}, "ecc_uncorrectable": 0}, "ok", ""),
    ],
)  # fmt: skip
def test_one_gpu_of_sixteen(path: tuple[Any, ...], value: Any, verdict: str, reason: str) -> None:
    found = judged(changed(path, value))
    assert found["n1", 3].verdict == verdict
    assert reason in "; ".join(found["n1", 3].reasons)
    assert bool(found["n1", 3].next_step) is (verdict != "ok")
    assert {item.verdict for key, item in found.items() if key != ("n1", 3)} == {"ok"}


def test_a_type_that_no_gpu_of_the_host_computes_is_no_fault() -> None:
    fleet = {"n1": result(), "n2": result()}
    for gpu in fleet["n1"]["gpus"]:
        gpu["gemm"]["fp8"] = {"error": "RuntimeError: not supported"}
    assert {item.verdict for item in judged(fleet).values()} == {"ok"}


@pytest.mark.parametrize(
    ("rank", "error"),
    [
        ({}, ""),
        ({"error": "ended with exit code -11"}, "test between GPUs: ended with exit code -11"),
        ({"rates": {}}, ""),
    ],
    ids=["right", "crashed", "without rates"],
)
def test_a_rank_that_failed_does_not_leave_the_others_as_the_nodes_speed(
    rank: dict[str, Any], error: str
) -> None:
    """It would be the slowest one: the others waited for it."""
    node = result(reduce=[{"gpu": gpu, "rates": {"1024": 300.0}} for gpu in range(8)])
    node["reduce"][3] = {"gpu": 3, **(rank or {"rates": {"1024": 290.0}})}
    measured = judged({"n1": node})["n1", 0].measured
    assert measured.get("reduce_gbps") == (None if rank else 290.0)
    assert between_error(node) == error


def test_six_metrics_accuse_a_healthy_gpu_as_seldom_as_one() -> None:
    """Nodes of eight equal GPUs with a spread of 1.5 %: one outlier of 3 % was found in one of eight nodes."""
    seed, tries = 20261128, 200
    rng, accused = random.Random(seed), 0
    for _try in range(tries):
        node = result()
        for gpu in node["gpus"]:
            gpu |= {"device_id": 0xFFFF, "copy_gbps": 4000 * math.exp(rng.gauss(0, 0.015))}
            gpu["peer_gbps"] = {"9": 44 * math.exp(rng.gauss(0, 0.015))}
            for product in gpu["gemm"].values():
                product["tflops"] *= math.exp(rng.gauss(0, 0.015))
        accused += any(item.verdict == "slow" for item in judged({"n1": node}).values())
    print(f"seed {seed}: a GPU called slow on {accused} of {tries} healthy nodes")
    assert accused <= 0.02 * tries


@pytest.mark.parametrize(
    ("slower", "verdict"),
    [({"gemm_bf16": 0.96}, "ok"), ({"gemm_bf16": 0.96, "copy": 0.96}, "slow"), ({"copy": 0.93}, "slow")],
)
def test_a_small_outlier_counts_if_another_metric_agrees(slower: dict[str, float], verdict: str) -> None:
    node = result()
    node["gpus"][2]["gemm"]["bf16"]["tflops"] *= slower.get("gemm_bf16", 1.0)
    node["gpus"][2]["copy_gbps"] *= slower.get("copy", 1.0)
    assert judged({"n1": node})["n1", 2].verdict == verdict


def test_wrong_results_come_before_all_else() -> None:
    fleet = changed(("gemm", "fp16", "wrong_elements"), 1)
    fleet["n1"]["gpus"][3]["telemetry"] = {"ecc_uncorrectable": 3}
    bad = judged(fleet)["n1", 3]
    assert bad.reasons[0].startswith("GEMM fp16: 1 wrong elements")
    assert (bad.next_step or "").startswith("Take n1 out of service")


def test_a_slow_ring_is_the_nodes() -> None:
    slow = result(reduce=[{"gpu": gpu, "rates": {"1": 20.0, "1024": 200.0 + gpu}} for gpu in range(8)])
    found = judged({"n1": slow, "n2": result()})
    assert {host for (host, _gpu), item in found.items() if item.verdict == "slow"} == {"n1"}
    assert "all-reduce of the node 200.0 GB/s, below 90% of 304" in found["n1", 0].reasons[0]


def test_a_gpu_that_nobody_knows_is_compared_with_its_like_alone() -> None:
    fleet = {"n1": result(4)}
    for gpu in fleet["n1"]["gpus"]:
        gpu |= {"device_id": 0xFFFF, "name": "AMD Instinct MI999", "copy_gbps": 900.0}
    fleet["n1"]["gpus"][2]["copy_gbps"] = 700.0
    found = judged(fleet)
    assert [key for key, item in found.items() if item.verdict == "slow"] == [("n1", 2)]
    assert "of the fleet's AMD Instinct MI999" in found["n1", 2].reasons[0]


def test_on_the_cpu_nothing_is_judged() -> None:
    found = judged({"n1": result(2, device="cpu")})
    assert [item.verdict for item in found.values()] == [None, None]
    assert "not judged" in found["n1", 0].reasons[0]


def test_text_names_bad_ones_first_with_the_next_step() -> None:
    fleet = changed(("gemm", "fp16", "wrong_elements"), 7)
    fleet["n2"]["gpus"][0]["copy_gbps"] = 3000.0
    fleet["n2"]["tools"] = {"rvs": "/opt/rocm/bin/rvs"}
    fleet["n2"]["peers_error"] = "not done in time"
    before = copy.deepcopy(fleet)
    failed = {"n2": between_error(fleet["n2"]), "n3": "GPU 1 is in use"}
    lines = burnin_text("r1", burnin_verdicts(fleet, ACCEPTANCE, MODELS), fleet, failed).splitlines()
    assert lines[0] == "Burn-in r1: 16 GPUs on 2 nodes: 14 ok, 1 slow, 1 bad"
    assert lines[1].startswith("BAD     n1 GPU 3 (0000:35:00.0): GEMM fp16: 7 wrong elements")
    assert lines[2].startswith("        Take n1 out of service")
    assert lines[3].startswith("SLOW    n2 GPU 0 (0000:05:00.0): memory copy")
    assert lines[5:] == [
        "FAILED  n2: test between GPUs: not done in time",
        "FAILED  n3: GPU 1 is in use",
        "note: /opt/rocm/bin/rvs is on n2, for a longer test",
    ]
    assert fleet == before
