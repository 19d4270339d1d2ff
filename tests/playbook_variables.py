# SPDX-License-Identifier: Apache-2.0
"""What playbooks and roles do with variables: which they name, what they give to modules, what roles declare.

The tests are tests/unit/repository/test_variables.py; docs/variables.md is made from it by tests/variables_table.py.
"""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml
from jinja2 import meta, nodes

from tests.helpers.module_docs import documented_by

EXPRESSIONS = ("when", "that", "until", "failed_when", "changed_when")
"""Keys whose texts are expressions without braces."""
ANSIBLES = {
    "groups",
    "hostvars",
    "inventory_dir",
    "inventory_hostname",
    "item",
    "lookup",
    "now",
    "omit",
    "playbook_dir",
    "query",
    "role_path",
}
"""What Ansible defines, besides all that begins with ansible_."""
Options = Mapping[str, Mapping[str, Any]]
_JINJA = jinja2.Environment()


@dataclass(frozen=True)
class Declaration:
    """A variable in an entry point of a role's argument_specs."""

    role: str
    entry: str
    option: Mapping[str, Any]


@dataclass(frozen=True)
class Fallback:
    """`variable | default(value)` or, with omit, `variable | default(omit)`; empties: also for an empty value."""

    variable: str
    value: Any = None
    omit: bool = False
    empties: bool = False


@dataclass(frozen=True)
class Given:
    """An option of a module that is given a variable as it is, or its fallback."""

    place: str
    option: Mapping[str, Any]
    variable: str
    fallback: Fallback | None


@dataclass(frozen=True)
class Tree:
    """The playbooks and roles below a directory."""

    root: Path

    @functools.cached_property
    def declarations(self) -> Mapping[str, list[Declaration]]:
        """Every variable that some role declares."""
        found = defaultdict(list)
        for path in sorted((self.root / "roles").glob("*/meta/argument_specs.yml")):
            for entry, spec in load(path)["argument_specs"].items():
                for name, option in (spec.get("options") or {}).items():
                    found[name].append(Declaration(path.parents[1].name, entry, option))
        return found

    @functools.cached_property
    def files(self) -> Mapping[str, Any]:
        """Playbooks and tasks by their paths."""
        paths = [*(self.root / "playbooks").rglob("*.yml"), *(self.root / "roles").glob("*/tasks/**/*.yml")]
        return {path.relative_to(self.root).as_posix(): load(path) for path in sorted(paths)}

    @functools.cached_property
    def set_here(self) -> set[str]:
        """Variables that playbooks and roles set themselves: vars, results, facts, those of loops and of hosts."""
        return {name for data in self.files.values() for name in _set_in(data)}

    def uses(self) -> Iterator[tuple[str, str]]:
        """Every file with each variable of an operator or of a role that it names."""
        for place, data in self.files.items():
            names = {
                name for text in templates(data) for name in meta.find_undeclared_variables(_parsed(text))
            }
            for name in sorted(names - ANSIBLES - self.set_here):
                if not name.startswith(("ansible_", "_")):
                    yield place, name

    def fallbacks(self) -> Iterator[tuple[str, Fallback]]:
        """Every file with each `variable | default(value)` in it."""
        for place, data in self.files.items():
            for text in templates(data):
                for node in _parsed(text).find_all(nodes.Filter):
                    found = _fallback(node)
                    if found:
                        yield place, found

    def computed(self) -> Iterator[tuple[str, str]]:
        """Every file with each variable that it computes with, or decides by, as it is: -e gives all as text."""
        for place, data in self.files.items():
            for text, condition in evaluated(data):
                for node in _parsed(text).body:
                    yield from ((place, name) for name in _computed(node, condition))

    def given(self) -> Iterator[Given]:
        """Every option of a module that is given a variable."""
        for place, data in self.files.items():
            for task in tasks(data):
                for module, args in task.items():
                    if module.startswith(("instinct.fleet.", "ansible.builtin.")) and isinstance(
                        args, Mapping
                    ):
                        yield from _given(f"{place}: {module}", args, options_of(module))


def load(path: Path) -> Any:
    """A YAML file."""
    return yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def templates(data: Any) -> Iterator[str]:
    """Every text in data that Ansible evaluates, as a template."""
    return (text for text, _condition in evaluated(data))


def evaluated(data: Any, key: str = "") -> Iterator[tuple[str, bool]]:
    """Every text in data that Ansible evaluates, as a template, and whether it is a condition."""
    if isinstance(data, Mapping):
        for name, item in data.items():
            yield from evaluated(item, name)
    elif isinstance(data, list):
        for item in data:
            yield from evaluated(item, key)
    elif isinstance(data, str) and key in EXPRESSIONS:
        yield f"{{{{ ({data}) }}}}", True
    elif isinstance(data, str):
        yield data, False


def tasks(data: Any) -> Iterator[Mapping[str, Any]]:
    """Every play and task in data, and what else is a map; a module's name is a key of none but a task."""
    if isinstance(data, Mapping):
        yield data
        for item in data.values():
            yield from tasks(item)
    elif isinstance(data, list):
        for item in data:
            yield from tasks(item)


@functools.cache
def options_of(module: str) -> Options:
    """A module's options. Where the work is done by an action plugin, its documentation is all there is."""
    name, own = module.rpartition(".")[2], module.startswith("instinct.")
    room = "ansible_collections.instinct.fleet.plugins" if own else "ansible"
    found = importlib.import_module(f"{room}.modules.{name}")
    if hasattr(found, "argument_spec"):
        ours: Options = found.argument_spec()
        return ours
    documentation = documented_by(found) if own else yaml.safe_load(found.DOCUMENTATION)
    documented: Options = documentation.get("options") or {}
    return documented


@functools.cache
def _parsed(text: str) -> nodes.Template:
    parsed = _JINJA.parse(text)
    for node in parsed.find_all(
        (nodes.Filter, nodes.Test)
    ):  # Ansible's, of which Jinja only needs to know the names
        (_JINJA.filters if isinstance(node, nodes.Filter) else _JINJA.tests).setdefault(node.name, str)
    return parsed


def _computed(node: nodes.Node, needed: bool = False) -> Iterator[str]:
    """Yield the variables whose types decide what an expression is. needed: the type of the node itself does."""
    match node:
        case nodes.Name(name=name):
            yield from [name] if needed else []
        case nodes.Filter(node=nodes.Node() as inner, name=name):
            yield from _computed(inner, needed and name == "default")
            for item in node.args:
                yield from _computed(item, needed and name == "default")
        case nodes.CondExpr(test=test):
            yield from _computed(test, True)
            for item in (node.expr1, node.expr2):
                yield from _computed(item, needed) if item else ()
        case nodes.Output() | nodes.TemplateData() | nodes.Test() | nodes.Call() | nodes.Concat():
            for item in node.iter_child_nodes():
                yield from _computed(item, needed and isinstance(node, nodes.Output))
        case nodes.Not() | nodes.BinExpr() | nodes.UnaryExpr() | nodes.Compare() | nodes.Operand():
            for item in node.iter_child_nodes():
                yield from _computed(item, True)
        case _:
            for item in node.iter_child_nodes():
                yield from _computed(item)


def _set_in(data: Any) -> Iterator[str]:
    for item in tasks(data):
        yield from item.get("vars") or ()
        yield from [item["register"]] if "register" in item else ()
        yield from [item["loop_var"]] if "loop_var" in item else ()
        yield from item.get("ansible.builtin.set_fact") or ()
        yield from item.get("ansible.builtin.add_host") or ()


def _given(place: str, args: Mapping[str, Any], options: Options) -> Iterator[Given]:
    for name, value in args.items():
        option = options.get(name)
        if option is None:
            continue
        inner = option.get("options") or option.get("suboptions")
        if isinstance(value, Mapping) and inner:
            yield from _given(f"{place}.{name}", value, inner)
        elif isinstance(value, str):
            node = _alone(value)
            fallback = _fallback(node) if isinstance(node, nodes.Filter) else None
            if isinstance(node, nodes.Name):
                yield Given(f"{place}.{name}", option, node.name, None)
            elif fallback:
                yield Given(f"{place}.{name}", option, fallback.variable, fallback)


def _alone(text: str) -> nodes.Node | None:
    """The expression that is all of a template."""
    match _parsed(text).body:
        case [nodes.Output(nodes=[node])]:
            return node
    return None


def _fallback(node: nodes.Filter) -> Fallback | None:
    if node.name != "default" or not isinstance(node.node, nodes.Name):
        return None
    first, *rest = node.args
    empties = bool(rest and rest[0].as_const())
    if isinstance(first, nodes.Name) and first.name == "omit":
        return Fallback(node.node.name, omit=True, empties=empties)
    return Fallback(node.node.name, first.as_const(), empties=empties)
