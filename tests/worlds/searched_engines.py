# SPDX-License-Identifier: Apache-2.0
"""Searches through the action plugin of vllm_bench, on engines whose limit is known. Only the node is simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ansible_collections.instinct.fleet.plugins.action.vllm_bench import ActionModule
from ansible_collections.instinct.fleet.plugins.module_utils.bench.results import compress_lists, separate

from tests.worlds.bench_world import instance

SUITE = """\
schema: 1
suite: {name}
title: The load that keeps a limit
repeats: {{warmups: 1}}
slos: {slos}
groups:
  - title: Searched
    kind: serve
    shapes: [{{input: 16, output: 16}}]
    load: {{search: {search}}}
    num_prompts: {prompts}
    args: {{ignore_eos: true, temperature: 0}}
"""
Engine = Callable[[dict[str, Any], int, int], dict[str, Any]]
"""The client's result under a load, with so many requests and this seed."""


def suite_file(
    directory: Path,
    search: str = "{rate: 4, most: 128}",
    slos: str = "[{name: chat, ttft_ms: 2000}]",
    prompts: str = "{seconds: 300}",
) -> str:
    """Write a suite that searches; return its path."""
    path = directory / "own.yml"
    path.write_text(SUITE.format(name="own", slos=slos, search=search, prompts=prompts), encoding="utf-8")
    return str(path)


class Node:
    """A node with an engine for each instance. calls: the jobs of each call of the module on it."""

    def __init__(self, **engines: Engine) -> None:
        self.engines = engines
        self.calls: list[dict[str, dict[str, Any]]] = []

    def module(self, module_args: dict[str, Any], **_others: Any) -> dict[str, Any]:
        """The module's own result."""
        targets = {target["name"] for target in module_args["targets"]}
        jobs = module_args["jobs"]
        assert targets == set(jobs)
        self.calls.append(jobs)
        entries = [self._entry(name, job) for name, job in jobs.items()]
        failed = [entry["error"] for entry in entries if entry["error"]]
        return {
            "changed": False,
            "benchmarks": entries,
            **({"failed": True, "msg": "; ".join(failed)} if failed else {}),
        }

    def _entry(self, name: str, job: dict[str, Any]) -> dict[str, Any]:
        (cell,) = job["cells"]
        result = self.engines[name.replace("-", "_")](cell["load"], cell["num_prompts"], job["seed"])
        plain, lists = separate("serve", result) if result else (None, {})
        if result and len(result["output_lens"]) < 1000:  # more of them only take time
            lists["itls"] = [[0.3] * (count - 1) for count in result["output_lens"]]
        failed = (result or {}).get("failed") or 0
        error = "the engine is gone" if not result else f"{failed} requests failed." if failed else None
        run = {
            "block": 1, "order": 1, "seed": job["seed"], "started": 1769854502.0 + 300 * len(self.calls),
            "seconds": 300.0, "client_cpu_share": 0.2, "result": plain, "detail": compress_lists(lists, 1 << 24),
            "log": "",
            "error": error, "telemetry": None,
        }  # fmt: skip
        return {
            "instance": name, "deployment": "llama", "kind": "serve", "suite": job["suite"],
            **{key: cell[key] for key in ("cell", "shape", "load", "metric", "slos")},
            "model": "lab/tiny-llama", "commit": None, "image": "i", "digest": None, "command": cell["argv"],
            "runs": [run], "log": "", "error": error, "live": False,
            "instance_plan": {"name": name, "deployment": "llama", "gpus": [0, 1]},
        }  # fmt: skip


def search(node: Node, suite: str, *, check: bool = False, **given: Any) -> dict[str, Any]:
    """Run the action plugin for the node's instances. It must not be run twice at the same time."""
    names = [name.replace("_", "-") for name in node.engines]
    targets = [instance(name, gpus=[0, 1]) for name in names]
    plugin = ActionModule.__new__(ActionModule)  # its parts of Ansible are not needed
    plugin._display = SimpleNamespace(warning=lambda text: None, v=lambda text: None)
    plugin._task = SimpleNamespace(
        action="instinct.fleet.vllm_bench",
        args={"suite": suite, "targets": targets, "overrides": {"seed": 7}, **given},
        async_val=0,
        delegate_to=None,
        check_mode=check,
    )
    plugin._execute_module = node.module
    found: dict[str, Any] = plugin.run(None, {"inventory_hostname": "n1"})
    return found
