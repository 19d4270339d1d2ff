# SPDX-License-Identifier: Apache-2.0
"""Run lm-eval against an instance, from its own node and without a network, until every item that can be has an answer.

lm-eval 0.4.13 writes nothing at all when a request fails after its retries. What was answered stays in its cache, so a
further call asks only the rest; items that never get an answer are found by halving, and named by the hash of their
document, so that they can be compared with those of a release that answered them. The cache does not know the release
behind the address: it lives in the directory of one measurement of one instance.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.files import make_private
from ..common.module_main import NodeError
from ..common.paths import DATA_DIR
from ..common.processes import Program, run_program
from ..serving.health import ServerAddress, generate
from .lm_eval_rows import failed_items, samples_of

DIRECTORY = DATA_DIR + "/lm-eval"
PROGRAM = DIRECTORY + "/venv/bin/lm_eval"
CALLS = 40
"""Calls of lm-eval for the items of one instance; each takes seconds for its imports alone."""

_IN_VAIN = 4  # calls without any answer
_LINES = 5  # of its output, for people
_PROBE_SECONDS = 60.0
_HASH_SECONDS = 600.0  # of a call that asks nobody


@dataclass(frozen=True)
class LmEvalTask:
    """A task: lm-eval's name for it, the directory with its YAML file, and the metric and filter that count.

    Empty metric or filter: the first one of the task.
    """

    name: str
    directory: str
    metric: str = ""
    filter: str = ""


def link_base() -> None:
    """Let tasks/base be lm-eval's own tasks, wherever its version of Python has them. Raise NodeError without them."""
    own = glob.glob(f"{DIRECTORY}/venv/lib/python3*/site-packages/lm_eval/tasks")
    if not own:
        raise NodeError(
            f"lm-eval is not installed in {DIRECTORY}/venv, so its tasks cannot be run. "
            "playbooks/accuracy.yml installs it."
        )
    link = f"{DIRECTORY}/tasks/base"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(own[0], link)


class LmEval:
    """One task on one instance. `work`: a directory of its own, which must not be there."""

    def __init__(
        self, endpoint: ServerAddress, task: LmEvalTask, work: str, concurrency: int, deadline: float
    ) -> None:
        self.endpoint = endpoint
        self.task = task
        self.work = work
        self.concurrency = concurrency
        self.deadline = deadline
        self.calls = 0
        self.log = ""

    def run(self, items: Sequence[int]) -> dict[str, Any]:
        """Return {samples, failed, error, about} for the items, by their position in the task; remove all files."""
        make_private(self.work)
        try:
            rows, failed, error = self._answers(list(items))
            samples, unscored = samples_of(rows, self.task.metric, self.task.filter)
            about = self._about()
            hashed = self._hashed(failed) if failed and not error else []
            return {
                "samples": samples,
                "failed": [*failed_items(failed, hashed), *unscored],
                "error": error,
                "about": about,
            }
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def _answers(self, items: list[int]) -> tuple[list[dict[str, Any]], list[int], str]:
        """Return (rows, failed items, why it was given up)."""
        if not items:
            return [], [], ""
        rows = self._call_until_stuck(items)
        if rows is not None:
            return rows, [], ""
        if self.calls >= CALLS or time.monotonic() > self.deadline:
            return [], items, f"given up after {self.calls} calls of lm-eval: {self.log}"
        if not generate(self.endpoint, _PROBE_SECONDS).tokens:
            return [], items, f"the instance does not answer: {self.log}"
        if self.calls >= _IN_VAIN and not self._cached():  # the cause is not a single item
            return [], items, f"lm-eval failed: {self.log}"
        if len(items) == 1:
            return [], items, ""
        half = len(items) // 2
        one, other = self._answers(items[:half]), self._answers(items[half:])
        return one[0] + other[0], one[1] + other[1], one[2] or other[2]

    def _call_until_stuck(self, items: list[int]) -> list[dict[str, Any]] | None:
        """Return the rows of all items; None when another call would give no further answer."""
        while self.calls < CALLS and time.monotonic() < self.deadline:
            before = self._cached()
            code = self._call(items, self._model(), self.deadline)
            if code == 0:
                return self._rows()
            if self._cached() == before:
                break
        return None

    def _hashed(self, items: list[int]) -> list[dict[str, Any]]:
        """Return the rows of items that get no answer: lm-eval's model "dummy" makes them without asking anybody."""
        code = self._call(items, ["--model", "dummy"], time.monotonic() + _HASH_SECONDS)
        return self._rows() if code == 0 else []

    def _model(self) -> list[str]:
        address = f"http://{self.endpoint.host}:{self.endpoint.port}/v1/completions"
        # Without a tokenizer nothing is downloaded, and prompts are sent as text.
        model = {
            "model": self.endpoint.model, "base_url": address, "num_concurrent": self.concurrency, "max_retries": 3,
            "tokenizer_backend": None, "tokenized_requests": False,
        }  # fmt: skip
        return [
            "--model", "local-completions",
            "--model_args", ",".join(f"{key}={value}" for key, value in model.items()),
            "--use_cache", os.path.join(self.work, "cache"),
        ]  # fmt: skip

    def command(self, items: Sequence[int], model: Sequence[str]) -> list[str]:
        """Return the command line; the API key is in the environment."""
        return [
            PROGRAM, "run", *model, "--tasks", self.task.name, "--include_path", self.task.directory,
            # lm-eval takes them in the order of the task, and numbers its rows by the order given.
            "--samples", json.dumps({self.task.name: sorted(items)}),
            "--output_path", os.path.join(self.work, "out"), "--log_samples", "--batch_size", "1",
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return its variables: nothing of the caller's but the path."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": self.work,
            "HF_HOME": os.path.join(self.work, "hf"),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "OPENAI_API_KEY": self.endpoint.api_key or "none",
            "PYTHONUNBUFFERED": "1",
        }

    def _call(self, items: Sequence[int], model: Sequence[str], deadline: float) -> int:
        """Run lm-eval once; return its exit code, -1 if its time ran out."""
        self.calls += 1
        shutil.rmtree(os.path.join(self.work, "out"), ignore_errors=True)
        program = Program(self.command(items, model), self.environment(), self.task.directory, merged=True)
        done = run_program(program, deadline - time.monotonic(), leave_if_abandoned)
        lines = [line.strip() for line in done.out.replace("\r", "\n").splitlines() if line.strip()]
        self.log = " | ".join(lines[-_LINES:])
        return -1 if done.code is None else done.code

    def _cached(self) -> int:
        """Return how many answers its cache holds; 0 without a cache."""
        found = 0
        for path in glob.glob(os.path.join(self.work, "cache*.db")):
            with contextlib.closing(sqlite3.connect(path)) as database, contextlib.suppress(sqlite3.Error):
                found += database.execute("SELECT count(*) FROM unnamed").fetchone()[0]
        return found

    def _rows(self) -> list[dict[str, Any]]:
        pattern = os.path.join(self.work, "out", "*", f"samples_{glob.escape(self.task.name)}_*.jsonl")
        rows = []
        for path in glob.glob(pattern):
            with open(path, encoding="utf-8") as stream:
                rows += [json.loads(line) for line in stream if line.strip()]
        for path in glob.glob(os.path.join(self.work, "out", "*", "results_*.json")):
            shutil.copy(path, os.path.join(self.work, "results.json"))
        return rows

    def _about(self) -> dict[str, Any]:
        """Return what a score is compared by; {} if there is none."""
        try:
            with open(os.path.join(self.work, "results.json"), encoding="utf-8") as stream:
                results = json.load(stream)
        except (OSError, ValueError):
            return {}
        return {
            "task_hash": (results.get("task_hashes") or {}).get(self.task.name),
            "shots": (results.get("n-shot") or {}).get(self.task.name),
            "template": "none" if not results.get("chat_template") else "chat",
            "lm_eval": results.get("lm_eval_version"),
        }
