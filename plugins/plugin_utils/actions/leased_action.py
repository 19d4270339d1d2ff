# SPDX-License-Identifier: Apache-2.0
"""Provide the base of action plugins for modules that change a node: they give them the lease of this run.

It is separate from action_base.py because each task on each host imports it again, and it does not need the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.vars import merge_hash

from . import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from .runs import HOLD, Lease, is_over, refused_call, this_run

CHANGE_NOTHING = frozenset(
    {
        "gpu_burnin", "lm_eval", "model_quantize", "model_verify", "vllm_accuracy", "vllm_bench", "vllm_smoke",
        "vllm_watch",
    }
)  # fmt: skip
"""Modules that change nothing that a plan reads: they keep other runs away, but do not make plans out of date."""


class LeasedAction(ActionBase):
    """An action plugin that tells a module on the node which run this is, by its parameter `lease`."""

    TRANSFERS_FILES = False

    @property
    def module(self) -> str:
        """Return the module's name: several modules may have one action."""
        return str(self._task.action).rpartition(".")[2]

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's own result, or a failure that names the other run that changes the host."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        facts = task_vars or {}
        args, lease = self.arguments(facts), self._lease(facts)
        own = self.call({**args, "lease": lease}, facts)
        refused = Lease.from_json(own.get("lease"))
        if refused and own.get("why") == "other_run" and is_over(refused.run):
            own = self.call({**args, "lease": {**lease, "void": [*lease["void"], refused.run]}}, facts)
        if own.get("class") == "other_run":
            own["msg"] = refused_call(self._host(facts), own.get("why") == "stale_plan", own.get("lease"))
        merged: dict[str, Any] = merge_hash(result, own)
        return merged

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the module's other parameters; `facts` are the task's variables."""
        del facts
        return dict(self._task.args)

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's own result."""
        found: dict[str, Any] = self._execute_module(
            module_args=args, task_vars=facts, wrap_async=self._task.async_val
        )
        return found

    def _host(self, facts: dict[str, Any]) -> str:
        return str(self._task.delegate_to or facts.get("inventory_hostname", ""))

    def _lease(self, facts: dict[str, Any]) -> dict[str, Any]:
        run, known = this_run(), facts
        if self._task.delegate_to:
            known = facts["hostvars"].raw_get(self._host(facts)) if "hostvars" in facts else {}
        observed = (known.get("node_state_result") or {}).get("node_state")
        seen = Lease.from_json(observed.get("lease")) if observed else None
        plan = facts.get("fleet_plan_result") or {}
        return {
            "run": run.id,
            "who": run.who,
            "command": run.command,
            "started": run.started,
            "seen": None if observed is None else seen.tag if seen else "",
            "void": [seen.run] if seen and is_over(seen.run) else [],
            "take_over": bool(boolean(facts.get("take_over") or False, strict=False)),
            "hold": int(plan.get("hold") or HOLD),
            "changes": self.module not in CHANGE_NOTHING,
        }
