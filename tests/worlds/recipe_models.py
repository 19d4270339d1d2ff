# SPDX-License-Identifier: Apache-2.0
"""Models that recipes are for, and images of each era."""

from __future__ import annotations

from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import ModelFacts

DOZEN = (
    "0.6.3", "0.7.3", "0.8.5", "0.9.1", "0.9.2", "0.10.1", "0.11.0", "0.11.2", "0.13.0", "0.16.0", "0.19.0", "0.22.0",
    "0.24.0", "0.28.0", "0.33.0",
)  # fmt: skip
# What every run judges: the first, the last, and where most changed. All are a third of the unit tests' time.
ERAS = ("0.6.3", "0.9.1", "0.11.0", "0.19.0", "0.33.0")
OTHERS = tuple(version for version in DOZEN if version not in ERAS)

LLAMA, QWEN = ("LlamaForCausalLM",), ("Qwen3ForCausalLM",)
MOE: dict[str, Any] = {"moe": True, "head_size": 128}
MLA: dict[str, Any] = {"moe": True, "mla": True, "head_size": 192, "heads": 128}
FP8: dict[str, Any] = {"quantization": "quark_fp8", "kv_scales": True}
MODELS = (
    ModelFacts("amd/Llama-3.1-8B-Instruct-FP8-KV", LLAMA, head_size=128, **FP8),
    ModelFacts("meta-llama/Llama-3.1-70B-Instruct", LLAMA, head_size=128),
    ModelFacts("amd/Llama-3.1-405B-Instruct-FP8-KV", LLAMA, head_size=128, **FP8),
    ModelFacts("amd/Llama-3.3-70B-Instruct-FP8-KV", LLAMA, head_size=128, **FP8),
    ModelFacts("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", LLAMA, head_size=128, quantization="quark_mxfp4"),
    ModelFacts("meta-llama/Llama-4-Scout-17B-16E-Instruct", ("Llama4ForConditionalGeneration",), multimodal=True,
               **MOE),
    ModelFacts("amd/Mixtral-8x22B-Instruct-v0.1-FP8-KV", ("MixtralForCausalLM",), **MOE, **FP8),
    ModelFacts("mistralai/Mixtral-8x7B-Instruct-v0.1", ("MixtralForCausalLM",), **MOE),
    ModelFacts("deepseek-ai/DeepSeek-V2-Lite", ("DeepseekV2ForCausalLM",), **{**MLA, "heads": 16}),
    ModelFacts("deepseek-ai/DeepSeek-R1", ("DeepseekV3ForCausalLM",), quantization="fp8", **MLA),
    ModelFacts("deepseek-ai/DeepSeek-V3.2-Exp", ("DeepseekV32ForCausalLM",), quantization="fp8", sparse=True, **MLA),
    ModelFacts("zai-org/GLM-5", ("GlmMoeDsaForCausalLM",), sparse=True, **{**MLA, "heads": 64}),
    ModelFacts("amd/DeepSeek-R1-MXFP4", ("DeepseekV3ForCausalLM",), quantization="quark_mxfp4", kv_scales=True, **MLA),
    ModelFacts("deepseek-ai/DeepSeek-V4-Flash", (), quantization="fp8", **MLA),
    ModelFacts("Qwen/Qwen2-72B-Instruct", ("Qwen2ForCausalLM",), head_size=128),
    ModelFacts("Qwen/Qwen3-32B-AWQ", QWEN, head_size=128, quantization="awq"),
    ModelFacts("Qwen/Qwen3-235B-A22B-FP8", ("Qwen3MoeForCausalLM",), quantization="fp8", **MOE),
    ModelFacts("Qwen/Qwen3-VL-235B-A22B-Instruct", ("Qwen3VLMoeForConditionalGeneration",), multimodal=True, **MOE),
    ModelFacts("Qwen/Qwen3-Next-80B-A3B-Instruct", ("Qwen3NextForCausalLM",), moe=True, head_size=256),
    ModelFacts("Qwen/Qwen2.5-VL-72B-Instruct", ("Qwen2_5_VLForConditionalGeneration",), multimodal=True, head_size=128),
    ModelFacts("openai/gpt-oss-120b", ("GptOssForCausalLM",), moe=True, sinks=True, sliding_window=True, head_size=64,
               quantization="mxfp4"),
    ModelFacts("google/gemma-3-27b-it", ("Gemma3ForConditionalGeneration",), sliding_window=True, multimodal=True,
               head_size=128),
    ModelFacts("CohereForAI/c4ai-command-r-plus-08-2024", ("CohereForCausalLM",), head_size=128),
    ModelFacts("MiniMaxAI/MiniMax-M2.5", ("MiniMaxM2ForCausalLM",), quantization="fp8", **MOE),
    ModelFacts("moonshotai/Kimi-K2.6", ("KimiK25ForConditionalGeneration",), quantization="compressed_tensors",
               **{**MLA, "heads": 64}),
    ModelFacts("mistralai/Ministral-3-8B-Instruct-2512", ("Mistral3ForConditionalGeneration",), multimodal=True,
               head_size=128),
    ModelFacts("some/other-model-GPTQ", ("OPTForCausalLM",), head_size=80, quantization="gptq"),
)  # fmt: skip
