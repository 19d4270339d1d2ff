# SPDX-License-Identifier: Apache-2.0
"""Prints the files whose code runs on nodes, found by their imports: what `make lint` holds to Python 3.9.

python -m tests.node_code
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from ansible.executor.module_common import ModuleDepFinder

ROOT = Path(__file__).resolve().parents[1]
# Handed over as text or as a file, so that no module has to import it.
PROGRAMS = ("supervise_*.py", "*_program.py", "balancer_agent.py", "partition_boot.py")


def imported(path: Path) -> set[str]:
    """Names that a file imports from module_utils/instinct, found as Ansible finds what it sends along."""
    place = f"modules.{path.stem}" if path.parent.name == "library" else f"module_utils.instinct.{path.stem}"
    finder = ModuleDepFinder(f"ansible.{place}", ast.parse(path.read_text(encoding="utf-8")))
    return {name[3] for name in finder.submodules if name[:3] == ("ansible", "module_utils", "instinct")}


def node_code(root: Path = ROOT) -> list[Path]:
    """Modules that have no action plugin of their name, the programs, and all that these import."""
    package = root / "module_utils/instinct"
    actions = {path.name for path in (root / "plugins/action").glob("*.py")}
    left = [path for path in (root / "library").glob("*.py") if path.name not in actions]
    left += [path for pattern in PROGRAMS for path in package.glob(pattern)]
    found = {package / "__init__.py"}
    while left:
        path = left.pop()
        if path.exists() and path not in found:
            found.add(path)
            left += [package / f"{name}.py" for name in imported(path)]
    return sorted(found)


if __name__ == "__main__":
    sys.stdout.writelines(f"{path.relative_to(ROOT)}\n" for path in node_code())
