# SPDX-License-Identifier: Apache-2.0
"""Derive from vLLM's sources under which arguments it stops before it loads a model.

EngineArgs.create_engine_config is walked as vLLM would run it, with unknowns instead of values: into the
configuration classes that it makes, their validators, and what those call. Each `raise` and `assert` on the way becomes
a condition on the arguments, and is kept if arguments alone can fulfil it. Conditions are lists, operator first:

    "EngineArgs.max_num_seqs"  an argument; also "KVTransferConfig.kv_role", a key of JSON, "env.VLLM_USE_V1",
                               "platform.is_rocm" and "model.max_model_len"
    ["=", 1]                   a constant; ["enum", "FULL"] a member of an enumeration
    ["<", a, b]                comparisons, arithmetic, and, or, not, if, in, is, len
    null                       what cannot be told from the arguments
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

from catalog.tools.expressions import (
    NONE,
    TRUE,
    Expr,
    both,
    choice,
    constant,
    either,
    inverse,
    is_object,
    maker,
    member_of,
    operation,
    presence,
    present,
    provable,
    size,
)
from catalog.tools.sources import LIMITS, MADE_BY_VLLM, Module, Sources, _literal, _options, config_classes

DEPTH = 7
LARGEST = 90
_COMPARISONS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
    ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Div: "/"}
_BY_LIMIT = {"ge": "<", "gt": "<=", "le": ">", "lt": ">="}
MODEL = ("max_model_len", "use_mla", "is_moe", "is_multimodal_model")
"""What the planner knows of a model under these names."""


class Frame:
    """One call: its local names, the conditions under which its end was reached, and what it returned."""

    count = 0

    def __init__(self, module: Module, at: str) -> None:
        Frame.count += 1
        self.module, self.at, self.name = module, at, f"{Frame.count}:"
        self.dead: list[Expr] = []
        self.returned: list[tuple[Expr, Expr]] = []


class Walker:
    """The walk through one release."""

    def __init__(
        self, sources: Sources, arguments: set[str], json_classes: dict[str, dict[str, object]]
    ) -> None:
        self.sources, self.arguments, self.json = sources, arguments, json_classes
        self.env: dict[str, Expr] = {}
        self.guards: list[Expr] = []
        self.frames: list[Frame] = []
        self.found: list[tuple[Expr, str]] = []
        self.made: set[str] = set()
        self.starts: dict[str, int] = {}

    def text(self) -> dict[str, dict[str, str]]:
        """The conditions as JSON text, each once."""
        return {json.dumps(item): {"at": at} for item, at in reversed(self.found)}

    # What a class has.

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
        found = self.class_of(name)
        for item in found[1].body if found else ():
            if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == attribute:
                if any(made in ast.unparse(item.annotation) for made in ("SkipValidation", *MADE_BY_VLLM)):
                    return None
                options = _options(item.value)
                default = options.get("default") if options else item.value
                if _is_none(default) or _literal(default) is not None:
                    return ["given", key, constant(_literal(default))]
        return key

    # Statements.

    def walk(self, body: list[ast.stmt]) -> None:
        """Run statements."""
        for node in body:
            self.step(node)

    def step(self, node: ast.stmt) -> None:
        """Run one statement."""
        if isinstance(node, ast.If):
            self.branch(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            value = self.value(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assign(target, value)
        elif isinstance(node, ast.AugAssign):
            self.assign(node.target, None)
        elif isinstance(node, ast.Raise):
            self.refuse(TRUE)
        elif isinstance(node, ast.Assert):
            self.refuse(inverse(self.value(node.test)))
        elif isinstance(node, ast.Return):
            frame = self.frames[-1]
            value = self.value(node.value) if node.value else NONE
            frame.returned.append((both(*self.path(frame)), value))
            frame.dead.append(both(*self.path(frame)))
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, ast.With):
            self.walk(node.body)
        elif isinstance(node, (ast.For, ast.While, ast.Try)):
            for item in ast.walk(node):
                if isinstance(item, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)):
                    for target in item.targets if isinstance(item, ast.Assign) else [item.target]:
                        self.assign(target, None)
                if isinstance(item, ast.Return):
                    self.frames[-1].dead.append(None)
                    self.frames[-1].returned.append((None, None))

    def path(self, frame: Frame) -> list[Expr]:
        """The conditions of branches since a call began."""
        return self.guards[self.starts[frame.name] :]

    def branch(self, node: ast.If) -> None:
        """Run both branches, and join what they assign."""
        test = self.value(node.test)
        before = dict(self.env)
        self.guards.append(test)
        self.walk(node.body)
        self.guards[-1] = inverse(test)
        first, self.env = self.env, dict(before)
        self.walk(node.orelse)
        self.guards.pop()
        for key in {*first, *self.env}:
            default = None if ":" in key else key
            then, other = first.get(key, default), self.env.get(key, default)
            if then != other:
                joined = choice(test, then, other)
                self.env[key] = joined if size(joined) < LARGEST else None
            elif key in first:
                self.env[key] = then

    def assign(self, target: ast.expr, value: Expr) -> None:
        """Note what a name or an attribute now is."""
        if isinstance(target, ast.Name):
            self.env[self.frames[-1].name + target.id] = value
        elif isinstance(target, ast.Attribute):
            base = self.value(target.value)
            if is_object(base):
                self.env[f"{maker(base)}.{target.attr}"] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self.assign(item, None)

    def refuse(self, condition: Expr) -> None:
        """Keep the condition under which vLLM stops here."""
        ended = [inverse(item) for frame in self.frames for item in frame.dead]
        whole = both(*self.guards, *ended, condition)
        if size(whole) < LARGEST and provable(whole, self.told):
            self.found.append((whole, self.frames[-1].at))

    def told(self, fact: str) -> bool:
        """Whether a fact can be had from arguments, variables, or what the planner knows."""
        name, _dot, attribute = fact.partition(".")
        if name == "EngineArgs":
            return attribute in self.arguments
        if name == "model":
            return attribute in MODEL
        return name in ("env", "platform") or name in self.json

    # Expressions.

    def value(self, node: ast.expr) -> Expr:
        """What an expression is at this point of the walk."""
        if isinstance(node, ast.Constant):
            return constant(node.value)
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, ast.Attribute):
            return self.member(node)
        if isinstance(node, ast.Compare):
            places = [node.left, *node.comparators]
            parts = zip(places, node.ops, places[1:])
            return both(*(self.compare(a, type(sign), b) for a, sign, b in parts))
        if isinstance(node, ast.BoolOp):
            join = both if isinstance(node.op, ast.And) else either
            return join(*(self.value(item) for item in node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return inverse(self.value(node.operand))
        if isinstance(node, ast.BinOp):
            sign = _ARITHMETIC.get(type(node.op))
            return operation(sign, self.value(node.left), self.value(node.right)) if sign else None
        if isinstance(node, ast.IfExp):
            return self.chosen(node)
        if isinstance(node, ast.Call):
            return self.calling(node)
        found = _literal(node)
        if found is None:
            return None
        return constant(sorted(found, key=str) if isinstance(found, set) else found)

    def chosen(self, node: ast.IfExp) -> Expr:
        """One of two values; what they check holds under the condition."""
        test = self.value(node.test)
        self.guards.append(test)
        first = self.value(node.body)
        self.guards[-1] = inverse(test)
        other = self.value(node.orelse)
        self.guards.pop()
        return choice(test, first, other)

    def name(self, name: str) -> Expr:
        """A local name, or a constant at the top of the module."""
        frame = self.frames[-1]
        if frame.name + name in self.env:
            return self.env[frame.name + name]
        found = self.sources.resolve(frame.module, name)
        if found is not None and isinstance(found[1], ast.expr):
            literal = _literal(found[1])
            return None if literal is None else constant(literal)
        return None

    def member(self, node: ast.Attribute) -> Expr:
        """An attribute of an object, a variable, or a member of an enumeration."""
        text = ast.unparse(node.value)
        if text == "envs":
            return f"env.{node.attr}"
        if isinstance(node.value, ast.Name) and (
            found := member_of(self.sources, self.frames[-1].module, node)
        ):
            return found
        base = self.value(node.value)
        return self.attribute(maker(base), node.attr) if is_object(base) else None

    def compare(self, first: ast.expr, kind: type[ast.cmpop], second: ast.expr) -> Expr:
        """A comparison of two values; of an object with None, whether it is there."""
        sign, left, right = _COMPARISONS[kind], self.value(first), self.value(second)
        if right == NONE and sign in ("is", "is not", "==", "!="):
            there = presence(left) if is_object(left) else inverse(operation("is", left, NONE))
            return there if sign in ("is not", "!=") else inverse(there)
        if sign in ("is not", "not in", "!="):
            return inverse(operation({"is not": "==", "not in": "in", "!=": "=="}[sign], left, right))
        return operation("==" if sign == "is" else sign, left, right)

    def calling(self, node: ast.Call) -> Expr:
        """What a call returns; what it checks becomes rules on the way."""
        text, last = ast.unparse(node.func), ast.unparse(node.func).rpartition(".")[2]
        if text.startswith("current_platform.is_") and not node.args:
            return f"platform.{last}"
        if text in ("copy.deepcopy", "bool", "cast") and node.args:
            return self.value(node.args[-1])
        if text == "getattr" and isinstance(node.args[1], ast.Constant):
            return self.value(ast.Attribute(node.args[0], str(node.args[1].value), ast.Load()))
        if text in ("len", "max", "min") and not node.keywords:
            return operation(text, *(self.value(item) for item in node.args))
        if last == "create_speculative_config":
            self.added("EngineArgs", last, "SpeculativeConfig")
            return self.make(
                "SpeculativeConfig", None, inverse(["is", "EngineArgs.speculative_config", NONE])
            )
        if text in self.sources.configs:
            spread = any(item.arg is None for item in node.keywords)
            return self.make(text, None if spread or node.args else node)
        if not isinstance(node.func, ast.Attribute):
            return None
        base = self.value(node.func.value)
        name = (
            maker(base) if is_object(base) else "RocmPlatform" if text.startswith("current_platform.") else ""
        )
        found = self.method(name, last) if name else None
        if found is None or len(self.frames) > DEPTH:
            return None
        names = [item.arg for item in found[1].args.args]
        static = any(ast.unparse(item) == "staticmethod" for item in found[1].decorator_list)
        bound: dict[str, Expr] = {} if static else {names[0]: present(name)}
        bound |= dict(
            zip(names[0 if static else 1 :], (self.value(item) for item in node.args), strict=False)
        )
        bound |= {item.arg: self.value(item.value) for item in node.keywords if item.arg}
        return self.call(found[0], found[1], found[2], bound)

    def call(self, module: Module, node: ast.FunctionDef, name: str, bound: dict[str, Expr]) -> Expr:
        """Run a function with its parameters."""
        if len(self.frames) > DEPTH or any(frame.at == f"{name}.{node.name}" for frame in self.frames):
            return None
        frame = Frame(module, f"{name}.{node.name}")
        self.starts[frame.name] = len(self.guards)
        self.frames.append(frame)
        defaults = dict(
            zip([item.arg for item in node.args.args][::-1], node.args.defaults[::-1], strict=False)
        )
        for item in node.args.args:
            given = bound.get(item.arg, self.value(defaults[item.arg]) if item.arg in defaults else None)
            kind = ast.unparse(item.annotation).strip("'\"") if item.annotation else ""
            if given is None and kind in self.sources.configs:
                given = present(kind)
            self.env[frame.name + item.arg] = given
        self.walk(node.body)
        self.frames.pop()
        self.env = {key: value for key, value in self.env.items() if not key.startswith(frame.name)}
        result: Expr = None if frame.returned else NONE
        for reached, value in reversed(frame.returned):
            result = value if reached == TRUE else choice(reached, value, result)
        return result

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
        self.validate(module, tree, name)
        if name == "ModelConfig":
            self.made_model()
        self.guards.pop()
        return present(name, there)

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
        literal = constant(_literal(default)) if _literal(default) is not None or _is_none(default) else None
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


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _validator(node: ast.FunctionDef) -> tuple[str, str, list[str]]:
    for item in node.decorator_list:
        text = ast.unparse(item)
        if isinstance(item, ast.Call) and text.startswith(("field_validator", "model_validator")):
            mode = next((_literal(key.value) for key in item.keywords if key.arg == "mode"), "after")
            return text.partition("_")[0], str(mode), [str(_literal(name)) for name in item.args]
    return "", "", []


def _field(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def checks(package: Path, flags: list[str], json_flags: list[str]) -> dict[str, dict[str, str]]:
    """Conditions, as JSON text, under which this release stops, with the function that checks each."""
    sources = Sources(package)
    classes = config_classes(sources, json_flags)
    walker = Walker(sources, {_field(flag) for flag in flags}, classes)
    start = walker.method("EngineArgs", "create_engine_config")
    if start is None:
        return {}
    for name, item in classes.items():
        if name != "SpeculativeConfig":  # made of its JSON later than the others
            there = [walker.attribute("EngineArgs", _field(flag)) for flag in item["flags"]]  # type: ignore[attr-defined]
            walker.make(name, None, presence(there[0]) if there and is_object(there[0]) else TRUE)
    walker.env["EngineArgs.subparser"] = constant("serve")
    for place in ("common", "launchers", "openai"):
        module = sources.module(f"vllm.entrypoints.{place}.cli_args")
        front = module.functions.get("validate_parsed_serve_args") if module else None
        if module and front:
            walker.call(module, front, "serve", {"args": present("EngineArgs")})
            break
    for method in ("__post_init__", "create_engine_config"):
        found = walker.method("EngineArgs", method)
        if found:
            walker.call(found[0], found[1], "EngineArgs", {"self": present("EngineArgs")})
    return walker.text()
