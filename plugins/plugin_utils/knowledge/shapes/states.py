# SPDX-License-Identifier: Apache-2.0
"""Describe the layers that keep a state per request: state spaces, linear attention, short convolutions.

Source: vllm/model_executor/layers/mamba/*.py, where the shapes and types of the states are in mamba_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from .numbers import ConfigNumbers
from .weights import IN, KV, OUT, Matrices, Matrix, linear, vector


@dataclass(frozen=True)
class State:
    """What a state-space or linear attention layer keeps for each request.

    Attributes:
        channels: of the convolution, without those of the groups, which are twice groups x group_channels.
        heads, head_elements: their product is the size of the recurrent state.
        wide: the state is kept in float32.
        checkpointed: newer releases keep one more copy of the state.
        alone: no layer of the model has attention, so that there is no prefix caching, and no copy for it.
    """

    channels: int
    kernel: int
    heads: int
    head_elements: int
    groups: int = 0
    group_channels: int = 0
    wide: bool = False
    checkpointed: bool = False
    alone: bool = False


def mamba1(n: ConfigNumbers) -> tuple[Matrices, State]:
    """Return the matrices and the state of a selective state space, as in Jamba and the first Mamba."""
    hidden = n.hidden
    inner = n.get("mamba_expand", "expand", default=2) * hidden
    if "mamba_d_state" not in n.config and "state_size" in n.config:  # without attention, as the first Mamba
        inner = n.get("intermediate_size", default=inner)
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
        Matrix("mamba.A in float32", inner, states, OUT, stored=False),
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


def short_convolution(n: ConfigNumbers) -> tuple[Matrices, State]:
    """Return the matrices and the state of a gated short convolution, as in LFM2."""
    hidden, kernel, bias = n.hidden, n.get("conv_L_cache", default=3), n.flag("conv_bias")
    result = [
        *linear("conv.in_proj", 3 * hidden, hidden, OUT, bias),
        Matrix("conv.conv", hidden, kernel, OUT),
        *linear("conv.out_proj", hidden, hidden, IN, bias),
    ]
    if bias:
        result.append(vector("conv.conv.bias", hidden, OUT))
    return result, State(hidden, kernel, 0, 0)


def kimi_delta(n: ConfigNumbers) -> tuple[Matrices, State]:
    """Return the matrices and the state of Kimi's delta attention; its state and its convolution are float32."""
    own, hidden = n.part("linear_attn_config"), n.hidden
    heads = own.get("num_heads", default=n.get("linear_num_heads"))
    size = own.get("head_dim", default=n.get("linear_head_dim"))
    kernel = own.get("short_conv_kernel_size", default=n.get("linear_conv_kernel_dim", default=4))
    inner = heads * size
    result = [
        *linear("self_attn.in_proj_qkv", 3 * inner, hidden, OUT),
        *linear("self_attn.b_proj", heads, hidden, OUT),
        *linear("self_attn.f_a_proj", size, hidden),
        *linear("self_attn.f_b_proj", inner, size, OUT),
        *linear("self_attn.g_a_proj", size, hidden),
        *linear("self_attn.g_b_proj", inner, size, OUT),
        Matrix("self_attn.conv1d", 3 * inner, 2 * kernel, OUT),
        vector("self_attn.A_log, dt_bias", 2 * (heads + inner), OUT),
        vector("self_attn.o_norm", size),
        *linear("self_attn.o_proj", hidden, inner, IN),
    ]
    return result, State(3 * inner, kernel, heads, size * size, wide=True)
