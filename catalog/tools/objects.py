# SPDX-License-Identifier: Apache-2.0
"""The objects of the walk that checks.py describes: configuration classes, their fields, limits and validators."""

from __future__ import annotations

import ast

from catalog.tools.alternatives import DECIDING, alternatives, every, joined
from catalog.tools.expressions import (
    NONE,
    TRUE,
    Expr,
    constant,
    inverse,
    operation,
    present,
)
from catalog.tools.sources import LIMITS, MADE_BY_VLLM, Module, Sources, _literal, _options

_BY_LIMIT = {"ge": "<", "gt": "<=", "le": ">", "lt": ">="}
DEEP = 4
MODEL = ("max_model_len", "use_mla", "is_moe", "is_multimodal_model")
"""What the planner knows of a model under these names."""


class Frame:
    """One call: its local names, the conditions under which its end was reached, and what it returned."""

    count = 0

    def __init__(self, module: Module, at: str) -> None:
        Frame.count += 1
        self.module, self.at, self.name = module, at, f"{Frame.count}:"
        self.dead: list[Expr] = []
        self.imports: dict[str, tuple[str, str]] = {}
        self.returned: list[tuple[Expr, Expr]] = []


class Objects:
    """What is known of the classes of one release, and of the objects that the walk made of them."""

    def __init__(
        self, sources: Sources, arguments: set[str], json_classes: dict[str, dict[str, object]]
    ) -> None:
        self.sources, self.arguments, self.json = sources, arguments, json_classes
        self.env: dict[str, Expr] = {}
        self.guards: list[Expr] = []
        self.frames: list[Frame] = []
        self.made: set[str] = set()
        self.defaults: dict[str, Expr] = {}
        self.every: dict[str, list[str | None]] = {}
        self.starts: dict[str, int] = {}

    def resolve(self, name: str) -> tuple[Module, ast.expr | ast.ClassDef] | None:
        """What a global name of the function that is being walked stands for."""
        frame = self.frames[-1]
        if name in frame.imports:
            origin, name = frame.imports[name]
            module = self.sources.module(origin)
            return self.sources.resolve(module, name) if module else None
        return self.sources.resolve(frame.module, name)

    def default(self, name: str, attribute: str, depth: int = 0) -> Expr:
        """The default of a field, where the class itself is asked for it."""
        found = self.class_of(name)
        for item in found[1].body if found and depth < DEEP else ():
            if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == attribute:
                options = _options(item.value)
                default = options.get("default") if options else item.value
                if isinstance(default, ast.Attribute) and isinstance(default.value, ast.Name):
                    return self.default(default.value.id, default.attr, depth + 1)
                if is_none(default) or _literal(default) is not None:
                    return constant(_literal(default))
        return None

    def value(self, node: ast.expr) -> Expr:
        """What an expression is at this point of the walk."""
        raise NotImplementedError

    def call(self, module: Module, node: ast.FunctionDef, name: str, bound: dict[str, Expr]) -> Expr:
        """Run a function with its parameters."""
        raise NotImplementedError

    def refuse(self, condition: Expr) -> None:
        """Keep the condition under which vLLM stops here."""
        raise NotImplementedError

    def class_of(self, name: str) -> tuple[Module, ast.ClassDef] | None:
        """A class of vllm.config, or one of the two others that take part."""
        if name in self.sources.configs:
            return self.sources.configs[name]
        module = self.sources.module({"EngineArgs": "vllm.engine.arg_utils"}.get(name, "vllm.platforms.rocm"))
        return (module, module.classes[name]) if module and name in module.classes else None

    def method(self, name: str, method: str) -> tuple[Module, ast.FunctionDef, str] | None:
        """A method with its module and the class that has it."""
        found = self.class_of(name)
        if found is None:
            return None
        module, node = found
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == method:
                return module, item, name
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id != name and (up := self.method(base.id, method)):
                return up
        return None

    def annotation(self, name: str, attribute: str) -> str:
        """The annotation of a field."""
        found = self.class_of(name)
        for item in found[1].body if found else ():
            if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == attribute:
                return ast.unparse(item.annotation)
        return ""

    def attribute(self, name: str, attribute: str) -> Expr:
        """What an attribute of an object is at this point of the walk."""
        key = f"{name}.{attribute}"
        if key in self.env:
            return self.env[key]
        kind = self.annotation(name, attribute)
        inner = next((item for item in self.json if item in kind), None)
        if inner:
            held = self.given(name, attribute) if name in self.json else f"EngineArgs.{attribute}"
            there = inverse(["is", held, NONE]) if "None" in kind or "Optional" in kind else TRUE
            return present(inner, there)
        if name == "ModelConfig":
            return f"model.{attribute}"
        found = self.method(name, attribute)
        if found and any(ast.unparse(item) == "property" for item in found[1].decorator_list):
            return self.call(found[0], found[1], name, {"self": present(name)})
        return self.given(name, attribute) if name in self.json else key

    def given(self, name: str, attribute: str) -> Expr:
        """A key of JSON, or its default where that is known."""
        key = f"{name}.{attribute}"
        if key not in self.defaults:
            self.defaults[key] = self._given(name, attribute, key)
        return self.defaults[key]

    def _given(self, name: str, attribute: str, key: str) -> Expr:
        found = self.class_of(name)
        for item in found[1].body if found else ():
            if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == attribute:
                if any(made in ast.unparse(item.annotation) for made in ("SkipValidation", *MADE_BY_VLLM)):
                    return None
                options = _options(item.value)
                default = options.get("default") if options else item.value
                if is_none(default) or _literal(default) is not None:
                    return ["given", key, constant(_literal(default))]
        return key

    def make(self, name: str, node: ast.Call | None, there: Expr = TRUE) -> Expr:
        """An object of a configuration class. node None: its fields come from JSON."""
        if name in self.made:
            return present(name, there) if name in self.json else None  # another one, such as a draft's model
        self.made.add(name)
        module, tree = self.sources.configs[name]
        given = {item.arg: self.value(item.value) for item in node.keywords if item.arg} if node else {}
        self.guards.append(there)
        self.frames.append(frame := Frame(module, name))
        self.starts[frame.name] = len(self.guards)
        for item in tree.body:
            if isinstance(item, ast.AnnAssign) and node is not None:
                self.field(name, item, given)
        self.frames.pop()
        before, ends = dict(self.env), []
        for condition, attributes in alternatives(name, self.deciding(name)):
            self.env = {**before, **attributes}
            self.guards.append(condition)
            self.validate(module, tree, name)
            self.guards.pop()
            ends.append((condition, self.env))
        if ends:
            self.env = joined(before, ends, name)
            self.every[name] = every([condition for condition, _ in ends], name)
        else:
            self.validate(module, tree, name)
        if name == "ModelConfig":
            self.made_model()
        self.guards.pop()
        return present(name, there)

    def deciding(self, name: str) -> str:
        """The annotation of the key of which each value is walked."""
        key = DECIDING.get(name, ("",))[0]
        module = self.sources.configs[name][0]
        kind = self.annotation(name, key)
        return ast.unparse(self.sources.expanded(module, ast.parse(kind, mode="eval").body)) if kind else ""

    def added(self, holder: str, method: str, name: str) -> None:
        """Forget the defaults of fields that a method adds to the JSON of a class."""
        found = self.method(holder, method)
        for item in ast.walk(found[1]) if found else ():
            keys = (
                item.keys if isinstance(item, ast.Dict) else item.args if isinstance(item, ast.Call) else []
            )
            keys += [item.slice] if isinstance(item, ast.Subscript) else []
            self.env.update(
                {f"{name}.{_literal(key)}": None for key in keys if isinstance(key, ast.Constant)}
            )

    def made_model(self) -> None:
        """What the planner knows better than the walk."""
        self.env.update({f"ModelConfig.{item}": f"model.{item}" for item in MODEL})

    def field(self, name: str, item: ast.AnnAssign, given: dict[str, Expr]) -> None:
        """Set one field, and keep what its limits refuse."""
        field = ast.unparse(item.target)
        options = _options(item.value)
        default = options.get("default") if options else item.value
        literal = constant(_literal(default)) if _literal(default) is not None or is_none(default) else None
        self.env[f"{name}.{field}"] = value = given.get(field, literal)
        for limit in LIMITS:
            bound = _literal(options.get(limit))
            if bound is not None and limit in _BY_LIMIT:
                self.refuse(operation(_BY_LIMIT[limit], value, constant(bound)))

    def validate(self, module: Module, tree: ast.ClassDef, name: str) -> None:
        """Run what checks an object after its fields are set, in pydantic's order."""
        functions = [item for item in tree.body if isinstance(item, ast.FunctionDef)]
        marked = [(item, _validator(item)) for item in functions]
        for item, (kind, mode, fields) in marked:
            if kind == "field" and mode == "after":
                names = [argument.arg for argument in item.args.args]
                for field in fields:
                    value = self.attribute(name, field)
                    self.call(module, item, name, dict(zip(names, (present(name), value), strict=False)))
        for item in functions:
            if item.name == "__post_init__":
                names = [argument.arg for argument in item.args.args]
                self.call(
                    module,
                    item,
                    name,
                    {key: self.attribute(name, key) for key in names[1:]} | {"self": present(name)},
                )
        for item, (kind, mode, _fields) in marked:
            if kind == "model" and mode == "after":
                self.call(module, item, name, {"self": present(name)})


def is_none(node: ast.expr | None) -> bool:
    """Whether it is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def _validator(node: ast.FunctionDef) -> tuple[str, str, list[str]]:
    for item in node.decorator_list:
        text = ast.unparse(item)
        if isinstance(item, ast.Call) and text.startswith(("field_validator", "model_validator")):
            mode = next((_literal(key.value) for key in item.keywords if key.arg == "mode"), "after")
            return text.partition("_")[0], str(mode), [str(_literal(name)) for name in item.args]
    return "", "", []
