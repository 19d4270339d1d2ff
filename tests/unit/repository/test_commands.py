# SPDX-License-Identifier: Apache-2.0
"""Each command of AMD's documents is had from a deployment, and what differs is listed with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError

from tests import ROOT
from tests.commands import Entry, compare, documents, entries, instances, own, plan
from tests.commands_effects import EFFECTS, Setup, beside
from tests.commands_table import page
from tests.worlds.catalogue import knowledge

ENTRIES = entries()
COMPARED = [entry for entry in ENTRIES if not entry.refused and entry.on_the_host is None]


def ids(found: list[Entry]) -> Any:
    return {"argvalues": found, "ids": [entry.id for entry in found]}


def test_every_entry_has_a_source() -> None:
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)
    assert all(document["source"] in knowledge().sources for document in documents())
    assert all(entry.data["section"] and entry.data["title"] for entry in ENTRIES)


@pytest.mark.parametrize("entry", **ids(COMPARED))
def test_the_same_command_or_a_listed_difference(entry: Entry) -> None:
    found = compare(entry)
    for item in found:
        assert not item.wrong, [finding.text() for finding in item.wrong]
    differing = {item.key for compared in found for item in compared.found}
    listed = {item.key for item in entry.differences}
    assert differing - listed == set(), "differs, and is not listed"
    assert listed - differing == set(), "is listed, and does not differ"


@pytest.mark.parametrize("entry", **ids([entry for entry in ENTRIES if entry.refused]))
def test_what_a_document_shows_and_cannot_work_is_refused(entry: Entry) -> None:
    with pytest.raises(FleetError) as refused:
        plan(entry)
    assert entry.refused in str(refused.value)


@pytest.mark.parametrize("entry", **ids([entry for entry in ENTRIES if entry.on_the_host is not None]))
def test_what_is_done_on_the_host(entry: Entry) -> None:
    host = plan(entry).to_json()["hosts"]["mi300x-1"]
    assert entry.on_the_host
    assert has(host, entry.on_the_host), {key: host[key] for key in entry.on_the_host}


def has(found: Any, part: Any) -> bool:
    """A part of a plan: maps by key, lists item by item."""
    if isinstance(part, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and has(found[key], item) for key, item in part.items()
        )
    if isinstance(part, list):
        return len(found) == len(part) and all(has(*pair) for pair in zip(found, part, strict=True))
    return bool(found == part)


@pytest.mark.parametrize("entry", **ids(ENTRIES))
def test_there_are_as_many_instances_as_said(entry: Entry) -> None:
    if not entry.refused and "instances" in entry.data:
        assert len(instances(plan(entry))) == entry.data["instances"]


@pytest.mark.parametrize("entry", COMPARED, ids=lambda entry: entry.id)
def test_recipes_add_with_a_source_and_decide_nothing_anew(entry: Entry) -> None:
    """By effect: a switch that makes one of the document's void turns it too."""
    for found in beside(entry):
        assert found.turned == {}
        unsourced = {
            name
            for name, source in found.added.items()
            if source.partition("#")[0] not in knowledge().sources
        }
        assert unsourced == set()


def test_an_effect_that_is_turned_is_noticed() -> None:
    """Every switch that a document sets changes an effect when it is turned, even where it turns another's."""
    entry = next(item for item in ENTRIES if item.id == "amd-0.9.1-aiter")
    own = {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MHA": "0", "VLLM_ROCM_USE_AITER_RMSNORM": "0"}
    for changed, name in (
        ({"VLLM_ROCM_USE_AITER_MHA": "1"}, "attention backend"),
        ({"VLLM_ROCM_USE_AITER_RMSNORM": "1"}, "norms by AITER"),
        ({"VLLM_ROCM_USE_AITER": "0"}, "experts by AITER"),
        ({"VLLM_USE_V1": "0"}, "engine"),
        ({"--num-scheduler-steps": 10}, "engine"),
        ({"--enforce-eager": True}, "graphs"),
        ({"--kv-cache-dtype": "fp8"}, "KV cache"),
    ):
        tell = EFFECTS[name][0]
        assert tell(Setup(entry, own)) != tell(Setup(entry, {**own, **changed})), name


def test_what_is_always_done_is_done_somewhere() -> None:
    assert set(own()["added"]) == set(own()["replaced"]) == {"serve", "docker", "bench"}


def test_a_changed_value_is_noticed() -> None:
    """The comparison finds a value, a flag and a variable that were changed in a document's command."""
    entry = next(item for item in ENTRIES if item.id == "amd-0.9.1-latency")
    text = entry.commands[0].replace("--gpu-memory-utilization 0.9", "--gpu-memory-utilization 0.8")
    text = text.replace("--trust-remote-code", "--enforce-eager").replace("FLASH_ATTN=0", "FLASH_ATTN=1")
    found = compare(replace(entry, data={**entry.data, "command": text}))[0].found
    listed = {item.key for item in entry.differences}
    assert {item.what for item in found if item.key not in listed} == {
        "VLLM_USE_TRITON_FLASH_ATTN",
        "--gpu-memory-utilization",
        "--trust-remote-code",
        "--enforce-eager",
    }


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert written == page(), "run make docs"
