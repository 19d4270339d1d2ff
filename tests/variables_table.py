# SPDX-License-Identifier: Apache-2.0
"""docs/variables.md, from the argument_specs of the roles: python -m tests.variables_table > docs/variables.md"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit import auditor
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired import (
    endpoint_settings,
    host_settings,
)

from tests import ROOT
from tests.playbook_variables import Tree, load

HEAD = """# Variables

Everything that you may set, in the inventory or with `-e`, by the role that declares it in
`roles/<role>/meta/argument_specs.yml`. Variables that only a plan passes to a role are not listed. An unknown name that
resembles one of these causes a warning, and with `-e` an error. This page is generated from the roles: `make docs`.
"""
READ = {*host_settings.VARIABLES, *endpoint_settings.VARIABLES, *auditor.VARIABLES}
"""What the planner reads of hosts; playbooks give some of it to roles as the plan has it, under the same name."""


def page() -> str:
    """The page."""
    return "\n".join(_lines(Tree(ROOT)))


def _lines(tree: Tree) -> Iterator[str]:
    yield HEAD
    roles = sorted({item.role for found in tree.declarations.values() for item in found})
    for role in sorted(roles, key=lambda name: (name != "fleet", name)):
        specs = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]
        for entry, spec in specs.items():
            options = {name: option for name, option in spec["options"].items() if _yours(name, tree)}
            if options:
                about = f" {_prose(spec['description'])}" if role == "fleet" else ""
                yield f"## {role if entry == 'main' else f'{role}: {entry}'}\n"
                yield f"{spec['short_description']}.{about}\n"
                yield "| variable | type | default | |\n|---|---|---|---|"
                yield from (_row(name, option) for name, option in options.items())
                yield ""


def _yours(name: str, tree: Tree) -> bool:
    return name in READ or name not in tree.set_here


def _row(name: str, option: Mapping[str, Any]) -> str:
    kind = option.get("type", "str") + (f" of {option['elements']}" if "elements" in option else "")
    default = option.get("default")
    shown = (
        ""
        if default in (None, "", [], {})
        else f"`{default if isinstance(default, str) else json.dumps(default)}`"
    )
    choices = [str(item) for item in option.get("choices", ()) if item]
    text = _prose(option["description"]) + (
        f" One of {', '.join(f'`{item}`' for item in choices)}." if choices else ""
    )
    return f"| `{name}` | {kind} | {_cell(shown)} | {_cell(text)} |"


def _prose(text: str | list[str]) -> str:
    """A description without Ansible's markup."""
    joined = text if isinstance(text, str) else " ".join(text)
    return re.sub(r"\b[CMOV]\((?:instinct\.fleet\.)?((?:[^()]|\([^()]*\))*)\)", r"`\1`", joined)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
