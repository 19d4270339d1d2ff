# SPDX-License-Identifier: Apache-2.0
"""What is generated of docs/architecture.md: the picture, from the import contracts, and the tables of passes.

python -m tests.architecture writes both (`make docs`).
"""

from __future__ import annotations

import configparser
import inspect
import re
from collections.abc import Iterable, Sequence
from html import escape
from types import ModuleType

from ansible_collections.instinct.fleet.plugins.plugin_utils.base.passes import Pass
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring import pipeline as measuring
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning import pipeline as planning

from tests import ROOT

PAGE, PICTURE = ROOT / "docs/architecture.md", ROOT / "docs/architecture.svg"
BEGIN, END = "<!-- passes: make docs -->", "<!-- end of passes -->"
LISTS: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (planning, ("CHECKS", "DRAFT", "PLAN", "LIMITS", "RUN")),
    (measuring, ("PASSES",)),
)
READ_AFTER = {
    "CHECKS": "*Read now:* pins, models, the load balancers' secrets "
    "([`run_reading.py`](../plugins/plugin_utils/actions/run_reading.py)).",
    "DRAFT": "*While a host cannot:* it is excluded, and all of this is done again without it.",
    "LIMITS": "*Asked now:* whether hosts may fetch what is missing.",
    "RUN": "*Then, if the run measures,* `bench_plan`:",
}
WIDTH, LINE, PAD, SIDE = 1000, 26, 8, 130
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .head { font-weight: 600 } .note { fill: #59636e; font-size: 12px }
  .tree { fill: #f6f8fa; stroke: #d1d9e0 } .wing { fill: #ffffff; stroke: #8c959f }
  .room { fill: #ddf4ff; stroke: #54aeff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note { fill: #9198a1 }
    .tree { fill: #151b23; stroke: #3d444d } .wing { fill: #0d1117; stroke: #656c76 }
    .room { fill: #0c2d6b; stroke: #388bfd }
  }"""


def layers() -> dict[str, list[list[str]]]:
    """The rooms of each contract of layers, the highest layer first."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    found = {}
    for name in parser.sections():
        section = parser[name]
        if section.get("type") == "layers":
            rows = section["layers"].strip().splitlines()
            found[name.rpartition(":")[2]] = [re.split(r"\s*\|\s*", row.strip()) for row in rows]
    return found


def picture() -> str:
    """The SVG: both trees, with the wings of the one and the rooms of both; what is higher imports what is lower."""
    contracts = layers()
    parts: list[str] = []
    top = _tree(parts, 0, "plugin_utils: decides, on the control node", [
        (wing, contracts.get(wing, [])) for (wing,) in contracts["wings"]
    ])  # fmt: skip
    bottom = _tree(parts, top + 2 * PAD, "module_utils: works, on nodes", [("", contracts["node"])])
    size = f'width="{WIDTH}" height="{bottom}" viewBox="0 0 {WIDTH} {bottom}"'
    label = "Wings and rooms of the two trees; each imports only from those below it"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}\n</style>", *parts, "</svg>", ""])


def _tree(parts: list[str], top: int, title: str, wings: Sequence[tuple[str, list[list[str]]]]) -> int:
    """Draw a tree; return where it ends."""
    at = len(parts)
    y = top + LINE + PAD
    for wing, rows in wings:
        height = max(1, len(rows)) * (LINE + PAD) + PAD
        if wing:
            parts.append(_box("wing", PAD, y, WIDTH - 2 * PAD, height))
            parts.append(_text("head", 2 * PAD, y + PAD + LINE - 8, wing))
        for number, rooms in enumerate(rows):
            parts += _row(y + PAD + number * (LINE + PAD), rooms, SIDE if wing else 2 * PAD)
        if not rows:
            parts.append(_text("note", SIDE, y + PAD + LINE - 8, "one room"))
        y += height + (PAD if wing else 0)
    parts[at:at] = [_box("tree", 0, top, WIDTH, y - top), _text("head", PAD, top + LINE - 6, title)]
    return y


def _row(y: int, rooms: Sequence[str], left: int) -> list[str]:
    """Draw the rooms of a layer, which do not import each other."""
    width = (WIDTH - 2 * PAD - left - (len(rooms) - 1) * PAD) // len(rooms)
    found = []
    for number, room in enumerate(rooms):
        x = left + number * (width + PAD)
        found.append(_box("room", x, y, width, LINE))
        found.append(_text("", x + width // 2, y + LINE - 8, room, middle=True))
    return found


def _box(kind: str, x: int, y: int, width: int, height: int) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>'


def _text(kind: str, x: int, y: int, text: str, middle: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="{kind}" x="{x}" y="{y}"{anchor}>{escape(text)}</text>'


def passes() -> str:
    """The tables of passes."""
    return "\n".join(line for module, names in LISTS for name in names for line in _table(module, name))


def _table(module: ModuleType, name: str) -> Iterable[str]:
    steps: tuple[Pass, ...] = getattr(module, name)
    yield f"| {name} | adds |\n|---|---|"
    for step in steps:
        text = re.sub(r"^(Add nothing: |Add |Return )", "", inspect.getdoc(step) or "")
        yield f"| `{step.__name__}` | {text} |"
    yield f"\n{READ_AFTER[name]}\n" if name in READ_AFTER else ""


def page(text: str) -> str:
    """The page with its tables of passes as the code has them."""
    head, _begin, rest = text.partition(BEGIN)
    _old, _end, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{passes()}\n{END}{tail}"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
