# SPDX-License-Identifier: Apache-2.0
"""Which pickles a server would load, and which a download leaves out."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.weights_formats import (
    PICKLES,
    loaded_pickles,
    same_patterns,
    without_pickles,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ModelPin

SAFE = "model.safetensors"


@pytest.mark.parametrize(
    ("files", "loaded", "left_out"),
    [
        ([SAFE, "config.json"], [], False),
        ([SAFE, "pytorch_model.bin"], [], True),
        ([SAFE, "training_args.bin", "original/consolidated.00.pth"], [], True),
        (["config.json", "pytorch_model.bin"], ["pytorch_model.bin"], False),
        (["model.PT", "a.ckpt", "b.pkl", "c.pickle"], ["model.PT", "a.ckpt", "b.pkl", "c.pickle"], False),
        (["config.json", "training_args.bin"], [], True),
        (["sub/model.safetensors", "pytorch_model.bin"], ["pytorch_model.bin"], False),
        (["model.Q4.gguf", "imatrix.bin"], [], True),
        (["original/a.pth"], [], False),  # asked for by name: nothing else would be left
        ([], [], False),
    ],
)
def test_pickles(files: list[str], loaded: list[str], left_out: bool) -> None:
    assert loaded_pickles(files) == loaded
    pin = ModelPin("c" * 40, tuple((name, 1) for name in files))
    found = without_pickles(pin, ("x/*", "*.pt"), ())
    if "model.PT" not in files:  # patterns of the hub's client mind the case
        assert found == (
            ("x/*", "*.pt", *(item for item in PICKLES if item != "*.pt")) if left_out else ("x/*", "*.pt")
        )


def test_files_that_are_not_known() -> None:
    assert without_pickles(ModelPin("c" * 40), ("x",), ()) == ("x",)


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        (PICKLES, (), True),
        ((), (), True),
        (("a", *PICKLES), ("a",), True),
        (("a",), (), False),
        (PICKLES, ("a",), False),
    ],
)
def test_patterns_beside_pickles(found: tuple[str, ...], wanted: tuple[str, ...], same: bool) -> None:
    assert same_patterns(found, wanted) is same
