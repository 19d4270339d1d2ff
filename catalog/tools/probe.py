# SPDX-License-Identifier: Apache-2.0
"""Ask an installed vLLM what it accepts, and print it as one JSON object behind a marker line.

Runs inside vLLM's own Python, in a container or a virtual environment, fed through standard input together with
what reads the sources: it needs only vLLM and the standard library, and writes nothing. Flags come from the argument
parsers of `vllm serve` and `vllm bench`, variables from vllm.envs by trying values, configurations from the source.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import json
import math
import os
import platform
import re
import sys
from pathlib import Path

MARKER = "instinct-fleet-probe:"
_CHATTY = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
_BENCH = {"vllm bench serve": "serve", "vllm bench latency": "latency", "vllm bench throughput": "throughput",
          "vllm bench startup": "startup"}  # fmt: skip
_DEPRECATED = re.compile(r"\[DEPRECATED\]|^\W*deprecated\b|\bis deprecated\b", re.IGNORECASE)
_ENGINE_ONLY = "--gpu-memory-utilization"  # a command with this flag takes the engine's flags


def plain(value):
    """A default as JSON: scalars and their lists stay, objects become null, the home directory a tilde."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, int) else value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [
            plain(item) for item in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)
        ]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if not isinstance(value, str):
        return None
    text = value.replace(str(Path.home()) + "/", "~/") if value.startswith(str(Path.home())) else value
    text = re.sub(r"^bench-[0-9a-f]{8}-$", "bench-<random>-", text)
    text = re.sub(r"^(VLLM_OBJECT_STORAGE_SHM_BUFFER_)[0-9a-f]{32}$", r"\1<random>", text)
    return re.sub(r"^vllm_mm_[\w-]{22}$", "vllm_mm_<random>", text)


def closure(function):
    """The variables a nested function has kept, by name."""
    cells = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells)))


def takes(convert, text):
    """Whether a conversion function accepts a text, and returns a map."""
    try:
        return isinstance(convert(text), dict)
    except Exception:
        return False


def type_name(convert):
    """The catalogue's name for what an action converts with."""
    if convert is None:
        return "str"
    if convert in (str, int, float):
        return convert.__name__
    if convert is bool:
        return "any"
    if convert is json.loads:
        return "json"
    name = getattr(convert, "__name__", "")
    if name in ("_optional_type", "_parse_type"):
        inner = type_name(closure(convert).get("return_type"))
        if inner == "json" and takes(convert, "image=1"):
            inner = "json|kvs"
        return inner if name == "_parse_type" or inner.endswith("?") else inner + "?"
    known = {
        "parse_dataclass": "config",
        "union_dict_and_str": "json|str",
        "human_readable_int": "size",
        "human_readable_int_or_auto": "size|auto",
        "nullable_str": "str?",
        "nullable_kvs": "kvs?",
        "from_json": "json",
    }
    return known.get(name, "str")


def kind_name(action):
    """The catalogue's name for how an action takes values."""
    if not action.option_strings:
        return "positional"
    if isinstance(action, argparse._AppendAction):
        return "append"
    if action.nargs == 0:
        negated = any(is_negative(action, option) for option in action.option_strings)
        return "toggle" if negated else "switch"
    if action.nargs == "?":
        return "bool" if type(action).__name__ == "StoreBoolean" else "optional"
    return "value" if action.nargs is None else "list"


def is_negative(action, option):
    """--no-x of --x, and --disable-x of --enable-x (or the other way round), where both are one action."""
    first = primary(action)
    pairs = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
    return (
        option.startswith("--no-") and not isinstance(action, argparse._StoreTrueAction) and option != first
    ) or any(first.startswith(a) and option == b + first[len(a) :] for a, b in pairs)


def primary(action):
    """The flag's name: its first long option."""
    return next(
        (option for option in action.option_strings if option.startswith("--")), action.option_strings[0]
    )


def flag_entry(action, deprecated):
    """One flag as flags.json has it."""
    kind = kind_name(action)
    convert = type_name(action.type) if kind not in ("switch", "toggle", "bool") else "str"
    others = [
        option for option in action.option_strings if action.option_strings and option != primary(action)
    ]
    choices = None if action.choices is None or kind in ("switch", "toggle", "bool") else list(action.choices)
    default = plain(action.default)
    if convert.startswith(("config", "level")) or (isinstance(default, dict) and default):
        default = None
    help_text = action.help if isinstance(action.help, str) else ""
    return {
        "kind": kind,
        "type": convert,
        "default": default,
        "choices": ordered(choices),
        "aliases": sorted(option for option in others if not is_negative(action, option)),
        "negatives": sorted(option for option in others if is_negative(action, option)),
        "required": bool(action.required) if action.option_strings else action.nargs is None,
        "deprecated": deprecated or bool(_DEPRECATED.search(help_text[:160])),
    }


def ordered(choices):
    """Choices in one order: vLLM keeps some in sets."""
    if choices is None:
        return None
    return sorted(
        (plain(item) for item in choices), key=lambda item: (item is None, isinstance(item, str), item)
    )


def parser_flags(parser):
    """All flags of a parser."""
    marked = getattr(parser, "_deprecated", set())
    found = {}
    for action in parser._actions:
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            deprecated = action in marked or bool(getattr(action, "deprecated", False))
            name = primary(action) if action.option_strings else action.dest
            found[name] = flag_entry(action, deprecated)
    return found


def first_import(*names):
    """The first of several places of a module or attribute that exists; None when none does."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                continue  # this vLLM has no such module; if another is missing, the installation is broken
            raise
        if not attribute or hasattr(loaded, attribute):
            return getattr(loaded, attribute) if attribute else loaded
    return None


def new_parser():
    """vLLM's own parser class."""
    made = first_import(
        "vllm.utils.argparse_utils:FlexibleArgumentParser", "vllm.utils:FlexibleArgumentParser"
    )
    return made()


def serve_parser():
    """The parser of `vllm serve`."""
    subcommand = first_import("vllm.entrypoints.cli.serve:ServeSubcommand")
    if subcommand is not None:
        subparsers = new_parser().add_subparsers(dest="subparser")
        return subcommand().subparser_init(subparsers)
    parser = new_parser()
    parser.add_argument("model_tag", type=str)
    parser.add_argument("--config", type=str, default="")
    return first_import("vllm.entrypoints.openai.cli_args:make_arg_parser")(parser)


def bench_parsers():
    """The parser of each `vllm bench` command that the catalogue follows and this vLLM has."""
    found = {}
    for command, module in _BENCH.items():
        add = first_import(f"vllm.benchmarks.{module}:add_cli_args")
        if add is not None:
            found[command] = new_parser()
            add(found[command])
    sweep = first_import("vllm.benchmarks.sweep.cli:add_cli_args")
    if sweep is not None:
        parser = new_parser()
        sweep(parser)
        subparsers = next(
            action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
        )
        found.update((f"vllm bench sweep {name}", made) for name, made in subparsers.choices.items())
    return found


def bench_commands(engine_flags):
    """The flags of each `vllm bench` command, without those of the engine."""
    found = {}
    for command, parser in bench_parsers().items():
        flags = parser_flags(parser)
        engine = _ENGINE_ONLY in flags
        own = {name: entry for name, entry in flags.items() if not engine or name not in engine_flags}
        for entry in own.values():
            entry["engine"] = False
        found[command] = {"engine_args": engine, "flags": own}
    return found


def engine_flag_names():
    """Flags that every command with an engine takes."""
    engine_args = first_import("vllm.engine.arg_utils:EngineArgs")
    return set(parser_flags(engine_args.add_cli_args(new_parser())))


def env_entry(name, read):
    """A variable's type, told by which values it takes, its default and its choices."""
    before = os.environ.pop(name, None)
    try:
        default = plain(attempt(read))
        results = {}
        for text in ("1", "true", "0.5", "instinct"):
            os.environ[name] = text
            try:
                results[text] = read()
            except Exception as error:
                results[text] = error
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
    names, listed = choices_of(read)
    return {"type": env_type(results, names, listed), "default": default, "choices": names}


def attempt(read):
    """A variable's value, or None when it cannot be had on this machine."""
    try:
        return read()
    except Exception:
        return None


def choices_of(read):
    """What a variable may be, where vLLM checks it; and whether it is a list of these."""
    kept = closure(read) if hasattr(read, "__code__") else {}
    listed = read.__name__.endswith(("_list", "_set")) if hasattr(read, "__name__") else False
    for name in ("_get_validated_env_list", "_get_validated_env"):
        kept = closure(kept[name]) if name in kept else kept
    choices = kept.get("choices")
    try:
        return list(choices() if callable(choices) else choices), listed
    except Exception:
        return None, False


def env_type(results, choices, listed):
    """What kind of text a variable takes.

    flag: "1" and "true" are true, all else is false in silence; int_bool: a whole number, or an error; one:
    only "1" is true; word: only "true" is; choice, choice_list: one of its choices, or several between
    commas.
    """
    if choices is not None:
        return "choice_list" if listed else "choice"
    one, word, half, other = results["1"], results["true"], results["0.5"], results["instinct"]
    if isinstance(other, Exception):
        if word is True and half == 0.5:
            return "json"
        if one is True:
            return "int_bool"
        if isinstance(one, int):
            return "int"
        return "float" if isinstance(one, float) else "choice"
    if one is True and other is not True:
        return "flag" if word is True else "one"
    if word is True and other is not True:
        return "word"
    return "text"


def variables(package):
    """Every variable of vllm.envs."""
    envs = importlib.import_module("vllm.envs")
    table = {name: env_entry(name, read) for name, read in envs.environment_variables.items()}
    used = set()
    for path in package.rglob("*.py"):
        if path.name != "envs.py" or path.parent != package:
            used.update(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", path.read_text(errors="replace")))
    for name, entry in table.items():
        entry["unused"] = name not in used
    return table


def main():
    """Print what this vLLM accepts."""
    from catalog.tools.architectures import architectures
    from catalog.tools.checks import checks
    from catalog.tools.quantization import checkpoints, quantization
    from catalog.tools.registries import registries
    from catalog.tools.sources import Sources, config_classes

    os.environ.update(_CHATTY)
    # With --help among the arguments vLLM keeps help texts, which tell what is deprecated; but with it
    # the parser of `serve` hides --model.
    sys.argv = ["vllm", "serve", "--help"]
    vllm = importlib.import_module("vllm")
    package = Path(vllm.__file__).parent
    platforms = importlib.import_module("vllm.platforms")
    current = platforms.current_platform
    first_import("vllm.engine.arg_utils")
    sys.argv = ["vllm", "serve"]
    engine = engine_flag_names()
    serve = parser_flags(serve_parser())
    for name, entry in serve.items():
        entry["engine"] = name in engine
    result = {
        "probe": 2,
        "version": importlib.import_module("vllm.version").__version__,
        "platform": "rocm" if current.is_rocm() else getattr(current, "device_type", "") or "unknown",
        "python": platform.python_version(),
        "torch": attempt(lambda: importlib.import_module("torch").__version__),
        "rocm": attempt(lambda: importlib.import_module("torch").version.hip),
        "serve": serve,
        "bench": bench_commands(engine),
        "env": variables(package),
        "configs": config_classes(Sources(package), sorted(serve)),
        "quantization": quantization(Sources(package)),
        "checkpoints": checkpoints(Sources(package)),
        "architectures": architectures(Sources(package)),
        "checks": checks(package, sorted(serve), sorted(serve)),
        "registries": registries(package),
    }
    print("\n" + MARKER + json.dumps(result))


if __name__ == "__main__":
    main()
