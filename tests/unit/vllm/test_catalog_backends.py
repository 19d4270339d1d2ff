# SPDX-License-Identifier: Apache-2.0
"""Attention backends: what a release chooses, and how its log proves it. And the baselines."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.serving.attention import proven_backends
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import ModelFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.recipes import (
    Context,
    select_recipes,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.attention_backends import (
    DENSE,
    MLA,
    Backends,
    check_named,
)

from tests.helpers.some import some
from tests.worlds.catalogue import CATALOG, knowledge

LINE = knowledge().line
AITER = {"aiter": True, "aiter_mha": True, "aiter_mla": True}
BASELINES = sorted((CATALOG / "baselines").glob("*.json"))


def backends(version: str) -> Backends:
    return Backends(knowledge().release(version), LINE, knowledge().backends)


def test_every_release_lies_in_one_era() -> None:
    eras = knowledge().backends["eras"]
    for release in some(LINE.releases):
        index = LINE.order[release]
        assert sum(LINE.inside(era["since"], era["until"], index) for era in eras) == 1, release


@pytest.mark.parametrize("release", LINE.releases)
def test_whatever_is_chosen_has_a_log_line(release: str) -> None:
    found = backends(release)
    for attention, conditions in (
        (DENSE, {}),
        (DENSE, AITER),
        (MLA, {}),
        (MLA, AITER),
        (DENSE, {"v1": True}),
    ):
        backend = found.expected(attention, conditions)
        assert backend in knowledge().backends["backends"]
        if attention == MLA and LINE.order[release] < LINE.order["0.7.2"]:
            assert not found.log_lines(backend)  # no multi-head latent attention yet
            continue
        assert found.log_lines(backend), f"{release} {backend}"


@pytest.mark.parametrize(
    ("version", "attention", "conditions", "backend"),
    [
        ("0.8.5", DENSE, AITER, "rocm_flash_v0"),
        ("0.8.5", DENSE, {"v1": True}, "triton"),
        ("0.8.5", MLA, {"block_1": True}, "aiter_mla"),
        ("0.9.2", DENSE, {}, "triton"),
        ("0.9.2", DENSE, AITER, "aiter_fa"),
        ("0.11.0", DENSE, {"prefill_decode": True}, "rocm_attn"),
        ("0.11.0", DENSE, {**AITER, "prefill_decode": True}, "aiter_fa"),
        ("0.13.0", DENSE, {**AITER, "aiter_unified": True}, "aiter_unified"),
        ("0.18.1", DENSE, AITER, "aiter_fa"),
        ("0.19.0", DENSE, AITER, "rocm_attn"),
        ("0.33.0", DENSE, {**AITER, "sinks": True}, "aiter_fa"),
        ("0.33.0", DENSE, {"sinks": True}, "aiter_unified"),
        ("0.22.0", DENSE, {**AITER, "kv_connector": True}, "rocm_attn"),
        ("0.23.0", DENSE, {**AITER, "kv_connector": True}, "aiter_fa"),
        ("0.33.0", MLA, {}, "triton_mla"),
        ("0.33.0", MLA, AITER, "aiter_mla"),
        ("0.33.0", MLA, {**AITER, "sparse": True}, "aiter_mla_sparse"),
    ],
)
def test_choice(version: str, attention: str, conditions: dict[str, bool], backend: str) -> None:
    assert backends(version).expected(attention, conditions) == backend


@pytest.mark.parametrize(
    ("version", "line", "backend"),
    [
        ("0.6.3", "INFO Using ROCmFlashAttention backend.", "rocm_flash_v0"),
        ("0.9.1", "INFO Using Triton Attention backend on V1 engine.", "triton"),
        ("0.10.1", "INFO Using Flash Attention backend on V1 engine.", "aiter_fa"),
        ("0.11.0", "INFO Using Rocm/Aiter Attention backend on V1 engine.", "rocm_attn"),
        ("0.11.1", "INFO Using Aiter Flash Attention backend.", "aiter_fa"),
        ("0.13.0", "INFO Using Aiter Unified Attention backend on V1 engine.", "aiter_unified"),
        ("0.18.0", "Using ROCM_AITER_FA attention backend out of potential backends: ['ROCM_AITER_FA'].", "aiter_fa"),
        ("0.18.0", "Using AttentionBackendEnum.TRITON_MLA backend.", "triton_mla"),
        ("0.20.0", "Using ROCM_AITER_FA backend (selected via --attention-backend).", "aiter_fa"),
        ("0.33.0", "Found incompatible backend(s) [TURBOQUANT] with AttentionType.DECODER. Overriding with ROCM_ATTN "
                   "out of potential backends: ['ROCM_ATTN', 'TRITON_ATTN'].", "rocm_attn"),
    ],
)  # fmt: skip
def test_log_lines(version: str, line: str, backend: str) -> None:
    found = backends(version)
    lines = {name: found.log_lines(name) for name in knowledge().backends["backends"]}
    assert proven_backends(lines, ["Starting", line, "Application startup complete."]) == {backend: line}


@pytest.mark.parametrize(
    ("version", "backend", "name", "by"),
    [
        ("0.10.2", "aiter_fa", None, None),
        ("0.11.1", "aiter_unified", "ROCM_AITER_UNIFIED_ATTN", "VLLM_ATTENTION_BACKEND"),
        ("0.11.0", "aiter_unified", None, "VLLM_ATTENTION_BACKEND"),
        ("0.13.0", "triton", "TRITON_ATTN", "--attention-backend"),
    ],
)
def test_names(version: str, backend: str, name: str | None, by: str | None) -> None:
    found = backends(version)
    assert (found.vllm_name(backend), found.named_by()) == (name, by)


@pytest.mark.parametrize(
    ("backend", "facts", "count"),
    [
        ("aiter_fa", {"head_size": 128, "dtype": "bfloat16", "kv_cache_dtype": "fp8"}, 0),
        ("aiter_fa", {"head_size": 80}, 1),
        ("rocm_attn", {"head_size": 128, "block_size": 1, "sinks": True, "kv_connector": True}, 3),
        ("triton", {"head_size": 77, "block_size": 32}, 0),
    ],
)
def test_misfits(backend: str, facts: dict[str, Any], count: int) -> None:
    assert len(backends("0.33.0").misfits(backend, facts)) == count


@pytest.mark.parametrize(
    ("file", "part"), [("defaults", "defaults"), ("rules", "kv_cache"), ("rules", "engine")]
)
def test_defaults_and_rules_cover_the_newest_release(file: str, part: str) -> None:
    histories = yaml.safe_load((CATALOG / f"vllm/{file}.yml").read_text())[part]
    for name, history in some(histories.items()):
        spans = [(LINE.order[item["since"]], item["until"]) for item in history]
        assert spans == sorted(spans, key=lambda span: span[0]), name
        assert history[-1]["until"] is None, name
        assert all(a["until"] == b["since"] for a, b in itertools.pairwise(history)), name


def results(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return found


def test_baselines_refer_to_their_setups() -> None:
    for path in some(BASELINES):
        data = json.loads(path.read_text())
        used = {result["setup"] for result in data["results"]}
        assert used == set(data["setups"])
        better = {name for names in data["better"].values() for name in names}
        metrics = {name for result in data["results"] for name in result["metrics"]}
        assert metrics - better <= {"at_tokens_per_second_per_user"}


def test_no_result_is_there_twice() -> None:
    seen: Counter[str] = Counter()
    for path in BASELINES:
        setups = json.loads(path.read_text())["setups"]
        for result in results(path):
            key = {
                name: value
                for name, value in result.items()
                if name not in ("setup", "also", "image", "note")
            }
            setup = setups[result["setup"]]
            seen[json.dumps([setup["gpu"], setup["vllm"], setup["engine"], key], sort_keys=True)] += 1
    assert [key for key, count in seen.items() if count > 1] == []


def test_what_throughput_counts_is_said_or_unknown() -> None:
    counted = Counter(
        result["tokens_counted"]
        for path in BASELINES
        for result in results(path)
        if "tokens_counted" in result
    )
    assert counted["unknown"] > 90


@pytest.mark.parametrize("size", ["70B", "405B"])
def test_latencies_grow_with_the_batch(size: str) -> None:
    """A check of the figures themselves: a larger batch never takes less than nine tenths of the smaller one."""
    groups: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for result in results(CATALOG / "baselines" / "amd-dev-docker.json"):
        if result["kind"] == "latency" and size in result["model"]:
            key = (result["setup"], result["input_tokens"], result["output_tokens"])
            groups.setdefault(key, []).append((result["batch_size"], result["metrics"]["latency_seconds"]))
    assert len(groups) >= 16
    for rows in groups.values():
        ordered = [seconds for _, seconds in sorted(rows)]
        assert len(ordered) == 8
        assert all(b > 0.9 * a for a, b in itertools.pairwise(ordered))


R1_HEADS, KIMI_HEADS, LITE_HEADS = 128, 64, 16


@pytest.mark.parametrize(
    ("version", "backend", "facts", "text"),
    [
        ("0.9.1", "aiter_mla", {"heads": LITE_HEADS, "tp": 2}, "8 attention heads per GPU are not among 16, 128; "
         "tensor_parallel_size 1 gives a supported"),
        ("0.17.1", "aiter_mla", {"heads": R1_HEADS, "tp": 4}, "tensor_parallel_size 1 or 8 gives a supported"),
        ("0.17.1", "aiter_triton_mla", {"heads": KIMI_HEADS, "tp": 8}, "tensor_parallel_size 4 gives a supported"),
        ("0.17.1", "aiter_mla", {"heads": 20, "tp": 1}, "no tensor_parallel_size gives a supported"),
        ("0.17.1", "aiter_mla", {"heads": R1_HEADS, "tp": 8}, ""),
        ("0.18.0", "aiter_mla", {"heads": KIMI_HEADS, "tp": 8}, ""),
        ("0.18.0", "aiter_mla", {"heads": LITE_HEADS, "tp": 8}, "tensor_parallel_size 1 or 2 or 4 gives a supported"),
        ("0.20.0", "aiter_mla", {"heads": LITE_HEADS, "tp": 8}, ""),
        ("0.26.0", "aiter_mla", {"heads": 96, "tp": 8}, "12 attention heads per GPU"),
        ("0.27.0", "aiter_mla", {"heads": 96, "tp": 8}, ""),
        ("0.28.0", "aiter_mla", {"heads": 96, "tp": 4}, "24 attention heads per GPU"),
        ("0.29.0", "aiter_mla", {"heads": 96, "tp": 4}, ""),
        ("0.17.1", "triton_mla", {"kv_cache_dtype": "fp8"}, "kv_cache_dtype fp8 is not among auto"),
        ("0.18.0", "triton_mla", {"kv_cache_dtype": "fp8"}, ""),
        ("0.18.0", "triton_mla", {"kv_cache_dtype": "fp8_e5m2"}, "is not among"),
        ("0.20.0", "aiter_mla_sparse", {"kv_cache_dtype": "fp8"}, "is not among"),
        ("0.21.0", "aiter_mla_sparse", {"kv_cache_dtype": "fp8"}, ""),
    ],
)  # fmt: skip
def test_limits_of_latent_attention(version: str, backend: str, facts: dict[str, Any], text: str) -> None:
    found = "\n".join(backends(version).misfits(backend, facts))
    assert bool(found) == bool(text)
    assert text in found


@pytest.mark.parametrize("release", LINE.releases)
def test_recipes_choose_aiter_mla_for_the_heads_that_it_takes(release: str) -> None:
    """The conditions of the recipes and the limits of the backend say the same."""
    for heads in (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128):
        model = ModelFacts("x/y", mla=True, heads=heads)
        context = Context(knowledge().release(release), LINE, "gfx942")
        choices = {
            item.setting: item.value for item in select_recipes(knowledge().recipes, model, context).choices
        }
        chosen = choices.get("attention_backend")
        if LINE.order[release] < LINE.order["0.8.5"]:
            assert chosen is None
        else:
            wrong = backends(release).misfits("aiter_mla", {"heads": heads, "tp": 1})
            assert chosen == ("triton_mla" if wrong else "aiter_mla"), heads


@pytest.mark.parametrize(
    ("version", "args", "env", "facts", "backend"),
    [
        ("0.9.1", {}, {"VLLM_ROCM_USE_AITER": "1"}, {}, "aiter_mla"),
        ("0.9.1", {}, {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MLA": "0"}, {}, "triton_mla"),
        ("0.9.1", {"--block-size": 1}, {}, {}, "aiter_mla"),
        (
            "0.11.1",
            {},
            {"VLLM_ATTENTION_BACKEND": "TRITON_MLA", "VLLM_ROCM_USE_AITER": "1"},
            {},
            "triton_mla",
        ),
        ("0.13.0", {"--attention-backend": "rocm_aiter_mla"}, {}, {}, "aiter_mla"),
        ("0.13.0", {}, {"VLLM_ROCM_USE_AITER": "true"}, {"sparse": True}, "aiter_mla_sparse"),
        ("0.33.0", {}, {}, {}, "triton_mla"),
    ],
)
def test_backend_in_effect(
    version: str, args: dict[str, Any], env: dict[str, str], facts: dict[str, bool], backend: str
) -> None:
    assert backends(version).in_effect(MLA, args, env, facts) == backend


AITER_ON = {"VLLM_ROCM_USE_AITER": "1"}
LLAMA = {"head_size": 128, "heads": 32, "tp": 1, "kv_cache_dtype": "auto", "sinks": False}


@pytest.mark.parametrize(
    ("version", "args", "env", "facts", "planned"),
    [
        ("0.11.2", {}, AITER_ON, {}, "aiter_fa"),
        ("0.11.2", {}, {}, {}, "triton"),
        ("0.9.1", {}, {}, {"v1": True}, "triton"),
        ("0.9.1", {}, {}, {"v1": False}, "rocm_flash_v0"),
        ("0.32.0", {}, AITER_ON, {}, "rocm_attn"),
        ("0.32.0", {"--attention-backend": "AUTO"}, AITER_ON, {}, "rocm_attn"),
        ("0.32.0", {"--attention-backend": "ROCM_AITER_FA"}, AITER_ON, {}, "aiter_fa"),
        ("0.32.0", {"--attention-backend": "ULTRAQUANT"}, {}, {}, None),  # not described
        ("0.32.0", {"--attention-config": {"backend": "TRITON_ATTN"}}, {}, {}, None),
        ("0.32.0", {"--attention-config.backend": "TRITON_ATTN"}, {}, {}, None),
        (
            "0.11.2",
            {},
            {**AITER_ON, "VLLM_ATTENTION_BACKEND": "TRITON_ATTN"},
            {},
            None,
        ),  # AITER goes before it
        ("0.32.0", {}, {}, {"head_size": 72}, None),  # whoever is next
        ("0.22.0", {}, {}, {"kv_connector": True}, None),
        ("0.23.0", {}, {}, {"kv_connector": True}, "aiter_unified"),
    ],
)
def test_claim(
    version: str, args: dict[str, Any], env: dict[str, str], facts: dict[str, Any], planned: str | None
) -> None:
    found = backends(version)
    claim = found.claim(DENSE, args, env, {**LLAMA, **facts})
    assert (claim.planned if claim else None) == planned
    if claim:
        assert claim.lines == {
            name: found.log_lines(name) for name in knowledge().backends["backends"] if found.log_lines(name)
        }


def test_latent_attention_is_claimed_where_releases_have_it() -> None:
    assert backends("0.7.1").claim(MLA, {}, {}, {"heads": 128, "tp": 8}) is None
    claim = backends("0.7.2").claim(MLA, {}, {}, {"heads": 128, "tp": 8})
    assert claim is not None
    assert claim.to_json() == {
        "planned": "triton_mla",
        "lines": {
            "rocm_flash_v0": ["Using ROCmFlashAttention backend."],
            "rocm_v1_first": ["Using ROCm Attention backend on V1 engine."],
            "triton_mla": ["Using Triton MLA backend."],
        },
    }


@pytest.mark.parametrize(
    ("version", "name", "wrong"),
    [
        ("0.33.0", "FLASHINFER", True),
        ("0.33.0", "rocm_aiter_fa", False),
        ("0.33.0", "auto", False),
        ("0.33.0", "ULTRAQUANT", False),
        ("0.11.1", "FLASHINFER", True),
        ("0.11.1", "ROCM_AITER_TRITON_MLA", True),  # comes with 0.12.0
        ("0.12.0", "ROCM_AITER_TRITON_MLA", False),
        ("0.17.1", "FLASH_ATTN", True),  # its RuntimeError says so
        ("0.18.0", "FLASH_ATTN", False),  # validated, and there where flash_attn is installed
        ("0.9.1", "FLASHINFER", False),  # not judged: nothing is named
    ],
)
def test_names_of_backends(version: str, name: str, wrong: bool) -> None:
    found = check_named(backends(version), name)
    assert (found is not None) == wrong
    if found:
        assert found.is_error
        assert "Use one of TRITON_ATTN, ROCM_ATTN, ROCM_AITER_FA, " in found.fix
