# SPDX-License-Identifier: Apache-2.0
"""Hold the present tree against the record: what differs, of which cases, in which parts.

python -m tests.recorded              show it
python -m tests.recorded --write      ... and record what the present tree does
python -m tests.recorded --show ID    print the whole result of a case, to compare it with another tree's
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

from tests.recorded.corpus import CASES, RESULTS, SIDES, Record, difference, differing, read, record, write
from tests.recorded.play import play, split

NAMED = 30
"""Cases that are named."""
SHOWN = 4
"""Cases of which the differences are printed."""
LINES = 60
"""Lines of each of them."""
_NAMED = re.compile(r"^(todo|plan\.(?:hosts|balancers|former_balancers|unreachable|excluded))\.[^.]+")


def main() -> int:
    """Return 0 where nothing differs, or what differs was recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.recorded", description="Hold plans against the record."
    )
    parser.add_argument("--write", action="store_true", help="record what the present tree does")
    parser.add_argument("--add", metavar="FILE", type=Path, help="with --write: more cases, as a JSON list")
    parser.add_argument("--show", metavar="ID", help="print the whole result of a case")
    given = parser.parse_args()
    cases = [*read(CASES), *(json.loads(given.add.read_text(encoding="utf-8")) if given.add else ())]
    if given.show:
        case = next(case for case in cases if case["id"] == given.show)
        json.dump(split(play(case)), sys.stdout, indent=1, sort_keys=True)
        return 0
    now = [record(case, number) for number, case in enumerate(cases)]
    differ = report({one["id"]: one for one in read(RESULTS)}, now)
    if given.write:
        write(CASES, cases)
        write(RESULTS, now)
    return 0 if given.write else int(differ)


def report(before: dict[str, Record], now: list[Record]) -> bool:
    """Print what differs. Return whether anything does."""
    pairs = [(before[one["id"]], one) for one in now if one["id"] in before]
    print(f"{len(now)} cases, {len(now) - len(pairs)} of them new.")
    shown: dict[str, list[str]] = {}
    for verb, key in SIDES.items():
        places = {new["id"]: differing(old, new, [key]) for old, new in pairs}
        changed = [name for name, some in places.items() if some]
        print(f"What a plan {verb} has changed in {len(changed)}: {'; '.join(changed[:NAMED])}")
        parts = Counter(part for some in places.values() for part in {_kind(place) for place in some})
        for part, count in parts.most_common():
            print(f"  {count:5} {part}")
        shown |= {new["id"]: difference(old, new) for old, new in pairs if new["id"] in changed[:SHOWN]}
    for name, lines in shown.items():
        more = [f"    ... {len(lines) - LINES} more lines"] if len(lines) > LINES else []
        print(f"\n{name}", *lines[:LINES], *more, sep="\n")
    return bool(shown) or len(pairs) < len(now)


def _kind(place: str) -> str:
    """Return a place without the name of a host: plan.hosts.*.servers."""
    return _NAMED.sub(r"\1.*", place)


if __name__ == "__main__":
    sys.exit(main())
