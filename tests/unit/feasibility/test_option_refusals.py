# SPDX-License-Identifier: Apache-2.0
"""Names that a release does not register, and options of which its sources give no condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.oracles.engine_cases import Case
from tests.oracles.real_engines import plan
from tests.unit.feasibility.test_feasibility import FACTS, LLAMA_8B, verdict

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
SHARED = {"kv_connector": "SharedStorageConnector", "kv_role": "kv_both"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
DRAFT = {"model": "org/draft", "num_speculative_tokens": 3}
WHOLE = {**DRAFT, "method": "draft_model"}
EAGLE = {"method": "eagle3", "model": "org/eagle3", "num_speculative_tokens": 3}
TWO = {"pipeline_parallel_size": 2}


@pytest.mark.parametrize(("release", "flags", "sizes", "said"), [
    ("0.12.0", {"kv_transfer_config": SHARED}, {}, ""),
    ("0.13.0", {"kv_transfer_config": SHARED}, {}, "has no KV connector SharedStorageConnector"),
    ("0.32.0", {"kv_transfer_config": {**NIXL, "kv_connector": "NixlConector"}}, {}, "Did you mean NixlConnector"),
    ("0.32.0", {"kv_transfer_config": {**SHARED, "kv_connector_module_path": "my.module"}}, {}, ""),
    ("0.32.0", {"kv_transfer_config": NIXL}, {}, ""),
    ("0.13.0", {"kv_transfer_config": SHARED, "kv_offloading_size": 4.0}, {}, "has no KV connector"),
    (
        "0.13.0",
        {"kv_transfer_config": SHARED, "kv_offloading_size": 4.0, "kv_offloading_backend": "native"},
        {},
        "",
    ),
    ("0.16.0", {"kv_transfer_config": SHARED, "kv_offloading_size": 4.0}, {}, ""),
    ("0.21.0", {"kv_transfer_config": SHARED, "kv_offloading_size": 4.0}, {}, "has no KV connector"),
    ("0.24.0", {"kv_transfer_config": {"kv_role": "kv_both"}, "kv_offloading_size": 0}, {}, ""),
    ("0.21.0", {"enable_return_routed_experts": True}, {}, "asynchronous scheduling"),
    ("0.21.0", {"enable_return_routed_experts": True, "async_scheduling": False}, {}, ""),
    ("0.21.0", {"enable_return_routed_experts": True, "speculative_config": NGRAM}, {}, ""),
    ("0.22.0", {"enable_return_routed_experts": True}, {}, ""),
    ("0.32.0", {"compilation_config": {"custom_ops": ["all", "none"]}}, {}, "custom_ops has all and none"),
    ("0.32.0", {"compilation_config": {"custom_ops": ["none", "+rms_norm"]}}, {}, ""),
    ("0.24.0", {"spec_method": "ngram"}, {}, "no num_speculative_tokens"),
    (
        "0.24.0",
        {"speculative_config": WHOLE, "max_num_batched_tokens": 256, "max_num_seqs": 256, "max_model_len": 4096},
        {},
        "drafts take 256 tokens",
    ),
    (
        "0.24.0",
        {"speculative_config": WHOLE, "max_num_batched_tokens": 512, "max_num_seqs": 256, "max_model_len": 4096},
        {},
        "",
    ),
    (
        "0.19.0",
        {"speculative_config": WHOLE, "max_num_batched_tokens": 256, "max_num_seqs": 256, "max_model_len": 4096},
        {},
        "",
    ),
    ("0.16.0", {"speculative_config": {**NGRAM, "quantization": "x"}}, {}, "no quantization method x"),
    ("0.24.0", {"speculative_config": {**NGRAM, "quantization": "x"}}, {}, ""),
    ("0.16.0", {"max_cudagraph_capture_size": 64, "cudagraph_capture_sizes": [1, 2, 4]}, {}, "largest of"),
    (
        "0.16.0",
        {"max_cudagraph_capture_size": 64, "cudagraph_capture_sizes": [1, 2], "compilation_config": {"mode": 0}},
        {},
        "",
    ),
    ("0.28.0", {"max_cudagraph_capture_size": 0, "compilation_config": {"mode": 2}}, {}, ""),
    ("0.28.0", {"max_cudagraph_capture_size": 0, "compilation_config": {"mode": 3}}, {}, "below 1"),
    ("0.32.0", {"enable_batch_sharded_sampling": True}, {}, "nothing to shard"),
    ("0.32.0", {"enable_batch_sharded_sampling": True}, {"tensor_parallel_size": 2}, ""),
    ("0.32.0", {"enable_batch_sharded_sampling": True, "max_num_seqs": 1}, {"tensor_parallel_size": 2}, "is below"),
    ("0.32.0", {"enable_batch_sharded_sampling": True, "max_logprobs": -1}, {"tensor_parallel_size": 2}, "is -1"),
    ("0.32.0", {"return_sampling_mask": True, "logprobs_mode": "processed_logprobs"}, {}, ""),
    ("0.32.0", {"enable_trace_replay": True}, {}, ""),
    ("0.13.0", {"attention_config": {"backend": 1}}, {}, "backend is 1"),
    ("0.32.0", {"gpu_memory_utilization": 0.0}, {}, "above 0"),
    ("0.28.0", {"spec_tokens": 16}, {}, "neither a method nor a model"),
    ("0.28.0", {"spec_tokens": 3, "spec_method": "ngram"}, {}, ""),
    ("0.32.0", {"kv_transfer_config": {"kv_role": "kv_both"}}, {}, "names no kv_connector"),
    ("0.21.0", {"kv_transfer_config": {"kv_role": "kv_both"}}, {}, ""),
    ("0.11.2", {"reasoning_parser": "foo"}, {}, "has no parser foo"),
    ("0.33.0", {"structured_outputs_config": {"reasoning_parser": "qwen"}}, {}, "has no parser qwen"),
    ("0.33.0", {"structured_outputs_config": '{"reasoning_parser": "qwen3"}'}, {}, ""),
    ("0.33.0", {"reasoning_parser": "mine", "reasoning_parser_plugin": "/models/mine.py"}, {}, ""),
    ("0.33.0", {"enable_auto_tool_choice": True, "tool_call_parser": "hermez"}, {}, "hermes"),
    ("0.33.0", {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}, {}, ""),
    ("0.21.0", {"reasoning_config": {}}, {}, "neither a parser nor both texts"),
    ("0.21.0", {"reasoning_config": {}, "reasoning_parser": "qwen3"}, {}, ""),
    ("0.32.0", {"reasoning_config": {}}, {}, ""),
    ("0.24.0", {"speculative_config": {**NGRAM, "method": "suffix"}}, {}, ""),  # the image may have the package
    ("0.24.0", {"speculative_config": {**EAGLE, "quantization": "foo"}}, {}, "no quantization method foo"),
    ("0.24.0", {"speculative_config": {**EAGLE, "quantization": "fp8"}}, {}, ""),
    ("0.24.0", {"speculative_config": {**WHOLE, "max_model_len": 100000}}, {}, "max_model_len is 100000"),
    ("0.24.0", {"speculative_config": {**WHOLE, "max_model_len": 1024}}, {}, ""),
    ("0.24.0", {"speculative_config": {"num_speculative_tokens": 3}}, {}, "speculative_config"),
    ("0.13.0", {"async_scheduling": True, "speculative_config": NGRAM}, {}, "method ngram"),
    ("0.32.0", {"async_scheduling": True, "speculative_config": NGRAM}, {}, "method ngram"),
    ("0.15.0", {"async_scheduling": True, "speculative_config": WHOLE}, {}, "method draft_model"),
    ("0.16.0", {"async_scheduling": True, "speculative_config": WHOLE}, {}, ""),
    ("0.16.0", {"async_scheduling": True, "speculative_config": EAGLE}, {}, ""),
    ("0.16.0", {"speculative_config": DRAFT}, {}, "names a draft but no method"),
    ("0.17.0", {"speculative_config": DRAFT}, {}, ""),
    ("0.24.0", {"speculative_config": EAGLE}, TWO, "cannot be split"),
    ("0.24.0", {"speculative_config": NGRAM}, TWO, ""),
    ("0.24.0", {"distributed_executor_backend": "x"}, {}, "is not an executor"),
    ("0.24.0", {"distributed_executor_backend": "mp"}, {}, ""),
    ("0.21.0", {"distributed_executor_backend": ""}, {}, ""),
    ("0.24.0", {"mamba_backend": "auto"}, {}, "is not a backend"),
    ("0.24.0", {"mamba_backend": "Triton"}, {}, ""),
    ("0.24.0", {"data_parallel_multi_port_external_lb": True}, {}, "data_parallel_size is 1"),
    ("0.24.0", {"max_cudagraph_capture_size": 0}, {}, "is below 1"),
    ("0.24.0", {"compilation_config": {"max_cudagraph_capture_size": 0}}, {}, "is below 1"),
    ("0.24.0", {"max_cudagraph_capture_size": 0, "enforce_eager": True}, {}, ""),
    ("0.19.0", {"max_model_len": 0}, {}, "it is 0"),
    ("0.24.0", {"compilation_config": {"compile_sizes": ["x"]}}, {}, "compile_sizes"),
    ("0.24.0", {"compilation_config": {"compile_sizes": [1, "cudagraph_capture_sizes"]}}, {}, ""),
    ("0.24.0", {"compilation_config": {"custom_ops": ["foo"]}}, {}, "custom_ops has foo"),
    ("0.24.0", {"compilation_config": {"custom_ops": ["none", "+rms_norm"]}}, {}, ""),
    ("0.24.0", {"compilation_config": {"custom_ops": ["all", "none"]}}, {}, "custom_ops"),
    ("0.13.0", {"kv_offloading_backend": "lmcache"}, {}, "kv_offloading_size"),
    ("0.13.0", {"logits_processor_pattern": "x"}, {}, "logits_processor_pattern"),
    ("0.28.0", {"max_model_len": 1024, "long_prefill_token_threshold": 100000}, {}, "long_prefill_token_threshold"),
    ("0.32.0", {"watermark_config": {"alpha": 1.0}}, {}, "it has no key"),
    ("0.32.0", {"watermark_config": {"alpha": 1.0, "key": 7}}, {}, ""),
    ("0.13.0", {"profiler_config": {"profiler": "torch"}}, {}, "no torch_profiler_dir"),
    ("0.13.0", {"profiler_config": {"profiler": "torch", "torch_profiler_dir": "/tmp/x"}}, {}, ""),
    ("0.24.0", {"profiler_config": {"profiler": "torch"}}, {}, "torch_profiler_dir"),
    ("0.19.0", {"decode_context_parallel_size": 0}, {}, "decode_context_parallel_size"),
])  # fmt: skip
def test_the_plan_says_what_vllm_would(
    release: str, flags: dict[str, Any], sizes: dict[str, int], said: str
) -> None:
    found = plan(Case("llama", flags, sizes), release).problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)


@pytest.mark.parametrize(
    ("basis", "said"), [("tag", ["arctic-inference"]), ("family", ["arctic-inference"]), ("asked", [])]
)
def test_a_package_that_published_images_lack(basis: str, said: list[str]) -> None:
    given = {"speculative_config": {**NGRAM, "method": "suffix"}}
    found = verdict(
        LLAMA_8B, software=replace(FACTS, vllm="0.24.0", basis=basis), recipes=False, engine_args=given
    )
    assert [word for problem in found.problems for word in said if word in problem.text()] == said


@pytest.mark.parametrize(("release", "model", "said"), [
    ("0.11.2", "mixtral", "no EAGLE-3 draft for models of type mixtral"),
    ("0.11.2", "qwen3-moe", ""),
    ("0.9.2", "mixtral", ""),
    ("0.24.0", "mixtral", ""),
])  # fmt: skip
def test_models_that_an_eagle_3_draft_is_for(release: str, model: str, said: str) -> None:
    found = plan(Case(model, {"speculative_config": EAGLE}, {}), release).problems
    assert [text for text in found if "EAGLE-3" in text] == [text for text in found if said and said in text]
    assert any(said in text for text in found) or not said


@pytest.mark.parametrize(("release", "flags", "said"), [
    ("0.13.0", {"pooler_config": {"normalize": True}}, "it has no pooling_type"),
    ("0.13.0", {"pooler_config": {"pooling_type": "LAST"}}, ""),
    ("0.16.0", {"pooler_config": {"step_tag_id": 8}}, ""),
])  # fmt: skip
def test_a_pooler_of_a_model_that_generates(release: str, flags: dict[str, Any], said: str) -> None:
    found = plan(Case("llama", flags, {}), release).problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)


@pytest.mark.parametrize(("model", "flags", "said"), [
    ("qwen2.5-vl", {"mm_shm_cache_max_object_size_mb": 64}, "only the cache of type shm"),
    ("qwen2.5-vl", {"mm_shm_cache_max_object_size_mb": 64, "mm_processor_cache_type": "shm"}, ""),
    ("qwen2.5-vl", {"mm_shm_cache_max_object_size_mb": 128}, ""),
    ("llama", {"mm_shm_cache_max_object_size_mb": 64}, ""),
])  # fmt: skip
def test_options_of_models_that_see(model: str, flags: dict[str, Any], said: str) -> None:
    found = plan(Case(model, flags, {}), "0.19.0").problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)
