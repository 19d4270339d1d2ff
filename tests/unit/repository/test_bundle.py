# SPDX-License-Identifier: Apache-2.0
"""Programs as nodes and containers get them: each is whole by itself, and its action plugin hands it over.

Those of several files are run by test_supervise.py and test_partition_boot.py.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base import bundle as bundles
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import archive, bundle, script

from tests.helpers.actions import action_files, action_of
from tests.worlds.plan_world import deployment, plan, state

SCRIPTS = (
    "bench_job", "burnin", "download", "haproxy_agent", "inspect_image", "keepalived_check", "quantize", "router",
)  # fmt: skip
GIVEN = {
    "blob_swarm": archive("swarm"),
    "hf_model": script("download"),
    "partition_boot": archive("partition_boot"),
    "gpu_burnin": script("burnin"),
    "model_quantize": script("quantize"),
    "vllm_bench": script("bench_job"),
    "vllm_image": script("inspect_image"),
    "vllm_server": bundle("supervisor").files,
}


def imported(text: str) -> set[str]:
    """Top names of what a text imports; AssertionError for a relative import."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            found.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_of_one_text_needs_nothing_of_ours(name: str) -> None:
    text = script(name)
    compile(text, name, "exec")
    quark = {"quark", "llmcompressor", "torch", "transformers", "safetensors", "pyarrow"}
    owned = {"burnin": {"torch"}, "download": {"huggingface_hub"}, "quantize": quark}
    own = owned.get(name, set())  # the image's, or beside it
    assert imported(text) - own <= set(sys.stdlib_module_names)
    assert "__main__" in text


@pytest.mark.parametrize("name", GIVEN)
def test_the_action_plugin_hands_the_program_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    def execute(self: Any, module_args: dict[str, Any], **more: Any) -> dict[str, Any]:
        sent.append(module_args)
        return {"changed": True}

    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    action = action_of(name)
    plugin = action.__new__(action)  # its parts of Ansible are not needed
    plugin._task = SimpleNamespace(
        args={"timeout": 5}, async_val=0, delegate_to=None, action=f"instinct.fleet.{name}"
    )
    assert plugin.run(None, {}) == {"changed": True}
    composed = {"vllm_bench": {"jobs": {}}, "model_quantize": {"step": "facts"}}.get(name, {})
    (given,) = sent
    assert given.pop("lease")["run"]
    assert sent == [{"timeout": 5, **composed, "program": GIVEN[name]}]
    assert GIVEN[name]


def test_modules_that_are_given_a_program_are_those_that_take_one() -> None:
    plugins = bundles.ROOT.parent
    takes = {
        path.stem
        for path in plugins.glob("modules/*.py")
        if '"program": {' in path.read_text(encoding="utf-8")
    }
    gives = {name for name in action_files() if issubclass(action_of(name), ProgramAction)}
    assert takes == gives - {"rocm_partition"} == set(bundles.GIVEN) == set(GIVEN)


# ---- what makes a version of the supervisor ----------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of module_utils, of which programs are bundled."""
    copy = tmp_path / "module_utils"
    shutil.copytree(bundles.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(bundles, "ROOT", copy)
    bundle.cache_clear()
    yield copy
    bundle.cache_clear()


def specs() -> dict[str, str]:
    """The hashes of a planned fleet's instances, which hold the supervisor's version."""
    found = plan({"n1": state()}, [deployment(instances_per_host=2)]).to_json()["hosts"]["n1"]["instances"]
    return {instance["name"]: instance["spec_hash"] for instance in found}


@pytest.mark.parametrize(
    ("file", "before", "after", "same"),
    [
        (
            "engines/failure_signatures.py",
            "SIGNATURES: tuple[Signature, ...] = (\n",
            'SIGNATURES: tuple[Signature, ...] = (\n    Signature("cosmic_ray", ("bit flipped",), "Look up."),\n',
            True,
        ),
        ("engines/failures.py", "LINE_LIMIT = 600", "LINE_LIMIT = 601", False),
        ("programs/supervisor/state.py", "LIMIT = 3", "LIMIT = 4", False),
    ],
)
def test_a_failure_signature_changes_no_instance(
    file: str, before: str, after: str, same: bool, sources: Path
) -> None:
    version, planned = bundle("supervisor").version, specs()
    text = (sources / file).read_text(encoding="utf-8")
    assert text.count(before) == 1
    (sources / file).write_text(text.replace(before, after), encoding="utf-8")
    bundle.cache_clear()
    assert (bundle("supervisor").version == version) == same
    assert (specs() == planned) == same
