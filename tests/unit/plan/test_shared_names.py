# SPDX-License-Identifier: Apache-2.0
"""Deployments that share a model name: another model is refused, and what clients notice is in the plan."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    RESTART,
    STOP,
    UPGRADE,
    OperationRequest,
)

from tests.worlds.plan_world import COMMIT, deployment
from tests.worlds.rollout_balancer_world import planned, served

NAME = "chat"
BASE = deployment(served_model_name=NAME)
BARE: dict[str, Any] = {"served_model_name": NAME, "gpus": [1], "port": 9000, "name": "green"}
OTHER = "lab/tiny-llama-FP8"


def beside(**keys: Any) -> dict[str, Any]:
    """Another deployment of the same name."""
    return deployment(**{**BARE, **keys})


def refused(
    wanted: Any, request: OperationRequest | None = None, lbs: tuple[str, ...] = ("lb",)
) -> list[str]:
    """Why this cannot be planned where the first deployment runs alone."""
    states, balancers = served([BASE], *lbs)
    try:
        planned(states, wanted, balancers if lbs else [], request)
    except FleetError as error:
        return [item.text() for item in error.problems if NAME in item.text()]
    return []


def noticed(*wanted: dict[str, Any], own: dict[str, Any] | None = None) -> list[str]:
    """What the plan says of names that are shared."""
    states, balancers = served([BASE])
    return [
        text
        for text in planned(states, list(wanted), balancers, **(own or {})).warnings
        if "which differ" in text
    ]


# ---- other models ------------------------------------------------------------------------------------


def test_another_model_under_a_name_is_refused_and_says_how_it_is_allowed() -> None:
    assert refused([BASE, beside(model=OTHER)]) == [
        f"vllm_deployments[0].served_model_name: clients that request {NAME} would get {OTHER} (green) or "
        "lab/tiny-llama (llama), whichever has the fewest requests. Serve each model under a name of its own, or set "
        "mixed_models: true in green and llama."
    ]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"model": OTHER}, True),
        ({"model": OTHER, "mixed_models": True}, True),  # the other one says nothing of it
        ({"model": OTHER, "served_model_name": "fast"}, False),
        ({"model": OTHER, "served_model_name": ["fast", NAME]}, True),
        ({"model": OTHER, "endpoint": False}, False),
        ({"model": "/srv/models/tiny-llama", "model_config": None}, True),
        ({"revision": "v2"}, False),
        ({"image": "registry.lab:5000/lab/vllm:1"}, False),
        # An adapter has a name as a model has.
        ({"served_model_name": "base", "engine_args": {"enable_lora": True, "lora_modules": ["chat=/srv/a"]},
          "runtime": {"extra_mounts": ["/srv/a:/srv/a:ro"]}}, True),
    ],
)  # fmt: skip
def test_what_counts_as_another_model(changes: dict[str, Any], refusal: bool) -> None:
    assert bool(refused([BASE, beside(**changes)])) is refusal


def test_all_that_share_a_name_have_to_allow_it() -> None:
    mixed = [deployment(served_model_name=NAME, mixed_models=True), beside(model=OTHER, mixed_models=True)]
    assert refused(mixed) == []
    (problem,) = refused([*mixed, beside(name="third", gpus=[2], port=9100)])
    assert problem.endswith("or set mixed_models: true in third.")


def test_names_of_the_same_deployments_are_one_refusal() -> None:
    names = [NAME, "chat-fast"]
    (problem,) = refused([deployment(served_model_name=names), beside(model=OTHER, served_model_name=names)])
    assert "clients that request chat, chat-fast would get" in problem


def test_two_adapters_of_one_name_are_one_model_if_they_are_one_adapter() -> None:
    def lora(path: str, **keys: Any) -> dict[str, Any]:
        mounts = {"extra_mounts": ["/srv/adapters:/srv/adapters:ro"]}
        flags = {"enable_lora": True, "lora_modules": [f"chat={path}"]}
        return beside(engine_args=flags, runtime=mounts, **keys)

    first = lora("/srv/adapters/a", name="llama", served_model_name="one")
    assert refused([first, lora("/srv/adapters/a", served_model_name="two", gpus=[2], port=9100)]) == []
    (problem,) = refused([first, lora("/srv/adapters/b", served_model_name="two", gpus=[2], port=9100)])
    assert "lab/tiny-llama with adapter /srv/adapters/a (llama)" in problem


@pytest.mark.parametrize(
    ("operation", "deployments", "refusal"),
    [
        (DEPLOY, None, True), (UPGRADE, None, True), (UPGRADE, frozenset(("green",)), True),
        # These carry out no definition of the inventory that has the name.
        (RESTART, None, False), (STOP, None, False), (UPGRADE, frozenset(("apart",)), False),
    ],
)  # fmt: skip
def test_only_what_brings_it_about_is_refused(operation: str, deployments: Any, refusal: bool) -> None:
    apart = deployment(name="apart", gpus=[3], port=9200)
    states, balancers = served([BASE, beside(), apart])
    wanted = [BASE, beside(model=OTHER), apart]
    request = OperationRequest(operation, deployments=deployments)
    if refusal:
        with pytest.raises(FleetError, match="whichever has the fewest requests"):
            planned(states, wanted, balancers, request)
    else:
        planned(states, wanted, balancers, request)


def test_without_a_load_balancer_names_are_of_each_port() -> None:
    assert refused([BASE, beside(model=OTHER)], lbs=()) == []
    assert noticed(BASE, beside(engine_args={"max_model_len": 4096})) != []
    states, _unused = served([BASE])
    assert not [text for text in planned(states, [BASE, beside()], []).warnings if "which differ" in text]


# ---- what differs ------------------------------------------------------------------------------------

BOTH = "chat: requests go to green or llama, which differ in "


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({}, None),
        ({"weight": 3}, None),
        ({"engine_args": {"max_num_seqs": 16}}, None),
        ({"engine_args": {"max_model_len": 8192}}, None),  # as long as the model's own
        ({"engine_args": {"max_model_len": 4096}}, "context length (green 4,096, llama 8,192)"),
        ({"engine_args": {"chat_template": "/t.jinja"}, "runtime": {"extra_mounts": ["/t:/t.jinja:ro"]}},
         "chat template (green /t.jinja, llama the model's)"),
        ({"engine_args": {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}},
         "tool parser (green hermes, llama none), automatic tool choice (green yes, llama no)"),
        ({"engine_args": {"reasoning_parser": "qwen3"}}, "reasoning parser (green qwen3, llama none)"),
        ({"settings": {"quantization": "fp8"}}, "quantization (green fp8, llama the model's)"),
        ({"engine_args": {"dtype": "float16"}}, "data type (green float16, llama auto)"),
        ({"engine_args": {"runner": "pooling"}}, "runner (green pooling, llama auto)"),
        ({"engine_args": {"enable_lora": True, "lora_modules": ["sql=/a/sql", '{"name": "fr", "path": "/a/fr"}']},
          "runtime": {"extra_mounts": ["/a:/a:ro"]}}, "LoRA adapters (green sql and fr, llama none)"),
        ({"revision": "v2"}, f"revision (green v2, llama {COMMIT[:12]})"),
        ({"served_model_name": "fast", "engine_args": {"max_model_len": 4096}}, None),
        ({"endpoint": False, "engine_args": {"max_model_len": 4096}}, None),
    ],
)  # fmt: skip
def test_what_clients_notice_is_in_the_plan(changes: dict[str, Any], differing: str | None) -> None:
    texts = noticed(BASE, beside(**changes))
    if differing is None:
        assert texts == []
    else:
        (text,) = texts
        assert text.startswith(BOTH)
        assert differing in text


def test_a_long_text_is_shown_by_its_start_and_its_hash() -> None:
    """Two templates may begin alike."""
    start = "{% for message in messages %}"
    (text,) = noticed(
        deployment(served_model_name=NAME, engine_args={"chat_template": start + "a" * 99}),
        beside(engine_args={"chat_template": start + "b" * 99}),
    )
    first, second = (part for part in text.partition("chat template (")[2].rstrip(")").split(", "))
    assert first.startswith("green {% for message in me… (")
    assert first.removeprefix("green") != second.removeprefix("llama")
    assert len(text) < 200


def test_equal_deployments_are_named_together_and_names_of_the_same_ones_too() -> None:
    names = [NAME, "chat-2"]
    (text,) = noticed(
        deployment(served_model_name=names),
        beside(served_model_name=names, engine_args={"max_model_len": 4096}),
        beside(name="second", served_model_name=names, gpus=[2], port=9100),
    )
    assert text == (
        "chat, chat-2: requests go to green or llama or second, which differ in context length (green 4,096, llama and "
        "second 8,192)"
    )


def test_mixed_models_are_in_the_plan_after_they_are_allowed() -> None:
    (text,) = noticed(
        deployment(served_model_name=NAME, mixed_models=True), beside(model=OTHER, mixed_models=True)
    )
    assert f"model (green {OTHER}, llama lab/tiny-llama)" in text


def test_what_runs_as_it_was_recorded_is_compared_by_its_command() -> None:
    """A restart composes nothing. How much context the recorded one has by itself no record says."""
    given = {"max_model_len": 4096, "tool_call_parser": "hermes", "enable_prefix_caching": False}
    wanted = [BASE, beside(engine_args=given)]
    states, balancers = served(wanted)
    plan = planned(states, wanted, balancers, OperationRequest(RESTART))
    assert [text for text in plan.warnings if "which differ" in text] == [
        f"{BOTH}tool parser (green hermes, llama none)"
    ]
    both = [copy.deepcopy(item) for item in wanted]
    both[0]["engine_args"] = {"max_model_len": 2048}
    states, balancers = served(both)
    plan = planned(states, both, balancers, OperationRequest(RESTART))
    (text,) = [text for text in plan.warnings if "which differ" in text]
    assert "context length (green 4,096, llama 2,048)" in text
