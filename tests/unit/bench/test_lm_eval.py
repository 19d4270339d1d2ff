# SPDX-License-Identifier: Apache-2.0
"""lm-eval is called until every item that can be has an answer; what never gets one is found, and never scored.

The program is a stand-in that keeps to what lm-eval 0.4.13 does: answers go to its cache one by one, and one that fails
ends it without results.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench import lm_eval, smoke_run
from ansible_collections.instinct.fleet.plugins.module_utils.bench.lm_eval import LmEval, LmEvalTask
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.serving.health import ServerAddress
from ansible_collections.instinct.fleet.plugins.modules import lm_eval as module

from tests.unit.bench.test_smoke_run import KEY, server, target

PROGRAM = """#!{python}
import json, os, sqlite3, sys
here = os.path.dirname(os.path.abspath(__file__))
plan = json.load(open(here + "/plan.json"))
option = lambda name: sys.argv[sys.argv.index(name) + 1]
(task, items), = json.loads(option("--samples")).items()
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps([items, sys.argv[1:], dict(os.environ), os.getcwd()]) + "\\n")
number = sum(1 for _line in open(here + "/calls"))
bad = set(plan["bad"]) | set(plan["bad_at"].get(str(number), []))
if option("--model") == "dummy":
    bad = set()
else:
    db = sqlite3.connect(option("--use_cache") + "_rank0.db")
    db.execute("CREATE TABLE IF NOT EXISTS unnamed (key TEXT PRIMARY KEY, value BLOB)")
    for item in items:
        if item not in bad:
            db.execute("REPLACE INTO unnamed VALUES (?, ?)", (str(item), b""))
    db.commit()
if bad & set(items) or plan["broken"]:
    print("aiohttp.client_exceptions.ClientResponseError: 500")
    sys.exit(1)
out = option("--output_path") + "/m"
os.makedirs(out)
with open(f"{{out}}/samples_{{task}}_2026.jsonl", "w") as file:
    for item in items:
        for kind in ("strict-match", "flexible-extract"):
            score = plan["scores"].get(str(item), float(kind != "strict-match"))
            row = {{"doc_id": item, "doc_hash": f"d{{item}}", "prompt_hash": f"p{{item}}", "filter": kind,
                   "metrics": ["exact_match"], "exact_match": score, "filtered_resps": [f"a{{item}}"]}}
            file.write(json.dumps(row) + "\\n")
json.dump({{"task_hashes": {{task: "h"}}, "n-shot": {{task: 5}}, "lm_eval_version": "0.4.13"}},
          open(f"{{out}}/results_2026.json", "w"))
"""


class Fake:
    """The program, and what it was called with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        program = directory / "lm_eval"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        self.plan()

    def plan(
        self, *bad: int, broken: bool = False, scores: dict[str, Any] | None = None, **bad_at: list[int]
    ) -> None:
        """bad: items that always fail; bad_at: those that fail in a call, by its number (at1=[…]); scores: of items."""
        found = {name.removeprefix("at"): items for name, items in bad_at.items()}
        text = json.dumps({"bad": bad, "broken": broken, "bad_at": found, "scores": scores or {}})
        (self.directory / "plan.json").write_text(text)

    @property
    def calls(self) -> list[Any]:
        path = self.directory / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path)
    monkeypatch.setattr(lm_eval, "PROGRAM", str(tmp_path / "lm_eval"))
    monkeypatch.setattr(lm_eval, "leave_if_abandoned", lambda: None)
    return made


@pytest.fixture
def port() -> Iterator[int]:
    """An instance that answers."""
    with server(lambda *_: (200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": 4}})) as (
        port,
        _asked,
    ):
        yield port


def run(fake: Fake, port: int, items: range | list[int], kind: str = "flexible-extract") -> dict[str, Any]:
    work = fake.directory / "work"
    task = LmEvalTask("gsm8k", str(fake.directory), "exact_match", kind)
    address = ServerAddress("127.0.0.1", port, "llama", KEY)
    found = LmEval(address, task, str(work), 4, time.monotonic() + 300).run(items)
    assert not work.exists(), "its cache must not answer for the next release"
    return found


def docs(found: dict[str, Any]) -> list[str]:
    return sorted(row["doc"] for row in found["samples"])


def test_all_items_are_answered_in_one_call(fake: Fake, port: int) -> None:
    found = run(fake, port, range(1, 7, 2))
    assert found["samples"] == [
        {"doc": f"d{item}", "prompt": f"p{item}", "correct": True, "answer": f"a{item}"} for item in (1, 3, 5)
    ]
    assert (found["failed"], found["error"]) == ([], "")
    assert found["about"] == {"task_hash": "h", "shots": 5, "template": "none", "lm_eval": "0.4.13"}
    ((items, argv, environment, where),) = fake.calls
    assert items == [1, 3, 5]
    assert KEY not in " ".join(argv)
    assert environment["OPENAI_API_KEY"] == KEY
    assert environment["HF_HUB_OFFLINE"] == environment["HF_DATASETS_OFFLINE"] == "1"
    assert where == str(fake.directory)
    assert "tokenizer_backend=None,tokenized_requests=False" in argv[argv.index("--model_args") + 1]


@pytest.mark.parametrize(
    ("kind", "right"), [("strict-match", False), ("flexible-extract", True), ("", False)]
)
def test_the_filter_that_counts(fake: Fake, port: int, kind: str, right: bool) -> None:
    found = run(fake, port, range(2), kind)
    assert [row["correct"] for row in found["samples"]] == [right, right]


def test_a_call_that_fails_is_repeated_while_it_brings_answers(fake: Fake, port: int) -> None:
    fake.plan(at1=[2, 3], at2=[3])
    found = run(fake, port, range(5))
    assert (docs(found), found["failed"], found["error"]) == ([f"d{item}" for item in range(5)], [], "")
    assert len(fake.calls) == 3


def test_items_that_never_get_an_answer_are_found_and_left_out(fake: Fake, port: int) -> None:
    fake.plan(3, 11)
    found = run(fake, port, range(16))
    assert found["failed"] == [
        {"item": 3, "doc": "d3", "prompt": "p3"},
        {"item": 11, "doc": "d11", "prompt": "p11"},
    ]
    *asked, hashed = (argv for _items, argv, *_rest in fake.calls)
    assert all("local-completions" in argv for argv in asked)
    assert hashed[hashed.index("--model") :][:2] == [
        "--model",
        "dummy",
    ]  # nobody is asked, and nothing is cached
    assert "--use_cache" not in hashed
    assert docs(found) == sorted(f"d{item}" for item in range(16) if item not in (3, 11))
    assert found["error"] == ""
    assert len(fake.calls) < lm_eval.CALLS


def test_a_hash_that_lm_eval_does_not_give_leaves_the_item_named_by_its_position(
    fake: Fake, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.plan(3)
    monkeypatch.setattr(LmEval, "_hashed", lambda self, items: [])
    assert run(fake, port, range(4))["failed"] == [{"item": 3, "doc": "", "prompt": ""}]


def test_an_item_that_lm_eval_could_not_score_is_not_left_out(fake: Fake, port: int) -> None:
    fake.plan(scores={"1": float("nan"), "2": 0.5, "3": None})
    found = run(fake, port, range(5))
    assert docs(found) == ["d0", "d4"]
    assert [row["doc"] for row in found["failed"]] == ["d1", "d2", "d3"]
    fake.plan(scores={str(item): 0.5 for item in range(5)})
    found = run(fake, port, range(5))
    assert (found["samples"], found["failed"]) == ([], []), "the metric is not of right and wrong"


def test_an_instance_that_died_is_not_asked_again(fake: Fake) -> None:
    fake.plan(0, 1, 2, 3)
    found = run(fake, 1, range(4))
    assert (found["samples"], [row["item"] for row in found["failed"]]) == ([], [0, 1, 2, 3])
    assert found["error"].startswith("the instance does not answer: ")
    assert len(fake.calls) == 1


def test_what_fails_whatever_is_asked_is_given_up(fake: Fake, port: int) -> None:
    fake.plan(*range(64))
    found = run(fake, port, range(64))
    assert (found["samples"], sorted(row["item"] for row in found["failed"])) == ([], list(range(64)))
    assert found["error"].startswith("lm-eval failed: aiohttp.client_exceptions")
    assert len(fake.calls) < 10


def test_the_number_of_calls_has_a_limit(fake: Fake, port: int) -> None:
    fake.plan(*range(0, 200, 2))
    found = run(fake, port, range(200))
    assert len(fake.calls) == lm_eval.CALLS
    assert found["error"].startswith(f"given up after {lm_eval.CALLS} calls")
    assert len(docs(found)) + len(found["failed"]) == 200


def test_the_module_runs_each_task_on_each_instance(
    fake: Fake, port: int, run_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "venv/lib/python3.11/site-packages/lm_eval/tasks").mkdir(parents=True)
    (home / "tasks/gsm8k").mkdir(parents=True)
    (home / "work").mkdir()
    monkeypatch.setattr(lm_eval, "DIRECTORY", str(home))
    monkeypatch.setattr(module, "DIRECTORY", str(home))
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path))
    monkeypatch.setattr(smoke_run, "node_key", lambda: KEY)
    task = {"title": "gsm8k", "name": "fleet_gsm8k", "metric": "exact_match", "filter": "flexible-extract"}
    work = {"llama-0": {"gsm8k": [0, 2]}}
    args = {"targets": [target(port)], "tasks": [task], "work": work}
    result, failed = run_module(module.main, args)
    assert not failed, result["msg"]
    (entry,) = result["instances"]
    assert docs(entry["tasks"]["gsm8k"]) == ["d0", "d2"]
    assert (home / "tasks/base").resolve() == home / "venv/lib/python3.11/site-packages/lm_eval/tasks"
    assert KEY not in json.dumps(result)


def test_without_lm_eval_it_says_what_installs_it(
    run_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lm_eval, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path))
    work = {"llama-0": {"t": [0]}}
    result, failed = run_module(
        module.main, {"targets": [target(1)], "tasks": [{"title": "t"}], "work": work}
    )
    assert failed
    assert "playbooks/accuracy.yml installs it" in result["msg"]
