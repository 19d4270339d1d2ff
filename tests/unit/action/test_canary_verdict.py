# SPDX-License-Identifier: Apache-2.0
"""From what the modules returned to a verdict, a report, and a task that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.modules import canary_verdict as documented
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.nll import NllLimits
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.accuracy import (
    AccuracyEvidence,
    read_accuracy,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.evidence import (
    Baseline,
    baseline,
    client,
    judge_canary,
)

from tests.helpers.module_docs import documented_by
from tests.worlds.accuracy_answers import ITEMS, entry
from tests.worlds.canary_runs import runs
from tests.worlds.catalogue import knowledge
from tests.worlds.defaults import rules
from tests.worlds.smoke_answers import BANGS, DEAD, GOOD

RULES = rules()
KEY = "sk-Zq81-canary-secret"
Run = Callable[..., dict[str, Any]]


def identity(**more: Any) -> dict[str, Any]:
    return {
        "name": "llama-0", "deployment": "llama", "model": "lab/llama", "commit": "c0ffee", "image": "vllm@sha256:old",
        "vllm": "0.10.0", "gpus": 1, **more,
    }  # fmt: skip


def smoke(replies: list[Any] = GOOD, times: int = 1, **more: Any) -> dict[str, Any]:
    """Result of vllm_smoke."""
    rounds = [[{"prompt": "p", **vars(reply)} for reply in replies] for _ in range(times)]
    return {
        "instance": identity(),
        "endpoint": "completions",
        "rounds": rounds,
        "note": "",
        "cause": "",
        **more,
    }


def bench(speed: float = 1.0, error: str = "", reference: bool = True) -> dict[str, Any]:
    """Result of vllm_bench; each run as vLLM writes it."""
    own = runs(speed)
    results = [
        {"completed": 9, **{key: values[number] for key, values in own.items()}} for number in range(5)
    ]
    plain = [{**result, "output_throughput": 1000.0 + number} for number, result in enumerate(results)]
    entries = [{"instance": "llama-0", "runs": [] if error else kept(results), "error": error or None}]
    if reference:
        entries.append({"instance": "llama-1", "runs": kept(plain), "error": None})
    return {"benchmarks": entries, **({"msg": "1 of 2 failed"} if error else {})}


def kept(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of an entry of vllm_bench."""
    return [{"result": result, "error": None} for result in results]


def failed_both() -> dict[str, Any]:
    """Result of vllm_bench of which the reference failed, too."""
    found = bench(error="9 of 9 requests failed.")
    found["benchmarks"][1] = {"instance": "llama-1", "runs": [], "error": "9 of 9 requests failed."}
    return found


def without_docker() -> dict[str, Any]:
    """Result of vllm_bench whose own container could not be run."""
    found = bench(error="the benchmark's container could not be run: no Docker")
    found["benchmarks"][0]["class"] = "docker"
    return found


def old(**more: Any) -> Baseline:
    return baseline(smoke(times=2), bench(), "llama-1", **more)


def asked(**about: Any) -> dict[str, Any]:
    """Result of vllm_accuracy; about: as of `entry`."""
    return {"instances": [entry(**about)]}


def evidence(result: dict[str, Any]) -> AccuracyEvidence:
    return read_accuracy(result, ITEMS, NllLimits(**knowledge().accuracy["nll_limits"]))


def test_a_baseline_is_plain_data_and_comes_back() -> None:
    found = old(accuracy=evidence(asked(wrong=10, failed=3)))
    text = json.dumps(found.to_json())
    assert Baseline.from_json(json.loads(text)).to_json() == found.to_json()
    assert len(text) < 30_000
    assert "the old instance: 3 of 300 items of the sanity set got no answer" in found.notes[0]
    assert Baseline.from_json({}).empty
    assert Baseline.from_json({"schema": 99}).notes == (
        "the baseline was measured by another version of this toolkit",
    )


def test_a_baseline_of_a_release_that_asked_only_prompts_is_used() -> None:
    data = old().to_json()
    del data["accuracy"]
    before = Baseline.from_json(data)
    found = judge_canary(before, smoke(), [bench()], RULES, evidence(asked(wrong=90)))
    assert (found.kind, found.warnings) == ("ok", ())


ASKED = old(accuracy=evidence(asked()))
ACCURACY: list[tuple[str, dict[str, Any], dict[str, Any], list[dict[str, Any]], str, int, str]] = [
    ("equal", smoke(), asked(), [], "ok", 5, "sanity set equal (interval of the loss -0.89 to 0.89"),
    ("equal, and measured", smoke(), asked(), [bench()], "ok", 0, "NLL +0.0000 nat per token, as between identical"),
    ("worse is not measured", smoke(), asked(wrong=15), [], "less accurate", 0,
     "less accurate: sanity set 5.00 points worse"),
    ("nor is a broken kernel", smoke(), asked(shift=0.2), [], "less accurate", 0, "less accurate: NLL +0.2000"),
    ("slower, and equal", smoke(), asked(), [bench(0.69)] * 2, "slower", 0, "slower: 31 % less"),
    ("garbage comes first", smoke(BANGS), asked(wrong=300), [], "garbage", 0, "garbage: 12 of 12"),
    ("died when it was asked", smoke(), asked(failed=300), [], "broken", 0, "broken: 300 of 300 items"),
    ("another model", smoke(instance=identity(model="other")), asked(wrong=90, model="other"), [bench()], "ok", 0,
     "sanity set 30.00 points worse"),
    ("could not be asked", smoke(), {"failed": True, "msg": "no Python"}, [bench()], "ok", 0, "0 % less"),
    ("another run came", smoke(), {"failed": True, "msg": "a run", "class": "other_run"}, [], "infrastructure", 0,
     "a run"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("now", "answers", "looks", "kind", "more", "words"),
    [row[1:] for row in ACCURACY],
    ids=[row[0] for row in ACCURACY],
)
def test_verdicts_with_the_sanity_set(
    now: dict[str, Any],
    answers: dict[str, Any],
    looks: list[dict[str, Any]],
    kind: str,
    more: int,
    words: str,
) -> None:
    found = judge_canary(ASKED, now, looks, RULES, evidence(answers))
    assert (found.kind, found.more) == (kind, more)
    assert words in found.summary


CASES: list[tuple[str, Baseline, dict[str, Any], list[dict[str, Any]], str, int, str]] = [
    ("answers are good, speed is next", old(), smoke(), [], "ok", 5, ""),
    ("equal", old(), smoke(), [bench()], "ok", 0, "ok: 100% of the answers begin like the old release's; 0 % less "
                                                  "output"),
    ("slower at first", old(), smoke(), [bench(0.69)], "slower", 10, ""),
    ("slower", old(), smoke(), [bench(0.69)] * 2, "slower", 0, "slower: 31 % less output throughput (interval 3"),
    ("garbage is not measured", old(), smoke(BANGS), [], "garbage", 0, "garbage: 12 of 12 answers are degenerate"),
    ("dead", old(), smoke(DEAD, cause="The server is exited."), [], "broken", 0,
     "EngineCore encountered an issue. The server"),
    ("died of the benchmark", old(), smoke(), [bench(error="9 of 9 requests failed.")], "broken", 0,
     "could not be measured: 9 of 9"),
    ("no module result", old(), {"msg": "no route to host"}, [], "infrastructure", 0, "no route to host"),
    ("no benchmark", old(), smoke(), [{"msg": "timed out"}], "infrastructure", 0, "not be measured: timed out"),
    ("neither can be measured", old(), smoke(), [failed_both()], "infrastructure", 0, "not be measured: 9 of 9"),
    ("slower, and the reference is lost", old(), smoke(), [bench(0.69), bench(0.69, reference=False)],
     "infrastructure", 0, "the reference llama-1 could not be measured"),
    ("as fast, and the reference is lost", old(), smoke(), [bench(1.3, reference=False)], "ok", 0, "more output"),
    ("Docker is dead", old(), {"failed": True, "msg": "Docker's socket does not exist", "class": "docker"}, [],
     "infrastructure", 0, "infrastructure: Docker's socket does not exist"),
    ("Docker died meanwhile", old(), smoke(), [without_docker()], "infrastructure", 0, "could not be run: no Docker"),
    ("speaks no more", old(), smoke(rounds=[], note="llama-0 generates no text"), [], "broken", 0,
     ", but the old instance answered"),
    ("nothing was there", Baseline(), smoke(), [], "ok", 0, "ok: there is no old instance to compare it with"),
    ("nothing was there, and it is dead", Baseline(), smoke(DEAD), [], "broken", 0,
     "broken: no prompt got an answer"),
    ("old one was not measured", baseline(smoke(times=2), bench(error="no"), ""), smoke(), [], "ok", 0,
     "its speed was not compared"),
    ("old one speaks not", baseline(smoke(rounds=[], note="no text"), bench(), ""), smoke(BANGS), [bench()], "ok", 0,
     "0 % less"),
    ("another model", old(), smoke(instance=identity(model="other")), [bench(0.5)], "ok", 0,
     "50 % less output throughput"),
    ("more GPUs", old(), smoke(instance=identity(gpus=2)), [bench(0.5)], "ok", 0, "50 % less"),
    ("another commit", old(), smoke(instance=identity(commit="beef")), [bench(0.5)] * 2, "slower", 0, "50 % less"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "looks", "kind", "more", "words"),
    [row[1:] for row in CASES],
    ids=[row[0] for row in CASES],
)
def test_verdicts(
    before: Baseline, now: dict[str, Any], looks: list[dict[str, Any]], kind: str, more: int, words: str
) -> None:
    found = judge_canary(before, now, looks, RULES)
    assert (found.kind, found.more) == (kind, more)
    assert words in found.summary


def test_warnings_say_what_was_not_compared() -> None:
    found = judge_canary(old(), smoke(instance=identity(model="other")), [bench(0.5)], RULES)
    assert found.warnings == (
        "another model: lab/llama → other",
        "slower, but ignored, because the model or the number of GPUs changed",
    )
    alone = baseline(smoke(times=2), bench(reference=False), "llama-1")
    assert alone.reference == ""
    assert alone.notes == ("the reference llama-1 could not be measured",)


def test_the_old_client_measures_the_same_model() -> None:
    assert client(old(), identity(image="new")) == {"image": "vllm@sha256:old", "vllm": "0.10.0"}
    assert client(old(), identity(model="other")) == {}
    assert client(Baseline(), identity()) == {}


# ---- the plugin ------------------------------------------------------------------------------------


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the plugin in tmp_path; what it prints and warns of is in result["printed"]."""
    from ansible_collections.instinct.fleet.plugins.action.canary_verdict import ActionModule

    monkeypatch.chdir(tmp_path)

    def run(check: bool = False, **args: Any) -> dict[str, Any]:
        task = SimpleNamespace(args=args, check_mode=check, async_val=0, action="canary_verdict", diff=False)
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
        plugin = ActionModule(task, connection, SimpleNamespace(), None, None, None)
        printed: list[str] = []
        plugin._display = SimpleNamespace(display=printed.append, warning=printed.append)
        return {**plugin.run(task_vars={}), "printed": printed}

    return run


def test_two_phases_and_a_report(verdict: Run, tmp_path: Path) -> None:
    before = verdict(phase="before", smoke=smoke(times=2), benchmarks=[bench()], reference="llama-1")
    asked = verdict(phase="after", smoke=smoke(), baseline=before["baseline"])
    assert (asked["verdict"], asked["more"], asked["printed"]) == ("ok", 5, [])
    assert asked["client"]["image"] == "vllm@sha256:old"
    once = verdict(phase="after", smoke=smoke(), baseline=before["baseline"], benchmarks=[bench(0.69)])
    assert (once.get("failed"), once["verdict"], once["more"]) == (None, "slower", 10)
    assert once["looks"] == [bench(0.69)]

    new = smoke(instance=identity(image="vllm@sha256:new"))
    looks = [*once["looks"], bench(0.69)]
    last = verdict(
        phase="after", smoke=new, baseline=before["baseline"], benchmarks=looks, host="n1", run="r1"
    )
    assert last["failed"] is True
    assert last["summary"].startswith("slower: 31 % less output throughput (interval 3")
    assert last["msg"] == f"{last['summary']} Report: {tmp_path}/results/r1/canary.txt"
    text = (tmp_path / "results/r1/canary.txt").read_text()
    assert text in last["printed"][0]
    for part in (
        "Canary llama-0 on n1", "old  vllm@sha256:old, lab/llama, c0ffee", "new  vllm@sha256:new", "new, again",
        "  output throughput, tok/s\n    old            1000.0     1005.0", "    new             690.0",
        "llama-1 ran the old release at the same time", "12 prompts, 0 with other answers",
    ):  # fmt: skip
        assert part in text, part
    data = json.loads((tmp_path / "results/r1/canary.json").read_text())
    assert (data["verdict"], data["host"], len(data["after"])) == ("slower", "n1", 2)
    assert data["comparisons"][0]["metric"] == "output_throughput"
    assert not (tmp_path / "results/latest").exists()  # that is the last benchmark


def test_a_less_accurate_release_is_reported_with_what_it_lost(verdict: Run, tmp_path: Path) -> None:
    before = verdict(phase="before", smoke=smoke(times=2), accuracy=asked(), benchmarks=[bench()])
    last = verdict(
        phase="after", smoke=smoke(), accuracy=asked(wrong=15), baseline=before["baseline"], run="r"
    )
    assert last["failed"] is True
    assert last["summary"].startswith("less accurate: sanity set 5.00 points worse (interval of the loss 3.")
    for part in (
        "300 of 300 answers of the old release were right, now 285 of 300\n  sanity set 5.00 points worse",
        "  'What is 861 + 75?'\n    new  'no idea', right is '936'",
        "  and 7 more that only the old release has right",
    ):
        assert part in last["text"], part
    data = json.loads((tmp_path / "results/r/canary.json").read_text())
    assert data["accuracy"]["tasks"]["sanity"]["against"]["lost"] == len(data["accuracy"]["lost"]) == 15
    assert data["rules"]["accuracy_tolerance"] == 2

    more = {"smoke": smoke(), "accuracy": asked(wrong=15), "baseline": before["baseline"]}
    assert verdict(phase="after", accuracy_tolerance=6, **more)["more"] == 5
    skipped = {**more, "accuracy": {"skipped": True}}
    assert verdict(phase="after", **skipped)["more"] == 5


def test_garbage_is_shown_side_by_side(verdict: Run) -> None:
    before = verdict(phase="before", smoke=smoke(times=2), benchmarks=[bench()])
    last = verdict(phase="after", smoke=smoke(BANGS), baseline=before["baseline"])
    assert last["failed"] is True
    assert "  'The capital of France is'   ['!' over and over]\n    old  ' paris, and that" in last["text"]


def test_one_that_did_not_start_is_only_reported(verdict: Run, tmp_path: Path) -> None:
    why = f"out_of_memory: HIP out of memory, api_key='{KEY}'"
    new = {**identity(), "server": {"x": KEY}}
    log = "HIP out of memory\n"
    found = verdict(
        phase="failed", failure=why, log=log, change="image a → b", instance=new, baseline={}, run="r"
    )
    assert "failed" not in found
    assert found["verdict"] == "broken"
    assert "broken: out_of_memory: HIP out of memory" in found["text"]
    assert "change  image a → b" in found["text"]
    assert (tmp_path / "results/r/startup.log").read_text() == "HIP out of memory\n"
    assert all(KEY not in path.read_text() for path in (tmp_path / "results/r").iterdir())


def test_a_node_without_docker_is_no_verdict(verdict: Run, tmp_path: Path) -> None:
    before = verdict(phase="before", smoke=smoke(times=2), benchmarks=[bench()])
    dead = {"failed": True, "msg": "Docker's socket does not exist", "class": "docker"}
    last = verdict(phase="after", smoke=dead, baseline=before["baseline"])
    assert (last["failed"], last["class"], last["more"]) == (True, "infrastructure", 0)
    assert "Docker's socket does not exist" in last["msg"]
    assert not (tmp_path / "results").exists()


def test_check_mode_writes_nothing(verdict: Run, tmp_path: Path) -> None:
    assert verdict(check=True, phase="after", smoke={}, benchmarks=[{}])["more"] == 0
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"runs": 3}, "canary_runs is 3: fewer than 4 runs prove nothing."),
        ({"runs": 6, "max_runs": 5}, "canary_max_runs is 5, less than canary_runs (6)."),
        (
            {"accuracy_tolerance": 0},
            "canary_accuracy_tolerance is 0 points: it must be above 0, and at most 100.",
        ),
        ({"tolerance": 0}, "canary_tolerance is 0, which is not a usable percentage"),
        ({"tolerance": 100}, "canary_tolerance is 100"),
        ({"run": "../x"}, "cannot name a run"),
    ],
)
def test_wrong_settings(verdict: Run, args: dict[str, Any], words: str) -> None:
    found = verdict(phase="after", smoke=smoke(), **args)
    assert found["failed"] is True
    assert words in found["msg"]


def test_the_documentation_is_the_argument_spec() -> None:
    from ansible_collections.instinct.fleet.plugins.action.canary_verdict import ActionModule

    options = documented_by(documented)["options"]
    reported = {
        name: {key: value for key, value in item.items() if key != "description"}
        for name, item in options.items()
    }
    assert reported == ActionModule.options
