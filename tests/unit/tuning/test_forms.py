# SPDX-License-Identifier: Apache-2.0
"""An operator's word means the same in every form that vLLM takes: JSON text, a map, dotted keys, short names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.reserved_flags import (
    ENGINE_ALIASES,
    ENGINE_OWNED,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.companion_models import draft_of

from tests.worlds.catalogue import knowledge
from tests.worlds.tune_world import deployment, tuned

EAGLE = {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 5, "dtype": "float16"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}


def forms(option: str, short: str, value: dict[str, Any]) -> list[dict[str, Any]]:
    """The same value in every form of engine_args."""
    head, *others = value.items()
    return [
        {option: value},
        {option: json.dumps(value)},
        {option.replace("_", "-"): json.dumps(value, indent=2)},
        {short: json.dumps(value)},
        {f"{option}.{key}": item for key, item in value.items()},
        {f"{option}.{key}": str(item) if isinstance(item, int) else item for key, item in value.items()},
        {f"{short}.{head[0]}": head[1], option: dict(others)},
    ]


@pytest.mark.parametrize("version", ["0.8.5", "0.10.2", "0.11.1", "0.33.0"])
@pytest.mark.parametrize("value", [EAGLE, NGRAM])
def test_speculation_is_recognized_in_every_form(version: str, value: dict[str, Any]) -> None:
    """Asynchronous scheduling beside speculation stops vLLM before 0.11.1."""
    plans = [
        tuned(version, objective="throughput", engine_args=given)
        for given in forms("speculative_config", "sc", value)
    ]
    assert all(plan.context.speculative for plan in plans)
    assert [plan.args for plan in plans[1:]] == [plans[0].args] * (len(plans) - 1)
    assert [plan.known for plan in plans[1:]] == [plans[0].known] * (len(plans) - 1)
    assert [plan.warnings for plan in plans[1:]] == [plans[0].warnings] * (len(plans) - 1)
    assert plans[0].args["--speculative-config"] == value
    if version == "0.10.2":
        assert plans[0].args.get("--async-scheduling") is not True
        assert tuned(version, objective="throughput").args["--async-scheduling"] is True


@pytest.mark.parametrize("given", forms("speculative_config", "sc", EAGLE))
def test_the_draft_is_found_in_every_form(given: dict[str, Any]) -> None:
    found = draft_of(deployment(engine_args={**given, "seed": 1}))
    assert found is not None
    assert found[0].repo == "org/draft"


@pytest.mark.parametrize("given", [json.dumps(EAGLE), EAGLE])
def test_a_setting_may_be_json_text_too(given: Any) -> None:
    value = {key: item for key, item in EAGLE.items() if key != "dtype"}
    given = json.dumps(value) if isinstance(given, str) else value
    found = tuned("0.11.1", settings={"speculative": given})
    assert not found.problems
    assert found.args["--speculative-config"] == value
    dotted = tuned("0.11.1", settings={f"speculative.{key}": item for key, item in value.items()})
    assert dotted.args == found.args


@pytest.mark.parametrize("version", ["0.6.6", "0.8.1"])
def test_speculation_of_old_releases_is_recognized_by_its_flags(version: str) -> None:
    flags = {"speculative_model": "org/draft", "num_speculative_tokens": "5"}
    found = tuned(version, objective="throughput", engine_args=flags)
    assert found.context.speculative
    assert found.context.speculative_tokens == 5
    assert "--num-scheduler-steps" not in found.args


@pytest.mark.parametrize("version", ["0.10.2", "0.11.1", "0.33.0"])
def test_a_part_of_the_compilation_leaves_the_rest_to_recipes(version: str) -> None:
    value = {"custom_ops": ["+rms_norm"]}
    plans = [
        tuned(version, objective="throughput", engine_args=given)
        for given in (
            *forms("compilation_config", "cc", value),
            {"cc.custom_ops+": "+rms_norm"},
            {"O": value},
        )
    ]
    assert plans[0].args["--compilation-config"].keys() > {"custom_ops"}
    assert [plan.args for plan in plans[1:]] == [plans[0].args] * (len(plans) - 1)


@pytest.mark.parametrize(
    ("version", "given", "flag", "value"),
    [
        ("0.6.6", {"compilation_config": 3}, "--compilation-config", {"level": 3}),
        ("0.6.6", {"compilation_config": "{'level': 3}"}, "--compilation-config", {"level": 3}),
        ("0.9.1", {"O": "3"}, "--compilation-config", {"level": 3}),
        ("0.11.0", {"O": 3}, "--compilation-config", {"level": 3}),
        ("0.11.1", {"O": 3}, "--compilation-config", {"mode": 3}),
        ("0.33.0", {"O": 3}, "--optimization-level", 3),
        ("0.33.0", {"O.mode": 3}, "--compilation-config", {"mode": 3}),
        ("0.11.1", {"max_num_seqs": "64"}, "--max-num-seqs", 64),
        ("0.33.0", {"max_model_len": "8k"}, "--max-model-len", 8000),
        ("0.33.0", {"max_model_len": "auto"}, "--max-model-len", "auto"),
        ("0.33.0", {"gpu_memory_utilization": "0.5"}, "--gpu-memory-utilization", 0.5),
        ("0.6.3", {"enable_chunked_prefill": "False"}, "--enable-chunked-prefill", False),
        ("0.8.4", {"limit_mm_per_prompt": "image=2"}, "--limit-mm-per-prompt", {"image": 2}),
        ("0.33.0", {"quantization": "None"}, "--quantization", "None"),
        (
            "0.33.0",
            {"lora_modules": ['{"name": "a", "path": "/a"}', {"path": "/b", "name": "b"}]},
            "--lora-modules",
            ({"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}),
        ),
        (
            "0.33.0",
            {"kv_transfer_config": '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'},
            "--kv-transfer-config",
            {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        ),
    ],
)
def test_the_one_form_of_a_value(version: str, given: dict[str, Any], flag: str, value: Any) -> None:
    found = tuned(version, recipes=False, engine_args=given)
    assert (found.args, found.problems) == ({flag: value}, ())


def test_a_number_in_quotes_contradicts_no_equal_number() -> None:
    same = tuned("0.33.0", engine_args={"max_num_seqs": "64"}, settings={"max_num_seqs": 64})
    assert not same.problems
    found = tuned("0.33.0", engine_args={"max_num_seqs": "9000", "max_num_batched_tokens": "8192"})
    assert [
        "max_num_batched_tokens is 8192, and max_num_seqs 9000" in item.text() for item in found.problems
    ] == [True]


def test_every_short_name_of_a_flag_is_known_before_the_release_is() -> None:
    known = knowledge()
    table = known.flags(known.line.releases[-1])
    aliases = {
        name.lstrip("-").replace("-", "_"): flag.lstrip("-").replace("-", "_")
        for flag, entry in table.ever.items()
        for _since, names in entry.get("aliases", ())
        for name in names
    }
    free = {name: flag for name, flag in aliases.items() if flag not in ENGINE_OWNED and name != "O"}
    assert free.items() <= ENGINE_ALIASES.items()
    assert ENGINE_ALIASES.items() <= aliases.items()


@pytest.mark.parametrize(
    ("short", "flag"), [("max_num_b", "max_num_batched_tokens"), ("gpu-mem", "gpu_memory_utilization")]
)
def test_an_abbreviation_is_refused_with_the_flag_that_vllm_takes_it_for(short: str, flag: str) -> None:
    (problem,) = tuned("0.33.0", recipes=False, engine_args={short: 1}).problems
    assert problem.text().endswith(f"Did you mean {flag}?")
