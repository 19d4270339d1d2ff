# SPDX-License-Identifier: Apache-2.0
"""Callback plugin: after a run, which hosts failed, at what, and what to do next. Silent when none did."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MODULE_UTILS = str(Path(__file__).resolve().parents[2] / "module_utils")
if MODULE_UTILS not in sys.path:
    sys.path.insert(0, MODULE_UTILS)

from ansible.plugins.callback import CallbackBase
from instinct.errors import natural

DOCUMENTATION = """
name: fleet
type: aggregate
short_description: close a run with the hosts that failed and what to do next
description:
  - After the recap, names each host that failed or could not be reached, with the first error of the host and
    the task, and says how to go on. Hosts with the same error are named together.
  - Prints nothing when no host failed. Uses results as Ansible shows them, so what no_log hides stays hidden.
"""

LINES = 6
WIDTH = 400


class Error(NamedTuple):
    """A host's first error; `alike` is its text without the host's address, to find equal ones."""

    task: str
    text: str
    alike: str


UNKNOWN = Error("", "no message was kept", "")


class CallbackModule(CallbackBase):
    """The closing summary."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "fleet"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, Error] = {}
        self.planning = False

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep a host's first error."""
        if ignore_errors:
            return
        self._keep(result, message(result.result))
        self.planning = self.planning or result.task.action == "fleet_plan"

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep why a host could not be reached."""
        self._keep(result, message(result.result))

    def _keep(self, result: Any, text: str) -> None:
        name = result.host.get_name()
        address = str(result.host.vars.get("ansible_host", name))
        self.errors.setdefault(name, Error(result.task.get_name(), text, text.replace(address, "")))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the summary."""
        failed = sorted((name for name, count in stats.failures.items() if count), key=natural)
        dark = sorted((name for name, count in stats.dark.items() if count), key=natural)
        if failed or dark:
            self._display.display("\n".join(summary(failed, dark, self.errors, self.planning)))


def summary(
    failed: Sequence[str], dark: Sequence[str], errors: Mapping[str, Error], planning: bool
) -> list[str]:
    """The lines of the closing summary; `planning`: the plan itself failed, so nothing was applied."""
    lines = []
    for title, hosts in (("Failed", failed), ("Unreachable", dark)):
        groups: dict[tuple[str, str], list[str]] = {}
        for name in hosts:
            error = errors.get(name, UNKNOWN)
            groups.setdefault((error.task, error.alike), []).append(name)
        for names in groups.values():
            error = errors.get(names[0], UNKNOWN)
            lines.append(f"{title}: {', '.join(names)}" + (f", at: {error.task}" if error.task else ""))
            lines += [f"  {line}" for line in error.text.splitlines()]
    if planning:
        lines.append("Next: correct the input that is named above, and run the same command again.")
    else:
        everyone = ",".join(sorted({*failed, *dark}, key=natural))
        lines.append("Next: correct the cause, and run the same command again; what is done is not repeated.")
        lines.append(f"      Only on these hosts: --limit '{everyone}'")
    return lines


def message(result: Mapping[str, Any]) -> str:
    """The error of a result, or of its first failed item, in a few lines."""
    if result.get("censored"):
        return "hidden by no_log"
    failed = next((item for item in result.get("results") or () if item.get("failed")), None)
    text = str((failed or result).get("msg") or result.get("msg") or "no message")
    text = text.strip().removeprefix("Task failed: ").removeprefix("Action failed: ")
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in text.splitlines()]
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"])
