# SPDX-License-Identifier: Apache-2.0
"""What stands beside an inventory and is not part of it is skipped by Ansible without a word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

CONFIG = json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32})


def listed(inventory: Path) -> tuple[dict[str, object], str]:
    """What ansible-inventory reads, and what it says beside it."""
    program = Path(sys.executable).with_name("ansible-inventory")
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        [str(program), "-i", str(inventory), "--list"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The inventory without other files."""
    inventory = tmp_path_factory.mktemp("example") / "mine"
    shutil.copytree(ROOT / "inventory/example", inventory)
    return listed(inventory)[0]


@pytest.mark.parametrize(
    "names",
    [
        ("config.json",),
        ("llama-8b.config.json", "llama_70b_config.json"),
        (
            "models/config.json",
            "models/llama/config.json",
            "models/llama/tokenizer.json",
            "models/x.safetensors",
        ),
        ("fleet.lock.json",),
    ],
)
def test_files_beside_the_inventory_make_no_warnings(
    example: dict[str, object], tmp_path: Path, names: tuple[str, ...]
) -> None:
    inventory = tmp_path / "mine"
    shutil.copytree(ROOT / "inventory/example", inventory)
    for name in names:
        (inventory / name).parent.mkdir(parents=True, exist_ok=True)
        (inventory / name).write_text(CONFIG)
    after, said = listed(inventory)
    assert "WARNING" not in said
    assert after == example
