# SPDX-License-Identifier: Apache-2.0
"""Read what a release does about quantization out of its sources: which methods there are, and what each runs.

Which method runs a checkpoint is decided by a method of each configuration class, override_quantization_method. These
few functions are run here as they stand, on a simulated ROCm, with stand-ins for everything else that they name; they
compare texts and nothing more. Only the standard library is needed, so that this also runs in an image's own Python.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping
from typing import Any

from catalog.tools.sources import Module, Sources, _origin, _texts

Config = Mapping[str, Any]

_ORDER = "overrides"
"""The list of _verify_quantization: methods that are asked last, in this order."""
_FROM = "override_quantization_method"
_GPTQ = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False, "zero_point": True}
_MODELS = (("mxfp4", "gpt_oss"), ("fp8", "deepseek_v4"))
"""Types of models whose checkpoints of a method are run by one of their own."""
_ALGORITHMS = ("FP8", "NVFP4", "MXFP8", "MIXED_PRECISION")


class _Anything:
    """Stands for what a function names and does not need: false, empty, and callable."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args: Any, **_keys: Any) -> Any:
        return self

    def __getitem__(self, _key: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return False


class _Rocm:
    """vLLM's current_platform on an MI300X."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: name in ("is_rocm", "is_cuda_alike")

    def get_device_capability(self) -> Any:
        """Return 9.4."""
        return types.SimpleNamespace(to_int=lambda: 94)


class _Torch:
    """Data types by their names."""

    def __getattr__(self, name: str) -> str:
        return {"half": "float16", "float": "float32"}.get(name, name)


class _Names(dict[str, Any]):
    """The names that a function sees: those of Python, the platform, and stand-ins."""

    def __missing__(self, name: str) -> Any:
        given: dict[str, Any] = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
        known = {"current_platform": _Rocm(), "torch": _Torch(), "check_marlin_supported": lambda **_: True}
        return known.get(name, given.get(name, _Anything()))


def quantization(sources: Sources) -> dict[str, dict[str, object]]:
    """Quantization methods, by name.

    rocm: whether ROCm runs it. deprecated: whether it needs --allow-deprecated-quantization. dtypes: in which types it
    computes. files: which a checkpoint must have if its config.json does not say how it is quantized; unquantized:
    whether it can also run one that is not.
    """
    methods = sources.module("vllm.model_executor.layers.quantization")
    rocm = sources.module("vllm.platforms.rocm")
    if methods is None:
        return {}
    old = _texts(methods.values.get("DEPRECATED_QUANTIZATION_METHODS"))
    supported = _class_list(rocm, "supported_quantization") or _local_list(
        sources, "rocm_supported_quantization"
    )
    online, classes = _online(sources), _classes(sources, methods)
    found: dict[str, dict[str, object]] = {}
    for name in sorted({*_names(sources, methods), *old}):
        facts = _facts(classes.get(name), name in online or name == "bitsandbytes")
        found[name] = {"rocm": not supported or name in supported, "deprecated": name in old, **facts}
    return found


def checkpoints(sources: Sources) -> dict[str, dict[str, object]]:
    """Checkpoints by their quantization, and for each what --quantization may say and which method then runs it.

    The key "" is for no --quantization, "*" for any. A checkpoint is named by its quant_method, and by what else
    decides: the algorithm of ModelOpt, and the type of a model with a method of its own. Left out is what goes without
    saying: a checkpoint that only its own method runs.
    """
    methods = sources.module("vllm.model_executor.layers.quantization")
    if methods is None:
        return {}
    names = _names(sources, methods)
    classes = {name: made for name, found in _classes(sources, methods).items() if (made := _made(*found))}
    last = _last(sources)
    samples: dict[str, tuple[Config, str]] = {
        name: ({"quant_method": name, **_GPTQ}, "llama") for name in [*names, "auto-round"]
    }
    samples |= {
        f"modelopt {item}": ({"quant_method": "modelopt", "quant_algo": item}, "llama")
        for item in _ALGORITHMS
    }
    samples |= {f"{name} {model}": ({"quant_method": name}, model) for name, model in _MODELS}
    usable = {name for name, facts in quantization(sources).items() if facts["rocm"]}
    found: dict[str, dict[str, object]] = {}
    for kind, (config, model) in samples.items():
        own = str(config["quant_method"])
        runs = {
            user: method
            for user in ["", *names]
            if (method := _method(classes, names, last, config, model, user)) in names
            and (user in ("", own) or method in usable)
        }
        if len(runs) > len(usable) and len(set(runs.values())) == 1:
            runs = {"*": runs[""]}
        if runs != {"": own, own: own} and (runs or own in names):
            found[kind] = {"runs": runs}
    return found


def _method(
    classes: Mapping[str, type], names: list[str], last: list[str], config: Config, model: str, user: str
) -> str:
    """The method that runs a checkpoint when --quantization says `user`; empty when vLLM refuses it."""
    first = [user] if user == "humming" else []
    order = [*first, *(name for name in names if name not in last), *(name for name in last if name in names)]
    for name in order:
        chosen = _override(classes.get(name), config, model, user or None)
        if chosen is not None:
            return chosen if name in last or not last else ""
    own = str(config["quant_method"])
    return own if user in ("", own) else ""


def _override(made: type | None, config: Config, model: str, user: str | None) -> str | None:
    function = getattr(made, _FROM, None)
    if function is None:
        return None
    more = {"hf_config": types.SimpleNamespace(model_type=model)}
    try:
        found = function(dict(config), user, **(more if "hf_config" in function.__code__.co_varnames else {}))
    except Exception:
        return None  # it asks for what is not known here, such as another module
    return found if isinstance(found, str) else None


def _facts(found: tuple[Sources, Module, ast.ClassDef] | None, online: bool) -> dict[str, object]:
    made = _made(*found) if found else None
    if found is None or made is None:
        return {"unquantized": True}
    files = [str(item) for item in _asked(made, "get_config_filenames") or ()]
    dtypes = _asked(made, "get_supported_act_dtypes")
    facts: dict[str, object] = {"files": files}
    if dtypes and all(isinstance(item, str) for item in dtypes):
        facts["dtypes"] = sorted(dtypes)
    facts["unquantized"] = online or not (files or _required(*found))
    return facts


def _asked(made: type, name: str) -> list[Any] | None:
    function = getattr(made, name, None)
    try:
        found = function() if function else None
    except Exception:
        try:
            found = function(None) if function else None  # a property or a method of the object
        except Exception:
            return None
    return found if isinstance(found, list) else None


def _required(sources: Sources, module: Module, node: ast.ClassDef) -> bool:
    """Whether an object of a class cannot be made without arguments."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return len(item.args.args) - 1 > len(item.args.defaults)
    for base in node.bases:
        found = sources.resolve(module, base.id) if isinstance(base, ast.Name) else None
        if found and isinstance(found[1], ast.ClassDef):
            return _required(sources, found[0], found[1])
    return False


def _made(sources: Sources, module: Module, node: ast.ClassDef, depth: int = 0) -> type | None:
    """A class with the functions and constants of one of vLLM's, and of those that it is derived from."""
    bases: list[type] = []
    for base in node.bases:
        found = sources.resolve(module, base.id) if isinstance(base, ast.Name) and depth < 5 else None
        if found and isinstance(found[1], ast.ClassDef):
            made = _made(sources, found[0], found[1], depth + 1)
            bases += [made] if made else []
    names, body = _Names(), {}
    names.update({name: _Anything() for name in module.imports if name not in _Names.__dict__})
    for known in ("current_platform", "torch", "check_marlin_supported"):
        names[known] = names.__missing__(known)
    for item in node.body:
        try:
            if isinstance(item, ast.FunctionDef):
                body[item.name] = _function(item, names)
            elif isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None:
                target = item.targets[0] if isinstance(item, ast.Assign) else item.target
                code = compile(ast.Expression(item.value), node.name, "eval")
                body[ast.unparse(target)] = eval(code, names)
        except Exception:
            continue  # nothing of what is asked here
    try:
        return type(node.name, tuple(bases), body)
    except TypeError:
        return None


def _function(node: ast.FunctionDef, names: dict[str, Any]) -> Callable[..., Any]:
    """One function, without annotations; of its decorators, those of Python's own classes."""
    copied: ast.FunctionDef = ast.parse(ast.unparse(node)).body[0]  # type: ignore[assignment]
    copied.returns = None
    for argument in (*copied.args.args, *copied.args.kwonlyargs):
        argument.annotation = None
    kinds = [ast.unparse(item) for item in copied.decorator_list]
    copied.decorator_list = []
    held = _Names(names)
    exec(compile(ast.fix_missing_locations(ast.Module([copied], [])), node.name, "exec"), held)
    function: Callable[..., Any] = held[node.name]
    made = classmethod(function) if "classmethod" in kinds else function
    return staticmethod(function) if "staticmethod" in kinds else made  # type: ignore[return-value]


def _names(sources: Sources, methods: Module) -> list[str]:
    listed = methods.values.get("QuantizationMethods") or methods.values.get("QUANTIZATION_METHODS")
    return _texts(sources.expanded(methods, listed)) if listed is not None else []


def _classes(sources: Sources, methods: Module) -> dict[str, tuple[Sources, Module, ast.ClassDef]]:
    """The configuration class of each method."""
    function = methods.functions.get("get_quantization_config")
    tables = [methods.values.get("QUANTIZATION_METHODS")]
    imports, names = dict(methods.imports), dict[str, ast.expr]()
    for item in ast.walk(function) if function else ():
        if isinstance(item, ast.ImportFrom):
            imports |= {
                name.asname or name.name: (_origin(methods.name, item), name.name) for name in item.names
            }
        if isinstance(item, (ast.Assign, ast.AnnAssign)):
            tables.append(item.value)
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Name):
            names[ast.unparse(item.targets[0])] = item.value
    seen = Module(methods.name, methods.classes, names, imports)
    found = {}
    for table in tables:
        for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
            meant = sources.resolve(seen, value.id) if isinstance(value, ast.Name) else None
            if meant and isinstance(meant[1], ast.Name):
                meant = sources.resolve(seen, meant[1].id)
            if isinstance(key, ast.Constant) and meant and isinstance(meant[1], ast.ClassDef):
                found[str(key.value)] = (sources, meant[0], meant[1])
    return found


def _last(sources: Sources) -> list[str]:
    """The methods that are asked last; empty in the first releases, which ask all in the order of their names."""
    found = sources.configs.get("ModelConfig")
    for item in ast.walk(found[1]) if found else ():
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == _ORDER:
            names = _texts(item.value)
            if names:
                return names
    return []


def _online(sources: Sources) -> list[str]:
    """Methods that quantize while they load."""
    module = sources.module("vllm.config.quantization")
    value = module.values.get("_ONLINE_SHORTHANDS") if module else None
    return _texts(value) if isinstance(value, ast.Dict) else []


def _class_list(module: Module | None, name: str) -> list[str]:
    """The texts of a list in the body of any class."""
    for node in module.classes.values() if module else ():
        for item in node.body:
            targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return _texts(getattr(item, "value", None))
    return []


def _local_list(sources: Sources, name: str) -> list[str]:
    """The texts of a list that a function of vllm/config.py assigns, as the first releases have it."""
    path = sources.package / "config.py"
    for item in ast.walk(ast.parse(path.read_text())) if path.is_file() else ():
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == name:
            return _texts(item.value)
    return []
