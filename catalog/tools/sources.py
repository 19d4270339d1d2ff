# SPDX-License-Identifier: Apache-2.0
"""Read what a vLLM release accepts out of its Python sources, without importing it.

Configuration classes with the types and limits of their fields. Only the standard library is needed, so that this also
runs in an image's own Python.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

LIMITS = ("ge", "gt", "le", "lt", "multiple_of")
_NOT_GIVEN = ("field", "Field")
_TYPING = ("Literal", "Optional", "Union", "Annotated", "Any")
_DEPTH = 6


@dataclass
class Module:
    """One source file: its classes, the aliases of types at its top, and what it imports from vLLM."""

    name: str
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)


def read_module(name: str, text: str) -> Module:
    """Parse one file."""
    found = Module(name)
    changed: set[str] = set()
    for node in _flat(ast.parse(text).body):
        if isinstance(node, ast.ClassDef):
            found.classes[node.name] = node
            inner = [item for item in node.body if isinstance(item, ast.ClassDef)]
            found.classes.update({item.name: item for item in inner if item.name.endswith("Config")})
        elif isinstance(node, ast.FunctionDef):
            found.functions[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if target in found.values and isinstance(node.value, ast.Constant):
                changed.add(target)  # another value by what is installed, such as HAS_TRITON
            found.values[target] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.values[node.target.id] = node.value
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(name, node)
            found.imports.update({item.asname or item.name: (origin, item.name) for item in node.names})
    for target in changed:
        del found.values[target]
    return found


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of a module, with those of `if TYPE_CHECKING` and `try`."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if isinstance(node, (ast.If, ast.Try)):
            found += _flat([*node.body, *node.orelse])
    return found


def _origin(name: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


class Sources:
    """The package directory of a vLLM, read on demand."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module by its dotted name; None when it is not one of vLLM's."""
        if name not in self._modules:
            parts = name.split(".")
            path = self.package.joinpath(*parts[1:])
            places = (path / "__init__.py", path.with_suffix(".py")) if len(parts) > 1 else ()
            place = next((item for item in places if parts[0] == "vllm" and item.is_file()), None)
            self._modules[name] = read_module(_full(name, place), place.read_text()) if place else None
        return self._modules[name]

    @cached_property
    def configs(self) -> dict[str, tuple[Module, ast.ClassDef]]:
        """Every class of vllm.config, with its module."""
        found: dict[str, tuple[Module, ast.ClassDef]] = {}
        paths = [*sorted(self.package.glob("config.py")), *sorted((self.package / "config").rglob("*.py"))]
        for path in paths:
            parts = path.relative_to(self.package).with_suffix("").parts
            module = self.module(".".join(("vllm", *(parts[:-1] if parts[-1] == "__init__" else parts))))
            if module is not None:
                found.update({name: (module, node) for name, node in module.classes.items()})
        return found

    def resolve(self, module: Module, name: str) -> tuple[Module, ast.expr | ast.ClassDef] | None:
        """What a name stands for: a class or a value at the top of a module."""
        for _unused in range(_DEPTH):
            if name in module.classes:
                return module, module.classes[name]
            if name in module.values:
                return module, module.values[name]
            if name not in module.imports:
                return None
            origin, name = module.imports[name]
            following = self.module(origin)
            if following is None:
                return None
            module = following
        return None

    def expanded(self, module: Module, node: ast.expr) -> ast.expr:
        """An annotation with the aliases of Literal and Union types written out, and names of enumerations."""
        return _Expander(self, module).visit(ast.parse(ast.unparse(node), mode="eval").body)  # type: ignore[no-any-return]


def _full(name: str, place: Path | None) -> str:
    """The name that relative imports count from."""
    return f"{name}.__init__" if place is not None and place.name == "__init__.py" else name


class _Expander(ast.NodeTransformer):
    def __init__(self, sources: Sources, module: Module, depth: int = 0) -> None:
        self.sources, self.module, self.depth = sources, module, depth

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A type in quotes is read later; members of Literal are not types, and their parent leaves them."""
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Members of Literal may be aliases of other Literals."""
        if not (isinstance(node.value, ast.Name) and node.value.id == "Literal"):
            node.slice = self.visit(node.slice)
            return node
        given = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        members: list[ast.expr] = []
        for item in given:
            found = self.visit(item) if isinstance(item, ast.Name) else item
            inner = found.slice if isinstance(found, ast.Subscript) else found
            members += inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return ast.Subscript(node.value, ast.Tuple(members, ast.Load()), ast.Load())

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The meaning of a name, if it is the alias of a type or an enumeration."""
        if node.id in _TYPING or self.depth > _DEPTH:
            return node
        found = self.sources.resolve(self.module, node.id)
        if found is None:
            return node
        module, meaning = found
        if isinstance(meaning, ast.ClassDef):
            return _enumeration(meaning) or node
        head = meaning.value if isinstance(meaning, ast.Subscript) else meaning
        if (isinstance(head, ast.Name) and head.id in _TYPING) or isinstance(meaning, ast.BinOp):
            copied = ast.parse(ast.unparse(meaning), mode="eval").body
            return _Expander(self.sources, module, self.depth + 1).visit(copied)  # type: ignore[no-any-return]
        return node


def _enumeration(node: ast.ClassDef) -> ast.expr | None:
    """Enum['A', 'B'] for a class of the enum module."""
    if not any("Enum" in ast.unparse(base) for base in node.bases):
        return None
    names: list[ast.expr] = [
        ast.Constant(target.id)
        for item in node.body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    ]
    return ast.Subscript(ast.Name("Enum", ast.Load()), ast.Tuple(names, ast.Load()), ast.Load())


def config_fields(sources: Sources, name: str) -> dict[str, dict[str, object]]:
    """The fields that can be given to a configuration class: type, limits, and whether a validator converts first."""
    found: dict[str, dict[str, object]] = {}
    module, node = sources.configs[name]
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in sources.configs and base.id != name:
            found.update(config_fields(sources, base.id))
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        if item.target.id.startswith("_") or "ClassVar" in ast.unparse(item.annotation):
            continue
        options = _options(item.value)
        if _literal(options.get("init")) is False:
            continue
        limits = {key: value for key in LIMITS if (value := _literal(options.get(key))) is not None}
        found[item.target.id] = {
            "type": ast.unparse(sources.expanded(module, item.annotation)),
            "limits": limits,
            "before": False,
        }
    for key, mode in _validated(node):
        for entry in found.values() if key == "*" else [found[key]] if key in found else []:
            if mode in ("before", "plain"):
                entry["before"] = True
            elif "None" not in str(entry["type"]):
                entry["type"] = f"{entry['type']} | None"
    return found


def _options(value: ast.expr | None) -> dict[str, ast.expr]:
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _NOT_GIVEN:
        return {item.arg: item.value for item in value.keywords if item.arg}
    return {}


def _literal(node: ast.expr | None) -> object:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _validated(node: ast.ClassDef) -> list[tuple[str, str]]:
    """(field, mode) of every validator that sees a value before its type is checked."""
    found = []
    for item in node.body:
        for decorator in getattr(item, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("field_validator"):
                mode = next((_literal(key.value) for key in decorator.keywords if key.arg == "mode"), "after")
                if mode in ("before", "plain", "wrap"):
                    found += [(str(_literal(name)), str(mode)) for name in decorator.args]
    return found


def class_names(node: ast.expr, known: dict[str, tuple[Module, ast.ClassDef]]) -> list[str]:
    """Configuration classes in an annotation."""
    return [
        item.id
        for item in ast.walk(node)
        if isinstance(item, ast.Name) and item.id in known and _filled(known[item.id][1])
    ]


MADE_BY_VLLM = ("ModelConfig", "ParallelConfig", "LoadConfig", "SchedulerConfig", "VllmConfig")
"""Never given as JSON, though fields of others hold them."""


def _filled(node: ast.ClassDef) -> bool:
    protocol = any("Protocol" in ast.unparse(base) for base in node.bases)
    return node.name not in MADE_BY_VLLM and not protocol


def flag_classes(sources: Sources, flags: list[str]) -> dict[str, str]:
    """The class that the JSON of each flag is made of: of the field with the flag's name."""
    holders = ["VllmConfig", *sorted(name for name in sources.configs if name != "VllmConfig")]
    found = {}
    for flag in flags:
        wanted = flag.lstrip("-").replace("-", "_").removeprefix("override_")
        for holder in holders:
            fields = {
                item.target.id: item.annotation
                for item in sources.configs[holder][1].body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            } if holder in sources.configs else {}  # fmt: skip
            names = class_names(fields[wanted], sources.configs) if wanted in fields else []
            if names:
                found[flag] = names[0]
                break
    return found


def config_classes(sources: Sources, flags: list[str]) -> dict[str, dict[str, object]]:
    """Every class that JSON on the command line can fill, with its flags and fields; nested ones too."""
    roots = flag_classes(sources, flags)
    waiting, found = list(roots.values()), {}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        fields = config_fields(sources, name)
        found[name] = {
            "flags": sorted(flag for flag, given in roots.items() if given == name),
            "fields": fields,
        }
        for entry in fields.values():
            waiting += class_names(ast.parse(str(entry["type"]), mode="eval").body, sources.configs)
    return dict(sorted(found.items()))


def _texts(node: ast.expr | None) -> list[str]:
    """Texts of a list, of a Literal, or the keys of a map."""
    if node is None:
        return []
    items = node.keys if isinstance(node, ast.Dict) else list(ast.walk(node))
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
