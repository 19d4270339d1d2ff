# SPDX-License-Identifier: Apache-2.0
"""Judge switches together: whether a recipe would cancel the operator's, and which have no effect. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...knowledge.catalog.facts import ModelFacts
from ...knowledge.catalog.recipes import Context
from ...knowledge.vllm.attention_backends import DENSE, MLA, Backends
from ...knowledge.vllm.attention_switches import AttentionSwitches, Decided
from ...knowledge.vllm.findings import Finding
from ...knowledge.vllm.flag_values import Value
from ...knowledge.vllm.switches import Setup, Switches
from .decisions import Decisions

DISABLED = "VLLM_MLA_DISABLE"


@dataclass(frozen=True)
class SwitchJudge:
    """The switches of one release for one model. own: what the operator decided. facts: those of switches.yml."""

    own: Decided
    attention: AttentionSwitches
    switches: Switches
    facts: Mapping[str, Any]

    @classmethod
    def of(
        cls, own: Decisions, context: Context, model: ModelFacts, backends: Backends, switches: Switches
    ) -> SwitchJudge:
        """Return the judge of a deployment; the decisions are so far the operator's."""
        latent = model.mla and own.env.get(DISABLED, "0") in ("", "0")
        facts: dict[str, Any] = {"tp": context.tp, "engine": context.engine}
        if context.gfx:
            facts["gfx"] = context.gfx
        traits = {"moe": model.moe, "mla": model.mla, "quantization": model.quantization}
        facts |= {name: value for name, value in traits.items() if value is not None}
        conditions = {
            "sinks": bool(model.sinks),
            "sparse": bool(model.sparse),
            "kv_connector": "--kv-transfer-config" in own.args,
            "v1": context.engine == "V1",
        }
        kind = MLA if latent else DENSE
        selection = AttentionSwitches(backends, kind, conditions, switches.env.variables)
        return cls((dict(own.args), dict(own.env)), selection, switches, facts)

    def selected(self, decided: Decisions) -> str:
        """Return the attention backend in effect."""
        return self.attention.selected((decided.args, decided.env))

    def overruled(self, decided: Decisions, args: Mapping[str, Value], env: Mapping[str, str]) -> str:
        """Return the operator's switch that these would take the effect from; empty if there is none."""
        return self.attention.overruled(self.own, (decided.args, decided.env), (args, env))

    def idle(self, decided: Decisions, names: Iterable[str]) -> Iterator[tuple[str, Finding]]:
        """Yield those of the names that have no effect, a key of a flag's map as --flag.key, with the reason."""
        facts = dict(self.facts)
        if "mla" in facts:
            facts["attention"] = self.selected(decided)
        setup = Setup(decided.args, decided.env, facts)
        ruled = list(self.switches.named(setup))
        for name in names:
            for item in (item for item in ruled if item.partition(".")[0] == name):
                finding = self.switches.idle(item, setup)
                if finding:
                    yield item, finding
                    break

    def unselected(self, decided: Decisions, names: Iterable[str]) -> Iterator[tuple[str, Finding]]:
        """Yield those of the names that could select the attention backend and do not, with the reason."""
        for name in names:
            if "mla" in self.facts or not self.attention.only_latent(name):
                finding = self.attention.idle(name, (decided.args, decided.env))
                if finding:
                    yield name, finding
