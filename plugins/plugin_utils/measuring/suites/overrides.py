# SPDX-License-Identifier: Apache-2.0
"""What an operator may override in a suite: how often, which kinds and percentiles, and arguments of the client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ....module_utils.benchmarks.bench_results import KINDS
from ....module_utils.common.errors import FleetError, suggest
from ...base.checker import Checker
from ...knowledge.bench_clients.bench_args import reserved_findings
from ...knowledge.bench_clients.bench_clients import unknown_arguments
from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.flag_values import Value
from .parse import CELL_ARGUMENTS
from .suite import Repeats, Suite

REPEATS = ("blocks", "most", "warmups")
OWN = (*REPEATS, "half_width", "seed", "kinds", "percentiles")
WHERE = "suite overrides"


@dataclass(frozen=True)
class Overrides:
    """The operator's part, checked. percentiles: None if the suite's hold; args: of the client, by kind."""

    repeats: Repeats
    seed: int
    kinds: tuple[str, ...]
    percentiles: tuple[float, ...] | None
    args: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


def parse_overrides(knowledge: Knowledge, suite: Suite, given: Mapping[str, Value]) -> Overrides:
    """Return the operator's overrides of a suite. Raise FleetError with every mistake."""
    check = Checker()
    kinds = tuple(dict.fromkeys(group.kind for group in suite.groups))
    asked = check.texts(given["kinds"], (WHERE, "kinds")) if given.get("kinds") else kinds
    for kind in asked:
        if kind not in kinds:
            check.wrong((WHERE, "kinds"), f"{suite.name} has no {kind}.", suggest(kind, kinds))
    asked = tuple(kind for kind in asked if kind in kinds)
    found = Overrides(
        repeats=_repeats(check, suite.repeats, given),
        seed=check.integer(given.get("seed") or 0, (WHERE, "seed"), 0, 0, 2**31 - 1),
        kinds=asked,
        percentiles=_percentiles(check, given.get("percentiles")),
        args=_args(check, knowledge, asked, given),
    )
    if check.problems:
        raise FleetError(check.problems)
    return found


def _repeats(check: Checker, suite: Repeats, given: Mapping[str, Value]) -> Repeats:
    blocks, most, warmups = (
        check.integer(given.get(name, getattr(suite, name)), (WHERE, name), 1, int(name != "warmups"), 1000)
        for name in REPEATS
    )
    if "most" in given and most < blocks:
        check.wrong((WHERE, "most"), f"{most} is less than the {blocks} blocks.")
    width = given.get("half_width", suite.half_width)
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width < 1:
        check.wrong((WHERE, "half_width"), f"{width!r} is not a share of the median.", "0.02 is ±2 %.")
        width = suite.half_width
    # An operator who asks for one block does not want ten.
    most = most if "most" in given or "blocks" not in given else blocks
    return Repeats(warmups, blocks, max(blocks, most), width)


def _percentiles(check: Checker, value: Value) -> tuple[float, ...] | None:
    if value is None:
        return None
    items = check.listing(value, (WHERE, "percentiles"))
    wrong = [item for item in items if isinstance(item, (bool, str)) or not 0 < item < 100]
    for item in wrong:
        check.wrong((WHERE, "percentiles"), f"{item!r} is not a number from 0 to 100.")
    return tuple(item for item in items if item not in wrong)


def _args(
    check: Checker, knowledge: Knowledge, kinds: Iterable[str], given: Mapping[str, Value]
) -> dict[str, dict[str, Value]]:
    """Return the client's arguments for each kind that has them."""
    book, table = knowledge.bench_book, knowledge.flags(knowledge.line.releases[-1])
    args = {name: value for name, value in given.items() if name not in OWN}
    found: dict[str, dict[str, Value]] = {}
    nowhere = set(args)
    for kind in kinds:
        unknown = {item.subject: item for item in unknown_arguments(table, knowledge.bench, book, kind, args)}
        found[kind] = {name: value for name, value in args.items() if name not in unknown}
        nowhere &= unknown.keys()
        for item in reserved_findings(book, kind, found[kind]):
            check.wrong((WHERE, item.subject), f"{item.what}.", item.fix)
    every = {
        *OWN,
        *(name for kind in KINDS for name in book["settings"] if kind in book["settings"][name]["kinds"]),
    }
    for name in sorted(nowhere):
        check.wrong((WHERE, name), "is not an argument of vLLM's benchmarks.", suggest(name, every))
    for name in sorted(CELL_ARGUMENTS & {name.lstrip("-").replace("-", "_") for name in args}):
        fix = "Leave it out, or write a suite of your own and give its path."
        check.wrong((WHERE, name), "is determined by the suite.", fix)
    return found
