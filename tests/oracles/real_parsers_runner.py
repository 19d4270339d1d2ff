# SPDX-License-Identifier: Apache-2.0
"""Feed command lines to the argument parsers of an installed vLLM; runs in vLLM's own Python, with probe.py beside it.

Standard input: {"serve": [argv, …], "vllm bench serve": [argv, …], …}. Standard output: a marker line with the same
shape, each argv replaced by "" (accepted) or the parser's message.
"""

from __future__ import annotations

import json
import os
import sys

from catalog.tools import probe

MARKER = "instinct-fleet-verdicts:"


class RefusedError(Exception):
    """What argparse would have printed before it ends the process."""


def refuse(parser: object, message: str) -> None:
    """In place of ArgumentParser.error, which ends the process."""
    raise RefusedError(message)


def verdict(parser: object, argv: list[str]) -> str:
    """The parser's message, or nothing."""
    try:
        parser.parse_args(argv)  # type: ignore[attr-defined]
    except RefusedError as error:
        return str(error) or "refused"
    except SystemExit as error:
        return f"ended with {error.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Read command lines, print verdicts."""
    asked = json.load(sys.stdin)
    os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    sys.argv = ["vllm", "serve"]
    version = probe.importlib.import_module("vllm.version").__version__
    top = probe.new_parser()
    type(top).error = refuse
    probe.first_import("vllm.entrypoints.cli.serve:ServeSubcommand")().subparser_init(
        top.add_subparsers(dest="subparser")
    )
    parsers = probe.bench_parsers()
    found: dict[str, list[str]] = {}
    for command, lines in asked.items():
        if command == "serve":
            found[command] = [verdict(top, ["serve", *argv]) for argv in lines]
        else:
            found[command] = [verdict(parsers[command], argv) for argv in lines]
    print("\n" + MARKER + json.dumps({"version": version, "verdicts": found}))


if __name__ == "__main__":
    main()
