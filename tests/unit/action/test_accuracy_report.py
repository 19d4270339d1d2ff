# SPDX-License-Identifier: Apache-2.0
"""From items to verdicts: shares of replicas, stand-ins that answer, runs that are compared, and tasks that fail."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench import accuracy
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.modules import accuracy_report as documented
from ansible_collections.instinct.fleet.plugins.modules import vllm_accuracy
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.report import render_report
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.files import (
    json_text,
    run_files,
    write_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import (
    build_summary,
    collect,
)

from tests import ROOT
from tests.helpers.module_docs import documented_by
from tests.worlds.accuracy_answers import ITEMS, PASSAGES, entry
from tests.worlds.bench_samples import entry as bench_entry
from tests.worlds.bench_samples import variables
from tests.worlds.standin_server import Standin

Report = Callable[..., dict[str, Any]]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Report:
    """Run the plugin in tmp_path on what each host returned; its printed lines are in result["printed"]."""
    from ansible_collections.instinct.fleet.plugins.action.accuracy_report import ActionModule

    monkeypatch.chdir(tmp_path)

    def run(hosts: Mapping[str, Any], check: bool = False, **args: Any) -> dict[str, Any]:
        task = SimpleNamespace(args=args, check_mode=check, async_val=0, action="accuracy_report", diff=False)
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
        loader = SimpleNamespace(load_from_file=lambda *_a, **_k: {}, load=lambda *_a, **_k: {})
        plugin = ActionModule(task, connection, SimpleNamespace(), loader, None, None)
        printed: list[str] = []
        plugin._display = SimpleNamespace(display=printed.append, warning=printed.append)
        fleet = {
            host: found if isinstance(found, Mapping) else {"__accuracy_result": {"instances": found}}
            for host, found in hosts.items()
        }
        facts = {
            "hostvars": SimpleNamespace(raw_get=fleet.__getitem__),
            "groups": {"instinct": list(fleet)},
            "ansible_play_hosts_all": list(fleet),
        }
        return {**plugin.run(task_vars=facts), "printed": printed}

    return run


def read(result: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(result["directory"]) / "accuracy.json").read_text())
    return found


def test_options_are_documented() -> None:
    from ansible_collections.instinct.fleet.plugins.action.accuracy_report import ActionModule

    found = documented_by(documented)["options"]
    assert set(found) == set(ActionModule.options)
    for name, option in ActionModule.options.items():
        assert found[name].get("default") == option.get("default"), name


def test_a_first_run_has_scores_and_no_verdict(report: Report) -> None:
    result = report({"n1": [entry(wrong=30)]}, run="one")
    assert not result.get("failed"), result["msg"]
    found = read(result)["deployments"]["llama"]
    sanity = found["tasks"]["sanity"]
    assert (sanity["n"], sanity["right"], sanity["score"]) == (300, 270, 0.9)
    assert sanity["against"] is None
    assert sanity["why"] == "no earlier run to compare with"
    assert sanity["categories"]["addition"] == [0, 30]
    assert found["nll"] == pytest.approx(2.0)
    answers = (Path(result["directory"]) / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 300
    assert "sanity: 90.0 % of 300" in "".join(result["printed"])


@pytest.mark.parametrize(
    ("wrong", "verdict", "fails"),
    [(0, "pass", False), (1, "pass", False), (3, "not clear", False), (30, "fail", True)],
)
def test_a_release_is_compared_with_the_one_before(
    report: Report, wrong: int, verdict: str, fails: bool
) -> None:
    report({"n1": [entry()]}, run="one")
    result = report({"n1": [entry(wrong=wrong, image="i@sha256:new")]}, run="two")
    found = read(result)["deployments"]["llama"]
    assert found["against"] == "one"
    assert found["differences"] == ["image: i@sha256:old → i@sha256:new"]
    assert found["tasks"]["sanity"]["against"]["verdict"] == verdict
    assert bool(result.get("failed")) == fails
    if verdict == "not clear":
        assert found["tasks"]["sanity"]["against"]["needed"] > 300


def test_failed_requests_are_named_and_never_scored(report: Report) -> None:
    report({"n1": [entry()]}, run="one")
    result = report({"n1": [entry(failed=3)]}, run="two")
    assert not result.get("failed"), result["msg"]
    sanity = read(result)["deployments"]["llama"]["tasks"]["sanity"]
    assert (sanity["n"], sanity["score"], sanity["against"]["verdict"]) == (297, 1.0, "not clear")
    assert sanity["failed"] == ["addition-00", "addition-01", "addition-02"]
    assert (len(sanity["against"]["failed_new"]), sanity["against"]["doubtful"]) == (3, 3)
    assert "3 requests failed and are not scored: addition-00" in result["text"]


@pytest.mark.parametrize("failed", [4, 60, 299])
def test_a_release_that_fails_requests_does_not_pass_by_the_others(report: Report, failed: int) -> None:
    """The case of the review: 150 of 400 items were answered, all rightly, and the verdict was "pass"."""
    report({"n1": [entry()]}, run="one")
    result = report({"n1": [entry(failed=failed)]}, run="two")
    assert result["failed"]
    (problem,) = result["problems"]["llama"]
    assert problem.startswith(f"sanity: {failed} of 300 requests failed, more than 1% (addition-00, ")
    sanity = read(result)["deployments"]["llama"]["tasks"]["sanity"]
    assert sanity["against"]["verdict"] == "not clear"
    again = report({"n1": [entry(failed=failed)]}, run="three", baseline="two")
    assert not again.get("failed"), "the same items fail in both, as prompts that are too long"
    assert read(again)["deployments"]["llama"]["tasks"]["sanity"]["against"]["verdict"] == "not clear"


def test_a_first_run_with_many_failed_requests_is_a_problem_and_no_baseline(report: Report) -> None:
    result = report({"n1": [entry(failed=60)]}, run="one")
    assert result["failed"]
    second = report({"n1": [entry()]}, run="two")
    assert read(second)["deployments"]["llama"]["against"] is None


@pytest.mark.parametrize(
    ("before", "hosts", "problem"),
    [
        ({}, {"n1": {"failed_passages": 1}}, "n1/llama-0: gave no log likelihoods of 1 of 28 passages, "),
        ({"failed_passages": 1}, {"n1": {"failed_passages": 1}}, ""),
        ({"failed_passages": 28}, {"n1": {}, "n2": {"failed_passages": 9}}, "n2/llama-0: gave no log likelihoods of 9"),
        ({"failed_passages": 28}, {"n1": {}, "n2": {"failed_passages": 28}}, "n2/llama-0: gave no log likelihoods of "),
        ({"model": "other"}, {"n1": {"failed_passages": 9}}, ""),
    ],
)  # fmt: skip
def test_passages_that_only_one_side_scored_are_a_problem(
    report: Report, before: dict[str, Any], hosts: dict[str, dict[str, Any]], problem: str
) -> None:
    """They are left out of the comparison, which saw only the others."""
    report({"n1": [entry((), **before)]}, run="one")
    result = report({host: [entry((), **about)] for host, about in hosts.items()}, run="two")
    assert bool(result.get("failed")) == bool(problem)
    assert result["problems"].get("llama", [""])[0].startswith(problem)


def test_passages_that_another_tokenizer_split_are_named(report: Report) -> None:
    report({"n1": [entry(())]}, run="one")
    longer = entry(())
    for row in longer["passages"][:3]:
        row["tokens"] += 1
    result = report({"n1": [longer]}, run="two")
    assert "3 of 28 passages have a different number of tokens than in the previous run" in result["text"]


def test_the_deployments_of_a_run_are_corrected_together(report: Report) -> None:
    """Six of 300 items lost are p = 0.016: a finding of one deployment, none of four."""
    names = ["a", "b", "c", "d"]

    def fleet(count: int, wrong: int) -> dict[str, Any]:
        return {"n1": [entry(wrong=wrong, deployment=name, name=f"{name}-0") for name in names[:count]]}

    for count, verdict in ((1, "fail"), (4, "not clear")):
        report(fleet(count, 0), run=f"old{count}")
        mixed = fleet(count, 0)["n1"][:-1] + fleet(count, 6)["n1"][-1:]
        result = report({"n1": mixed}, run=f"new{count}", baseline=f"old{count}")
        found = read(result)["deployments"][names[count - 1]]["tasks"]["sanity"]["against"]
        assert (found["verdict"], bool(result.get("failed"))) == (verdict, verdict == "fail")
        assert found["p_adjusted"] == pytest.approx(count * found["p"])


def test_an_instance_that_answers_nothing_is_a_problem(report: Report) -> None:
    result = report({"n1": [entry(failed=300)]}, run="one")
    assert result["failed"]
    assert read(result)["deployments"]["llama"]["tasks"]["sanity"]["score"] is None
    assert "n1/llama-0: no item was answered: HTTP 500" in result["text"]


def test_a_host_that_could_not_be_asked_is_a_problem_and_the_others_are_judged(report: Report) -> None:
    refused = {"__accuracy_failure": {"failed": True, "msg": "llama would keep 0 in service"}}
    gone = {"__accuracy_result": {"unreachable": True, "msg": "no route"}}
    items = [{"failed": False}, {"failed": True, "msg": "no hash of x"}]
    loop = {"__accuracy_failure": {"failed": True, "msg": "One or more items failed", "results": items}}
    result = report({"n1": [entry()], "n2": refused, "n3": gone, "n4": loop}, run="one")
    assert result["failed"]
    assert read(result)["failures"] == {
        "n2": "llama would keep 0 in service",
        "n3": "no route",
        "n4": "no hash of x",
    }
    assert read(result)["deployments"]["llama"]["tasks"]["sanity"]["n"] == 300


def test_the_replica_with_other_weights_is_named(report: Report) -> None:
    third = [ITEMS[start::3] for start in range(3)]
    hosts = {f"n{number}": [entry(third[number], shift=0.05 if number == 1 else 0.0)] for number in range(3)}
    result = report(hosts, run="one")
    assert result["failed"]
    assert result["problems"]["llama"][0].startswith("n1/llama-0: 0.0500 nat per token from the others")


def test_a_wrong_replica_is_no_change_of_the_release(report: Report) -> None:
    half = {"n1": ITEMS[::2], "n2": ITEMS[1::2]}
    report({host: [entry(items)] for host, items in half.items()}, run="one")
    result = report(
        {host: [entry(items, shift=0.5 if host == "n2" else 0.0)] for host, items in half.items()}, run="two"
    )
    found = read(result)["deployments"]["llama"]
    assert [problem.partition(":")[0] for problem in found["problems"]] == ["n2/llama-0"]
    assert (found["nll"], found["nll_change"]) == (pytest.approx(2.0), {"state": "same", "change": 0})


def test_another_model_is_compared_for_information_only(report: Report) -> None:
    report({"n1": [entry()]}, run="one")
    result = report({"n1": [entry(wrong=100, model="lab/other", shift=1.0)]}, run="two")
    assert not result.get("failed"), result["msg"]
    assert read(result)["deployments"]["llama"]["tasks"]["sanity"]["against"]["verdict"] == "fail"


def test_a_broken_kernel_shows_in_the_log_likelihoods(report: Report) -> None:
    report({"n1": [entry()]}, run="one")
    result = report({"n1": [entry(shift=0.2)]}, run="two")
    assert result["failed"]
    assert "NLL +0.2000 nat per token, as with a broken kernel or tensor" in result["text"]


def test_a_run_that_asked_less_is_no_baseline_for_what_it_left_out(report: Report) -> None:
    report({"n1": [entry()]}, run="both")
    passages = report({"n1": [entry(())]}, run="passages")
    assert read(passages)["deployments"]["llama"]["against"] == "both"
    result = report({"n1": [entry()]}, run="two")
    found = read(result)["deployments"]["llama"]
    assert (found["against"], found["tasks"]["sanity"]["against"]["verdict"]) == ("both", "pass")


def test_the_baseline_is_chosen_by_name_and_the_newest_otherwise(report: Report) -> None:
    for run in ("one", "two"):
        report({"n1": [entry()]}, run=run)
    for baseline, against in (("one", "one"), ("none", None)):
        result = report({"n1": [entry()]}, baseline=baseline)
        assert read(result)["deployments"]["llama"]["against"] == against
    result = report({"n1": [entry()]}, baseline="onne", phase="check")
    assert result["failed"]
    assert result["msg"] == "accuracy_baseline: there is no accuracy run onne. Did you mean one?"


def test_a_bad_release_is_not_compared_with_itself(report: Report) -> None:
    report({"n1": [entry()]}, run="good")
    for run in ("bad", "again"):
        result = report({"n1": [entry(wrong=60)]}, run=run)
        assert result["failed"]
        assert read(result)["deployments"]["llama"]["against"] == "good"
    accepted = report({"n1": [entry(wrong=60)]}, run="accepted", baseline="bad")
    assert not accepted.get("failed"), accepted["msg"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"tasks": "sanety"}, "unknown task sanety. sanety: Did you mean sanity?"),
        ({"tasks": ["nll", "foo", "bar"]}, "unknown tasks foo, bar."),
        ({"tasks": ""}, "accuracy_tasks names no task. Valid: gsm8k, mmlu_pro_biology, nll, sanity."),
        ({"tolerance": 0}, "accuracy_tolerance is 0 points"),
        ({"run": "latest"}, "cannot name a run"),
    ],
)
def test_mistakes_are_refused_before_anything_is_asked(
    report: Report, args: dict[str, Any], words: str
) -> None:
    result = report({"n1": {}}, phase="check", **args)
    assert result["failed"]
    assert words in result["msg"]


def test_the_check_returns_what_to_ask(report: Report) -> None:
    found = report({"n1": {}}, phase="check", tasks="nll, sanity")
    assert (found["sets"], found["lm_eval"]) == (["nll", "sanity"], [])
    found = report({"n1": {}}, phase="check", tasks=["nll", f"{ROOT}/catalog/accuracy"])
    assert (found["sets"], [task["name"] for task in found["lm_eval"]]) == (["nll"], ["instinct_sanity"])


def lm_eval(
    correct: str, failed: tuple[int, ...] = (), error: str = "", hashed: bool = True, **about: Any
) -> dict[str, Any]:
    """What lm_eval returned for an instance: "1" for a right answer, "0" for a wrong one."""
    samples = [
        {"doc": f"d{number}", "prompt": "p", "correct": one == "1", "answer": "a"}
        for number, one in enumerate(correct)
        if number not in failed
    ]
    rows = [{"item": number, "doc": f"d{number}" if hashed else "", "prompt": "p"} for number in failed]
    task = {"samples": samples, "failed": rows, "error": error, "about": about}
    return {**entry(), "answers": [], "passages": [], "tasks": {"gsm8k": task}}


def test_tasks_of_lm_eval_are_judged_likewise(report: Report) -> None:
    ran = {"__accuracy_lm_eval": {"instances": [lm_eval("1" * 270 + "0" * 30, shots=5)]}}
    first = report({"n1": ran}, run="one")
    assert not first.get("failed"), first["msg"]
    assert read(first)["deployments"]["llama"]["tasks"]["gsm8k"]["score"] == 0.9
    worse = {"__accuracy_lm_eval": {"instances": [lm_eval("1" * 240 + "0" * 60, (7, 8))]}}
    second = report({"n1": worse}, run="two")
    assert second["failed"]
    gsm8k = read(second)["deployments"]["llama"]["tasks"]["gsm8k"]
    assert gsm8k["against"]["verdict"] == "fail"
    assert gsm8k["failed"] == ["d7", "d8"]
    assert (gsm8k["n"], gsm8k["against"]["n"]) == (298, 298)


@pytest.mark.parametrize(
    ("hashed", "named", "unmatched", "doubtful"), [(True, "d0", 0, 250), (False, "item 0 of gsm8k", 500, 500)]
)
def test_failed_items_of_lm_eval_are_paired_by_their_document(
    report: Report, hashed: bool, named: str, unmatched: int, doubtful: int
) -> None:
    """The case of the review: they were never paired, so `failed_new` stayed empty. Without a hash they still count."""
    first = {"__accuracy_lm_eval": {"instances": [lm_eval("1" * 750)]}}
    report({"n1": first}, run="one")
    failing = {"__accuracy_lm_eval": {"instances": [lm_eval("1" * 750, tuple(range(250)), hashed=hashed)]}}
    result = report({"n1": failing}, run="two")
    assert result["failed"]
    gsm8k = read(result)["deployments"]["llama"]["tasks"]["gsm8k"]
    assert gsm8k["failed"][0] == named
    against = gsm8k["against"]
    assert (against["n"], against["unmatched"], against["doubtful"]) == (500, unmatched, doubtful)
    assert len(against["failed_new"]) == (250 if hashed else 0)
    assert against["verdict"] == "not clear"
    assert result["problems"]["llama"][0].startswith("gsm8k: 250 of 750 requests failed")


def test_a_task_that_could_not_be_run_is_a_problem(report: Report) -> None:
    gave_up = {"__accuracy_lm_eval": {"instances": [lm_eval("", (0, 1), "lm-eval failed: no data")]}}
    result = report({"n1": gave_up}, run="one")
    assert result["failed"]
    assert "n1/llama-0: gsm8k: lm-eval failed: no data" in result["text"]
    assert read(result)["deployments"]["llama"]["tasks"]["gsm8k"]["score"] is None


def test_check_mode_and_an_empty_fleet_write_nothing(report: Report, tmp_path: Path) -> None:
    assert report({"n1": [entry()]}, check=True)["skipped"]
    assert report({"n1": {"__accuracy_result": {"instances": []}}})["msg"] == "There was no instance to ask."
    assert not (tmp_path / "results").exists()


def measured_fleet(results_dir: Path, run: str = "speed") -> Path:
    """Store a benchmark of the deployment that entry() answers for, and return its report."""
    fleet = {"n1": variables("n1", [bench_entry("n1", "llama", 0, (0,))])}
    measured = collect(["n1"], fleet, Redactor())
    summary = build_summary(run, "2026-01-31T10:15:00Z", measured)
    summary["deployments"]["llama"]["model"] = entry()["model"]
    files = {"summary.json": json_text(summary), **run_files(measured), "report.html": render_report(summary)}
    return write_run(results_dir, run, files) / "report.html"


def test_the_newest_report_of_a_benchmark_shows_accuracy_that_came_later(
    report: Report, tmp_path: Path
) -> None:
    older, page = (measured_fleet(tmp_path / "results", run) for run in ("older", "speed"))
    before = page.read_text()
    rows = (page.parent / "runs.jsonl").read_text()
    assert "accuracy-now" not in before
    result = report({"n1": [entry(wrong=30)]}, run="accuracy-now")
    assert str(page) in result["printed"][0]
    assert "../accuracy-now/accuracy.txt" in page.read_text()
    assert "90.0%" in page.read_text()
    assert older.read_text().replace("older", "speed") == before
    assert (page.parent / "runs.jsonl").read_text() == rows
    assert [path.name for path in page.parent.iterdir() if path.name.startswith(".")] == []


def test_a_report_that_cannot_be_written_again_fails_no_accuracy(report: Report, tmp_path: Path) -> None:
    page = measured_fleet(tmp_path / "results")
    before = page.read_text()
    (page.parent / "summary.json").write_text("{}")
    result = report({"n1": [entry()]}, run="one")
    assert not result.get("failed")
    assert "The report of the newest benchmark was not changed: " in result["printed"][0]
    assert page.read_text() == before


# ---- with engines that answer


def plan(hosts: list[str]) -> dict[str, Any]:
    """A plan with one instance of a deployment on each host."""
    instances = {host: [{"name": "llama-0", "deployment": "llama", "rank": None}] for host in hosts}
    return {"plan": {"hosts": {host: {"instances": found} for host, found in instances.items()}}}


def work_of(host: str, hosts: list[str], **args: Any) -> dict[str, Any]:
    """What the action plugin gives to the module on a host."""
    from ansible_collections.instinct.fleet.plugins.action.vllm_accuracy import ActionModule

    targets = [{"name": "llama-0", "deployment": "llama"}]
    task = SimpleNamespace(args={"targets": targets, **args}, delegate_to=None, action="vllm_accuracy")
    plugin = ActionModule(task, SimpleNamespace(), None, None, None, None)
    facts = {"inventory_hostname": host, "fleet_plan_result": plan(hosts)}
    found: dict[str, Any] = plugin.arguments(facts)["work"]
    return found


def test_replicas_share_the_items_and_each_gets_all_passages() -> None:
    hosts = ["n1", "n2", "n10"]
    found = [work_of(host, hosts) for host in hosts]
    shares = [[row["id"] for row in work["prompts"]["llama-0"]] for work in found]
    assert [len(share) for share in shares] == [100, 100, 100]
    assert sorted(itertools.chain(*shares)) == sorted(item.id for item in ITEMS)
    assert all(len(work["passages"]) == len(PASSAGES) for work in found)
    only = work_of("n1", hosts, sets=["nll"])
    assert (only["prompts"]["llama-0"], len(only["passages"])) == ([], len(PASSAGES))


def test_an_instance_that_shares_with_none_gets_all_items_with_the_categories_in_turns() -> None:
    ids = [row["id"] for row in work_of("n1", ["n1", "n2"], divide=False)["prompts"]["llama-0"]]
    assert sorted(ids) == sorted(item.id for item in ITEMS)
    categories = {item.category for item in ITEMS}
    assert {name.rpartition("-")[0] for name in ids[: len(categories)]} == categories


@contextmanager
def standins(directory: Path, *knobs: dict[str, str]) -> Iterator[list[Standin]]:
    base = {
        "STANDIN_TOKENS_PER_SECOND": "2000",
        "STANDIN_ANSWERS": str(ROOT / "catalog/accuracy/sanity.jsonl"),
    }
    with ExitStack() as stack:
        found = []
        for number, more in enumerate(knobs):
            one = Standin(directory / f"{number}.log", "m", env={**base, **more})
            stack.callback(one.process.wait)
            stack.callback(one.process.kill)
            found.append(one)
        for one in found:
            one.wait()
        yield found


def test_engines_with_known_faults_get_the_right_verdicts(
    report: Report, run_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong answers fail a release, requests that fail do unless a retry succeeds, and a shifted replica is named."""
    monkeypatch.setattr(accuracy, "_PAUSE", 0.0)

    def measured(run: str, *knobs: dict[str, str], retries: int = 2) -> dict[str, Any]:
        hosts = [f"n{number}" for number in range(len(knobs))]
        entries = {}
        with standins(tmp_path, *knobs) as engines:
            for host, engine in zip(hosts, engines, strict=True):
                target = {
                    "name": "llama-0", "deployment": "llama", "model": "lab/llama", "commit": "c0ffee", "image": run,
                    "served_model": "m", "port": engine.port, "server": {"host": "127.0.0.1"},
                }  # fmt: skip
                args = {
                    "targets": [target],
                    "work": work_of(host, hosts),
                    "concurrency": 16,
                    "retries": retries,
                }
                found, failed = run_module(vllm_accuracy.main, args)
                assert not failed, found["msg"]
                entries[host] = found["instances"]
        return report(entries, run=run)

    healthy = {}
    same = measured("same", healthy, healthy, healthy)
    assert not same.get("failed"), same["msg"]
    # Patterns of the category as_json are no answers, so a stand-in has these wrong.
    assert read(same)["deployments"]["llama"]["tasks"]["sanity"]["right"] == 288

    at_times = measured("at_times", healthy, {"STANDIN_FAIL_RATE": "0.05"}, healthy, retries=5)
    assert not at_times.get("failed"), at_times["msg"]

    failing = measured("failing", healthy, {"STANDIN_FAIL_RATE": "0.2"}, healthy, retries=0)
    assert failing["failed"]
    sanity = read(failing)["deployments"]["llama"]["tasks"]["sanity"]
    assert len(sanity["failed"]) > 3
    assert sanity["against"]["verdict"] == "not clear"
    assert (sanity["against"]["lost"], sanity["n"]) == (0, 300 - len(sanity["failed"]))

    perturbed = measured("perturbed", healthy, healthy, {"STANDIN_NLL_SHIFT": "0.05"})
    assert perturbed["failed"]
    assert [line.partition(":")[0] for line in perturbed["problems"]["llama"]] == ["n2/llama-0"]

    worse = measured("worse", *[{"STANDIN_WRONG_RATE": "0.12"}] * 3)
    assert worse["failed"]
    (line,) = worse["problems"]["llama"]
    assert line.startswith("sanity: fail: ")
