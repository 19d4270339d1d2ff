# SPDX-License-Identifier: Apache-2.0
"""The catalogue of this tree, loaded once for the tests."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.engines.versions import Timeline
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes import shape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.shape import ModelShape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.kv_cache import CacheRules
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import FlagTable
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.settings import (
    RenderedSetting,
    SettingsBook,
    flag_argv,
    render_setting,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.decisions import Decisions

from tests import ROOT

CATALOG = ROOT / "catalog"
DATA = ROOT / "tests" / "data" / "vllm"


@functools.cache
def knowledge() -> Knowledge:
    """One loaded catalogue for all tests: nothing changes it."""
    return Knowledge(CATALOG)


@functools.cache
def matrix() -> dict[str, Any]:
    """Verdicts of the releases' own `vllm serve` parsers."""
    found: dict[str, Any] = json.loads((DATA / "parse_matrix.json").read_text())["cases"]
    return found


def kv_rules(version: str) -> CacheRules:
    """How a release lays out the KV cache."""
    return CacheRules.of(knowledge().rules("kv_cache", knowledge().release(version)))


def model_shape(
    config: Mapping[str, Any],
    files: Sequence[tuple[str, int]] | None = None,
    index_total: int | None = None,
) -> ModelShape:
    """The shape of a model, with the catalogue's families."""
    return shape.model_shape(config, knowledge().families, files, index_total)


def covered(line: Timeline, since: str | None, until: str | None) -> tuple[str, ...]:
    """The releases in [since, until)."""
    return tuple(name for index, name in enumerate(line.releases) if line.inside(since, until, index))


def render_settings(book: SettingsBook, settings: Iterable[tuple[str, Any]]) -> RenderedSetting:
    """Flags and variables of several settings, put together as the planner does. AssertionError when two clash."""
    decisions, findings = Decisions(), []
    for name, value in settings:
        found = render_setting(book, name, value)
        clash = decisions.conflict(found.args, found.env)
        assert clash is None, clash
        decisions.add(found.args, found.env, name, "")
        findings += found.findings
    return RenderedSetting(decisions.args, decisions.env, tuple(findings))


def to_argv(table: FlagTable, args: Mapping[str, Any]) -> list[str]:
    """A map of flags as tokens of a command line."""
    return [word for name, value in args.items() for word in flag_argv(table, name, value)]
