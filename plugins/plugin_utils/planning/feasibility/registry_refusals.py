# SPDX-License-Identifier: Apache-2.0
"""Refuse names that a release does not register: connectors, parsers, packages and methods that images lack. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....module_utils.common.errors import suggest
from ...knowledge.catalog.images import ImageFacts
from ...knowledge.catalog.load import Knowledge
from ..tuning.tune import TunedSettings
from .option_refusals import as_map, speculation

Found = Iterator[tuple[tuple[str, ...], str, str]]
"""The arguments that take part, what is wrong, and what to do."""

PARSERS = (
    ("reasoning_parser", "--reasoning-parser", "--reasoning-parser-plugin"),
    ("tool_parser", "--tool-call-parser", "--tool-parser-plugin"),
)
PUBLISHED = ("tag", "family", "repository")
"""How images of AMD and of vLLM are recognized; what others contain is not known."""
SUFFIX_SINCE, CONNECTOR_SINCE = "0.11.1", "0.23.0"
GRAPHS_FIRST = "0.17.0"
"""Since then the given connector is looked for before, while CUDA graphs are chosen; vllm/config/vllm.py."""
ANY_QUANTIZATION = "0.19.0"
"""Before, a draft's quantization is one of a list even where no model drafts; vllm/config/speculative.py."""
EMPTY_PARSER = ("0.20.0", "0.28.0")
"""Releases that look for the parser named "" where reasoning_config names neither a parser nor both of its texts."""


def registry_refusals(
    software: ImageFacts, tuned: TunedSettings, knowledge: Knowledge, max_model_len: int | None
) -> Found:
    """Yield what the release does not know. max_model_len None: the model's longest sequence is not known."""
    yield from _connector(tuned, knowledge)
    yield from _parsers(tuned, knowledge)
    yield from _reasoning(tuned, knowledge)
    yield from _draft(software, tuned, knowledge, max_model_len)


def _connector(tuned: TunedSettings, knowledge: Knowledge) -> Found:
    given, version = as_map(tuned.args.get("--kv-transfer-config")), tuned.release.requested
    if given is None:
        return
    offloads = _offloads(tuned)
    if offloads and not tuned.inside(GRAPHS_FIRST):
        return
    name, known = given.get("kv_connector"), knowledge.registered("kv_connector", tuned.release)
    if isinstance(name, str) and known and name not in known and not given.get("kv_connector_module_path"):
        what = f"kv_transfer_config: vLLM {version} has no KV connector {name}, and stops at its start."
        yield ("kv_transfer_config",), what, suggest(name, known)
    hybrid = tuned.args.get("--disable-hybrid-kv-cache-manager")
    if name is None and not offloads and hybrid is None and tuned.inside(CONNECTOR_SINCE):
        what = f"kv_transfer_config names no kv_connector; vLLM {version} stops at its start."
        yield ("kv_transfer_config",), what, "Add kv_connector, or leave kv_transfer_config out."


def _offloads(tuned: TunedSettings) -> bool:
    """Return whether vLLM offloads the cache, by a connector of its own that takes the place of the given one."""
    backend = tuned.table.flags.get("--kv-offloading-backend")
    chosen = tuned.args.get("--kv-offloading-backend", backend.default if backend else None)
    return tuned.args.get("--kv-offloading-size") is not None and chosen is not None


def _parsers(tuned: TunedSettings, knowledge: Knowledge) -> Found:
    """Flags of which the parser takes any text."""
    version, outputs = tuned.release.requested, as_map(tuned.args.get("--structured-outputs-config")) or {}
    for kind, flag, plugin in PARSERS:
        known, entry = knowledge.registered(kind, tuned.release), tuned.table.flags.get(flag)
        key = flag[2:].replace("-", "_")
        given = tuned.args.get(flag) or outputs.get(key)
        more = tuned.args.get(plugin) or outputs.get(f"{key}_plugin")
        if not isinstance(given, str) or not given or given in known or more or not known or entry is None:
            continue
        if entry.choices or (
            kind == "tool_parser" and tuned.args.get("--enable-auto-tool-choice") is not True
        ):
            continue
        what = f"{key}: vLLM {version} has no parser {given}, and stops at its start."
        yield (key, "structured_outputs_config"), what, suggest(given, known)


def _reasoning(tuned: TunedSettings, knowledge: Knowledge) -> Found:
    given = as_map(tuned.args.get("--reasoning-config"))
    if given is None or not tuned.inside(*EMPTY_PARSER):
        return
    texts = [bool(value) for key, value in given.items() if key.endswith("_str")]
    parser = tuned.args.get("--reasoning-parser") or given.get("reasoning_parser")
    if sum(texts) < 2 and not parser:
        version = tuned.release.requested
        what = f"reasoning_config names neither a parser nor both texts; vLLM {version} stops at its start."
        yield ("reasoning_config",), what, "Set reasoning_parser as well, or leave reasoning_config out."


def _draft(
    software: ImageFacts, tuned: TunedSettings, knowledge: Knowledge, max_model_len: int | None
) -> Found:
    given, version = speculation(tuned), tuned.release.requested
    key = ("speculative_config", "speculative")
    if given.get("method") == "suffix" and software.basis in PUBLISHED and tuned.inside(SUFFIX_SINCE):
        what = "speculative_config: method suffix needs the package arctic-inference, which this image lacks."
        yield key, what, "Use method ngram, or an image of your own with that package."
    method, known = given.get("quantization"), knowledge.quantization(tuned.release)
    read = given.get("model") or not tuned.inside(ANY_QUANTIZATION)
    if isinstance(method, str) and known and method.lower() not in known.methods and read:
        what = f"speculative_config: vLLM {version} has no quantization method {method}."
        yield key, what, suggest(method, known.methods)
    longest = _number(given, "max_model_len")
    if longest and max_model_len and longest > max_model_len and given.get("model"):
        what = f"speculative_config: max_model_len is {longest}, and that of the model {max_model_len}; vLLM stops."
        yield key, what, f"Set it to {max_model_len} at most, or leave it out."


def _number(given: Mapping[str, Any], key: str) -> int | None:
    value = given.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
