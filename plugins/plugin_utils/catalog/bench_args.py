# SPDX-License-Identifier: Apache-2.0
"""Command lines of vLLM's benchmark clients, valid for one release, from neutral arguments.

The data is catalog/vllm/{bench.json, bench_settings.yml, bench_results.yml}; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.common.errors import suggest
from .findings import BAD_VALUE, GONE, NOT_YET, UNKNOWN, Finding
from .flag_values import Value, token
from .flags import Flag, FlagTable, flags_of, option_index
from .settings import fits, put, to_argv, wanted, wrong_value

KINDS = ("serve", "latency", "throughput")


@dataclass(frozen=True)
class BenchCommand:
    """What to run. With an error among the findings, argv is not to be run."""

    argv: tuple[str, ...]
    table: str
    findings: tuple[Finding, ...]


def bench_table(serve: FlagTable, data: Mapping[str, Any], command: str) -> FlagTable | None:
    """The flags of a benchmark command (a key of bench.json) in serve's release; None where it is not there.

    Commands with an engine also take the engine's flags of `vllm serve`.
    """
    entry = data["commands"][command]
    if not serve.line.within(entry["present"], serve.release.index):
        return None
    flags: dict[str, Flag] = {}
    if entry["engine_args"]:
        flags.update((name, flag) for name, flag in serve.flags.items() if flag.engine)
    flags.update(flags_of(entry["flags"], data["defaults"], serve.line, serve.release.index))
    return replace(serve, flags=flags, options=option_index(flags.values()), ever=_ever(serve, entry))


def _ever(serve: FlagTable, entry: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {**serve.ever, **entry["flags"]} if entry["engine_args"] else entry["flags"]


def bench_args(
    serve: FlagTable,
    data: Mapping[str, Any],
    book: Mapping[str, Any],
    kind: str,
    arguments: Mapping[str, Value],
    engine: Mapping[str, Value] | None = None,
    script_directory: str = "",
) -> BenchCommand:
    """The command line of a benchmark of this kind.

    `arguments` are neutral (bench_settings.yml); `engine` are flags of the engine, for latency and
    throughput, as in a deployment's engine_args. What a release cannot express is a finding that names the
    release where it came or went. ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of benchmark. {suggest(kind, KINDS)}")
    index, line = serve.release.index, serve.line
    command = next(
        item for item in book["commands"][kind] if line.inside(item.get("since"), item.get("until"), index)
    )
    table = bench_table(serve, data, command["table"])
    if table is None:
        raise ValueError(f"bench.json has no {command['table']} for vLLM {serve.release.name}")
    args: dict[str, Value] = {}
    findings: list[Finding] = []
    for name, value in {**book["always"][kind], **arguments}.items():
        found = _argument(table, book, kind, name, value)
        if isinstance(found, Finding):
            findings.append(found)
        else:
            args.update(found)
    argv = list(command["argv"])
    if "script" in command:
        argv.append(f"{script_directory or book['script_directory']}/{command['script']}")
    return BenchCommand(
        (*argv, *to_argv(table, {**(engine or {}), **args})), command["table"], tuple(findings)
    )


def _argument(
    table: FlagTable, book: Mapping[str, Any], kind: str, name: str, value: Value
) -> Finding | Mapping[str, Value]:
    setting = book["settings"].get(name)
    known = [key for key, item in book["settings"].items() if kind in item["kinds"]]
    if setting is None or kind not in setting["kinds"]:
        return Finding(name, UNKNOWN, f"is not an argument of a {kind} benchmark", suggest(name, known))
    wrong = wrong_value(setting, value)
    if wrong:
        choices = setting.get("choices")
        return Finding(name, BAD_VALUE, wrong, f"Valid: {', '.join(choices)}." if choices else "")
    spoken = setting["join"].join(str(item) for item in value) if "join" in setting else value
    for form in setting["forms"]:
        if form.get("kind", kind) == kind and fits(table.line, table.release.index, form, value):
            args = {flag: put(item, spoken) for flag, item in form.get("args", {}).items()}
            if all(flag in table.options for flag in args):
                return args
    return _inexpressible(table, setting, name, value)


def _inexpressible(table: FlagTable, setting: Mapping[str, Any], name: str, value: Value) -> Finding:
    forms = [form for form in setting["forms"] if wanted(form, value)]
    flags = [flag for form in forms for flag in form.get("args", {})]
    starts = [since for flag in flags for since, _ in table.ever.get(flag, {}).get("present", ())]
    starts += [form["since"] for form in forms if "since" in form]
    order, index = table.line.order, table.release.index
    coming = sorted((order[since], since) for since in starts if order[since] > index)
    what = f"{token(value)} cannot be expressed with vLLM {table.release.asked}'s client"
    if coming:
        what += f"; it can from {coming[0][1]} on"
    status = NOT_YET if coming else GONE
    return Finding(
        name, status, what, "Leave it out.", "", table.release.exact, bool(setting.get("optional"))
    )


def canonical_result(book: Mapping[str, Any], kind: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A client's result under the names that all releases share, with what older ones lack filled in.

    `book` is bench_results.yml. A count that an older client does not give (failed) is derived from the
    others.
    """
    names = {item["key"]: item.get("is", item["key"]) for item in book[kind]["keys"]}
    found = {names.get(key, key): value for key, value in result.items()}
    if kind == "serve" and "failed" not in found and {"num_prompts", "completed"} <= set(found):
        found["failed"] = found["num_prompts"] - found["completed"]
    return found
