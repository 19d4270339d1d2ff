# SPDX-License-Identifier: Apache-2.0
"""Made-up deployments for one release: a model, options that interact, sizes; about half of what they say works."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.config_keys import ConfigKeys
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import Flag, FlagTable
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.reserved_flags import (
    ENGINE_OWNED,
)

from tests.oracles.engine_models import NOT_BEFORE, TARGETS
from tests.oracles.engine_options import GROUPS, Values

ODD = 0.14
"""How often an option gets an odd value."""
LEFT_OUT = {
    "tokenizer": "a repository or a directory",
    "chat_template": "a file, or a template",
    "tool_parser_plugin": "a file",
    "reasoning_parser_plugin": "a file",
    "tool_server": "addresses",
    "io_processor_plugin": "a plugin's name",
    "hf_config_path": "a directory",
    "code_revision": "a commit on the hub",
    "tokenizer_revision": "a commit on the hub",
    "logits_processors": "names of classes",
    "worker_cls": "the name of a class",
    "worker_extension_cls": "the name of a class",
    "scheduler_cls": "the name of a class",
    "model_class_overrides": "names of classes",
    "middleware": "names of classes",
    "log_config_file": "a file",
    "ssl_keyfile": "a file",
    "ssl_certfile": "a file",
    "ssl_ca_certs": "a file",
    "mm_encoder_fp8_scale_path": "a file",
    "mm_encoder_fp8_scale_save_path": "a file",
    "qlora_adapter_name_or_path": "a directory",
    "device": "which devices there are",
    "device_ids": "which devices there are",
    "mm_processor_device": "which devices there are",
    "allowed_local_media_path": "a directory",
    "prompt_adapters": "directories",
    "root_path": "a path of the server",
    "spec_model": "a repository or a directory",
}
"""Options whose verdict depends on what is there on the engine's host, and on what."""


@dataclass(frozen=True)
class Case:
    """One deployment: the name of its model, its flags, and its sizes where they are not 1."""

    model: str
    engine_args: Mapping[str, Any]
    sizes: Mapping[str, int]

    @property
    def key(self) -> str:
        """The same for equal cases."""
        return json.dumps([self.model, self.engine_args, self.sizes], sort_keys=True)


def cases(table: FlagTable, count: int, seed: int = 1) -> list[Case]:
    """Return different cases for the release of these flags."""
    dice = random.Random(f"{seed} {table.release.requested}")
    known = {name[2:].replace("-", "_"): flag for name, flag in table.flags.items()}
    usable = [
        flag
        for name, flag in known.items()
        if name not in LEFT_OUT and name not in ENGINE_OWNED and flag.kind != "positional"
    ]
    found: dict[str, Case] = {}
    while len(found) < count:
        made = _case(dice, known, usable, table)
        found.setdefault(made.key, made)
    return list(found.values())


def _case(dice: random.Random, known: Mapping[str, Flag], usable: Sequence[Flag], table: FlagTable) -> Case:
    names = list(GROUPS)
    group = dice.choice([*names, *names, "flags", "flags", "json", "json"])
    given: dict[str, Any] = {}
    if group == "flags":
        for flag in dice.sample(usable, dice.randint(1, 3)):
            given[flag.name[2:].replace("-", "_")] = _value(dice, flag)
    elif group == "json":
        given.update(_json(dice, table.configs))
    else:
        options = {name: values for name, values in GROUPS[group].items() if name in known}
        first = next(iter(options))
        chosen = dice.sample(list(options), min(len(options), dice.randint(1, 4)))
        if group in ("speculative", "graphs") and first not in chosen:
            chosen[0] = first
        for name in chosen:
            given[name] = _choice(dice, options[name])
        if group == "lora" and dice.random() < 0.7:
            given["enable_lora"] = True
    if dice.random() < 0.15:
        other = GROUPS[dice.choice(names)]
        name = dice.choice([name for name in other if name in known])
        given.setdefault(name, _choice(dice, other[name]))
    if dice.random() < 0.02:
        given[dice.choice(["max_model_length", "gpu_mem_util", "tensor_paralel", "enable_chunked"])] = 1
    return Case(_model(dice, group, table), given, _sizes(dice, group))


def _model(dice: random.Random, group: str, table: FlagTable) -> str:
    index, order = table.release.index, table.line.order
    pool = [name for name in TARGETS if name not in NOT_BEFORE or order[NOT_BEFORE[name]] <= index]
    if group == "multimodal" and "qwen2.5-vl" in pool and dice.random() < 0.7:
        return "qwen2.5-vl"
    if group == "parallel" and dice.random() < 0.6:
        return dice.choice(["qwen3-moe", "mixtral", "deepseek-v3", "deepseek-v3-bf16", "qwen3-moe-fp8"])
    return "llama" if dice.random() < 0.3 else dice.choice(pool)


def _sizes(dice: random.Random, group: str) -> dict[str, int]:
    often = 0.8 if group == "parallel" else 0.15
    if dice.random() >= often:
        return {}
    tp, pp, dp = dice.choice([1, 2, 2, 4, 8]), 1, 1
    if dice.random() < 0.2:
        tp = dice.choice([3, 5, 6, 7])
    if dice.random() < 0.25:
        pp = dice.choice([2, 4])
    if dice.random() < 0.25:
        dp = dice.choice([2, 4])
    if tp * pp * dp > 8:
        pp, dp = 1, 1
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "data_parallel_size": dp}
    return {name: size for name, size in sizes.items() if size > 1}


def _choice(dice: random.Random, values: Values) -> Any:
    good, odd = values
    pool = odd if odd and (not good or dice.random() < 2 * ODD) else good
    return dice.choice(pool)


def _value(dice: random.Random, flag: Flag) -> Any:
    """A value for any flag, by its type."""
    if not flag.takes_value or flag.kind == "bool":
        return dice.random() < 0.8 or not (flag.negatives or flag.kind == "bool")
    good: list[Any] = []
    odd: list[Any] = ["x", -1, 0, 1.5, "", [1], {"a": 1}]
    kind = flag.type.rstrip("?")
    if flag.choices:
        good += [choice for choice in flag.choices if choice is not None] * 2
    elif kind.startswith(("int", "size")):
        good += [1, 2, 16, 100]
    elif kind.startswith("float"):
        good += [0.1, 0.5, 1.0]
    elif kind.startswith(("json", "config", "kvs")):
        good += [{}]
    else:
        good += ["auto", "x"]
    if flag.default not in (None, "") and not isinstance(flag.default, (list, dict)):
        good += [flag.default] * 2
    value = dice.choice(odd if dice.random() < ODD else good)
    return [value] if flag.kind in ("list", "append") and not isinstance(value, list) else value


def _json(dice: random.Random, configs: ConfigKeys) -> dict[str, Any]:
    """One flag with JSON, whose keys and values are in part right."""
    flag, name = dice.choice(
        [
            (flag, name)
            for name, entry in configs.classes.items()
            for flag in entry["flags"]
            if configs.fields(name)
        ]
    )
    fields = configs.fields(name)
    content: dict[str, Any] = {}
    for field in dice.sample(list(fields), min(len(fields), dice.randint(1, 2))):
        content[field] = _of_type(dice, fields[field].type)
    if dice.random() < ODD:
        others = [*configs.classes[name]["fields"], "foo", "bakend"]
        content[dice.choice(others)] = 1
    if flag == "--speculative-config" and dice.random() < 0.7:
        content = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3, **content}
    if flag == "--kv-transfer-config" and dice.random() < 0.7:
        content = {"kv_connector": "NixlConnector", "kv_role": "kv_both", **content}
    return {flag[2:].replace("-", "_"): content}


def _of_type(dice: random.Random, kind: str) -> Any:
    """A value of a field, by its type in vLLM's source."""
    if dice.random() < ODD:
        return dice.choice(["x", -1, 1.5, [1], {"a": 1}, None, True])
    if "Literal[" in kind:
        inner = kind.partition("Literal[")[2].partition("]")[0]
        return dice.choice([item.strip().strip("'\"") for item in inner.split(",")])
    for text, pool in (
        ("bool", [True, False]),
        ("int", [1, 2, 8]),
        ("float", [0.5, 1.0]),
        ("list", [[]]),
        ("dict", [{}]),
        ("str", ["x", "auto"]),
    ):
        if text in kind.lower():
            return dice.choice(pool)
    return dice.choice(["x", 1, None])
