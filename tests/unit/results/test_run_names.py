# SPDX-License-Identifier: Apache-2.0
"""Names of runs, and what of nodes is named after them."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench.entries import Measurement
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.run_names import (
    ResultsError,
    check_run,
    node_directory,
)

NO_NAMES = [
    "latest",
    "",
    ".",
    "..",
    ".x",
    "a/b",
    "../x",
    "/etc",
    "x" * 65,
    "a b",
    "r1\n",
    "r1\n/..",
    "*",
    "~",
]


@pytest.mark.parametrize("run", NO_NAMES)
def test_what_is_no_name_is_no_directory_of_a_node(run: str) -> None:
    with pytest.raises(ResultsError, match="cannot name a run"):
        check_run(run)
    with pytest.raises(ResultsError, match="cannot name a run"):
        node_directory(run)


@pytest.mark.parametrize("run", ["r1", "20260131T101500Z", "release-0.11_b", "x" * 64])
def test_the_directory_is_the_one_that_the_module_makes(run: str) -> None:
    assert check_run(run) == run
    assert node_directory(run) == Measurement("serve", run, 1, "").directory
