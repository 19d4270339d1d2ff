# SPDX-License-Identifier: Apache-2.0
"""history.yml in a real ansible-playbook: pages of all deployments, or of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.playbooks import Playbooks
from tests.worlds.compared_runs import row, side, store

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An inventory whose host is nowhere, and two runs of two deployments."""
    (tmp_path / "hosts.yml").write_text("instinct:\n  hosts:\n    n1: {ansible_host: 192.0.2.1}\n")
    for day in range(2):
        rows = [
            row(minute=1440 * day + block, speed=1000.0 + 50 * day + block, deployment=name, block=block)
            for name in ("llama", "qwen")
            for block in (1, 2, 3)
        ]
        store(tmp_path / "results", f"r{day}", side("x", rows))
    return tmp_path


@pytest.fixture
def run(place: Path, playbooks: Playbooks) -> Run:
    """Run history.yml; its exit code and what it printed."""

    def run(*args: str) -> tuple[int, str]:
        given = ("-i", str(place / "hosts.yml"), "-e", f"benchmark_results_dir={place}/results")
        done = playbooks.run(*given, *args, str(ROOT / "playbooks/history.yml"), cwd=place)
        return done.returncode, done.stdout + done.stderr

    return run


def test_every_deployment_gets_its_page(place: Path, run: Run) -> None:
    code, text = run()
    assert code == 0, text
    pages = place / "results/history"
    assert sorted(path.name for path in pages.iterdir()) == ["llama.html", "qwen.html"]
    assert "llama: 2 runs, 1 cell, 0 runs with another image digest than the one before" in text
    assert str(pages / "qwen.html") in text
    assert (pages / "llama.html").read_text().count('<tr><th scope="row">r') == 2


def test_one_deployment_and_check_mode(place: Path, run: Run) -> None:
    assert run("-e", "deployment=qwen", "--check")[0] == 0
    assert not (place / "results/history").exists()
    assert run("-e", "deployment=qwen")[0] == 0
    assert [path.name for path in (place / "results/history").iterdir()] == ["qwen.html"]


def test_an_unknown_deployment_gets_the_nearest_name(place: Path, run: Run) -> None:
    code, text = run("-e", "deployment=lama")
    assert code == 2
    assert "measured a deployment lama. Did you mean llama?" in " ".join(text.split())
    assert not (place / "results/history").exists()
