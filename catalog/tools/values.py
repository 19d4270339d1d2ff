# SPDX-License-Identifier: Apache-2.0
"""The values of the walk that checks.py describes: what an expression of vLLM's code is, in terms of the arguments."""

from __future__ import annotations

import ast

from catalog.tools.expressions import (
    FALSE,
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
)
from catalog.tools.objects import Frame, Objects
from catalog.tools.sources import Module, _literal

DEPTH = 7
_COMPARISONS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
    ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Div: "/"}
_METHODS = ("count", "startswith", "endswith", "lower", "upper")
_TYPES = ("int", "str", "float", "bool", "list", "dict")
_WALKED = ("vllm.config", "vllm.engine", "vllm.entrypoints")


class Values(Objects):
    """Expressions and calls."""

    loops = 0
    """How many loops are being walked."""

    def walk(self, body: list[ast.stmt]) -> None:
        """Run statements."""
        raise NotImplementedError

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
            return self.joined(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return inverse(self.value(node.operand))
        if isinstance(node, ast.BinOp):
            return self.calculated(type(node.op), self.value(node.left), self.value(node.right))
        if isinstance(node, ast.NamedExpr):
            self.env[self.frames[-1].name + node.target.id] = found = self.value(node.value)
            return found
        if isinstance(node, ast.Subscript) and isinstance(_literal(node.slice), (int, str)):
            return operation("at", self.value(node.value), constant(_literal(node.slice)))
        if isinstance(node, ast.IfExp):
            return self.chosen(node)
        if isinstance(node, ast.Call):
            return self.calling(node)
        found = _literal(node)
        if found is None:
            return None
        return constant(sorted(found, key=str) if isinstance(found, set) else found)

    def joined(self, node: ast.BoolOp) -> Expr:
        """And, or; what a part checks holds only where the parts before it did not decide."""
        together, count = isinstance(node.op, ast.And), len(self.guards)
        parts: list[Expr] = []
        for item in node.values:
            parts.append(self.value(item))
            if parts[-1] == (FALSE if together else TRUE):
                break
            self.guards.append(parts[-1] if together else inverse(parts[-1]))
        del self.guards[count:]
        last = parts[-1]
        if isinstance(last, list) and last[0] == "=" and not isinstance(last[1], bool) and not together:
            return choice(parts[0], parts[0], last) if len(parts) == 2 else None
        return (both if together else either)(*parts)

    def calculated(self, kind: type[ast.operator], left: Expr, right: Expr) -> Expr:
        """Arithmetic; a division by zero stops vLLM too."""
        sign = _ARITHMETIC.get(kind)
        text = isinstance(left, list) and left[0] == "=" and isinstance(left[1], str)
        if sign in ("//", "%", "/") and not text:
            self.refuse(operation("==", right, constant(0)))
        return operation(sign, left, right) if sign else None

    def quantified(self, node: ast.GeneratorExp | ast.ListComp, every: bool) -> Expr:
        """any() and all() of a sequence that is known when the condition is."""
        part = node.generators[0]
        if len(node.generators) > 1 or not isinstance(part.target, ast.Name):
            return None
        sequence, item = self.value(part.iter), f"item.{self.loops}"
        if sequence is None or is_object(sequence):
            return None
        key = self.frames[-1].name + part.target.id
        before = self.env.get(key)
        self.env[key] = item
        self.loops += 1
        inner = [self.value(test) for test in part.ifs]
        shown = self.value(node.elt)
        self.loops -= 1
        self.env[key] = before
        found = ["any", item, sequence, both(*inner, inverse(shown) if every else shown)]
        return ["not", found] if every else found

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
        found = self.resolve(name)
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
        if isinstance(node.value, ast.Name) and f"{self.frames[-1].name}{text}" not in self.env:
            named = self.resolve(text)
            if named is not None and isinstance(named[1], ast.ClassDef):
                return self.default(named[1].name, node.attr)
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
        if text in ("len", "max", "min", "set") and not node.keywords:
            return operation(text, *(self.value(item) for item in node.args))
        if text in ("list", "tuple", "sorted") and len(node.args) == 1:
            return self.value(node.args[0]) if text != "sorted" else None
        if text in ("any", "all") and isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp)):
            return self.quantified(node.args[0], text == "all")
        if text == "get_args":
            return self.members(node.args[0])
        if text == "isinstance" and ast.unparse(node.args[1]) in _TYPES:
            return operation("isinstance", self.value(node.args[0]), constant(ast.unparse(node.args[1])))
        if last == "create_speculative_config":
            self.added("EngineArgs", last, "SpeculativeConfig")
            return self.make(
                "SpeculativeConfig", None, inverse(["is", "EngineArgs.speculative_config", NONE])
            )
        if text in self.sources.configs:
            spread = any(item.arg is None for item in node.keywords)
            return self.make(text, None if spread or node.args else node)
        if isinstance(node.func, ast.Name):
            return self.function(node)
        if not isinstance(node.func, ast.Attribute):
            return None
        base = self.value(node.func.value)
        if last in _METHODS and not is_object(base):
            return operation(last, base, *(self.value(item) for item in node.args))
        name = (
            maker(base) if is_object(base) else "RocmPlatform" if text.startswith("current_platform.") else ""
        )
        found = self.method(name, last) if name else None
        if found is None or len(self.frames) > DEPTH:
            return None
        names = [item.arg for item in found[1].args.args]
        static = any(ast.unparse(item) == "staticmethod" for item in found[1].decorator_list)
        bound: dict[str, Expr] = {} if static else {names[0]: present(name)}
        return self.call(found[0], found[1], found[2], bound | self.bound(node, names[0 if static else 1 :]))

    def bound(self, node: ast.Call, names: list[str]) -> dict[str, Expr]:
        """The arguments of a call by the names of the parameters."""
        found = dict(zip(names, (self.value(item) for item in node.args), strict=False))
        return found | {item.arg: self.value(item.value) for item in node.keywords if item.arg}

    def function(self, node: ast.Call) -> Expr:
        """Run a function of the modules that configure the engine."""
        module: Module | None = self.frames[-1].module
        name = ast.unparse(node.func)
        origin, name = self.frames[-1].imports.get(name) or (module.imports if module else {}).get(
            name, ("", name)
        )
        module = self.sources.module(origin) if origin else module
        found = module.functions.get(name) if module else None
        if module is None or found is None or not module.name.startswith(_WALKED):
            return None
        names = [item.arg for item in found.args.args]
        return self.call(module, found, module.name.rpartition(".")[2], self.bound(node, names))

    def members(self, node: ast.expr) -> Expr:
        """The texts of a Literal."""
        found = self.resolve(ast.unparse(node))
        if found is None or not isinstance(found[1], ast.expr):
            return None
        listed = self.sources.expanded(found[0], ast.Name(ast.unparse(node), ast.Load()))
        if not isinstance(listed, ast.Subscript) or ast.unparse(listed.value) != "Literal":
            return None
        items = listed.slice.elts if isinstance(listed.slice, ast.Tuple) else [listed.slice]
        return constant([_literal(item) for item in items])

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
