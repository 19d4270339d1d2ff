# SPDX-License-Identifier: Apache-2.0
"""A module's documentation as ansible-doc shows it: with the fragments that it extends."""

from __future__ import annotations

import importlib
from typing import Any

import yaml
from ansible.utils.plugin_docs import add_fragments

COLLECTION = "instinct.fleet"


class _Fragments:
    """Finds fragments as Ansible's loader does, in this checkout."""

    def get(self, name: str) -> Any:
        if not name.startswith(f"{COLLECTION}."):
            return None
        package = f"ansible_collections.{COLLECTION}.plugins.doc_fragments"
        try:
            found = importlib.import_module(package + name.removeprefix(COLLECTION)).ModuleDocFragment
        except ModuleNotFoundError:
            return None
        found.ansible_name = name
        return found


def documented_by(module: Any) -> dict[str, Any]:
    """The documentation of a module that was imported."""
    found: dict[str, Any] = yaml.safe_load(module.DOCUMENTATION)
    add_fragments(found, module.__file__, _Fragments(), is_module=True)
    return found
