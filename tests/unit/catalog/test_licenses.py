# SPDX-License-Identifier: Apache-2.0
"""Licences: which need to be accepted, what accepts them, and what the names of well-known models say."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.licenses import is_accepted

from tests.worlds.catalogue import CATALOG, knowledge


@pytest.mark.parametrize(
    ("ids", "name", "keys"),
    [
        (["apache-2.0"], "", [("apache-2.0", False)]),
        (["MIT"], "", [("mit", False)]),
        (["llama3.1"], "", [("llama3.1", True)]),
        (["cc-by-nc-4.0"], "", [("cc-by-nc-4.0", True)]),
        (["other"], "llama4", [("llama4", True)]),
        (["other"], "Modified MIT", [("modified-mit", True)]),
        (["other"], "mit", [("mit", False)]),
        (["other"], "acme-terms", [("repo:org/m", True)]),
        (["unknown"], "", [("repo:org/m", True)]),
        (["llama9"], "", [("llama9", True)]),  # not known: not free
        (["mit", "gemma"], "", [("mit", False), ("gemma", True)]),
        ([], "", []),
    ],
)
def test_what_a_card_states(ids: list[str], name: str, keys: list[tuple[str, bool]]) -> None:
    found = knowledge().licenses.stated("org/m", ids, name)
    assert [(item.key, item.needed) for item in found] == keys


@pytest.mark.parametrize(
    ("repo", "keys"),
    [
        ("amd/Llama-3.1-8B-Instruct-FP8-KV", ["llama3.1"]),
        ("amd/Meta-Llama-3.1-70B-Instruct-FP8-KV", ["llama3.1"]),
        ("meta-llama/Llama-3.3-70B-Instruct", ["llama3.3"]),
        ("meta-llama/Meta-Llama-3-8B-Instruct", ["llama3"]),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", ["llama4"]),
        ("amd/Mixtral-8x7B-Instruct-v0.1-FP8-KV", ["apache-2.0"]),
        ("deepseek-ai/DeepSeek-R1", ["mit"]),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", ["mit", "llama3.3"]),
        ("deepseek-ai/DeepSeek-V3", []),
        ("Qwen/Qwen2-72B-Instruct", ["tongyi-qianwen"]),
        ("google/gemma-3-27b-it", ["gemma"]),
        ("lab/tiny-llama", []),
    ],
)
def test_what_names_say(repo: str, keys: list[str]) -> None:
    assert [item.key for item in knowledge().licenses.by_name(repo)] == keys


def test_licences_of_models_are_known_ones() -> None:
    listed = knowledge().models["licenses"]
    named = {item[key] for item in listed for key in ("license", "base") if key in item}
    assert named <= knowledge().licenses.keys
    assert CATALOG.name == "catalog"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [((), False), (("gemma",), False), (("llama3.1",), True), (("repo:amd/m",), True), (("repo:org/base",), True),
     (("repo:org/other",), False)],
)  # fmt: skip
def test_acceptance(keys: tuple[str, ...], expected: bool) -> None:
    (llama,) = knowledge().licenses.stated("org/base", ["llama3.1"])
    assert is_accepted(llama, ("amd/m", "org/base"), keys) is expected
    (free,) = knowledge().licenses.stated("org/base", ["mit"])
    assert is_accepted(free, (), keys)
