# SPDX-License-Identifier: Apache-2.0
"""Judge what load balancers answered to a change of their servers: one answer suffices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.service.endpoint import BALANCER, OPERATOR


@dataclass(frozen=True)
class Answers:
    """The load balancers that made the change, those that refused it, and those that did not answer, with the reasons.

    kind: the class of the first refusal; "" without one.
    """

    answered: tuple[str, ...]
    lost: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""

    @property
    def failure_class(self) -> str:
        """Return the class of the problem; a refusal has a class of its own."""
        return self.kind if self.refused else BALANCER

    def problem(self, by: str) -> str:
        """Return why a run cannot continue, or what the operator who started it must still do; "" for neither."""
        if self.refused:
            named = len(self.refused) > 1
            return "; ".join(f"{name}: {why}" if named else why for name, why in self.refused.items())
        if not self.lost:
            return ""
        text = f"{_reasons(self.lost)} On its host, systemctl status instinct-balancer says more."
        if not self.answered:
            return f"No load balancer answers: {text} Bring one back, and run the same command again."
        if by != OPERATOR:
            return ""
        done = f"Set in {', '.join(self.answered)}, but not in all load balancers: {text}"
        return f"{done} When it answers, run the same command again."

    def warnings(self, by: str) -> list[str]:
        """Return the warnings of a run that continues without some load balancers."""
        if not self.answered or by == OPERATOR:
            return []
        return [
            f"load balancer {name} does not answer: {_sentence(why)} {', '.join(self.answered)} does, so the run "
            f"continues. When {name} is back, run site.yml, which tells it what changed."
            for name, why in self.lost.items()
        ]


def answers_of(results: Iterable[Mapping[str, Any]]) -> Answers:
    """Return the answers from the results of balancer_server in a loop over load balancers, or over their servers."""
    answered: list[str] = []
    lost: dict[str, str] = {}
    refused: dict[str, str] = {}
    kinds: list[str] = []
    for result in results:
        item = result["item"]
        name = str(item["balancer"] if isinstance(item, Mapping) else item)
        if result.get("unreachable") or result.get("class") == BALANCER:
            lost[name] = str(result.get("msg") or "it cannot be reached").strip().partition("\n")[0]
        elif result.get("failed"):
            refused[name] = str(
                result.get("msg") or result.get("module_stderr") or "it failed without a message"
            ).strip()
            kinds.append(str(result.get("class") or ""))
        else:
            answered.append(name)
    return Answers(tuple(answered), lost, refused, next(iter(kinds), ""))


def _reasons(lost: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why.rstrip('.')}" for name, why in lost.items()) + "."


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."
