# SPDX-License-Identifier: Apache-2.0
"""Read the config.json of an unknown architecture twice: as the leanest and as the largest model that it can mean.

Each number that decides about memory (heads of keys and values, their size, widths, experts) has many names. For an
unknown architecture, the leanest reading takes the smallest number under any name that can be meant, and the largest
reading the largest one; what the config does not say, such as a gate or shared matrices, is absent from the leanest and
present in the largest. What a real engine takes lies between the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .family import Family
from .numbers import ConfigNumbers, integer

LARGE = Family(
    qkv_bias=True, output_bias=True, norms=4, norm_bias=True, qk_norm="all", sinks=True, router_correction=True,
    positions=2, head_everywhere=True,
)  # fmt: skip
_EXPERTS = re.compile(r"(^|_)(num|n|nb)_.*experts$|^experts$|num_experts")
_NOT_EXPERTS = re.compile(r"_per_|top|shared|zero|group|activ|redundant|null|limited")
_EXPERT_WIDTH = re.compile(r"(moe|expert).*(size|dim|width)|(ffn|intermediate).*(moe|expert)")
_SHARED_WIDTH = re.compile(r"shared|share_")
_WIDTH = re.compile(r"intermediate|ffn|feed_?forward|mlp_(dim|size|width|hidden)|inner|(^|_)ff(n)?_")
_KV_HEADS = re.compile(r"kv.*heads|heads.*kv|key_value_heads|kv_group|query_group|group_num|attention_groups")
_SIZE = re.compile(r"head_(dim|size)|kv_channels|per_head|qk_.*dim|v_dim|key_dim|value_dim")
_NOT_TEXT = re.compile(r"vision|image|audio|visual|mm_|patch|projector|video|speech|talker|index")
_SWITCH = re.compile(
    r"moe.*(step|freq|interval|period|every|layers?|offset)|dense_(layers|replace)|mlp_only|sparse_step"
)
_OTHER_MIXER = re.compile(
    r"mamba|ssm|state_size|conv|linear_(attn|key|num|value)|recurr|rwkv|retention|lightning|delta|hybrid|attn_type|"
    r"layer_type|block_type|pattern|_every|_interval|share|window|sliding|cla_|compress|local|mixer|skip"
)
_STATES = re.compile(
    r"mamba|ssm|state_size|linear_(attn|key|num|value)|recurr|rwkv|retention|lightning|delta|compress"
)
_GATED = ("silu", "swish", "swiglu", "geglu", "swigluoai", "glu")


def leanest_reading(n: ConfigNumbers) -> tuple[ConfigNumbers, Family]:
    """Return the leanest reading."""
    found = _candidates(n.config)
    config = dict(n.config)
    gated = any(str(value).lower() in _GATED for name, value in config.items() if "act" in name)
    heads = min(found["kv_heads"], default=1)
    config.update(num_key_value_heads=heads, v_head_dim=min(found["sizes"], default=n.head_size))
    config.update(
        head_dim=min([*found["sizes"], n.head_size]), intermediate_size=min(found["widths"], default=n.hidden)
    )
    _set_experts(config, n, min, found)
    if n.get("kv_lora_rank"):
        config.update(
            qk_nope_head_dim=n.get("qk_nope_head_dim") or 1, qk_rope_head_dim=n.get("qk_rope_head_dim") or 1
        )
    return ConfigNumbers(config), Family(gated=gated, tied=True, norms=1)


def largest_reading(n: ConfigNumbers) -> tuple[ConfigNumbers, Family]:
    """Return the largest reading: latent attention as attention with all heads, and each layer a full one."""
    found = _candidates(n.config)
    config = {
        name: value for name, value in n.config.items() if not _OTHER_MIXER.search(name) or name in _KEPT
    }
    size = max([*found["sizes"], n.head_size])
    heads = max([*found["kv_heads"], 1 if found["kv_heads"] else n.heads])
    if n.get("kv_lora_rank"):
        heads = n.heads
        size = max(size, n.get("qk_nope_head_dim") + n.get("qk_rope_head_dim"))
    config.update(kv_lora_rank=0, num_key_value_heads=heads, head_dim=size, v_head_dim=size)
    config.update(intermediate_size=max([*found["widths"], *(() if found["widths"] else (4 * n.hidden,))]))
    _set_experts(config, n, max, found)
    if _WIDTH_UNSAID.isdisjoint(n.config):
        config["intermediate_size"] = max(config["intermediate_size"], 4 * n.hidden)
    return ConfigNumbers(config), LARGE


_WIDTH_UNSAID = frozenset(
    ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "moe_intermediate_size")
)
_KEPT = frozenset(
    ("num_hidden_layers", "num_shared_experts", "n_shared_experts", "shared_expert_intermediate_size")
)


def attention_share(n: ConfigNumbers) -> float:
    """Return the part of the layers that keep keys and values in the leanest case: all, unless a key says otherwise."""
    return 0.1 if any(_OTHER_MIXER.search(name) for name, value in n.config.items() if value) else 1.0


def keeps_states(n: ConfigNumbers) -> bool:
    """Return whether layers may keep states, and share the blocks that layers with attention have, or have none."""
    return any(_STATES.search(name) for name, value in n.config.items() if value)


def _one_block(n: ConfigNumbers) -> bool:
    """Return whether a key says what block each layer is: then a layer is either attention or a state."""
    return any(
        isinstance(value, (str, list))
        and value
        and re.search(r"override_pattern|block_type|block_pattern", name)
        for name, value in n.config.items()
    )


def _set_experts(config: dict[str, Any], n: ConfigNumbers, pick: Any, found: Mapping[str, list[int]]) -> None:
    """Set number, width and place of the experts, if the model has any."""
    for name in [name for name in config if _EXPERTS.search(name) and not _NOT_EXPERTS.search(name)]:
        del config[name]
    if not found["experts"]:
        return
    widths = found["expert_widths"] or [n.expert_intermediate or n.hidden]
    if pick is max:
        widths = [*widths, *found["widths"]] if not found["expert_widths"] else widths
    placed = [name for name in config if _SWITCH.search(name) or name == "mlp_layer_types"]
    every = (3 if _one_block(n) else 2 if placed else 1) if pick is min else 1
    for name in placed:
        del config[name]
    config.update(
        num_experts=pick(found["experts"]), moe_intermediate_size=pick(widths), decoder_sparse_step=every
    )
    if pick is max:
        config.setdefault("n_shared_experts", max(1, n.get("n_shared_experts", "num_shared_experts")))
    else:
        config.update(n_shared_experts=0, num_shared_experts=0, shared_expert_intermediate_size=0)


def _candidates(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the numbers that can be meant for each role."""
    roles: dict[str, list[int]] = {
        "experts": [], "expert_widths": [], "widths": [], "kv_heads": [], "sizes": [],
    }  # fmt: skip
    for name, value in config.items():
        number = integer(value)
        if number is None or number < 1 or _NOT_TEXT.search(name):
            continue
        role = _role(name, number)
        if role:
            roles[role] += [number, *_smallest(value)]
    return roles


def _role(name: str, number: int) -> str:
    if _EXPERTS.search(name) and not _NOT_EXPERTS.search(name):
        return "experts" if number > 1 else ""
    if _EXPERT_WIDTH.search(name) and not _SHARED_WIDTH.search(name):
        return "expert_widths" if number >= 16 else ""
    if _KV_HEADS.search(name):
        return "kv_heads"
    if _SIZE.search(name):
        return "sizes" if number <= 1024 else ""
    if _WIDTH.search(name) and not _SHARED_WIDTH.search(name):
        return "widths" if number >= 16 else ""
    return ""


def _smallest(value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    found = [number for number in map(integer, value) if number]
    return [min(found)] if found else []
