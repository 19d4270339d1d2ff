# SPDX-License-Identifier: Apache-2.0
"""Drafts, adapters and tokenizers: found in every spelling, pinned, fetched, named by commit, and counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import dotted_path
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import Fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.pins import (
    absent_models,
    required_pins,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.companion_args import with_pins
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.companion_models import (
    WEIGHTS,
    companions,
    required_repositories,
    unmounted_paths,
)

from tests.oracles.vllm_parser import check_argv
from tests.worlds.catalogue import knowledge, to_argv
from tests.worlds.plan_world import (
    COMMIT,
    CONFIG,
    FILES_OF_REPO,
    GIB,
    LOCK,
    REPO,
    actions,
    apply_to_state,
    fleet,
    plan,
    state,
)
from tests.worlds.plan_world import deployment as planned
from tests.worlds.tune_world import deployment, tuned

DRAFT, ADAPTER, TOKENIZER = "org/draft", "org/lora", "org/tokenizer"
SHA = "d" * 40
PLACE = f"/hf/hub/models--org--draft/snapshots/{SHA}"
LORA_PLACE = f"/hf/hub/models--org--lora/snapshots/{SHA}"
AS_JSON = '{"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 5}'
AS_MAP: dict[str, Any] = {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 5}
BOTH = {"engine_args": {"speculative_config": {"revision": "v1"}}, "settings": {"speculative": AS_MAP}}
LORA_JSON = '{"name": "a", "path": "org/lora"}'


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, []),
        ({"settings": {"speculative": AS_MAP}}, ["draft org/draft@main settings.speculative.model"]),
        (
            {"settings": {"speculative": {**AS_MAP, "revision": "v1"}}},
            ["draft org/draft@v1 settings.speculative.model"],
        ),
        (
            {"engine_args": {"speculative_config": AS_MAP}},
            ["draft org/draft@main engine_args.speculative_config.model"],
        ),
        (
            {"engine_args": {"speculative_config": AS_JSON}},
            ["draft org/draft@main engine_args.speculative_config.model"],
        ),
        ({"engine_args": {"sc": AS_JSON}}, ["draft org/draft@main engine_args.speculative_config.model"]),
        (
            {"engine_args": {"speculative_model": DRAFT, "num_speculative_tokens": 5}},
            ["draft org/draft@main engine_args.speculative_model"],
        ),
        (BOTH, ["draft org/draft@v1 settings.speculative.model"]),
        # The model drafts for itself: the same commit, unless another one is named.
        (
            {"settings": {"speculative": {"method": "mtp", "num_speculative_tokens": 1}}, "revision": "v2"},
            ["draft a/b@v2 settings.speculative"],
        ),
        # What has no weights of its own.
        ({"settings": {"speculative": {"method": "ngram", "num_speculative_tokens": 2}}}, []),
        ({"engine_args": {"speculative_config": {"model": "[ngram]", "num_speculative_tokens": 2}}}, []),
        ({"engine_args": {"speculative_model": "[ngram]"}}, []),
        ({"engine_args": {"speculative_config": {"method": "suffix", "num_speculative_tokens": 2}}}, []),
        ({"engine_args": {"speculative_config": {"model": "my.module.Proposer"}}}, []),
        ({"engine_args": {"speculative_config": {"model": "/models/draft"}}}, []),
        ({"engine_args": {"speculative_config": '{"model": "org/dr'}}, []),
        ({"engine_args": {"lora_modules": "a=org/lora"}}, ["adapter org/lora@main engine_args.lora_modules"]),
        (
            {"engine_args": {"lora_modules": ["a=org/lora", "b=/adapters/b", LORA_JSON]}},
            [f"adapter org/lora@main engine_args.lora_modules[{index}]" for index in (0, 2)],
        ),
        (
            {"engine_args": {"lora_modules": {"name": "a", "path": ADAPTER}}},
            ["adapter org/lora@main engine_args.lora_modules"],
        ),
        ({"engine_args": {"tokenizer": TOKENIZER}}, ["tokenizer org/tokenizer@main engine_args.tokenizer"]),
        (
            {"engine_args": {"tokenizer": TOKENIZER, "tokenizer_revision": "v3"}},
            ["tokenizer org/tokenizer@v3 engine_args.tokenizer"],
        ),
        ({"engine_args": {"tokenizer": "a/b"}}, []),
        ({"engine_args": {"tokenizer": "/tokenizer"}}, []),
        (
            {"engine_args": {"tokenizer_revision": "v3"}},
            ["tokenizer a/b@v3 engine_args.tokenizer_revision"],
        ),
        # A model that is a path can go with what is of the hub.
        ({"model": "/srv/m", "settings": {"speculative": {"method": "mtp"}}}, []),
        (
            {"model": "/srv/m", "engine_args": {"lora_modules": "a=org/lora"}},
            ["adapter org/lora@main engine_args.lora_modules"],
        ),
    ],
)
def test_what_goes_with_a_model(keys: dict[str, Any], found: list[str]) -> None:
    wanted = deployment(**keys)
    assert [
        f"{item.use} {item.repo}@{item.revision} {dotted_path(item.path[2:])}" for item in companions(wanted)
    ] == found
    assert len(required_repositories(wanted)) == len(found) + (not wanted.local_model)


def test_files_that_are_wanted() -> None:
    """A tokenizer's repository may hold a whole model; the model's patterns are only for its own repository."""
    wanted = deployment(
        exclude=["original/*"],
        settings={"speculative": AS_MAP},
        engine_args={"tokenizer": TOKENIZER, "lora_modules": "a=org/lora"},
    )
    assert {item.use: item.exclude for item in required_repositories(wanted)} == {
        "model": ("original/*",), "draft": (), "adapter": (), "tokenizer": WEIGHTS,
    }  # fmt: skip
    (own,) = companions(deployment(exclude=["original/*"], settings={"speculative": {"method": "mtp"}}))
    assert own.exclude == ("original/*",)


@pytest.mark.parametrize(
    ("version", "keys", "argv"),
    [
        ("0.6.3", {"settings": {"speculative": AS_MAP}}, ["--speculative-model", PLACE]),
        ("0.8.1", {"engine_args": {"speculative_model": DRAFT}}, ["--speculative-model", PLACE]),
        *(
            (version, {"settings": {"speculative": AS_MAP}}, [f'"model":"{DRAFT}"', f'"revision":"{SHA}"'])
            for version in ("0.8.2", "0.8.3", "0.11.1", "0.32.0")
        ),
        ("0.11.1", {"engine_args": {"speculative_config": AS_JSON}}, [f'"revision":"{SHA}"']),
        ("0.19.0", {"engine_args": {"sc": AS_MAP}}, [f'"revision":"{SHA}"']),
        ("0.11.1", BOTH, [f'"revision":"{SHA}"']),
        ("0.6.3", {"engine_args": {"lora_modules": "a=org/lora"}}, ["--lora-modules", f"a={LORA_PLACE}"]),
        (
            "0.32.0",
            {"engine_args": {"lora_modules": ["a=org/lora", "b=/b", LORA_JSON]}},
            ["--lora-modules", f"a={LORA_PLACE}", "b=/b", f'{{"name":"a","path":"{LORA_PLACE}"}}'],
        ),
        (
            "0.11.1",
            {"engine_args": {"tokenizer": TOKENIZER, "tokenizer_revision": "v3"}},
            ["--tokenizer", TOKENIZER, "--tokenizer-revision", SHA],
        ),
    ],
)
def test_the_command_names_the_commit(version: str, keys: dict[str, Any], argv: list[str]) -> None:
    plain, wanted = tuned(version, **keys), deployment(**keys)
    assert not plain.problems
    found = with_pins(plain, wanted, lambda _: SHA)
    words = to_argv(found.table, dict(sorted(found.args.items())))
    assert not [item for item in check_argv(found.table, ["a/b", *words]) if item.is_error]
    shown = " ".join(words)
    assert all(part in shown for part in argv)
    new = [item for item in found.reasons if item not in plain.reasons]
    assert new
    assert all(item.source == "fleet.lock.json" and SHA in item.value for item in new)
    assert with_pins(plain, wanted, lambda _: "") == plain


def test_every_flag_that_names_a_repository_has_one_reason_for_its_value() -> None:
    keys = {"engine_args": {"lora_modules": ["a=org/lora", "b=org/lora"], "tokenizer": TOKENIZER,
                            "tokenizer_revision": "v3"}}  # fmt: skip
    found = with_pins(tuned("0.11.1", **keys), deployment(**keys), lambda _: SHA)
    named = [item.setting for item in found.reasons if item.source == "fleet.lock.json"]
    assert named == ["--lora-modules", "--tokenizer-revision"]
    assert [item.value for item in found.reasons if item.setting == "--tokenizer-revision"] == [SHA]


def test_recipes_choose_nothing_that_would_have_to_be_fetched() -> None:
    """A recipe's choice depends on the release, which is not known yet when pins are asked for."""
    chosen = {name for recipe in knowledge().recipes for entry in recipe.settings for name in entry.settings}
    assert "async_scheduling" in chosen
    forms = {name: json.dumps(knowledge().settings[name]) for name in chosen}
    named = ("--speculative-config", "--speculative-model", "--lora-modules", "--tokenizer")
    assert [name for name, text in forms.items() if any(f'"{flag}"' in text for flag in named)] == []


@pytest.mark.parametrize(
    ("keys", "texts"),
    [
        ({"engine_args": {"tokenizer": TOKENIZER}}, []),
        (
            {"engine_args": {"lora_modules": ["a=/adapters/a", "b=/other/b"]},
             "runtime": {"extra_mounts": ["/srv/adapters:/adapters:ro"]}},
            ["engine_args.lora_modules.1: /other/b is mounted by no entry of runtime.extra_mounts; unless the image "
             "has it, vLLM stops"],
        ),
        (
            {"engine_args": {"speculative_config": {"model": "/adapters2/x"}},
             "runtime": {"extra_mounts": ["/srv/adapters:/adapters"]}},
            ["engine_args.speculative_config.model: /adapters2/x is mounted by no entry of runtime.extra_mounts; "
             "unless the image has it, vLLM stops"],
        ),
        ({"model": "/srv/m", "engine_args": {"tokenizer": "/srv/m/tokenizer"}}, []),
        ({"engine_args": {"lora_modules": f"a={LORA_PLACE}"}}, []),
        ({"engine_args": {"tokenizer": "./tokenizer"}}, []),  # refused
    ],
)  # fmt: skip
def test_paths_have_to_be_mounted(keys: dict[str, Any], texts: list[str]) -> None:
    assert list(unmounted_paths(deployment(**keys))) == texts


# --- in plans --------------------------------------------------------------------------------------------------

DRAFT_BYTES = 2 * GIB
PINS = Lock(
    {},
    {
        model_key("", DRAFT, "main"): ModelPin(
            SHA, (("config.json", 9), ("model.safetensors", DRAFT_BYTES)), {}
        ),
        model_key("", ADAPTER, "main"): ModelPin("e" * 40, (("adapter_model.safetensors", 9),), None),
        model_key("", TOKENIZER, "main"): ModelPin(
            "f" * 40, (("model.safetensors", 9), ("tokenizer.json", 9)), None
        ),
    },
)
WHOLE = LOCK.merged(PINS)
WANTED = planned(
    settings={"speculative": AS_MAP},
    engine_args={"enable_lora": True, "lora_modules": "a=org/lora", "tokenizer": TOKENIZER},
)


def hosts(found: dict[str, Any]) -> Fleet:
    return fleet({"n1": found}, [WANTED])


def test_they_are_pinned_like_models() -> None:
    _, models = required_pins(hosts(state()), LOCK)
    assert [(need.repo, need.revision, dotted_path(need.path[2:])) for need in models] == [
        (DRAFT, "main", "settings.speculative.model"),
        (ADAPTER, "main", "engine_args.lora_modules"),
        (TOKENIZER, "main", "engine_args.tokenizer"),
    ]
    assert required_pins(hosts(state()), WHOLE) == ((), ())
    assert len(required_pins(hosts(state()), WHOLE, refresh=True)[1]) == 4


def test_they_are_fetched_and_then_there() -> None:
    host = plan({"n1": state()}, [WANTED], WHOLE).to_json()["hosts"]["n1"]
    assert [item for item in actions(host) if item.startswith("model")] == [
        f"model {REPO}@main",
        f"model {DRAFT}@main",
        f"model {ADAPTER}@main",
        f"model {TOKENIZER}@main",
    ]
    assert {item["repo"]: sorted(item["files"]) for item in host["models"][1:]} == {
        DRAFT: ["config.json", "model.safetensors"],
        ADAPTER: ["adapter_model.safetensors"],
        TOKENIZER: ["tokenizer.json"],
    }
    assert [item["reason"] for item in host["actions"] if item["kind"] == "model"] == [
        "deployment llama serves it",
        "deployment llama uses it as draft model",
        "deployment llama serves it as an adapter",
        "deployment llama uses its tokenizer",
    ]
    assert {need.repo for need in absent_models(hosts(state()), WHOLE)} == {REPO, DRAFT, ADAPTER, TOKENIZER}
    after = apply_to_state(state(), host)
    assert list(absent_models(hosts(after), WHOLE)) == []
    again = plan({"n1": after}, [WANTED], WHOLE).to_json()["hosts"]["n1"]
    assert [item for item in actions(again) if not item.startswith("image")] == []
    after["models"] = [item for item in after["models"] if item["repo"] != ADAPTER]
    assert [
        item["repo"] for item in plan({"n1": after}, [WANTED], WHOLE).to_json()["hosts"]["n1"]["models"]
    ] == [ADAPTER]


def test_the_disk_has_to_hold_them() -> None:
    disk = state()["disk"]
    disk[1]["free_bytes"] = 13 * GIB
    plan({"n1": state(disk=disk)}, [planned()])
    ((_unused, why),) = plan({"n1": state(disk=disk)}, [WANTED], WHOLE).excluded
    assert "weights of org/draft" in why


def test_offline_they_are_planned_as_written() -> None:
    data = plan(
        {"n1": None}, [WANTED], offline=True, instinct_gpus={"model": "MI300X", "count": 8}
    ).to_json()["hosts"]["n1"]
    argv = data["instances"][0]["argv"]
    assert "a=org/lora" in argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == AS_MAP
    assert "--tokenizer-revision" not in argv
    assert {
        item["after"] for item in data["actions"] if item["kind"] == "model" and DRAFT in item["target"]
    } == {"its current commit, pinned on the first online run"}
    assert (
        "The memory that the draft org/draft needs is unknown and is not counted"
        in data["instances"][0]["notes"]
    )


def test_the_model_at_two_commits_is_fetched_twice_and_at_one_once() -> None:
    own = {"method": "mtp", "num_speculative_tokens": 1}
    drafts = {**CONFIG, "num_nextn_predict_layers": 1}
    more = {
        model_key("", REPO, "main"): ModelPin(COMMIT, FILES_OF_REPO, drafts),
        model_key("", REPO, "v1"): ModelPin(SHA, (("config.json", 9),), drafts),
    }
    two = LOCK.merged(Lock({}, more))

    def commits(**speculative: Any) -> list[str]:
        wanted = planned(settings={"speculative": {**own, **speculative}})
        found = plan({"n1": state()}, [wanted], two).to_json()["hosts"]["n1"]
        argv = found["instances"][0]["argv"]
        assert (
            json.loads(argv[argv.index("--speculative-config") + 1])["revision"]
            == found["models"][-1]["commit"]
        )
        return [item["commit"] for item in found["models"]]

    assert commits() == [COMMIT]
    assert commits(revision="v1") == [COMMIT, SHA]


def test_the_draft_is_counted() -> None:
    def fit(lock: Lock = WHOLE, **speculative: Any) -> dict[str, Any]:
        keys: dict[str, Any] = {"settings": {"speculative": {**AS_MAP, **speculative}}} if speculative else {}
        host = plan({"n1": state()}, [planned(tensor_parallel_size=2, **keys)], lock).to_json()["hosts"]["n1"]
        return host["instances"][0]

    plain, halves, whole = fit(), fit(draft_tensor_parallel_size=2), fit(draft_tensor_parallel_size=1)
    weights = [item["fit"]["weights_bytes_per_gpu"] for item in (plain, halves, whole)]
    assert [size - weights[0] for size in weights] == [0, DRAFT_BYTES // 2, DRAFT_BYTES]
    assert whole["fit"]["kv_cache_bytes"] == halves["fit"]["kv_cache_bytes"] - DRAFT_BYTES // 2
    assert (
        "The weights include 2.0 GiB for the draft org/draft; its part of the KV cache is unknown and is not "
        "counted" in whole["notes"]
    )


def test_a_local_model_with_an_adapter_gets_the_hubs_cache() -> None:
    flags = {"enable_lora": True, "lora_modules": "a=org/lora"}
    wanted = planned(model="/srv/m", engine_args=flags, model_config=None)
    host = plan({"n1": state()}, [wanted], WHOLE).to_json()["hosts"]["n1"]
    binds = host["servers"][0]["container"]["HostConfig"]["Binds"]
    assert "/var/lib/instinct-fleet/hf:/hf:ro" in binds
    assert "/srv/m:/srv/m:ro" in binds
    assert [item["repo"] for item in host["models"]] == [ADAPTER]
