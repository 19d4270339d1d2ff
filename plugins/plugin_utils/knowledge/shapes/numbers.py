# SPDX-License-Identifier: Apache-2.0
"""Read the numbers of a config.json, under the different names that models use for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TOWERS = (
    "vision",
    "visual",
    "audio",
    "speech",
    "talker",
    "vit",
    "image",
    "video",
    "quantization",
    "compression",
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")


class ConfigNumbers:
    """The numbers of a config.json. A name may be a path into nested parts, such as attn_config.kv_n_heads."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, *names: str, default: int = 0) -> int:
        """Return the value of the first of these keys that has a number, as an integer; of a list, its largest."""
        for name in names:
            found = integer(self.config.get(name))
            if found is not None:
                return found
        return default

    def at(self, name: str, index: int) -> int:
        """Return the number that a key has for one layer: an entry of its list, or the number for all."""
        value = self.config.get(name)
        if isinstance(value, list):
            value = value[index] if index < len(value) else None
        return integer(value) or 0

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

    def part(self, name: str) -> ConfigNumbers:
        """Return a nested part of the config, empty if there is none."""
        value = self.config.get(name)
        return ConfigNumbers(value if isinstance(value, Mapping) else {})

    @property
    def hidden(self) -> int:
        return self.get("hidden_size", "n_embd", "d_model", "dim", "model_dim")

    @property
    def heads(self) -> int:
        return self.get("num_attention_heads", "n_head", "n_heads")

    @property
    def kv_heads(self) -> int:
        if self.flag("multi_query_attention"):
            return self.get("multi_query_group_num", default=self.heads)
        if isinstance(self.config.get("multi_query"), bool) and not self.flag("new_decoder_architecture"):
            return 1 if self.flag("multi_query") else self.heads
        return (
            self.get("num_key_value_heads", "n_head_kv", "num_kv_heads", "num_attention_groups") or self.heads
        )

    @property
    def head_size(self) -> int:
        usual = self.hidden // max(1, self.heads)
        return self.get("head_dim", "attention_head_dim", "hidden_size_per_head") or usual

    @property
    def intermediate(self) -> int:
        names = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_size", "ff_dim")
        return self.get(*names, "mlp_hidden_size")

    @property
    def layers(self) -> int:
        """Return the number of layers; some configs only list what each layer is."""
        listed = self.items("layers_block_type") or self.items("hybrid_override_pattern")
        return self.get("num_hidden_layers", "n_layer", "n_layers", "num_layers", default=len(listed))

    @property
    def vocab(self) -> int:
        return self.get("padded_vocab_size", "vocab_size")

    @property
    def experts(self) -> int:
        return self.get(*_EXPERTS)

    @property
    def experts_per_token(self) -> int:
        names = (
            "num_experts_per_tok",
            "num_experts_per_token",
            "experts_per_token",
            "top_k",
            "moe_topk",
            "moe_top_k",
        )
        return self.get(*names, "moe_k", "top_k_experts", default=1)

    @property
    def expert_intermediate(self) -> int:
        names = (
            "moe_intermediate_size",
            "expert_intermediate_size",
            "expert_ffn_hidden_size",
            "expert_hidden_dim",
        )
        return self.get(*names, "moe_ffn_hidden_size", "ffn_hidden_size_moe", default=self.intermediate)


def integer(value: Any) -> int | None:
    """Return a number as an integer, and the largest number of a list; None for anything else.

    Negative numbers stand for "none" in configs.
    """
    if isinstance(value, list):
        found = [number for number in map(integer, value) if number is not None]
        return max(found, default=None)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 62:
        return int(value)
    return None


def resolve_config(
    config: Mapping[str, Any], reads: Mapping[str, str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config with defaults, and with the keys that a family has under other names or in nested parts."""
    given = {name: value for name, value in config.items() if value is not None}
    result: dict[str, Any] = {**defaults, **given}
    for name, path in reads.items():
        value = _at(given, path)
        if value is not None:
            result[name] = value
    return result


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the keys of its nested parts that it does not have itself; towers' parts are left out.

    This is how the config of an unknown architecture is read.
    """
    result = {name: value for name, value in config.items() if value is not None}
    for name, value in _nested(config):
        result.setdefault(name, value)
        result.setdefault(_plain(name), value)
    return result


def _nested(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, part in config.items():
        if not isinstance(part, Mapping) or any(tower in name for tower in _TOWERS):
            continue
        yield from ((key, value) for key, value in part.items() if isinstance(key, str) and value is not None)


def _plain(name: str) -> str:
    """Return a nested key under the name that most models have at the top."""
    return {"kv_n_heads": "num_key_value_heads", "moe_top_k": "num_experts_per_tok"}.get(name, name)
