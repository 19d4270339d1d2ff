# SPDX-License-Identifier: Apache-2.0
"""The hub token is nowhere but in the file that is meant to hold it, on success and on failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Lab
from .helpers import GATED, TOKEN, deployment
from .leaks import Sampler, files_with, found_on, search_works

NIGHTLY = ("engine fails", "gated model refused")
CASES = ("right token", *(pytest.param(case, marks=pytest.mark.deep) for case in NIGHTLY))


@pytest.mark.parametrize("case", CASES)
def test_no_secret_anywhere(fresh_lab: Lab, tmp_path: Path, case: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    token_file = secret / "hf_token"
    token_file.write_text(TOKEN + ("x" if case == "gated model refused" else "") + "\n")
    token_file.chmod(0o600)
    env = {"STANDIN_FAIL": "oom"} if case == "engine fails" else {}
    fresh_lab.write_vars(
        vllm_deployments=[deployment(model=GATED, env=env)],
        hf_model_token_file=str(token_file),
        hf_model_insecure=True,
    )
    sampler = Sampler(TOKEN)
    sampler.start()
    sampler.works(fresh_lab)
    results = tmp_path / "results"
    run = fresh_lab.play(
        "site",
        "-vvv",
        "--diff",
        "-e",
        f"benchmark_results_dir={results}",
        "-e",
        f"plan_file={tmp_path}/plan.json",
    )
    seen = sampler.end()

    assert (run.rc == 0) is (case == "right token"), run.out
    assert any("instinct-fetch" in p or "snapshot" in p or "docker-init" in p for p in sampler.processes)
    assert seen == set()
    assert "hf_model" in run.modules() or case == "gated model refused"  # the one that is given the token
    assert TOKEN not in run.out
    for host in fresh_lab.hosts:
        assert found_on(fresh_lab, host, [TOKEN]) == set(), host
        search_works(fresh_lab, host)
    places = [path for path in (tmp_path, Path.home() / ".ansible") if path.exists()]
    assert files_with(TOKEN, *places) == [str(token_file)]
