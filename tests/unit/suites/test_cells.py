# SPDX-License-Identifier: Apache-2.0
"""The cells of suites for instances: what is measured, with which command line, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.cells import SuiteCells
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.compose import (
    block_orders,
    suite_cells,
    suite_commands,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.parse import parse_suite

from tests.rendered_suites import DATA, instance, suite
from tests.worlds.catalogue import knowledge


def cells(name: str, *flags: str, overrides: dict[str, Any] | None = None, **keys: Any) -> SuiteCells:
    """A suite for an instance of 0.11.0, or of another release."""
    engine = instance(keys.pop("release", "0.11.0"), *flags, **keys)
    return suite_cells(knowledge(), suite(name), engine, overrides)


def test_a_cell_is_what_the_module_takes() -> None:
    found = json.loads(json.dumps(cells("serving").to_json()))
    assert set(found) == {"cells", "blocks", "most", "half_width", "warmups", "seed", "order"}
    cell = next(item for item in found["cells"] if item["cell"] == "in1024-out1024-c32")
    argv = cell.pop("argv")
    assert cell == {
        "cell": "in1024-out1024-c32",
        "kind": "serve",
        "shape": {"input": 1024, "output": 1024},
        "load": {"kind": "concurrency", "value": 32},
        "num_prompts": 320,
        "slos": [],
        "percentiles": [50, 90, 95],
        "metric": "output_throughput",
    }
    assert argv[:3] == ["vllm", "bench", "serve"]
    for flag, value in (
        ("--max-concurrency", "32"),
        ("--num-prompts", "320"),
        ("--metric-percentiles", "50,90,95"),
    ):
        assert argv[argv.index(flag) + 1] == value
    assert "--save-detailed" in argv
    assert "--seed" not in argv


def test_the_order_is_shuffled_in_each_block_and_recorded() -> None:
    found = cells("inferencex", overrides={"seed": 7})
    names = {cell.name for cell in found.cells}
    assert len(found.order) == found.most == 10
    assert all(set(order) == names for order in found.order)
    assert len(set(found.order)) == 10
    assert found.order == cells("inferencex", overrides={"seed": 7}).order
    assert found.order != cells("inferencex", overrides={"seed": 8}).order
    # The order depends on the names and the seed, not on how they were listed.
    assert list(block_orders("abc", 3, 1)) == list(block_orders("cba", 3, 1))


def test_what_the_context_cannot_hold_is_left_out() -> None:
    found = cells("serving", "--max-model-len", "4096")
    assert {cell.shape.input for cell in found.cells if cell.shape} == {128, 1024}
    reasons = {item.name: item.reason for item in found.omitted}
    assert reasons["in8192-out1024-c64"] == "9216 tokens are more than --max-model-len 4096."
    with pytest.raises(FleetError, match=r"nothing in it can be measured\..*9216 tokens are more than"):
        cells("inferencex", "--max-model-len=1k")


def test_prompts_follow_the_engine() -> None:
    assert {cell.num_prompts for cell in cells("seed-throughput", "--max-num-seqs", "300").cells} == {300}
    assert {cell.num_prompts for cell in cells("seed-throughput").cells} == {1024}  # this release's own
    assert {cell.num_prompts for cell in cells("seed-throughput", release="0.9.1").cells} == {256}


def test_published_rows_have_their_own_numbers() -> None:
    found = cells("seed-throughput", model="amd/Llama-3.1-405B-Instruct-FP8-KV")
    rows = {(cell.shape.input, cell.shape.output): cell.num_prompts for cell in found.cells if cell.shape}
    assert rows == {(128, 2048): 1500, (128, 4096): 1500, (500, 2000): 2000, (2048, 2048): 500}
    assert all(
        cell.argv[cell.argv.index("--max-num-seqs") + 1] == str(cell.num_prompts) for cell in found.cells
    )


def test_limits_are_those_of_the_model() -> None:
    found = cells("mlperf-slo", model="meta-llama/Llama-3.1-405B-Instruct").cells[0]
    assert [slo.to_json() for slo in found.slos] == [
        {"name": "server-llama-3.1-405b", "ttft_ms": 6000, "tpot_ms": 175, "e2el_ms": None},
        {"name": "interactive-llama-3.1-405b", "ttft_ms": 4500, "tpot_ms": 80, "e2el_ms": None},
    ]
    assert (found.num_prompts, found.metric) == (600, "median_tpot_ms")
    assert cells("mlperf-slo").cells[0].slos == ()


def test_too_few_requests_for_a_percentile() -> None:
    found = cells("quick")
    assert found.cells[0].percentiles == (50, 90, 95)
    assert found.warnings == ()
    found = cells("inferencex")
    assert (
        "in8192-out1024-c4: 40 requests are too few: p90 needs 44, p95 needs 90, p99 needs 459"
        in found.warnings[0]
    )
    assert found.cells[0].percentiles == (50,)
    with pytest.raises(FleetError, match="96 requests are too few: p99 needs 459"):
        cells("quick", overrides={"percentiles": [99]})
    assert cells("quick", overrides={"percentiles": [90]}).cells[0].percentiles == (90,)


@pytest.mark.parametrize(
    ("flags", "measured", "omitted"),
    [
        (("--max-num-batched-tokens", "16384"), "16k", {"8k", "32k", "64k"}),
        (("--max-num-batched-tokens=65536",), "64k", {"8k", "16k", "32k"}),
        (("--max-num-batched-tokens", "32.768k"), "32k", {"8k", "16k", "64k"}),
    ],
)
def test_a_running_engine_is_measured_as_what_it_is(
    flags: tuple[str, ...], measured: str, omitted: set[str]
) -> None:
    found = cells("batched-tokens", *flags)
    assert {cell.name.partition("-")[0] for cell in found.cells} == {measured}
    assert {item.name for item in found.omitted} == omitted
    assert all("The engine does not run with" in item.reason for item in found.omitted)


def test_no_engine_is_restarted_for_a_variant() -> None:
    with pytest.raises(FleetError) as error:
        cells("batched-tokens", "--max-num-batched-tokens", "4096")
    assert 'settings: {"max_num_batched_tokens": 8192}' in str(error.value)
    assert "restarts none. Set one variant in the deployment" in str(error.value)


SPECULATION = ("--speculative-config", '{"method":"ngram","num_speculative_tokens":2}')


def test_with_and_without_speculation() -> None:
    assert {cell.name.partition("-")[0] for cell in cells("speculation", overrides=DATA).cells} == {"without"}
    found = cells("speculation", *SPECULATION, overrides=DATA)
    assert {cell.name.partition("-")[0] for cell in found.cells} == {"with"}


def test_an_offline_benchmark_starts_the_engines_of_all_variants() -> None:
    found = cells("graph-modes", "--compilation-config", '{"custom_ops":["-rms_norm"]}')
    cell = next(cell for cell in found.cells if cell.name == "full-decode-only-in1024-out128-b16")
    config = json.loads(cell.argv[cell.argv.index("--compilation-config") + 1])
    assert config == {"custom_ops": ["-rms_norm"], "cudagraph_mode": "FULL_DECODE_ONLY"}
    assert cell.argv.count("--compilation-config") == 1
    assert len(found.cells) == 5 * 4
    # It can add a flag, and takes none away: with --enforce-eager every mode would be none.
    eager = cells("graph-modes", "--enforce-eager")
    assert {cell.name.partition("-")[0] for cell in eager.cells} == {"none"}


def test_a_data_set_needs_its_file() -> None:
    with pytest.raises(
        FleetError,
        match=r"the data set sharegpt is a file, but none is given\. Download it to this machine \(https:",
    ):
        cells("sharegpt")
    argv = cells("sharegpt", overrides=DATA).cells[0].argv
    assert argv[argv.index("--dataset-path") + 1] == DATA["dataset_path"]


def test_only_what_reads_a_file_is_given_one() -> None:
    (cell,) = cells("quick", overrides=DATA).cells
    assert "--dataset-path" not in cell.argv


def test_requests_that_the_context_cannot_hold() -> None:
    with pytest.raises(FleetError, match="up to 2048 tokens are more than --max-model-len 2047"):
        cells("sharegpt", "--max-model-len", "2047", overrides=DATA)
    assert cells("sharegpt", "--max-model-len", "2048", overrides=DATA).cells


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("quick", {"max_concurrency": 8}, "max_concurrency: is determined by the suite"),
        ("quick", {"num-prompts": 8}, "num_prompts: is determined by the suite"),
        ("quick", {"temprature": 0}, "Did you mean temperature?"),
        ("quick", {"blcoks": 1}, "Did you mean blocks?"),
        ("quick", {"blocks": 0}, "blocks: 0 is out of range"),
        ("quick", {"blocks": 5, "most": 2}, "2 is less than the 5 blocks"),
        ("quick", {"half_width": 2}, "half_width: 2 is not a share of the median"),
        ("quick", {"percentiles": ["p99"]}, "'p99' is not a number from 0 to 100"),
        ("quick", {"base_url": "x"}, "is set by the toolkit"),
        ("mad", {"kinds": ["latncy"]}, "mad has no latncy. Did you mean latency?"),
    ],
)
def test_wrong_overrides(name: str, overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(FleetError) as error:
        cells(name, overrides=overrides)
    assert said in str(error.value)


def test_overrides_apply_to_the_kinds_that_have_them() -> None:
    found = cells("mad", overrides={"kinds": ["throughput"], "disable_detokenize": True, "blocks": 1})
    assert {cell.kind for cell in found.cells} == {"throughput"}
    assert all("--disable-detokenize" in cell.argv for cell in found.cells)
    assert (found.blocks, found.most) == (1, 1)


def test_several_instances_and_all_their_problems() -> None:
    engines = [
        instance("0.11.0"),
        instance("0.6.3") | {"name": "old-0"},
        instance("0.6.3") | {"name": "old-1"},
    ]
    made = suite_commands(knowledge(), "serving", engines[:2])
    assert set(made.cells) == {"m-0", "old-0"}
    assert not made.offline
    assert any(
        text.startswith("old-0: in1024-out1024-c1 is left out. max_concurrency") for text in made.warnings
    )
    with pytest.raises(FleetError) as error:
        suite_commands(knowledge(), "quick", engines)
    assert "old-0" in str(error.value)
    assert "old-1" in str(error.value)


def test_an_instance_as_the_plan_has_it_is_needed() -> None:
    with pytest.raises(FleetError, match=r"targets\[m-0\]: served_model is missing"):
        cells("quick", served_model="")


def test_a_search_renders_the_cell_of_any_load() -> None:
    found = cells("slo-search")
    (search,) = found.searches
    assert (found.cells, search.name, search.rules.start) == ((), "in1024-out256", 4)
    assert search.first.name == "in1024-out256-r4"
    assert [slo.name for slo in search.first.slos] == ["reading", "interactive"]
    cell = search.at(7.07)
    assert (cell.name, cell.num_prompts, cell.load.value) == ("in1024-out256-r7.07", 2121, 7.07)
    assert cell.argv[cell.argv.index("--request-rate") + 1] == "7.07"
    assert cell.percentiles == (50, 90, 95, 99)
    assert search.at(0.25).num_prompts == 459


def test_a_search_without_a_limit_for_the_model_is_left_out() -> None:
    document = {
        **knowledge().suite("slo-search"),
        "slos": [{"name": "other", "models": ["*Mixtral*"], "ttft_ms": 5}],
    }
    own = parse_suite(knowledge(), "own.yml", document)
    with pytest.raises(FleetError, match="in1024-out256: No limit of its `slos` is for org/m"):
        suite_cells(knowledge(), own, instance("0.11.0"))


def test_nothing_is_searched_beside_users() -> None:
    with pytest.raises(FleetError, match=r"searches for a load that is too high, .* Leave out live=true"):
        cells("slo-search", endpoint={"balancer": "lb", "url": "https://lb"})
