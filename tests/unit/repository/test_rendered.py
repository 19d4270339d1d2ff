# SPDX-License-Identifier: Apache-2.0
"""No plan renders what its vLLM release would refuse. tests/oracles/real_parsers.py asks the releases themselves."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import FlagTable

from tests.oracles.vllm_parser import check_argv
from tests.rendered import documented, example, recommended, settled
from tests.worlds.catalogue import knowledge
from tests.worlds.recipe_models import ERAS, MODELS, OTHERS

FORKS = [item.version for item in knowledge().forks.forks]


@pytest.mark.parametrize(
    "version",
    [
        *(ERAS[0], ERAS[-1]),
        *(pytest.param(version, marks=pytest.mark.deep) for version in (*ERAS[1:-1], *OTHERS, *FORKS)),
    ],
)
def test_no_rendered_command_is_refused(version: str) -> None:
    table = knowledge().flags(version)
    parts = [part(version) for part in (recommended, settled, documented, example)]
    assert len(parts[0]) > 4 * len(MODELS)
    assert len(parts[1]) > 20
    assert len(parts[2]) > 10
    assert len(parts[3]) == 5
    refused = {
        line: [finding.text() for finding in found]
        for line in set().union(*parts)
        if (found := errors(check_argv(table, line)))
    }
    assert not refused, f"{len(refused)}: {next(iter(refused.items()))}"
    # Of two equal flags a parser takes the last one, without a word.
    twice = {
        line
        for line in set().union(*parts)
        if any(line.count(word) > 1 for word in line if word.startswith("--") and not repeats(table, word))
    }
    assert not twice, next(iter(twice))


def repeats(table: FlagTable, word: str) -> bool:
    """A flag that is given once per value."""
    hit = table.get(word)
    return hit is not None and hit[0].kind == "append"
