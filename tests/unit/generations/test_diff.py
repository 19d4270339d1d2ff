# SPDX-License-Identifier: Apache-2.0
"""What a record of a generation holds, and how two of them differ."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    Generation,
    GenerationMember,
    History,
    Hold,
    OpenRollout,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.diff import describe_changes

MEMBERS = tuple(
    GenerationMember(
        f"llama-{item}", f"{item}" * 64, 8000 + item, (8000 + item,), (f"renderD{128 + 8 * item}",), limit=256
    )
    for item in range(2)
)
OLD = Generation(
    deployment="llama",
    generation=3,
    recorded_at="2026-11-21T22:00:00Z",
    why="first deployment",
    image="registry.lab:5000/lab/x@sha256:" + "1" * 64,
    image_ref="registry.lab:5000/lab/x:1",
    vllm="0.11.1",
    model="lab/tiny-llama",
    commit="c" * 40,
    weights=(("lab/tiny-llama", "c" * 40),),
    modes="SPX NPS1",
    command="vllm serve lab/tiny-llama --max-num-seqs 256 --enable-prefix-caching --port 8000",
    env="A=1 'B=two words'",
    models=("tiny",),
    listen="127.0.0.1",
    members=MEMBERS,
)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"image_ref": "registry.lab:5000/lab/x:2", "image": "y"},
         "image registry.lab:5000/lab/x:1 → registry.lab:5000/lab/x:2"),
        ({"image": "registry.lab:5000/lab/x@sha256:" + "2" * 64},
         "image registry.lab:5000/lab/x:1, sha256:111111111111 → sha256:222222222222"),
        ({"vllm": "0.12.0"}, "vLLM 0.11.1 → 0.12.0"),
        ({"model": "lab/other", "commit": "d" * 40}, "model lab/tiny-llama → lab/other"),
        ({"commit": "d" * 40}, "commit cccccccccccc → dddddddddddd"),
        ({"command": "vllm serve lab/tiny-llama --max-num-seqs 512 --port 8000 --seed 1"},
         "--enable-prefix-caching (gone); --max-num-seqs 256 → 512; --seed 1 (new)"),
        ({"env": "A=2 'B=two words' C="}, "A 1 → 2; C (new)"),
        ({"modes": "CPX NPS1"}, "GPUs in SPX NPS1 → CPX NPS1"),
        ({"members": MEMBERS[:1]}, "instances 2 → 1"),
        ({"members": (MEMBERS[0], MEMBERS[1]._replace(render_nodes=("renderD192",)))},
         "GPUs renderD128, renderD136 → renderD128, renderD192"),
        ({"members": tuple(item._replace(spec_hash="9" * 64) for item in MEMBERS)}, "the content of its files changes"),
        ({"vllm": "1", "commit": "", "modes": "", "env": "", "command": "vllm serve x --a --b --c"},
         "vLLM 0.11.1 → 1; commit cccccccccccc → unknown; --a (new); --b (new); --c (new); 6 more"),
    ],
)  # fmt: skip
def test_differences(change: dict[str, object], text: str) -> None:
    assert describe_changes(OLD, replace(OLD, generation=4, **change)) == text  # type: ignore[arg-type]


def test_a_record_comes_back_as_it_was() -> None:
    history = History(
        "llama",
        (replace(OLD, generation=2), OLD),
        Hold(2, "slower", "t"),
        OpenRollout(3, "w", "t", ("n1/llama-0",)),
    )
    text = json.dumps(
        {
            "deployment": "llama",
            "kept": [item.to_json() for item in reversed(history.kept)],
            "held": history.held and history.held.to_json(),
            "trial": history.trial and history.trial.to_json(),
        }
    )
    assert History.from_json(json.loads(text)) == history


@pytest.mark.parametrize(("number", "found"), [(1, None), (2, 2), (3, 2), (4, 2), (5, 5), (9, 5)])
def test_as_of(number: int, found: int | None) -> None:
    """A host records only what changes on it, so that between two of its records the older one counts."""
    history = History("llama", (replace(OLD, generation=2), replace(OLD, generation=5)))
    record = history.as_of(number)
    assert (record.generation if record else None) == found


def test_what_a_container_is_of() -> None:
    other = replace(OLD, generation=4, members=(MEMBERS[0]._replace(spec_hash="f" * 64), MEMBERS[1]))
    history = History("llama", (OLD, other))

    def number(name: str, spec: str | None) -> int | None:
        found = history.of_spec(name, spec)
        return found.generation if found else None

    assert [number("llama-0", "0" * 64), number("llama-0", "f" * 64)] == [3, 4]
    assert number("llama-1", "1" * 64) == 4  # the same in both: the newest counts
    assert [number("llama-0", "1" * 64), number("llama-7", "1" * 64), number("llama-7", None)] == [None] * 3


def test_a_stored_server_names_what_the_node_has() -> None:
    assert OLD.server(MEMBERS[1]) == {
        "name": "llama-1",
        "deployment": "llama",
        "generation": 3,
        "spec_hash": "1" * 64,
        "image": OLD.image,
        "port": 8001,
        "served_model": "tiny",
        "headless": False,
        "stop_timeout": 120,
    }
