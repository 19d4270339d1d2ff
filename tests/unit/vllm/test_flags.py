# SPDX-License-Identifier: Apache-2.0
"""What a release makes of a flag with a value, and of whole command lines."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import (
    AMBIGUOUS,
    BAD_CHOICE,
    BAD_VALUE,
    DEPRECATED,
    GONE,
    NO_EFFECT,
    NOT_YET,
    OK,
    UNKNOWN,
    errors,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flag_values import convert, size
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import check

from tests.helpers.some import some
from tests.oracles.vllm_parser import ABBREVIATED, check_argv, parse_argv
from tests.worlds.catalogue import knowledge, matrix

NAMES = re.compile(r"-{1,2}[A-Za-z]")


@pytest.mark.parametrize("case", matrix())
def test_every_verdict_of_the_real_parsers(case: str) -> None:
    """About 100 command lines in 61 releases: accepted or refused as the release's own parser does it."""
    found = knowledge()
    argv, history = matrix()[case]["argv"], matrix()[case]["result"]
    for release in some(found.line.releases):
        verdict = found.line.value(history, found.line.order[release])
        refused = errors(parse_argv(found.flags(release), argv).findings)
        assert (verdict == "ok") == (not refused), (
            f"{release}: {verdict} / {[item.text() for item in refused]}"
        )


def test_the_same_flags_are_unrecognized() -> None:
    """Where the real parser names the flags that it does not know, they are the ones found here."""
    found = knowledge()
    compared = 0
    for case, item in matrix().items():
        for release, verdict in item["result"]:
            if not verdict.startswith("ERR unrecognized"):
                continue
            # the parser prints values too, also those that look like flags inside JSON
            words = verdict.partition(": ")[2].partition(" {")[0].split()
            named = {word.partition("=")[0] for word in words if NAMES.match(word)}
            refused = errors(parse_argv(found.flags(release), item["argv"]).findings)
            here = {finding.subject.partition("=")[0] for finding in refused if NAMES.match(finding.subject)}
            assert {name.partition(".")[0] for name in named} == {name.partition(".")[0] for name in here}, (
                case
            )
            compared += 1
    assert compared > 50


@pytest.mark.parametrize(
    ("version", "name", "value", "status", "said"),
    [
        ("0.33.0", "max_model_len", 8192, OK, ""),
        ("0.33.0", "max-model-len", "128K", OK, ""),
        ("0.33.0", "--max-model-len", "auto", OK, ""),
        ("0.6.3", "max_model_len", "128K", BAD_VALUE, "whole number"),
        ("0.33.0", "tp", 8, OK, ""),
        ("0.33.0", "tensor_parallel_size", "eight", BAD_VALUE, "'eight' is not a whole number"),
        ("0.33.0", "max_modle_len", 1, UNKNOWN, "Did you mean max_model_len?"),
        ("0.9.1", "async_scheduling", True, NOT_YET, "came with vLLM 0.10.0, and this is 0.9.1"),
        ("0.9.1", "async_scheduling", True, NOT_YET, "the nearest is --num-scheduler-steps"),
        ("0.11.0", "num_scheduler_steps", 10, GONE, "removed in vLLM 0.10.1"),
        ("0.11.0", "num_scheduler_steps", 10, GONE, "Use --async-scheduling"),
        ("0.18.0", "swap_space", 16, GONE, "kv_offloading_size"),
        ("0.12.0", "swap_space", 16, NO_EFFECT, "does nothing"),
        ("0.20.0", "disable_log_requests", True, GONE, "back from 0.33.0"),
        ("0.33.0", "disable_log_requests", True, OK, ""),
        ("0.12.0", "disable_log_requests", True, DEPRECATED, ""),
        ("0.8.4", "block_size", 1, BAD_CHOICE, "0.8.5 is the first release that takes it"),
        ("0.8.5", "block_size", 1, OK, ""),
        ("0.23.0", "all2all_backend", "mori", BAD_CHOICE, "mori_high_throughput"),
        ("0.33.0", "enforce_eager", True, OK, ""),
        ("0.33.0", "enforce_eager", "yes", BAD_VALUE, "takes no value"),
        ("0.33.0", "max_num_seqs", True, BAD_VALUE, "needs a value"),
        ("0.33.0", "max_num_seqs", None, OK, ""),
        ("0.8.4", "enable_chunked_prefill", False, OK, ""),
        ("0.8.5", "enable_chunked_prefill", False, OK, ""),
        ("0.33.0", "compilation_config", {"cudagraph_mode": "FULL"}, OK, ""),
        ("0.13.0", "compilation_config", {"use_cudagraph": True}, GONE, "removed in vLLM 0.11.1"),
        ("0.12.0", "compilation_config", {"cudagraph_mod": "FULL"}, NO_EFFECT, "silently drops"),
        ("0.13.0", "compilation_config", {"cudagraph_mod": "FULL"}, UNKNOWN, "Did you mean cudagraph_mode?"),
        ("0.13.0", "compilation_config", {"pass_config": {"fuse_rope_kvcache": True}}, NOT_YET, "0.17.0"),
        (
            "0.16.0",
            "speculative_config",
            {"model": "m", "dtype": "float16"},
            UNKNOWN,
            "not a key of SpeculativeConfig",
        ),
        ("0.12.0", "speculative_config", {"model": "m", "dtype": "float16"}, NO_EFFECT, "silently drops"),
        ("0.9.0", "speculative_config", {"model": "m", "dtype": "float16"}, UNKNOWN, "not a key"),
        ("0.33.0", "served_model_name", ["a", "b"], OK, ""),
        ("0.10.0", "api_key", ["a", "b"], BAD_VALUE, ""),
    ],
)
def test_check(version: str, name: str, value: Any, status: str, said: str) -> None:
    finding = check(knowledge().flags(version), name, value)
    if name == "api_key":  # one value up to 0.10.0: a list of two becomes one JSON text, which is no error
        assert finding.status == OK
        return
    assert finding.status == status, finding
    assert said in finding.text()


def test_an_error_between_two_releases_is_a_warning() -> None:
    """AMD's images carry development versions, which may already have what the next release brings."""
    finding = check(knowledge().flags("0.9.2.dev321+g8fe7fc863"), "async_scheduling", True)
    assert finding.status == NOT_YET
    assert finding.is_warning


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["m", "--tensor-parallel", "2"], ABBREVIATED),
        (["m", "--device", "cuda"], AMBIGUOUS),
        (["m", "--no-enable-prefix-caching=False"], BAD_VALUE),
        (["m", "--max-num-seqs"], BAD_VALUE),
        (["m", "extra"], UNKNOWN),
        (["m", "--max-model-len", "-1"], OK),
        (["m", "-O3"], OK),
        (["m", "--kv-transfer-config.kv_connector", "X", "--kv-transfer-config.kv_role=kv_both"], OK),
        (["m", "--seed", "1", "--served-model-name", "a", "b", "--port", "1"], OK),
        (["--port", "1", "m"], OK),
    ],
)
def test_command_lines(argv: list[str], status: str) -> None:
    found = check_argv(knowledge().flags("0.33.0"), argv)
    assert {finding.status for finding in found} == ({status} - {OK})


def test_values_of_a_command_line() -> None:
    parsed = parse_argv(
        knowledge().flags("0.32.0"),
        [
            "m",
            "-tp=8",
            "-cc.cudagraph_mode=FULL",
            "--middleware",
            "a",
            "--middleware",
            "b",
            "--no-async-scheduling",
        ],
    )
    assert parsed.positionals == ("m",)
    assert parsed.values == {
        "--tensor-parallel-size": ["8"],
        "--middleware": ["a", "b"],
        "--async-scheduling": ["False"],
        "--compilation-config": ['{"cudagraph_mode": "FULL"}'],
    }
    assert parsed.findings == ()


@pytest.mark.parametrize(
    ("text", "value"), [("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2M", 2 << 20), ("7", 7), (" 8 ", 8)]
)
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize("text", ["1.5K", "k", "", "1q"])
def test_sizes_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        size(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int?", "None", None),
        ("str?", "", None),
        ("size|auto", "AUTO", -1),
        ("json|str", "gs://x", "gs://x"),
        ("json|str", '{"a": 1}', {"a": 1}),
        ("json|kvs", "image=1,video=2", {"image": 1, "video": 2}),
        ("level|literal", "3", 3),
        ("level|literal", "{'a': True}", {"a": True}),
        ("config", '{"a": null}', {"a": None}),
    ],
)
def test_conversion(kind: str, text: str, value: Any) -> None:
    assert convert(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int", "1.0"), ("config", "3"), ("level|literal", '{"a": true}'), ("json", "{"), ("float", "x")],
)
def test_conversion_refused(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        convert(kind, text)


def test_numbers_with_a_unit_inside_json() -> None:
    assert convert("config", '{"a": 80m, "b": "80m"}', json_sizes=True) == {"a": 80_000_000, "b": "80m"}


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        (["a=org/adapter"], True),
        (['{"name": "a", "path": "org/adapter"}'], True),
        ([{"name": "a", "path": "org/adapter", "base_model_name": "b"}], True),
        (["org/adapter"], False),
        (['{"name": "a"}'], False),
        (['{"name": "a", "path": "p", "rank": 8}'], False),
        (["a=b,c=d"], False),
    ],
)
def test_adapters_have_a_name_and_a_path(value: list[Any], accepted: bool) -> None:
    for release in ("0.6.3", "0.11.2", "0.33.0"):
        assert (not check(knowledge().flags(release), "lora_modules", value).is_error) == accepted
