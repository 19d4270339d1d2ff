# SPDX-License-Identifier: Apache-2.0
"""Derive from vLLM's sources under which arguments it stops before it loads a model.

EngineArgs.create_engine_config is walked as vLLM would run it, with unknowns instead of values: into the
configuration classes that it makes, their validators, and what those call. Each `raise` and `assert` on the way becomes
a condition on the arguments, and is kept if arguments alone can fulfil it. Conditions are lists, operator first:

    "EngineArgs.max_num_seqs"  an argument; also "KVTransferConfig.kv_role", a key of JSON, "env.VLLM_USE_V1",
                               "platform.is_rocm" and "model.max_model_len"
    ["=", 1]                   a constant; ["enum", "FULL"] a member of an enumeration
    ["<", a, b]                comparisons, arithmetic, and, or, not, if, in, is, len
    ["any", "item.0", a, b]    whether b holds for an item of a, which b names
    null                       what cannot be told from the arguments
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

from catalog.tools.alternatives import merged
from catalog.tools.expressions import (
    FALSE,
    NONE,
    TRUE,
    Expr,
    both,
    choice,
    constant,
    decided,
    inverse,
    is_object,
    maker,
    presence,
    present,
    provable,
    simplified,
    size,
    together,
    vague,
)
from catalog.tools.objects import MODEL, Frame
from catalog.tools.sources import Sources, config_classes
from catalog.tools.values import Values

LARGEST, VAGUE = 90, 50
"""Longer conditions are dropped; those of which a part is not known sooner."""


class Walker(Values):
    """The walk through one release: its statements, and what stops vLLM on the way."""

    def __init__(
        self, sources: Sources, arguments: set[str], json_classes: dict[str, dict[str, object]]
    ) -> None:
        super().__init__(sources, arguments, json_classes)
        self.found: list[tuple[Expr, str]] = []

    def text(self) -> dict[str, dict[str, str]]:
        """The conditions as JSON text, each once."""
        return {json.dumps(item): {"at": at} for item, at in reversed(merged(self.found, self.every))}

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
            self.assign(
                node.target,
                self.calculated(type(node.op), self.value(node.target), self.value(node.value)),
            )
        elif isinstance(node, ast.ImportFrom):
            self.frames[-1].imports.update(
                {item.asname or item.name: (node.module or "", item.name) for item in node.names}
            )
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
        elif isinstance(node, ast.For) and _simple(node):
            self.loop(node)
        elif isinstance(node, ast.Try) and _ends(node.handlers):
            self.walk([*node.body, *node.orelse, *node.finalbody])
        elif isinstance(node, (ast.For, ast.While, ast.Try, ast.Match)):
            self.forget(node)

    def loop(self, node: ast.For) -> None:
        """Run the body for any item; what it assigns is not known afterwards."""
        sequence, item = self.value(node.iter), f"item.{self.loops}"
        self.forget(node)
        if sequence is None or is_object(sequence):
            return
        self.assign(node.target, item)
        self.loops += 1
        self.guards.append(["any", item, sequence])
        self.walk(node.body)
        self.guards.pop()
        self.loops -= 1
        self.forget(node)

    def forget(self, node: ast.stmt) -> None:
        """What may be assigned, or returned, is not known."""
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
        test = simplified(self.value(node.test), self.known())
        if test in (TRUE, FALSE):
            self.walk(node.body if test == TRUE else node.orelse)
            return
        before = dict(self.env)
        self.guards.append(test)
        self.walk(node.body)
        self.guards[-1] = inverse(test)
        first, self.env = self.env, dict(before)
        self.walk(node.orelse)
        self.guards.pop()
        for key in {*first, *self.env}:
            if first.get(key, self) == self.env.get(key, self):
                continue
            then, other = (env[key] if key in env else self.untouched(key) for env in (first, self.env))
            if then != other:
                joined = choice(test, then, other)
                self.env[key] = joined if size(joined) < LARGEST else None
            elif key in first:
                self.env[key] = then

    def known(self) -> dict[str, bool]:
        """What the conditions of branches decide."""
        found: dict[str, bool] = {}
        for guard in self.guards:
            found |= decided(guard, holds=True)
        return found

    def untouched(self, key: str) -> Expr:
        """What a name or an attribute is where nothing was assigned to it."""
        holder, _dot, attribute = key.partition(".")
        return None if ":" in key else self.given(holder, attribute) if holder in self.json else key

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
        whole = both(*ended, condition)
        for guard in reversed(self.guards):
            whole = [*guard, together(whole)] if _of_loop(guard) else both(guard, whole)
        whole = together(whole)
        if size(whole) < (VAGUE if vague(whole) else LARGEST) and provable(whole, self.told):
            self.found.append((whole, self.frames[-1].at))

    def told(self, fact: str) -> bool:
        """Whether a fact can be had from arguments, variables, or what the planner knows."""
        name, _dot, attribute = fact.partition(".")
        if name == "EngineArgs":
            return attribute in self.arguments
        if name == "model":
            return attribute in MODEL
        return name in ("env", "platform") or name in self.json


def _of_loop(guard: Expr) -> bool:
    return isinstance(guard, list) and guard[0] == "any" and len(guard) == 3


def _simple(node: ast.For) -> bool:
    """Whether every item goes through the whole body of a loop."""
    left = (ast.Break, ast.Continue, ast.Return)
    return isinstance(node.target, ast.Name) and not any(isinstance(item, left) for item in ast.walk(node))


def _ends(handlers: list[ast.ExceptHandler]) -> bool:
    """Whether what is raised in a block stops vLLM all the same."""
    return all(isinstance(handler.body[-1], ast.Raise) for handler in handlers)


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
