# SPDX-License-Identifier: Apache-2.0
"""The planner's KV tokens and weights against the real vLLM in the lab's image, on models drawn anew in each run.

After test_main_job, which leaves the image on the nodes.
"""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from lab.config import VLLM_VERSION
from tests import ROOT
from tests.oracles.fit_cases import case, planned
from tests.worlds.catalogue import kv_rules

from .conftest import Lab

IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
ONE_RANK = (
    "llama", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3", "gemma3", "gpt_oss", "granite_hybrid",
)  # fmt: skip
TWO_RANKS = ("llama", "qwen3_moe", "deepseek_v3")
"""Recorded answers of 31 architectures are in tests/data/fit."""


def ask(lab: Lab, cases: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    """Let tests/oracles/fit_oracle.py answer, in a container on a node; its log is in the error when it does not."""
    program = base64.b64encode((ROOT / "tests/oracles/fit_oracle.py").read_bytes()).decode()
    questions = base64.b64encode(json.dumps(cases).encode()).decode()
    output = lab.on(
        lab.hosts[0],
        f"""set -eu; rm -rf /tmp/fit; mkdir /tmp/fit; cd /tmp/fit
        echo {program} | base64 -d > fit_oracle.py; echo {questions} | base64 -d > cases.json
        docker run --rm -i --network none --ipc host -v /tmp/fit:/fit {IMAGE} \
            python3 /fit/fit_oracle.py {" ".join(options)} < cases.json > answers.json 2> log \
            || {{ tail -40 log; exit 1; }}
        cat answers.json""",
    )
    answered = json.loads(output)
    assert answered["vllm"] == VLLM_VERSION
    found: list[dict[str, Any]] = answered["cases"]
    assert len(found) == len(cases)
    return found


@pytest.fixture(scope="module")
def seed() -> int:
    """Which models are drawn; an assertion prints the config that failed."""
    return random.SystemRandom().randrange(1_000_000)


@pytest.fixture
def engines(lab: Lab) -> Lab:
    """The lab with the real vLLM's image on its first node."""
    if (
        lab.on(lab.hosts[0], f"docker image inspect {IMAGE} > /dev/null && echo yes", check=False).strip()
        != "yes"
    ):
        run = lab.play("site", "--skip-tags", "benchmark")
        assert run.rc == 0, run.out
    return lab


@pytest.mark.deep
def test_tokens_and_weights_are_vllms_own(engines: Lab, seed: int) -> None:
    rules = kv_rules(VLLM_VERSION)
    questions = [case(name, seed) for name in ONE_RANK] + [case(name, seed, 2) for name in TWO_RANKS]
    questions += [case("llama", seed, pp=2), case("mixtral", seed, 2, enable_expert_parallel=True)]
    for question in ask(engines, questions):
        answer, found = question["answer"], planned(question, rules)
        assert "error" not in answer, question
        assert found.kv_cache_tokens == pytest.approx(answer["tokens"], rel=0.01), question
        assert found.max_concurrency == pytest.approx(answer["concurrency"], rel=0.01), question
        assert found.weights_bytes_per_gpu == pytest.approx(answer["weights_bytes"], rel=0.01), question


@pytest.mark.deep
def test_the_log_of_a_started_engine_says_the_same(engines: Lab, seed: int) -> None:
    rules = kv_rules(VLLM_VERSION)
    (question,) = ask(engines, [case("gemma3", seed)], "--start")
    found = planned(question, rules)
    assert "error" not in question["logged"], question
    assert found.kv_cache_tokens == pytest.approx(question["logged"]["tokens"], rel=0.01), question
    assert found.max_concurrency == pytest.approx(question["logged"]["concurrency"], rel=0.01), question
