# SPDX-License-Identifier: Apache-2.0
"""Callback plugin: Ansible's usual output with readable errors, and a closing summary of failures and next steps."""

from __future__ import annotations

DOCUMENTATION = """
name: fleet
type: stdout
short_description: Ansible's usual output with readable errors, and a closing summary
description:
  - Prints the same as the callback default, except for errors. The reason for a failed task is printed as lines of
    text. Problems of a plan's input are printed once, at the end of the run. With -v, errors are also printed as by
    the callback default.
  - After the recap, lists each host that failed or could not be reached, with the host's first error and its task,
    and prints the next step. Hosts with the same error are listed together.
  - Uses results as Ansible shows them, so values that no_log hides stay hidden.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.plugins.loader import action_loader, filter_loader, module_loader, test_loader
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import

# isort: split
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import natural
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.hints import cause, failed_item, hint
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.groups import BALANCERS

COLLECTION = "instinct.fleet."
PLANS = ("instinct.fleet.fleet_plan", "instinct.fleet.bench_plan")
"""They refuse the input before anything is done, with all of its problems."""
STATUS = "instinct.fleet.instance_status"
VERDICTS = tuple(f"instinct.fleet.{name}" for name in ("rollout_verdict", "accuracy_report", "burnin_report"))
"""They judge all hosts, and fail on the host where they run."""
FINDING = "the finding of a playbook that only reads"
"""The action of a task `ansible.builtin.fail` with run_once: its text says what to do, and no host has failed."""
LINES = 6
WIDTH = 400
NEW_OBJECTS = 50_000
"""How many objects are made before Python looks for cycles among them; 700 by default."""


class HostError(NamedTuple):
    """A host's first error; `alike` is its text without the host's address, to find equal ones; action: the module."""

    task: str
    text: str
    alike: str
    action: str = ""


UNKNOWN = HostError("", "no message was kept", "")


class CallbackModule(Default):
    """Ansible's own output, except for errors and the closing summary."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "fleet"

    def __init__(self) -> None:
        """Collect garbage less often: imported modules stay, and parsed YAML is a hundred thousand objects.

        The workers, of which one plans, inherit this.
        """
        super().__init__()
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS)
        self.errors: dict[str, HostError] = {}
        self.planning = False
        self.balancers: list[str] = []
        self.ahead: list[str] = []

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Load the filters of templates, and exclude all from garbage collection, before the play's workers are forked.

        Otherwise each worker loads all filters and tests by itself, a fifth of what it does; and it touches everything,
        which copies its pages, and this process traverses it again and again: a tenth of the control node's time for a
        run. See the documentation of gc.freeze().
        """
        for loader, name in ((filter_loader, "bool"), (test_loader, "failed")):
            loader.get(f"ansible.builtin.{name}")
        action_loader.get("ansible.legacy.normal", class_only=True)  # what calls modules
        gc.freeze()
        self.ahead = _actions(play)
        groups = play.get_variable_manager()._inventory.get_groups_dict()
        self.balancers = sorted(map(str, groups.get(BALANCERS, ())), key=natural)
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Import the action of a task before its workers are forked, which Ansible does for those without a route."""
        if str(task.action).startswith(COLLECTION):
            _import_action(str(task.action))
        super().v2_playbook_on_task_start(task, is_conditional)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Print that a host has done a task.

        Ansible converts a result to native types to look into it; what a node answered is large, and nobody sees it.
        """
        self._import_ahead()
        task = result.task
        seen = result.is_changed() or result.warnings or result.deprecations or result.exception or task.loop
        if seen or self._display.verbosity or not str(task.action).startswith(COLLECTION):
            super().v2_runner_on_ok(result)
        elif self.get_option("display_ok_hosts"):
            if self._last_task_banner != task._uuid:
                self._print_task_banner(task)
            self._display.display(f"ok: [{self.host_label(result)}]", color=C.COLOR_OK)

    def _import_ahead(self) -> None:
        """Import the actions of the play's tasks while other hosts are still at work.

        Ansible imports an action when its task begins, and fleet_plan imports the whole planner. Unless that is
        excluded from garbage collection, too, the worker that plans collects among all of it, a sixth of its time.
        """
        if self.ahead:
            for name in self.ahead:
                _import_action(name)
            gc.freeze()
        self.ahead = []

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Print why a task failed, and record the host's first error."""
        planning = result.task.action in PLANS
        text = message(result.result)
        if not ignore_errors:
            whole = planning or result.task.action in VERDICTS or is_finding(result.task)
            self._keep(result, text if whole else short(text))
            self.planning = self.planning or planning
        if self._display.verbosity:
            super().v2_runner_on_failed(result, ignore_errors=ignore_errors)
        elif "results" in result.result and (ignore_errors or result.task.loop):
            return  # items of a loop were printed already
        elif ignore_errors:
            self._tell(result, "failed", text, " (ignored)")
        else:
            self._tell(result, "failed", text.partition("\n")[0] if planning else text)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Print why one item of a loop failed."""
        if self._display.verbosity:
            super().v2_runner_item_on_failed(result)
        else:
            label = self._get_item_label(result.result)
            ignored = " (ignored)" if result.task.ignore_errors else ""
            self._tell(result, "failed", message(result.result), f" (item={label}){ignored}")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Print why a host could not be reached, and record it."""
        text = message(result.result)
        ignored = result.task.ignore_unreachable
        if not ignored:
            self._keep(result, short(text))
        if self._display.verbosity:
            super().v2_runner_on_unreachable(result)
        elif ignored and (result.task.action == STATUS or "results" in result.result):
            return  # its table has a line for the host; items of a loop were printed already
        else:
            self._tell(result, "unreachable", text, " (ignored)" if ignored else "")

    def _tell(self, result: Any, what: str, text: str, item: str = "") -> None:
        """Print one line, or a line and the text indented below it."""
        if self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)
        self._handle_warnings(result.result)
        lines = text.splitlines()
        description = f" {text}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
        color = C.COLOR_ERROR if what == "failed" else C.COLOR_UNREACHABLE
        to_stderr = self.get_option("display_failed_stderr")
        self._display.display(
            f"{what}: [{self.host_label(result)}]{item}:{description}", color=color, stderr=to_stderr
        )

    def _keep(self, result: Any, text: str) -> None:
        name = result.host.get_name()
        address = str(result.host.vars.get("ansible_host", name))
        action = str(result.task.action)
        if is_finding(result.task):
            action = FINDING
        error = HostError(result.task.get_name(), text, text.replace(address, ""), action)
        if action in VERDICTS:  # it also reports what was rescued before
            self.errors[name] = error
        self.errors.setdefault(name, error)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the recap, and the summary of what failed."""
        super().v2_playbook_on_stats(stats)
        failed = sorted((name for name, count in stats.failures.items() if count), key=natural)
        dark = sorted((name for name, count in stats.dark.items() if count), key=natural)
        if failed or dark:
            self._display.display(
                "\n".join(summary(failed, dark, self.errors, self.planning, self.balancers))
            )


def _actions(play: Any) -> list[str]:
    """Return the actions of this collection that are named by a play's tasks."""
    tasks = (task for block in play.get_tasks() for task in block)
    names = (str(getattr(task, "action", "")) for task in tasks)
    return [name for name in names if name.startswith(COLLECTION)]


def _import_action(name: str) -> None:
    """Import the action of a module: the one to which meta/runtime.yml routes it, or the one of its name."""
    route = module_loader.find_plugin_with_context(name).action_plugin
    action_loader.get(route or name, class_only=True)


def is_finding(task: Any) -> bool:
    """Return whether a task fails for what a playbook found, and not because of a host."""
    return task.action == "ansible.builtin.fail" and task.run_once is True


def summary(
    failed: Sequence[str],
    dark: Sequence[str],
    errors: Mapping[str, HostError],
    planning: bool,
    balancers: Sequence[str] = (),
) -> list[str]:
    """Return the lines of the closing summary.

    planning: the plan itself failed, so nothing was applied. balancers: all load balancers; a run that changes what
    serves needs them. Of a rollout or measurement of all hosts, those that failed are in its report: the task failed
    on the one that printed it, and the operation is run again as a whole.
    """
    lines = []
    for title, hosts in (("Failed", failed), ("Unreachable", dark)):
        groups: dict[tuple[str, str], list[str]] = {}
        for name in hosts:
            error = errors.get(name, UNKNOWN)
            groups.setdefault((error.task, error.alike), []).append(name)
        for names in groups.values():
            error = errors.get(names[0], UNKNOWN)
            who = title if error.action in (*VERDICTS, FINDING) else f"{title}: {', '.join(names)}"
            lines.append(who + (f", at: {error.task}" if error.task else ""))
            lines += [f"  {line}" for line in error.text.splitlines()]
    everyone = {*failed, *dark}
    actions = {errors.get(name, UNKNOWN).action for name in everyone}
    if planning:
        lines.append("Next: correct the input named above, and run the same command again.")
    elif actions != {FINDING}:
        limit = ",".join([*sorted(everyone - {*balancers}, key=natural), *balancers])
        lines.append(
            "Next: correct the cause, and run the same command again; completed steps are not repeated."
        )
        if actions.isdisjoint(VERDICTS):
            lines.append(f"      Only on these hosts: --limit '{limit}'")
    return lines


def message(result: Mapping[str, Any]) -> str:
    """Return the error of a result, or of its first failed item, with the output of a command."""
    if result.get("censored"):
        return "hidden by no_log"
    failed = failed_item(result)
    if cause(failed):
        return cause(failed)
    text = str(failed.get("msg") or result.get("msg") or "no message")
    text = text.strip().removeprefix("Task failed: ").removeprefix("Action failed: ")
    said = (str(failed.get(key) or "").strip() for key in ("stderr", "module_stderr"))
    text = "\n".join([text, *(more for more in said if more and more not in text)])
    return printable("\n".join(filter(None, (text, hint(text)))))


def short(text: str) -> str:
    """Return the first lines of a text for the summary; the whole text was printed when the task failed."""
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in text.splitlines()]
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"])
