# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained page, everything escaped, failures and GPUs to look at first."""

from __future__ import annotations

import random
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.hosts import (
    command_lines,
    describe_host,
    host_names,
    hosts_view,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.report import (
    render_report,
    report_view,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.tables import (
    rate,
    signed_percent,
    table,
)

from tests.worlds.bench_samples import (
    entry,
    large_fleet,
    mixed_fleet,
    node_state,
    serve_result,
    small_fleet,
    suite_fleet,
    summary_of,
    variables,
)

VOID = {"meta", "br", "link", "img", "input", "hr"}
EVIL = "</title><script>alert('x')</script>\"'&<img src=//evil.example>"


class Page(HTMLParser):
    """Elements, ids, references and text of a page; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            self.attributes.append((key, value or ""))
            if key == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[str, Page]]:
    fleets = {
        "small": small_fleet(),
        "failures": small_fleet(failures=True),
        "large": large_fleet(40, 2),
        "wide": large_fleet(30, 1),
        "mixed": mixed_fleet(),
        "suite": suite_fleet(),
        "one": {"n1": variables("n1", [entry("n1")])},
        "nothing": {"n1": {}},
    }
    texts = {name: render_report(summary_of(fleet)) for name, fleet in fleets.items()}
    return {name: (text, Page(text)) for name, text in texts.items()}


NAMES = ("small", "failures", "large", "wide", "mixed", "suite", "one", "nothing")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_from_anywhere(pages: dict[str, tuple[str, Page]], name: str) -> None:
    text, page = pages[name]
    loading = [
        value for key, value in page.attributes if key in ("src", "href", "xlink:href", "data", "action")
    ]
    # Links to the run's own files load nothing.
    beside = ["benchmarks.csv", "summary.json", "runs.jsonl", "raw/"]
    assert [value for value in loading if not value.startswith("#")] == beside
    assert set(re.findall(r"url\(([^)]+)\)", text)) <= {f"#{identifier}" for identifier in page.ids}
    assert "@import" not in text
    # A namespace, and the address in the benchmark's command line: text, not something to load.
    for address in re.findall(r"https?://[^\s\"'<\\]+", text):
        assert re.fullmatch(r"http://(www\.w3\.org/2000/svg|127\.0\.0\.1:800[0-2])", address)
    assert not page.tags.keys() & {"link", "img", "iframe", "object", "image"}
    assert "default-src 'none'" in text


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_unique_and_every_reference_has_its_target(
    pages: dict[str, tuple[str, Page]], name: str
) -> None:
    _, page = pages[name]
    assert [identifier for identifier, count in Counter(page.ids).items() if count > 1] == []
    references = {value[1:] for key, value in page.attributes if key == "href" and value.startswith("#")}
    assert references <= set(page.ids)
    assert (page.tags["svg"] == 0) is (name == "nothing")


@pytest.mark.parametrize("name", NAMES)
def test_plots_take_colours_and_font_from_the_page(pages: dict[str, tuple[str, Page]], name: str) -> None:
    text, _ = pages[name]
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert re.findall(r"#[01][0-9a-f]0203", drawn) == []
    assert re.findall(r"(?:fill|stroke): #", drawn) == []
    assert "font-family" not in drawn
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", text))
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", text))


def test_a_report_is_the_same_every_time() -> None:
    summary = summary_of(small_fleet())
    assert render_report(summary) == render_report(summary)


def test_small_report_has_headline_figures_and_reproduction(pages: dict[str, tuple[str, Page]]) -> None:
    _, page = pages["small"]
    for words in (
        "Output tok/s 7,731 sum of 2 instances",
        "Failed requests 0 of 1,280",
        "Nodes measured 2 of 2",
        "640 requests, 1,024 tokens in and 1,024 out on average, at most 128 at once",
        "rocm/vllm:rocm7.0.0_vllm_0.10.1_20250915",
        "sha256:4f2a9c",
        "1605565b47bb9346c5515c34102e054115b4f98b",
        "--gpu-memory-utilization 0.92",
        "VLLM_ROCM_USE_AITER=1",
        "vllm bench serve",
        "--metric-percentiles 50,90,95,99",
        "SPX/NPS1",
        "NUMA balancing off",
        "ROCm 7.0.0",
        "amdgpu driver 6.14.14",
        "5.15.0-143-generic",
        "AMD EPYC 9654",
        "8 × MI300X (gfx942, 192 GiB)",  # noqa: RUF001
        "RCCL on MI300X uses all channels between 8 GPUs",
    ):
        assert words in page.text
    assert "Failures" not in page.text
    assert "GPUs to look at" not in page.text
    assert page.tags["svg"] == 4  # throughput, latency, and the GPUs for a page and for a phone


def test_what_needs_attention_comes_before_the_numbers_and_is_explained_below(
    pages: dict[str, tuple[str, Page]],
) -> None:
    text = pages["failures"][1].text
    places = [
        text.index(words)
        for words in (
            "Attention 3 failures, 8 suspect GPUs",
            "Output tok/s",
            "ConnectionRefusedError",
            "No route to host",
            "Output throughput",
        )
    ]
    assert places == sorted(places)
    assert "Nodes measured 3 of 5" in text
    assert "What differs" in text
    assert "5.15.0-91-generic" in text


def test_the_first_screen_does_not_contradict_itself(pages: dict[str, tuple[str, Page]]) -> None:
    two = {host: variables(host, [entry(host)]) for host in ("n1", "n2")}
    two["n2"]["__benchmark_serve"]["benchmarks"][0]["runs"][0]["result"] = serve_result(
        random.Random(1), speed=0.8
    )
    text = Page(render_report(summary_of(two))).text
    # The card and the note have the same number, and nothing is called slow.
    assert "n2: 19% slower than n1: this is not judged without at least 3 runs of both" in text
    assert "Slower node −19% n2, against n1" in text  # noqa: RUF001
    assert " slow GPU" not in text
    assert "suspect" not in text
    # The slowest node of a healthy fleet is no finding.
    for name in ("small", "mixed"):
        assert not any(words in pages[name][1].text for words in ("slow GPU", "suspect GPU", "bad GPU"))


def test_findings_say_what_the_tables_mark(pages: dict[str, tuple[str, Page]]) -> None:
    text = pages["large"][1].text
    assert "2 suspect GPUs" in text
    assert "gpu017 GPU 1 (0000:15:00.0) suspect output tok/s" in text
    assert "in one run only" in text
    assert "playbooks/burnin.yml --limit gpu017,load_balancer" in text


def test_many_instances_are_distributions_and_folded_tables(pages: dict[str, tuple[str, Page]]) -> None:
    text, page = pages["large"]
    assert page.tags["details"] >= 3
    assert "Output throughput of every instance against the median" in page.text
    assert "Latency percentiles, one dot per instance" in page.text
    assert "gpu017, llama8b-0: 3,2" in page.text  # the title of a cell
    assert page.tags["svg"] == 5
    assert len(text) < 500_000
    assert pages["wide"][1].tags["svg"] == 4
    assert "Nodes, the slowest first" not in pages["wide"][1].text


def test_offline_benchmarks_have_their_own_tables(pages: dict[str, tuple[str, Page]]) -> None:
    text = pages["mixed"][1].text
    assert "Offline throughput All prompts are given to the engine at once" in text
    assert "10,880" in text
    assert "Offline latency One batch from start to end" in text
    assert "17,300" in text
    assert "Measured with (throughput)" in text


def test_cells_have_titles_and_tables_of_their_own(pages: dict[str, tuple[str, Page]]) -> None:
    _, page = pages["suite"]
    titles = [
        "in1024-out1024-c16: 1,024 tokens in, 1,024 out, at most 16 requests at once",
        "in1024-out1024-c64: 1,024 tokens in, 1,024 out, at most 64 requests at once",
        "in1024-out1024-c256: 1,024 tokens in, 1,024 out, at most 256 requests at once",
        "in1024-out1024-r4: 1,024 tokens in, 1,024 out, 4 requests/s offered",
    ]
    places = [page.text.index(title) for title in titles]
    assert places == sorted(places)
    assert page.tags["h3"] == 1  # the deployment's commands
    assert page.tags["svg"] == 2 * len(titles) + 4  # and the curve and the GPUs, for a page and for a phone
    assert "Output tok/s 7,790 sum of 2 instances, in1024-out1024-c256" in page.text
    assert "Measured with (serve, in1024-out1024-c16)" in page.text
    assert "95% ± CV Runs" in page.text


def test_the_release_that_was_measured_is_named(pages: dict[str, tuple[str, Page]]) -> None:
    text = pages["small"][1].text
    assert "meta-llama/Llama-3.1-70B-Instruct with vLLM 0.10.1" in text
    assert "vLLM 0.10.1 Model" in text


def test_nothing_measured_is_still_a_page(pages: dict[str, tuple[str, Page]]) -> None:
    text = pages["nothing"][1].text
    assert "1 failure" in text
    assert "Nodes measured 0 of 1" in text


def test_everything_given_by_users_is_escaped() -> None:
    evil = entry(
        EVIL, deployment=EVIL, model=EVIL, image=EVIL, digest=EVIL, commit=EVIL, command=f"x '{EVIL}"
    )
    evil["instance"] = EVIL
    evil["runs"][0]["result"] |= {"label": EVIL}
    evil["instance_plan"] |= {
        "argv": ["vllm", EVIL],
        "env": {EVIL: EVIL},
        "revision": EVIL,
        "reasons": [{"setting": EVIL, "value": EVIL, "reason": EVIL, "source": EVIL}],
        "served_model": EVIL,
    }
    state = node_state(EVIL, kernel=EVIL, cmdline=[EVIL], os={"pretty_name": EVIL})
    fleet = {
        EVIL: variables(EVIL, [evil], state),
        "b$x^2$": variables("b", [{**entry("b", deployment=EVIL), "instance": "$\\frac$"}]),
        "c": {"node_state_result": {"failed": True, "msg": EVIL}},
    }
    text = render_report(summary_of(fleet, run=EVIL))
    page = Page(text)
    assert page.tags["script"] == 1
    assert page.tags["img"] == 0
    assert "alert('x')" in page.text
    assert "b$x^2$" in page.text
    assert "<script>alert" not in text


def test_unknown_numbers_are_dashes_never_zero() -> None:
    fleet = {"n1": variables("n1", [entry("n1", result={"completed": 3, "num_prompts": 3})])}
    page = Page(render_report(summary_of(fleet)))
    assert "Output tok/s – sum of 1 instance" in page.text  # noqa: RUF001
    assert "TTFT p50, ms" not in page.text.split("llama")[0]


def test_instances_measured_in_turn_are_said_so() -> None:
    entries = [entry("n1", index=i, started=f"2026-01-31T1{i}:00:00Z") for i in (0, 1)]
    view = report_view(summary_of({"n1": variables("n1", entries)}))
    assert len(view["notes"]) == 1
    assert view["notes"][0].startswith("Not measured at the same time: in1024-out1024-c128. The instances")
    assert view["cards"][0]["note"].endswith(", not measured at the same time")


def test_differing_command_lines_are_shown() -> None:
    entries = [entry("n1"), entry("n1", index=1)]
    other = entry("n2")
    other["instance_plan"]["argv"] += ["--enforce-eager"]
    fleet = {"n1": variables("n1", entries), "n2": variables("n2", [other])}
    reproduce = report_view(summary_of(fleet))["reproduce"][0]
    assert [variant["who"] for variant in reproduce["variants"]] == ["llama-0 on n2"]
    assert "--enforce-eager" in reproduce["variants"][0]["serve"]


def test_log_scale_for_very_different_latencies() -> None:
    entries = [entry("n1", index=index) for index in range(30)]
    entries[7] = entry("n1", index=7, result=serve_result(random.Random(1), speed=0.01))
    text = render_report(summary_of({"n1": variables("n1", entries)}))
    assert "TTFT, ms (log scale)" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0, "0.00"),
        (7.553, "7.55"),
        (134.25, "134.2"),
        (1234.5, "1,234"),
        (1954580.2, "1,954,580"),
    ],
)
def test_rate(value: float | None, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("speed", "text"),
    [(None, "–"), (1.0, "±0%"), (0.996, "±0%"), (0.84, "−16%"), (1.034, "+3%")],  # noqa: RUF001
)
def test_signed(speed: float | None, text: str) -> None:
    assert signed_percent(speed) == text


def test_numbers_of_a_column_and_of_a_group_have_the_same_decimals() -> None:
    rows = [
        {"slow": False, "cells": ["a", 5.0, 12.5, 7, -3.21]},
        {"slow": True, "cells": ["b", None, 1234.5, None, 0.01]},
    ]
    columns = ["x", ("p50", "ms", "TTFT"), ("p99", "ms", "TTFT"), "n", ("d", "percent")]
    built: dict[str, Any] = table("t", columns, rows)
    assert [[cell["text"] for cell in row["cells"]] for row in built["rows"]] == [
        ["a", "5", "12", "7", "−3.2%"],  # noqa: RUF001
        ["b", "–", "1,234", "–", "±0.0%"],  # noqa: RUF001
    ]
    assert built["groups"] == [
        {"label": "", "span": 1},
        {"label": "TTFT", "span": 2},
        {"label": "", "span": 2},
    ]
    assert [head["numeric"] for head in built["heads"]] == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("vllm serve m --port 1 --flag", "vllm serve m \\\n    --port 1 \\\n    --flag"),
        ("vllm serve --o '{\"a\": 1}' b", "vllm serve \\\n    --o '{\"a\": 1}' b"),
        ("not 'a shell line", "not 'a shell line"),
    ],
)
def test_command_lines(command: str, lines: str) -> None:
    assert command_lines(command) == lines


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n2"], "n1, n2"),
        (["n1", "n2", "n3", "n5", "x"], "n1–n3, n5, x"),  # noqa: RUF001
        (["8000", "8001", "8002"], "8000–8002"),  # noqa: RUF001
        (["gpu009", "gpu010", "gpu011"], "gpu009–gpu011"),  # noqa: RUF001
    ],
)
def test_host_names(names: list[str], text: str) -> None:
    assert host_names(names) == text


def test_hosts_view_separates_what_differs() -> None:
    summary = summary_of(small_fleet(failures=True))
    view = hosts_view(summary["hosts"])
    assert view["different"] == ["Kernel"]
    assert [(group["names"], group["cells"][0]["odd"]) for group in view["groups"]] == [
        ("mi300x-01, mi300x-02, mi300x-04", False),
        ("mi300x-03", True),
    ]
    assert ("Kernel command line", "ro pci=realloc=off iommu=pt") in view["common"]


def test_describe_host_of_a_node_without_gpus() -> None:
    facts = describe_host({"gpus": [], "numa_balancing": None, "cpu": None})
    assert set(facts.values()) == {""}
    assert describe_host({"numa_balancing": 1})["NUMA balancing"] == "on"


def test_deployments_with_like_names_keep_their_plots_apart() -> None:
    entries = [entry("n1", deployment=name) for name in ("a-b", "a.b", "A b")]
    page = Page(render_report(summary_of({"n1": variables("n1", entries)})))
    assert page.tags["svg"] == 6
    assert len(page.ids) == len(set(page.ids)) > 0
