# SPDX-License-Identifier: Apache-2.0
"""What a quantization is planned as: where it runs, what it needs, and what is refused with the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.plan import (
    QuantizeRequest,
    output_name,
)

from tests.worlds.quantize_world import CALIBRATION, DATA, GIB, facts, planned

KV = QuantizeRequest("fp8", kv_cache="fp8")


@pytest.mark.parametrize("name", ["fp8", "w_fp8_a_fp8"])
def test_the_seeds_name_of_a_scheme_is_the_present_one(name: str) -> None:
    plan = planned(QuantizeRequest(name, kv_cache="fp8"), calibration=CALIBRATION)
    assert plan.job["data"]["scheme"] == "fp8"
    assert plan.job["name"] == "Llama-70B-Instruct-fp8-kv"
    assert plan.job["data"]["kv_layers"] == ["*k_proj", "*v_proj"]


def test_a_scheme_without_measured_scales_goes_file_by_file_on_one_gpu() -> None:
    plan = planned()
    assert plan.job["data"]["mode"] == "file_to_file"
    assert plan.job["render_nodes"] == ["renderD128"]
    assert plan.job["data"]["devices"] == ["cuda:0"]
    assert plan.job["data"]["calibration"] is None


def test_the_whole_model_takes_as_few_gpus_as_hold_it() -> None:
    assert len(planned(KV, calibration=CALIBRATION).job["render_nodes"]) == 1  # 141 GB of 190 GiB
    large = {"bytes": 810 * 10**9}
    assert len(planned(KV, calibration=CALIBRATION, source=large).job["render_nodes"]) == 6


def test_gpus_that_serve_are_never_taken() -> None:
    given = facts()["gpus"]
    for gpu in given[:6]:
        gpu["users"] = [4711]
    assert planned(gpus=given).job["render_nodes"] == ["renderD134"]
    with pytest.raises(FleetError, match="6 GPUs serve: stop instances first") as error:
        planned(KV, calibration=CALIBRATION, gpus=given, source={"bytes": 810 * 10**9})
    assert "ptpc_fp8" in str(error.value)


def test_without_a_free_gpu_what_goes_file_by_file_takes_the_cpu() -> None:
    given = [{**gpu, "users": [1]} for gpu in facts()["gpus"]]
    plan = planned(gpus=given)
    assert (plan.job["render_nodes"], plan.job["data"]["devices"]) == ([], ["cpu"])
    assert 0 < plan.job["memory"] < 40 * GIB  # so that the job ends before an instance does
    with pytest.raises(FleetError, match="quantize_device"):
        planned(QuantizeRequest("ptpc_fp8", device="gpu"), gpus=given)


def test_the_cpu_quantizes_a_whole_model_only_if_told_to() -> None:
    small = {"bytes": 7 * 10**6, "largest": 4 * 10**6}
    cpu = replace(KV, device="cpu")
    assert planned(cpu, calibration=CALIBRATION, source=small).job["data"]["devices"] == ["cpu"]
    with pytest.raises(FleetError, match="of memory are needed"):
        planned(cpu, calibration=CALIBRATION, memory_available=100 * GIB)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"scheme": "w_fp8_a_fp9"}, {}, "is not a scheme. Did you mean"),
    ({"scheme": "fp8"}, {}, "quantize_calibration: fp8 measures the scales"),
    ({"kv_cache": "fp8"}, {}, "the KV cache's scales are measured"),
    ({"kv_cache": "int8"}, {}, "is not a type of the KV cache. Valid: fp8"),
    ({"scheme": "fp8_dynamic", "kv_cache": "fp8"}, {}, "has no scales for it"),
    ({"architecture": "lama"}, {}, "Did you mean llama"),
    ({"name": "a/b"}, {}, "is not a valid directory name"),
    ({}, {"disk_free": 2 * GIB}, "are needed for the output"),
    ({}, {"memory_available": GIB, "gpus": []}, "of memory are needed"),
    ({}, {"source": {"config": {"model_type": "strange"}}}, "model_type 'strange' is not known to Quark"),
    ({}, {"source": {"config": {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}}}, "(fp8)."),
    ({}, {"source": {"bytes": 0}}, "has no *.safetensors"),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "given", "words"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_cannot_be_quantized_is_refused_with_the_way_out(
    wanted: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(FleetError) as error:
        planned(replace(QuantizeRequest("ptpc_fp8"), **wanted), **given)
    assert words in str(error.value)


def test_kv_scales_that_vllm_does_not_read_are_refused() -> None:
    with pytest.raises(
        FleetError, match=r"vLLM reads scales of k_proj and v_proj, but deepseek_v3 has \*kv_b_proj"
    ):
        planned(KV, calibration=CALIBRATION, source={"config": {"model_type": "deepseek_v3"}})


def test_code_of_a_repository_runs_only_if_told_to_and_never_file_by_file() -> None:
    own = {"config": {"model_type": "llama", "auto_map": {}, "vocab_size": 1}, "code": ["modeling.py"]}
    own["config"]["auto_map"] = {"AutoModelForCausalLM": "modeling.Model"}  # type: ignore[index]
    assert planned(source=own).job["data"]["remote_code"] is False
    with pytest.raises(FleetError, match="quantize_remote_code=true"):
        planned(KV, calibration=CALIBRATION, source=own)
    told = planned(replace(KV, remote_code=True), calibration=CALIBRATION, source=own)
    assert told.job["data"]["remote_code"] is True


def test_the_list_of_what_stays_is_always_whole() -> None:
    """Quark takes an empty list for none, and one that is given for all."""
    assert planned().job["data"]["exclude"] == ["lm_head"]
    moe = planned(source={"config": {"model_type": "mixtral"}})
    assert moe.job["data"]["exclude"] == ["lm_head", "*.gate"]
    assert planned(QuantizeRequest("ptpc_fp8", exclude=())).job["data"]["exclude"] == []


def test_equal_inputs_have_one_key_and_others_another() -> None:
    key = planned().job["key"]
    assert planned(disk_free=800 * GIB, gpus=[]).job["key"] == key
    others = [
        planned(QuantizeRequest("mxfp4")),
        planned(QuantizeRequest("ptpc_fp8", exclude=("lm_head", "*.down_proj"))),
        planned(source={"commit": "9" * 40}),
        planned(KV, calibration=CALIBRATION),
        planned(KV, calibration={**CALIBRATION, "sha256": "d" * 64}),
        planned(replace(KV, samples=64), calibration=CALIBRATION),
    ]
    keys = [key, *(plan.job["key"] for plan in others)]
    assert len(set(keys)) == len(keys)


def test_an_output_of_equal_inputs_is_found_under_its_name() -> None:
    plan = planned()
    made = {"name": plan.job["name"], "commit": COMMIT, "key": plan.job["key"]}
    assert planned(outputs=[made]).there == made
    assert planned(QuantizeRequest("ptpc_fp8", name="other"), outputs=[made]).there is None


COMMIT = "ab" * 20


def test_the_card_says_of_what_and_how_it_was_made_and_under_which_licence() -> None:
    card = planned(KV, calibration=CALIBRATION).job["card"]
    for words in ('base_model: "lab/Llama-70B-Instruct"', 'license: "llama3.1"', "AMD Quark 0.13", "128 samples",
                  "c" * 64, "`lm_head`", "kv_cache_dtype: fp8"):  # fmt: skip
        assert words in card


def test_a_name_comes_from_source_and_scheme() -> None:
    assert output_name(QuantizeRequest("mxfp4"), DATA, "/data/Model-BF16/") == "Model-mxfp4"
