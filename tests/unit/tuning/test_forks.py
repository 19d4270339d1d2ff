# SPDX-License-Identifier: Apache-2.0
"""AMD's forks of vLLM: recognized by whatever names them, and planned as what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import split_reference
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.env_vars import check_env
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import check
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.settings import render_setting
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ImagePin, Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.image_software import software_of

from tests.worlds.catalogue import knowledge
from tests.worlds.plan_world import DIGEST, deployment, fleet, state, workshop

JULY, JUNE, AITER, OLD = "0.9.1+gb432b7a28", "0.9.1+gb335519f2", "0.7.3+g913dbc298", "0.6.3+g2c60adc83"
JULY_TAG, JUNE_TAG = "rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "rocm/vllm:rocm6.4.1_vllm_0.9.1_20250702"
COMMIT = "b432b7a285aa0dcb9677380936ffa74931bb6d6f"
ROCM = "https://github.com/ROCm/vllm.git"
UNKNOWN = "f" * 40
LLAMA, MIXTRAL = "amd/Llama-3.1-70B-Instruct-FP8-KV", "amd/Mixtral-8x22B-Instruct-v0.1-FP8-KV"
BIG, DEEPSEEK = "amd/Llama-3.1-405B-Instruct-FP8-KV", "deepseek-ai/DeepSeek-R1"
MAIN = "rocm/vllm-dev:main"


def build(ref: str, repo: str = ROCM, **more: Any) -> dict[str, Any]:
    return {"image": None, "build": {"repo": repo, "ref": ref, **more}}


def offline(model: str = LLAMA, lock: Lock | None = None, **keys: Any) -> dict[str, Any]:
    """The first instance of a plan that asks no node, in plan.json's form."""
    item = deployment(**{"name": "x", "model": model, "tensor_parallel_size": 8, "revision": None, **keys})
    hosts = fleet({"n1": None}, [item], offline=True, instinct_gpus={"model": "MI300X", "count": 8})
    planned = plan_fleet(check_fleet(hosts), workshop(lock or Lock())).to_json()
    found: dict[str, Any] = json.loads(json.dumps(planned))["hosts"]["n1"]["instances"][0]
    return found


def env_of(found: Mapping[str, Any], *names: str) -> list[str | None]:
    return [found["env"].get(name) for name in names]


@pytest.mark.parametrize(
    ("keys", "vllm"),
    [
        # By a tag, alone or with the version that AMD names for it.
        ({"image": JULY_TAG}, JULY),
        ({"image": f"docker.io/{JULY_TAG}"}, JULY),
        ({"image": JULY_TAG, "vllm_version": "0.9.1"}, JULY),
        ({"image": JUNE_TAG}, JUNE),
        ({"image": JUNE_TAG, "vllm_version": "0.9.1"}, JUNE),
        ({"image": MAIN, "vllm_version": "0.9.1"}, JULY),
        ({"image": MAIN, "vllm_version": "0.6.3"}, OLD),
        # By a commit, whole or abbreviated, wherever the repository is mirrored.
        (build(COMMIT), JULY),
        (build(COMMIT[:9]), JULY),
        (build("B432B7A"), JULY),
        (build(COMMIT, "ssh://git@git.example.com/mirror/vllm"), JULY),
        (build("2c60adc83981ada77a77b2adda78ef109d2e2e2b", dockerfile="Dockerfile.rocm"), OLD),
        # By a branch of AMD's own repository, however it is spelled.
        (build("aiter_integration_final", dockerfile="Dockerfile.rocm"), AITER),
        (build("refs/heads/0715_rc1", "git@github.com:ROCm/vllm"), JULY),
        (build("0624_rc2", "https://github.com/rocm/vllm/"), JUNE),
        # By what a build calls itself.
        ({"image": "r.example/own:1", "vllm_version": "0.9.2.dev364"}, JULY),
        ({"image": "r.example/own:1", "vllm_version": "0.9.2.dev364+gb432b7a28.rocm641"}, JULY),
        ({"image": "r.example/own:1", "vllm_version": "0.1.dev1+gb335519f2"}, JUNE),
        ({**build(UNKNOWN), "vllm_version": "0.9.2.dev364"}, JULY),
        # The operator's word on something else stands, and so does what is no fork.
        ({"image": JULY_TAG, "vllm_version": "0.10.1"}, "0.10.1"),
        ({"image": "vllm/vllm-openai-rocm:v0.16.0"}, "0.16.0"),
        ({"image": "r.example/own:1", "vllm_version": "0.9.1"}, "0.9.1"),
        ({**build(UNKNOWN), "vllm_version": "0.9.1"}, "0.9.1"),
        ({**build("aiter_integration_final", "https://git.example/x"), "vllm_version": "0.9.1"}, "0.9.1"),
        (build(UNKNOWN), None),
    ],
)
def test_a_fork_is_recognized(keys: dict[str, Any], vllm: str | None) -> None:
    host = fleet({"n1": state()}, [deployment(**keys)]).hosts[0]
    facts = software_of(host.deployments[0], host, Lock(), knowledge())
    assert (facts.vllm if facts else None) == vllm


@pytest.mark.parametrize(
    "printed", ["0.9.2.dev364+gb432b7a28.rocm641", "0.9.2.dev364+gb432b7a28", "0.9.2.dev364"]
)
def test_a_fork_is_recognized_by_what_the_image_answers(printed: str) -> None:
    lock = Lock({MAIN: ImagePin(DIGEST, 1, ImageSoftware(printed, "rocm", "6.4.1"))})
    assert offline(lock=lock, image=MAIN)["vllm"] == JULY


def test_every_fork_is_a_release() -> None:
    """Its parent is one of the catalogue, and the differences were taken from that very release."""
    tables = json.loads((knowledge().root / "vllm/fork_differences.json").read_text())["forks"]
    forks = knowledge().forks.forks
    assert {item.name for item in forks} == set(tables)
    for item in forks:
        assert tables[item.name]["parent"] == item.parent in knowledge().line.order
        assert knowledge().release(item.version).fork == item.name
        assert knowledge().release(f"0.1.dev9+g{item.commit[:8]}.rocm700").requested == item.version
        assert set(item.renamed.values()) <= set(knowledge().env(item.version).variables)
        assert item.source.partition("#")[0] in knowledge().sources
    tagged = {entry["fork"] for entry in knowledge().images["tags"].values() if "fork" in entry}
    named = {
        fork
        for recipe in knowledge().recipes
        for entry in (*recipe.settings, *recipe.rules)
        for fork in entry.when.get("forks", ())
    }
    assert (tagged | named | set(knowledge().backends["forks"])) <= set(tables)


@pytest.mark.parametrize("item", knowledge().forks.forks, ids=lambda item: str(item.name))
def test_a_fork_has_what_its_sources_have(item: Any) -> None:
    """Everything of the parent that it does not lack, and everything that it adds."""
    flags, parent = knowledge().flags(item.version).flags, knowledge().flags(item.parent).flags
    variables = knowledge().env(item.version).variables
    tables = json.loads((knowledge().root / "vllm/fork_differences.json").read_text())["forks"][item.name]
    for known, own, upstream in (
        (tables["flags"], flags, parent),
        (tables["env"], variables, knowledge().env(item.parent).variables),
    ):
        assert set(own) == {*upstream, *known} - {name for name, value in known.items() if value is None}
        for name in set(own) - set(known):
            assert own[name] == upstream[name]


@pytest.mark.parametrize(
    ("vllm", "name", "value", "said"),
    [
        (JULY, "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "FP", ""),
        (JULY, "VLLM_ROCM_USE_AITER_MHA", "0", ""),
        (JUNE, "VLLM_ROCM_USE_AITER_MHA", "0", ""),
        (JUNE, "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "FP", "is read by vLLM 0.9.2, but not by its fork"),
        ("0.9.1", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "FP", "is read from vLLM 0.9.2 on"),
        (AITER, "VLLM_USE_AITER", "1", ""),
        (AITER, "VLLM_ROCM_USE_AITER", "1", "In this fork it is VLLM_USE_AITER."),
        (AITER, "VLLM_ROCM_USE_AITER_RMSNORM", "0", "In this fork it is VLLM_USE_AITER_NORM."),
        (OLD, "VLLM_USE_ROCM_SKINNY_GEMM", "1", ""),
        (OLD, "VLLM_CUSTOM_OPS", "none", "but not by its fork"),
    ],
)
def test_variables(vllm: str, name: str, value: str, said: str) -> None:
    found = check_env(knowledge().env(vllm), name, value).text()
    assert said in found if said else not found


@pytest.mark.parametrize(
    ("vllm", "name", "value", "status"),
    [
        (JULY, "media_io_kwargs", {}, "is a flag of vLLM 0.9.2, but not of its fork"),
        (JUNE, "enable_eplb", True, "but not of its fork"),
        (JULY, "enable_eplb", True, ""),
        (JUNE, "quantization", "nonsense", "'nonsense' is not valid"),
        (AITER, "block_size", 1, ""),
        ("0.8.0", "block_size", 1, "1 is not valid"),
        (OLD, "chat_template_content_format", "auto", ""),
    ],
)
def test_flags(vllm: str, name: str, value: Any, status: str) -> None:
    found = check(knowledge().flags(vllm), name, value)
    assert found.is_error == bool(status)
    assert status in found.text()


@pytest.mark.parametrize(
    ("vllm", "name", "value", "env", "said"),
    [
        (JULY, "quick_reduce", "FP", {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "FP"}, ""),
        (JUNE, "quick_reduce", "FP", {}, "possible from vLLM 0.10.0 on"),
        (AITER, "aiter", True, {"VLLM_USE_AITER": "1"}, ""),
        (AITER, "aiter_rmsnorm", False, {"VLLM_USE_AITER_NORM": "0"}, ""),
        (OLD, "moe_padding", True, {"VLLM_MOE_PADDING": "1"}, ""),
        (JULY, "engine", "V1", {}, ""),
        (JULY, "engine", "V0", {"VLLM_USE_V1": "0"}, ""),
        (AITER, "engine", "V1", {"VLLM_USE_V1": "1"}, ""),
    ],
)
def test_settings(vllm: str, name: str, value: Any, env: dict[str, str], said: str) -> None:
    found = render_setting(knowledge().book(vllm), name, value)
    assert dict(found.env) == env
    assert said in " ".join(item.text() for item in found.findings)


MHA, PREFILL = "VLLM_ROCM_USE_AITER_MHA", "VLLM_V1_USE_PREFILL_DECODE_ATTENTION"


@pytest.mark.parametrize("image", [JULY_TAG, JUNE_TAG])
def test_a_dense_model_as_amd_measured_it(image: str) -> None:
    """Without AITER's attention, with an FP8 KV cache, on V1 without asking for it."""
    found = offline(image=image, objective="throughput")
    assert env_of(found, "VLLM_ROCM_USE_AITER", MHA, PREFILL, "VLLM_USE_TRITON_FLASH_ATTN") == [
        "0",
        "0",
        "1",
        "0",
    ]
    assert "VLLM_USE_V1" not in found["env"]
    assert found["argv"][found["argv"].index("--kv-cache-dtype") + 1] == "fp8"
    assert not {"--num-scheduler-steps", "--swap-space", "--no-enable-chunked-prefill"} & set(found["argv"])
    quick = env_of(found, "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION")
    assert quick == (["FP"] if image == JULY_TAG else [None])


@pytest.mark.parametrize("image", [JULY_TAG, JUNE_TAG])
@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_mixtral_as_amd_names_it(image: str, objective: str) -> None:
    found = offline(MIXTRAL, image=image, objective=objective)
    names = ("VLLM_ROCM_USE_AITER", MHA, "VLLM_ROCM_USE_AITER_RMSNORM", PREFILL)
    assert env_of(found, *names) == ["1", "0", "0", None]
    assert "fp8" not in found["argv"]  # AITER takes no FP8 KV cache there
    assert not any("is read from" in text or "Remove it" in text for text in found["warnings"])


def test_what_the_operator_says_of_the_fork_stands() -> None:
    found = offline(image=JULY_TAG, env={"VLLM_ROCM_USE_AITER": "1", MHA: "1"})
    assert env_of(found, "VLLM_ROCM_USE_AITER", MHA, PREFILL) == ["1", "1", None]
    assert "fp8" not in found["argv"]
    with pytest.raises(FleetError, match="AITER does not support an FP8 KV cache"):
        offline(image=JULY_TAG, env={"VLLM_ROCM_USE_AITER": "1"}, settings={"kv_cache_dtype": "fp8"})
    quick = offline(image=JULY_TAG, env={"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT8"})
    assert env_of(quick, "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION") == ["INT8"]
    assert not any("QUICK_REDUCE" in text for text in quick["warnings"])


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL, DEEPSEEK])
@pytest.mark.parametrize("objective", ["throughput", "latency", "interactive", "streaming"])
def test_the_same_commit_is_the_same_plan(model: str, objective: str) -> None:
    """By a tag, by a build of its commit or branch, and by what a build answers."""
    lock = Lock({MAIN: ImagePin(DIGEST, 1, ImageSoftware("0.9.2.dev364+gb432b7a28.rocm641", "rocm"))})
    ways: list[dict[str, Any]] = [
        {"image": JULY_TAG},
        {"image": MAIN},
        {"image": "r.example/own:1", "vllm_version": "0.9.2.dev364"},
        build(COMMIT),
        build("0715_rc1"),
        {**build(COMMIT), "vllm_version": "0.9.2.dev364"},
    ]
    plans = [offline(model, lock, objective=objective, **way) for way in ways]
    first = plans[0]
    for plan in plans[1:]:
        for key in ("argv", "vllm", "env"):
            assert plan[key] == first[key]
        assert any(text.startswith("AMD's 0.9.1 of July 2025") for text in plan["warnings"])


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        (build("aiter_integration_final"), "Write dockerfile: Dockerfile.rocm."),
        (build("2c60adc83981"), "Write dockerfile: Dockerfile.rocm."),
        (build(COMMIT, dockerfile="Dockerfile.rocm"), "Write dockerfile: docker/Dockerfile.rocm."),
    ],
)
def test_a_dockerfile_that_the_commit_has_elsewhere(keys: dict[str, Any], fix: str) -> None:
    with pytest.raises(FleetError) as refused:
        offline("amd/Llama-3.1-8B-Instruct-FP8-KV", tensor_parallel_size=1, **keys)
    assert fix in str(refused.value)


def test_the_aiter_branch() -> None:
    """Its own names of variables, and no FP8 KV cache beside AITER."""
    found = offline(**build("aiter_integration_final", dockerfile="Dockerfile.rocm"))
    assert env_of(found, "VLLM_USE_AITER", "VLLM_ROCM_USE_AITER", "VLLM_USE_V1") == ["1", None, None]
    assert "fp8" not in found["argv"]
    own = offline(
        env={"VLLM_USE_AITER": "0"}, **build("aiter_integration_final", dockerfile="Dockerfile.rocm")
    )
    assert env_of(own, "VLLM_USE_AITER", "VLLM_ROCM_USE_AITER") == ["0", None]


@pytest.mark.parametrize(
    ("image", "version", "wrong"),
    [(MAIN, "0.6.3", False), (JULY_TAG, None, False), (JUNE_TAG, None, True), (MAIN, "0.9.1", False)],
)
def test_the_custom_all_reduce_is_off_where_amd_says_that_it_must_be(
    image: str, version: str | None, wrong: bool
) -> None:
    found = offline(BIG, image=image, vllm_version=version)
    assert ("--disable-custom-all-reduce" in found["argv"]) == wrong
    assert not any("custom all-reduce" in text for text in found["warnings"])
    plain = offline(BIG, image=image, vllm_version=version, recipes=False)
    assert any("custom all-reduce" in text for text in plain["warnings"]) == wrong


@pytest.mark.parametrize(
    "ref",
    [
        MAIN,
        "rocm/vllm-dev:nightly",
        "rocm/vllm:instinct_main",
        "rocm/vllm:latest",
        "rocm/vllm:nightly_main",
        "vllm/vllm-openai-rocm:nightly",
        "docker.io/vllm/vllm-openai-rocm:latest",
    ],
)
def test_a_tag_that_moves_is_planned_as_the_newest_and_asked_where_it_can_be(ref: str) -> None:
    found = offline("amd/Llama-3.1-8B-Instruct-FP8-KV", image=ref, tensor_parallel_size=1)
    assert found["vllm"] == knowledge().line.releases[-1]
    (said,) = [text for text in found["warnings"] if "moves" in text]
    assert split_reference(ref)[0] in said
    assert found["vllm"] in said
    online = fleet({"n1": state()}, [deployment(image=ref)]).hosts[0]
    assert software_of(online.deployments[0], online, Lock(), knowledge()) is None
    pinned = Lock({ref: ImagePin(DIGEST, 1, ImageSoftware("0.16.0", "rocm"))})
    asked = offline("amd/Llama-3.1-8B-Instruct-FP8-KV", pinned, image=ref, tensor_parallel_size=1)
    assert asked["vllm"] == "0.16.0"
    assert not any("moves" in text for text in asked["warnings"])


@pytest.mark.parametrize(
    "ref", ["r.example/vllm:latest", "rocm/vllm:rocm7.0.0_vllm_0.11.1_19990101", f"rocm/vllm@{DIGEST}"]
)
def test_what_nobody_knows_is_still_refused_offline(ref: str) -> None:
    with pytest.raises(FleetError, match="is unknown"):
        offline("amd/Llama-3.1-8B-Instruct-FP8-KV", image=ref, tensor_parallel_size=1)
