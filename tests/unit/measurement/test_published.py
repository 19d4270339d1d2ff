# SPDX-License-Identifier: Apache-2.0
"""Published results beside own ones: every row that did the same work has a ratio and what differs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import load_baselines
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.published import (
    KINDS,
    PublishedResult,
    counterparts,
    family,
    read_published,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.compare_text import (
    published_json,
    published_text,
)

from tests.worlds.compared_runs import row, side

BASELINES = load_baselines()
PUBLISHED = read_published(BASELINES)
LLAMA = "amd/Llama-3.1-70B-Instruct-FP8-KV"


def seed_tables() -> list[dict[str, Any]]:
    """A run of this fleet with each cell of AMD's published tables once, twice as fast as nothing in particular."""
    rows, seen = [], set()
    for data in BASELINES:
        for item in data["results"]:
            kind = KINDS[item["kind"]]
            load = {
                "latency": {"kind": "batch", "value": item.get("batch_size")},
                "throughput": {"kind": "all", "value": item.get("prompts")},
                "serve": {"kind": "concurrency", "value": item.get("concurrency") or 32},
            }[kind]
            shape = {"input": item["input_tokens"] or 1024, "output": item["output_tokens"] or 1024}
            cell = f"{item['model']} {kind} {shape} {load}"
            if cell in seen:
                continue
            seen.add(cell)
            rows.append(
                row(
                    model=item["model"], kind=kind, cell=cell, shape=shape, load=load,
                    num_prompts=item.get("prompts", 640), mean_batch_latency_ms=20_000.0,
                    **{f"{stat}_{name}_ms": 50.0 for stat in ("mean", "median", "p99")
                       for name in ("ttft", "tpot", "itl", "e2el")},
                )
            )  # fmt: skip
    return rows


def test_acceptance_every_published_row_of_the_same_work_has_ratio_and_differences() -> None:
    found = counterparts(side("r1", seed_tables()), PUBLISHED)
    beside = [pair for pair in found if pair.same]
    per_row = Counter(id(pair.published) for pair in beside)
    print(f"{len(beside)} of {len(PUBLISHED)} published rows beside {len(seed_tables())} cells")
    without = [item for item in PUBLISHED if id(item) not in per_row]
    # Nothing of ours is a peak over seconds, the only number of these two.
    assert [set(item.metrics) for item in without] == [{"peak_total_tokens_per_second"}] * 2
    assert len(PUBLISHED) == 412
    assert set(per_row.values()) == {1}
    for pair in beside:
        assert min(ratio.value for ratio in pair.ratios) > 0
        # Another engine, another image, at least.
        assert any(text.startswith(("vllm ", "image ")) for text in pair.differs)
    data = published_json("r1", found)["published"]
    assert len(data) == len(found)
    assert all(item["ratios"] and item["differs"] and item["source"] for item in data)


def one(**changes: Any) -> PublishedResult:
    """A published row as AMD's page has it, with some other values."""
    item = {
        "setup": "s", "kind": "throughput", "model": LLAMA, "weights": "fp8", "tensor_parallel_size": 8,
        "input_tokens": 128, "output_tokens": 2048, "prompts": 3200, "metrics": {"tokens_per_second": 10_000.0},
        "tokens_counted": "total",
    }  # fmt: skip
    setup = {
        "gpu": "MI300X", "gpus": 8, "image": "rocm/vllm:x", "vllm": "0.9.1", "date": "2025-07-18",
        "source": "https://example.org/table",
    }  # fmt: skip
    own = {**item, **{key: value for key, value in changes.items() if key not in setup}}
    setup |= {key: value for key, value in changes.items() if key in setup}
    (found,) = read_published([{"setups": {"s": setup}, "results": [own]}])
    return found


def measured(**more: Any) -> dict[str, Any]:
    return row(
        **{
            "model": LLAMA, "kind": "throughput", "cell": "t", "shape": {"input": 128, "output": 2048},
            "load": {"kind": "all", "value": None}, "num_prompts": 3200, "total_token_throughput": 12_000.0,
            "image": "rocm/vllm:x", "versions": {"vllm": "0.9.1"}, **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "own", "differs", "same"),
    [
        ({}, {}, (), True),
        ({"vllm": "0.8.5"}, {}, ("vllm 0.9.1, not 0.8.5",), True),
        ({"gpu": "MI355X"}, {}, ("gpu MI300X, not MI355X",), True),
        ({"tensor_parallel_size": 4}, {}, ("gpus 8, not 4",), True),
        ({"prompts": 1500}, {}, ("load all 3200, not all 1500",), True),
        ({"input_tokens": 1024}, {}, ("input 128, not 1024",), False),
        ({"weights": "bf16"}, {}, ("weights fp8, not bf16",), True),
        (
            {"image": None, "vllm": None},
            {},
            ("vllm 0.9.1, not unknown", "image rocm/vllm:x, not unknown"),
            True,
        ),
        ({"tokens_counted": "unknown"}, {}, ("what the published tokens/s count is not known",), True),
        ({}, {"versions": None}, ("vllm unknown, not 0.9.1",), True),
        ({}, {"failed": 64, "completed": 576}, ("10% of the requests failed",), True),
    ],
)
def test_differences(
    changes: dict[str, Any], own: dict[str, Any], differs: tuple[str, ...], same: bool
) -> None:
    (pair,) = counterparts(side("r", [measured(**own)]), [one(**changes)])
    assert (pair.differs, pair.same) == (differs, same)
    assert pair.ratios[0].value == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("changes", "row_changes", "value"),
    [
        ({"tokens_counted": "output"}, {"output_throughput": 5000.0}, 0.5),
        (
            {"kind": "latency", "batch_size": 1, "metrics": {"latency_seconds": 10.0}},
            {"kind": "latency", "load": {"kind": "batch", "value": 1}, "mean_batch_latency_ms": 9000.0},
            0.9,
        ),
        (
            {"kind": "serving", "metrics": {"tokens_per_second_per_gpu": 1000.0}},
            {"kind": "serve", "load": {"kind": "concurrency", "value": 8}},
            1.5,
        ),
        (
            {"kind": "serving", "metrics": {"output_tokens_per_second_per_user": 50.0}},
            {"kind": "serve", "load": {"kind": "concurrency", "value": 8}, "median_tpot_ms": 25.0},
            0.8,
        ),
        (
            {"kind": "serving", "metrics": {"p99_ttft_ms": 100.0}},
            {"kind": "serve", "load": {"kind": "concurrency", "value": 8}, "p99_ttft_ms": 130.0},
            1.3,
        ),
    ],
)
def test_units_of_published_metrics(
    changes: dict[str, Any], row_changes: dict[str, Any], value: float
) -> None:
    (pair,) = counterparts(side("r", [measured(**row_changes)]), [one(**changes)])
    assert pair.ratios[0].value == pytest.approx(value)


@pytest.mark.parametrize(
    "own",
    [{"model": "Qwen/Qwen3-32B"}, {"kind": "serve"}, {"completed": 0}, {"total_token_throughput": None}],
)
def test_nothing_is_beside_other_models_kinds_and_failed_cells(own: dict[str, Any]) -> None:
    found = counterparts(side("r", [measured(**own)]), [one()])
    assert found == []
    assert published_text("r", found).endswith("that it measured")


def test_a_cell_without_the_same_work_has_the_nearest_row() -> None:
    rows = [one(input_tokens=2048), one(input_tokens=256), one(input_tokens=256, gpu="MI325X")]
    (pair,) = counterparts(side("r", [measured()]), rows)
    assert (pair.published, pair.same) == (rows[1], False)
    text = published_text("r", [pair])
    assert "0 rows of the same work" in text
    assert "1.20 of tokens_per_second 10,000 (other work)\n    differs in input 128, not 256" in text


def test_medians_of_runs_count() -> None:
    rows = [measured(total_token_throughput=value, block=at) for at, value in enumerate((9e3, 1e4, 2e4))]
    (pair,) = counterparts(side("r", rows), [one()])
    assert pair.ratios[0].measured == 1e4


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LLAMA, "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("Llama-3.1-405B FP8", "llama-3.1-405b"),
        ("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "llama-3.3-70b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
    ],
)
def test_families(model: str, name: str) -> None:
    assert family(model) == name
