# SPDX-License-Identifier: Apache-2.0
"""Describe the layers of a language model: their weights, and what each keeps per token or per request.

Source: the models' published shapes and vllm/model_executor/models/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .families import Family
from .weights import IN, KV, OUT, WHOLE, Matrix

Matrices = list[Matrix]


@dataclass(frozen=True)
class Cache:
    """What an attention layer keeps for each token.

    window: of sliding attention, chunk: of chunked attention, in tokens; 0 for none. latent: one vector for all heads,
    which every tensor parallel rank keeps whole. raw: bytes per token that are independent of the KV type. selected:
    tokens that sparse attention reads of them at most; 0 for all.
    """

    heads: int
    key: int
    value: int
    window: int = 0
    chunk: int = 0
    latent: bool = False
    raw: int = 0
    selected: int = 0


@dataclass(frozen=True)
class State:
    """What a state-space or linear attention layer keeps for each request.

    Attributes:
        channels: of the convolution, without those of the groups, which are twice groups x group_channels.
        heads, head_elements: their product is the size of the recurrent state.
        wide: the state is kept in float32.
        checkpointed: newer releases keep one more copy of the state.
    """

    channels: int
    kernel: int
    heads: int
    head_elements: int
    groups: int = 0
    group_channels: int = 0
    wide: bool = False
    checkpointed: bool = False


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    matrices: tuple[Matrix, ...]
    caches: tuple[Cache | State, ...] = ()


class ConfigNumbers:
    """The numbers of a config.json, under the different names that models use for them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, *names: str, default: int = 0) -> int:
        """Return the value of the first of these keys that has a number, as an integer."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return int(value)
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return the value of the first of these keys that has a boolean."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, bool):
                return value
        return default

    def items(self, name: str) -> Sequence[Any]:
        """Return the list under this key, or an empty one."""
        value = self.config.get(name)
        return value if isinstance(value, (list, str)) else ()

    @property
    def hidden(self) -> int:
        return self.get("hidden_size", "n_embd", "d_model", "dim")

    @property
    def heads(self) -> int:
        return self.get("num_attention_heads", "n_head", "n_heads")

    @property
    def kv_heads(self) -> int:
        if self.flag("multi_query") and not self.flag("new_decoder_architecture"):
            return 1
        return self.get("num_key_value_heads", "n_head_kv", "num_kv_heads") or self.heads

    @property
    def head_size(self) -> int:
        return self.get("head_dim", "attention_head_dim", default=self.hidden // max(1, self.heads))

    @property
    def intermediate(self) -> int:
        return self.get("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_size")

    @property
    def layers(self) -> int:
        return self.get("num_hidden_layers", "n_layer", "n_layers", "num_layers")

    @property
    def experts(self) -> int:
        return self.get("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

    @property
    def expert_intermediate(self) -> int:
        return self.get("moe_intermediate_size", "expert_intermediate_size", default=self.intermediate)


def linear(
    name: str,
    outputs: int,
    inputs: int,
    split: str = WHOLE,
    bias: bool = False,
    kv_heads: int = 0,
    experts: int = 0,
) -> Matrices:
    """Return the matrices of a linear layer.

    The bias is divided along with the outputs, and whole if the inputs are divided.
    """
    result = [Matrix(name, outputs, inputs, split, experts, kv_heads, quantizable=True)]
    if bias:
        result.append(vector(f"{name}.bias", outputs, WHOLE if split == IN else split, kv_heads, experts))
    return result


def vector(name: str, size: int, split: str = WHOLE, kv_heads: int = 0, experts: int = 0) -> Matrix:
    """Return a norm, a bias or another one-dimensional weight."""
    return Matrix(name, size, 1, split, experts, kv_heads)


def attention(n: ConfigNumbers, family: Family, kv_heads: int = 0, gated: bool = False) -> Matrices:
    """Return the matrices of multi-head or grouped-query attention.

    kv_heads: of this layer, for models whose layers differ.
    """
    hidden, heads, size = n.hidden, n.heads, n.head_size
    kv = kv_heads or n.kv_heads
    value = n.get("v_head_dim", default=size)
    bias = n.flag("attention_bias", "qkv_bias", "use_qkv_bias", "use_bias", "bias", default=family.qkv_bias)
    bias = bias or family.qkv_bias
    out_bias = bias and family.output_bias
    result = [
        *linear("self_attn.q_proj", heads * size * (2 if gated else 1), hidden, OUT, bias),
        *linear("self_attn.k_proj", kv * size, hidden, KV, bias, kv),
        *linear("self_attn.v_proj", kv * value, hidden, KV, bias, kv),
        *linear("self_attn.o_proj", hidden, heads * value, IN, out_bias),
    ]
    if family.qk_norm == "head" or (family.qk_norm == "optional" and n.flag("use_qk_norm")):
        result += [vector("self_attn.q_norm", size), vector("self_attn.k_norm", size)]
    elif family.qk_norm == "all" or (family.qk_norm == "heads" and n.flag("use_qk_norm")):
        result += [
            vector("self_attn.q_norm", heads * size, OUT),
            vector("self_attn.k_norm", kv * size, KV, kv),
        ]
    if family.sinks:
        result.append(vector("self_attn.sinks", heads, OUT))
    return result


def latent_attention(n: ConfigNumbers) -> tuple[Matrices, tuple[Cache, ...]]:
    """Return the matrices and caches of DeepSeek's multi-head latent attention.

    vLLM keeps kv_b_proj and two copies of its halves in 16 bit.
    """
    hidden, heads = n.hidden, n.heads
    lora, q_lora = n.get("kv_lora_rank"), n.get("q_lora_rank")
    nope, rope, value = n.get("qk_nope_head_dim"), n.get("qk_rope_head_dim"), n.get("v_head_dim")
    bias = n.flag("attention_bias")
    if q_lora:
        result = [
            *linear("self_attn.q_a_proj", q_lora, hidden, bias=bias),
            vector("self_attn.q_a_layernorm", q_lora),
            *linear("self_attn.q_b_proj", heads * (nope + rope), q_lora, OUT),
        ]
    else:
        result = linear("self_attn.q_proj", heads * (nope + rope), hidden, OUT)
    result += [
        *linear("self_attn.kv_a_proj_with_mqa", lora + rope, hidden, bias=bias),
        vector("self_attn.kv_a_layernorm", lora),
        *linear("self_attn.kv_b_proj", heads * (nope + value), lora, OUT),
        Matrix("self_attn.kv_b_proj absorbed", heads * (nope + value), lora, OUT, stored=False),
        *linear("self_attn.o_proj", hidden, heads * value, IN, bias),
    ]
    index_heads, index_size = n.get("index_n_heads"), n.get("index_head_dim")
    sparse = bool(index_heads and index_size)
    caches = [Cache(1, lora + rope, 0, latent=True, selected=n.get("index_topk") if sparse else 0)]
    if sparse:
        result += [
            *linear("self_attn.indexer.wq_b", index_heads * index_size, q_lora or hidden),
            *linear("self_attn.indexer.wk", index_size, hidden),
            vector("self_attn.indexer.k_norm", 2 * index_size),
            Matrix("self_attn.indexer.weights_proj", index_heads, hidden),
        ]
        # FP8 keys and one float32 scale per 128 of them: vLLM, DeepseekV32IndexerCache
        caches.append(Cache(1, 0, 0, latent=True, raw=index_size + 4 * max(1, index_size // 128)))
    return result, tuple(caches)


def mlp(name: str, hidden: int, inner: int, gated: bool = True, bias: bool = False) -> Matrices:
    """Return the matrices of a feed-forward block."""
    result = linear(f"{name}.gate_proj", inner, hidden, OUT, bias) if gated else []
    return [
        *result,
        *linear(f"{name}.up_proj", inner, hidden, OUT, bias),
        *linear(f"{name}.down_proj", hidden, inner, IN, bias),
    ]


def mixture(n: ConfigNumbers, family: Family) -> Matrices:
    """Return the matrices of routed experts, their router, and the model's shared experts, if any."""
    hidden, experts, inner = n.hidden, n.experts, n.expert_intermediate
    bias = family.expert_bias
    result = [Matrix("mlp.gate", experts, hidden)]
    if bias:
        result.append(vector("mlp.gate.bias", experts))
    if n.config.get("topk_method") == "noaux_tc" or family.router_correction:
        result.append(vector("mlp.gate.e_score_correction_bias", experts))
    sides = ("gate_proj", "up_proj") if family.gated else ("up_proj",)
    for side in sides:
        result += linear(f"mlp.experts.0.{side}", inner, hidden, OUT, bias, experts=experts)
    result += linear("mlp.experts.0.down_proj", hidden, inner, IN, bias, experts=experts)
    count = n.get("n_shared_experts", "num_shared_experts", "num_shared_expert")
    shared = n.get(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=count * inner
    )
    if family.shared_is_intermediate:
        shared = n.intermediate
    if shared:
        result += mlp("mlp.shared_experts", hidden, shared, family.gated)
        if family.shared_gate:
            result.append(Matrix("mlp.shared_expert_gate", 1, hidden))
    return result


def mamba1(n: ConfigNumbers) -> tuple[Matrices, State]:
    """Return the matrices and the state of a selective state space, as in Jamba and the first Mamba."""
    hidden = n.hidden
    inner = n.get("mamba_expand", "expand", default=2) * hidden
    states, kernel = (
        n.get("mamba_d_state", "state_size", default=16),
        n.get("mamba_d_conv", "conv_kernel", default=4),
    )
    rank = n.get("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
    bias = n.flag("mamba_proj_bias", "use_bias")
    result = [
        *linear("mamba.in_proj", 2 * inner, hidden, OUT, bias),
        Matrix("mamba.conv1d", inner, kernel, OUT),
        vector("mamba.conv1d.bias", inner, OUT),
        *linear("mamba.x_proj", rank + 2 * states, inner, IN),
        Matrix("mamba.dt_proj", inner, rank, OUT),
        vector("mamba.dt_proj.bias", inner, OUT),
        Matrix("mamba.A_log", inner, states, OUT),
        vector("mamba.D", inner, OUT),
        *linear("mamba.out_proj", hidden, inner, IN, bias),
    ]
    if n.config.get("model_type") == "jamba":
        result.append(vector("mamba.layernorms", rank + 2 * states))
    return result, State(inner, kernel, inner, states)


def mamba2(n: ConfigNumbers) -> tuple[Matrices, State]:
    """Return the matrices and the state of a state space with heads: Bamba, Granite 4, Nemotron-H, Falcon-H1."""
    hidden = n.hidden
    heads = n.get("mamba_n_heads", "mamba_num_heads", "num_heads")
    size = n.get("mamba_d_head", "mamba_head_dim", "head_dim")
    states = n.get("mamba_d_state", "ssm_state_size", "state_size")
    groups = n.get("mamba_n_groups", "n_groups", default=1)
    kernel = n.get("mamba_d_conv", "conv_kernel", default=4)
    inner = n.get("mamba_d_ssm", default=heads * size)
    bias = n.flag("mamba_proj_bias", "use_bias")
    shared = (
        2 * groups * states
    )  # B and C: a rank has those of its heads' groups, and never less than one group
    result = [
        *linear("mamba.in_proj", 2 * inner + heads, hidden, OUT, bias),
        *linear("mamba.in_proj", shared, hidden, KV, bias, groups),
        Matrix("mamba.conv1d", inner, kernel, OUT),
        Matrix("mamba.conv1d", shared, kernel, KV, kv_heads=groups),
        vector("mamba.A_log, D, dt_bias", 3 * heads, OUT),
        *linear("mamba.out_proj", hidden, inner, IN, bias),
    ]
    if n.flag("mamba_conv_bias", "use_conv_bias", default=True):
        result += [vector("mamba.conv1d.bias", inner, OUT), vector("mamba.conv1d.bias", shared, KV, groups)]
    if n.flag("mamba_rms_norm", default=True):
        result.append(vector("mamba.norm", inner, OUT))
    # Nemotron-H's states are float32 by default (vllm/model_executor/models/config.py).
    usual = "float32" if str(n.config.get("model_type")).startswith("nemotron_h") else "auto"
    wide = str(n.config.get("mamba_ssm_cache_dtype") or usual) == "float32"
    return result, State(inner, kernel, heads, size * states, groups, states, wide, True)


def delta_net(n: ConfigNumbers) -> tuple[Matrices, State]:
    """Return the matrices and the state of gated delta rule linear attention, as in Qwen3-Next."""
    hidden = n.hidden
    key_heads, value_heads = n.get("linear_num_key_heads"), n.get("linear_num_value_heads")
    key, value = n.get("linear_key_head_dim"), n.get("linear_value_head_dim")
    kernel = n.get("linear_conv_kernel_dim", default=4)
    channels = 2 * key_heads * key + value_heads * value
    result = [
        *linear("linear_attn.in_proj_qkvz", channels + value_heads * value, hidden, OUT),
        *linear("linear_attn.in_proj_ba", 2 * value_heads, hidden, OUT),
        Matrix("linear_attn.conv1d", channels, kernel, OUT),
        vector("linear_attn.A_log, dt_bias", 2 * value_heads, OUT),
        vector("linear_attn.norm", value),
        *linear("linear_attn.out_proj", hidden, value_heads * value, IN),
    ]
    wide = n.config.get("mamba_ssm_dtype") == "float32"
    return result, State(channels, kernel, value_heads, key * value, wide=wide)
