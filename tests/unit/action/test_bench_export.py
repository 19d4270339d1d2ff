# SPDX-License-Identifier: Apache-2.0
"""The action plugin and the playbook: from a directory of results to files of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT
from tests.helpers.playbooks import Playbooks
from tests.worlds.bench_samples import mixed_fleet, summary_of

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the plugin in tmp_path, where results/r1 is; its printed text is in result["printed"]."""
    from ansible_collections.instinct.fleet.plugins.action.bench_export import ActionModule

    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "results/r1"
    directory.mkdir(parents=True)
    (directory / "summary.json").write_text(json.dumps(summary_of(mixed_fleet(), "r1")))
    (tmp_path / "results/latest").symlink_to("r1")

    def run(check: bool = False, **args: Any) -> dict[str, Any]:
        task = SimpleNamespace(args=args, check_mode=check, async_val=0, action="bench_export", diff=False)
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
        plugin = ActionModule(task, connection, SimpleNamespace(), None, None, None)
        printed: list[str] = []
        plugin._display = SimpleNamespace(display=printed.append)
        return {**plugin.run(task_vars={}), "printed": "\n".join(printed)}

    return run


def test_it_writes_the_newest_run_and_says_what_it_leaves_out(export: Run, tmp_path: Path) -> None:
    result = export(formats=["mad", "inferencex"], to="out")
    assert (result["changed"], result["run"], result["directory"]) == (True, "r1", str(tmp_path / "out"))
    written = [
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    ]
    assert sorted(written) == result["files"]
    assert "mad/ (10 files)" in result["printed"]
    assert "inferencex/unofficial_agg_bmk.json" in result["printed"]
    assert "omitted  inferencex: n1/llama-0 " in result["printed"]
    assert not export(formats=["inferencex", "mad"], to="out")["changed"]


def test_by_default_it_writes_below_exports(export: Run, tmp_path: Path) -> None:
    assert export(formats=["csv"], run="r1")["directory"] == str(tmp_path / "exports/r1")


def test_check_mode_writes_nothing_and_finds_conflicts(export: Run, tmp_path: Path) -> None:
    result = export(check=True, formats=["markdown"], to="out")
    assert (result["changed"], (tmp_path / "out").exists()) == (True, False)
    assert "would be" in result["printed"]
    (tmp_path / "out/markdown").mkdir(parents=True)
    (tmp_path / "out/markdown/benchmarks.md").write_text("mine")
    assert "has files with other content" in export(check=True, formats=["markdown"], to="out")["msg"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"formats": ["madd"]}, "format: 'madd' is not an export format. Did you mean mad?"),
        ({"formats": ["mad"], "run": "r2"}, "there is no run 'r2'"),
        ({"formats": []}, "format: no format is named."),
    ],
)
def test_what_is_unknown_is_refused(export: Run, tmp_path: Path, args: dict[str, Any], text: str) -> None:
    result = export(**args)
    assert result["failed"]
    assert text in result["msg"]
    assert not (tmp_path / "exports").exists()


def test_the_playbook_contacts_no_host(export: Run, tmp_path: Path, playbooks: Playbooks) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("instinct: {hosts: {n1: {ansible_host: 192.0.2.1}, n2: {ansible_host: 192.0.2.2}}}")
    command = ("-i", str(inventory), str(ROOT / "playbooks/export.yml"), "-e", "to=out")
    done = playbooks.run(*command, "-e", "format=markdown,vllm-sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/markdown/benchmarks.md").is_file()
    refused = playbooks.run(*command, "-e", "format=markdwn", cwd=tmp_path)
    assert refused.returncode != 0
    assert "Did you mean markdown?" in refused.stdout + refused.stderr
