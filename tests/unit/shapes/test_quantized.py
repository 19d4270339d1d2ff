# SPDX-License-Identifier: Apache-2.0
"""How a checkpoint's config.json is read for the formats of its weights: every method, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.quantized import (
    Quantization,
    packed_integers,
    quantization,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.weights import (
    FP8_TENSOR,
    Scheme,
)

MXFP4 = Scheme("mxfp4", 4, 1, (1, 32))
NVFP4 = Scheme("nvfp4", 4, 1, (1, 16))
FP8_CHANNEL = Scheme("fp8 per channel", 8, 4, (1, 0))
FP8_BLOCKS = Scheme("fp8 in blocks of 128x128", 8, 4, (128, 128))
INT8_CHANNEL = Scheme("int8 per channel", 8, 4, (1, 0))


def read(found: dict[str, Any]) -> Quantization:
    return quantization({"quantization_config": found})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8"}, FP8_TENSOR),
        ({"quant_method": "FP8"}, FP8_TENSOR),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, FP8_BLOCKS),
        ({"quant_method": "fp8", "weight_block_size": [64, 32]}, Scheme("fp8 in blocks of 64x32", 8, 4, (64, 32))),
        ({"quant_method": "fbgemm_fp8"}, FP8_CHANNEL),
        ({"quant_method": "mxfp4"}, MXFP4),
        ({"quant_method": "gpt_oss_mxfp4"}, MXFP4),
        ({"quant_method": "awq"}, Scheme("int4 in groups of 128", 4, 2, (1, 128), 4)),
        ({"quant_method": "awq", "w_bit": 8, "q_group_size": 64}, Scheme("int8 in groups of 64", 8, 2, (1, 64), 8)),
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, Scheme("int3 in groups of 32", 3, 2, (1, 32), 3)),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, Scheme("int4 per channel", 4, 2, (1, 0), 4)),
        *(
            ({"quant_method": name}, Scheme("int4 in groups of 128", 4, 2, (1, 128), 4))
            for name in ("auto_awq", "awq_marlin", "auto_gptq", "gptq_marlin", "auto-round", "inc")
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, INT8_CHANNEL),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Scheme("bitsandbytes 4 bit", 4, 4, (1, 64))),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, NVFP4),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, FP8_TENSOR),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "nvfp4"}}, NVFP4),
        ({"quant_method": "modelopt", "quantization": None}, FP8_TENSOR),
        ({"quant_method": "modelopt"}, FP8_TENSOR),
        ({"quant_method": "of-tomorrow"}, None),
    ],
)  # fmt: skip
def test_methods(config: dict[str, Any], expected: Scheme | None) -> None:
    found = read(config)
    assert (found.scheme, found.known) == (expected, expected is not None)
    assert found.method == config["quant_method"].lower()
    assert found.others == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8"}, False),
        ({"quant_method": "fbgemm_fp8"}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, False),
        ({"quant_method": "awq"}, True),
        ({"quant_method": "gptq", "bits": 8}, True),
        ({"quant_method": "mxfp4"}, True),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, True),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, True),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4"}, "input_tensors": {"x": 1}},
            },
            False,
        ),
        ({"config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}, True),
        (
            {
                "config_groups": {
                    "a": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"x": 1}}
                }
            },
            False,
        ),
        ({"config_groups": {}}, False),
        ({"quant_method": "of-tomorrow"}, False),
        ({}, False),
    ],
)
def test_formats_of_weights_only(config: dict[str, Any], expected: bool) -> None:
    assert read(config).weight_only is expected


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"num_bits": 4, "type": "float", "group_size": 16}, NVFP4),
        ({"num_bits": 4, "type": "float", "group_size": 32}, MXFP4),
        ({"num_bits": 8, "type": "float", "strategy": "block"}, FP8_BLOCKS),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, FP8_TENSOR),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, FP8_CHANNEL),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, INT8_CHANNEL),
        (
            {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 64, "symmetric": True},
            Scheme("int8 in groups of 64", 8, 2, (1, 64)),
        ),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
         Scheme("int4 in groups of 128", 4, 2, (1, 128))),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False},
         Scheme("int4 in groups of 128", 4, 2, (1, 128), 4)),
        ({"num_bits": 4, "type": "int", "strategy": "channel", "group_size": 128},
         Scheme("int4 per channel", 4, 2, (1, 0))),
        ({"num_bits": 4, "type": "int", "strategy": "group"}, Scheme("int4 per channel", 4, 2, (1, 0))),
        ({"num_bits": 16, "type": "float"}, None),
        ({"type": "int"}, None),
        ({"num_bits": 4}, None),
        ({"num_bits": 8}, None),
        ({"num_bits": 8, "type": "of-tomorrow", "strategy": "channel"}, None),
        (None, None),
    ],
)  # fmt: skip
def test_compressed_tensors(weights: dict[str, Any] | None, expected: Scheme | None) -> None:
    for config in (
        {"quantization_config": {"config_groups": {"group_0": {"weights": weights}}}},
        {
            "compression_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": weights}},
            }
        },
        {"text_config": {"quantization_config": {"config_groups": {"a": {"weights": weights}}}}},
    ):
        found = quantization(config)
        assert (found.method, found.scheme, found.known) == (
            "compressed-tensors",
            expected,
            expected is not None,
        )


def test_without_groups_nothing_is_known_and_without_a_config_nothing_is_quantized() -> None:
    assert read({"quant_method": "compressed-tensors"}) == Quantization("compressed-tensors", None, False)
    for config in (
        {},
        {"quantization_config": None},
        {"quantization_config": {}},
        {"quantization_config": "fp8"},
    ):
        assert quantization(config) == Quantization()
    assert Quantization().known


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ({"dtype": "fp4"}, MXFP4),
        ({"dtype": "fp4", "group_size": 16}, Scheme("mxfp4", 4, 1, (1, 16))),
        ({"dtype": "fp6_e2m3"}, Scheme("mxfp6", 6, 1, (1, 32))),
        ({"dtype": "fp6_e3m2", "group_size": 64}, Scheme("mxfp6", 6, 1, (1, 64))),
        ({"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, FP8_TENSOR),
        ({"dtype": "fp8_e4m3", "qscheme": "per_channel"}, FP8_CHANNEL),
        ({"dtype": "int4"}, Scheme("int4 in groups of 128", 4, 2, (1, 128))),
        ({"dtype": "int4", "group_size": 64, "symmetric": False}, Scheme("int4 in groups of 64", 4, 2, (1, 64), 4)),
        ({"dtype": "uint4", "group_size": -1}, Scheme("int4 per channel", 4, 2, (1, 0))),
        ({"dtype": "int8"}, INT8_CHANNEL),
        ({"dtype": "bfloat16"}, None),
        # Quantized twice: the first entry is how it is stored.
        ([{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "fp4"}], FP8_TENSOR),
        ([], None),
        ("fp8", None),
        (None, None),
    ],
)  # fmt: skip
def test_quark(weight: Any, expected: Scheme | None) -> None:
    found = read({"quant_method": "quark", "global_quant_config": {"weight": weight}})
    assert (found.scheme, found.known) == (expected, expected is not None)


def test_quark_may_give_layers_their_own_format() -> None:
    found = read(
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp4"}},
            "layer_quant_config": {
                "*.self_attn.*": {"weight": {"dtype": "fp8", "qscheme": "per_tensor"}},
                "model.layers.0.*": {"weight": {"dtype": "int8"}},
                "*lm_head": None,
            },
            "exclude": ["re:.*router.*"],
        }
    )
    formats = {
        "layers.0.self_attn.o_proj": FP8_TENSOR,  # the first pattern that finds it
        "layers.0.mlp.down_proj": INT8_CHANNEL,
        "layers.1.mlp.down_proj": MXFP4,
        "layers.1.mlp.router": None,
        "lm_head": None,
    }
    assert {name: found.of(name, False) for name in formats} == formats
    assert read({"quant_method": "quark"}) == Quantization("quark", None, False)


@pytest.mark.parametrize(
    ("bits", "group", "zeros", "expected"),
    [
        (4, 128, True, Scheme("int4 in groups of 128", 4, 2, (1, 128), 4)),
        (4, 1, False, Scheme("int4 in groups of 1", 4, 2, (1, 1))),
        (8, 0, False, Scheme("int8 per channel", 8, 2, (1, 0))),
        (8, -1, True, Scheme("int8 per channel", 8, 2, (1, 0), 8)),
    ],
)
def test_integers(bits: int, group: int, zeros: bool, expected: Scheme) -> None:
    assert packed_integers(bits, group, zeros) == expected


# ---- what is left as it is --------------------------------------------------------------------------

Q, K, UP, DOWN = (f"layers.3.{name}_proj" for name in ("self_attn.q", "self_attn.k", "mlp.up", "mlp.down"))
OUTPUT, OTHER, HEAD = "layers.3.self_attn.o_proj", "layers.13.self_attn.q_proj", "lm_head"
NAMES = (Q, K, OUTPUT, UP, DOWN, OTHER, HEAD)


@pytest.mark.parametrize(
    ("exceptions", "plain"),
    [
        ({}, set()),
        ({"modules_to_not_convert": None}, set()),
        ({"ignore": ["lm_head"]}, {HEAD}),
        *(({key: ["lm_head"]}, {HEAD}) for key in ("modules_to_not_convert", "ignored_layers", "exclude")),
        *(({key: ["lm_head"]}, {HEAD}) for key in ("exclude_modules", "llm_int8_skip_modules")),
        ({"ignore": ["lm_head"], "exclude": [OUTPUT]}, {HEAD, OUTPUT}),
        # The whole name from layers.N on, whatever is before.
        ({"ignore": ["model.layers.3.self_attn.q_proj"]}, {Q}),
        ({"ignore": ["language_model.model.layers.3.self_attn.q_proj"]}, {Q}),
        ({"ignore": ["layers.3.self_attn"]}, {Q, K, OUTPUT}),
        ({"ignore": ["self_attn"]}, {Q, K, OUTPUT, OTHER}),
        ({"ignore": ["self_attn.q_proj"]}, {Q, OTHER}),
        ({"ignore": ["down_proj"]}, {DOWN}),
        ({"ignore": ["attn", "elf_attn", "layers.3.self", "proj"]}, set()),
        # vLLM's names of layers that it has fused.
        ({"ignore": ["model.layers.3.self_attn.qkv_proj"]}, {Q, K}),
        ({"ignore": ["gate_up_proj"]}, {UP}),
        # Patterns.
        ({"ignore": ["re:.*self_attn.*"]}, {Q, K, OUTPUT, OTHER}),
        ({"ignore": ["re:model\\.layers\\.3\\.mlp.*"]}, {UP, DOWN}),
        ({"ignore": ["re:layers\\.3\\.mlp.*"]}, {UP, DOWN}),
        ({"ignore": ["re:language_model\\.model\\.layers\\.3\\.mlp.*"]}, {UP, DOWN}),
        ({"ignore": ["re:model\\.language_model\\.layers\\.3\\.mlp.*"]}, {UP, DOWN}),
        ({"ignore": ["re:nothing.*"]}, set()),
        ({"ignore": ["*.self_attn"]}, {Q, K, OUTPUT, OTHER}),
        ({"ignore": ["model.layers.3.*"]}, {Q, K, OUTPUT, UP, DOWN}),
        ({"ignore": ["*.mlp.*"]}, {UP, DOWN}),
        ({"ignore": ["*.self"]}, set()),
        # GPTQModel's rules; "+:" changes numbers, and leaves nothing out.
        ({"dynamic": {"-:.*mlp.*": {}, "+:.*self_attn.*": {"bits": 8}}}, {UP, DOWN}),
        ({"dynamic": {"-:down_proj": {}}}, {DOWN}),
        ({"dynamic": ["-:.*mlp.*"]}, set()),
    ],
)
def test_exceptions(exceptions: dict[str, Any], plain: set[str]) -> None:
    found = read({"quant_method": "fp8", **exceptions})
    assert {name for name in NAMES if found.of(name, False) is None} == plain
    assert {found.of(name, False) for name in NAMES if name not in plain} == {FP8_TENSOR}


@pytest.mark.parametrize(("method", "only"), [("mxfp4", True), ("gpt_oss_mxfp4", True), ("fp8", False)])
def test_some_methods_quantize_experts_only(method: str, only: bool) -> None:
    found = read({"quant_method": method})
    assert found.only_experts is only
    assert (found.of("layers.0.mlp.experts.up_proj", True) is None) is False
    assert (found.of("layers.0.self_attn.q_proj", False) is None) is only


def test_what_is_not_quantized_has_no_format() -> None:
    assert Quantization().of(Q, False) is None
    assert Quantization(others=(("*", MXFP4),)).of(Q, False) is None
