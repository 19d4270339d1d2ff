# SPDX-License-Identifier: Apache-2.0
"""Embed a matplotlib figure as <svg> in a page: with the page's colours and font, and unique ids.

Matplotlib writes SVG for a separate file: colours and fonts are fixed, so a page in dark mode would need each plot
twice; clip paths and marks of two figures on a page may have the same id; there are no tooltips. This module changes
these three points and nothing else.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

# Placeholder colours, replaced by var(--name), so that one SVG suits light and dark pages.
_ROLES = (
    "ink",
    "muted",
    "grid",
    "series",
    "pale",
    "warn",
    "page",
    "heat-0",
    "heat-1",
    "heat-2",
    "heat-3",
    "heat-4",
    "line-0",
    "line-1",
    "line-2",
    "line-3",
    "line-4",
)
COLOUR = {role: f"#{number:02x}0203" for number, role in enumerate(_ROLES, start=1)}

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"


def embed_figure(fig: Any, name: str, title: str, tips: Mapping[str, str] | None = None) -> str:
    """Return the figure as an <svg> element: ids unique to `name`, colours as CSS variables, no metadata."""
    stream = io.StringIO()
    fig.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ET.fromstring(stream.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{_SVG}style" or child.tag.endswith("}RDF") or child.tag == f"{_SVG}metadata":
                parent.remove(child)
    markers = {item.get("id"): item.get("style") for item in root.iter(f"{_SVG}path") if item.get("id")}
    used = _references(root)
    for element in root.iter():
        identifier = element.get("id", "")
        if tips and identifier in tips:
            tip = ET.Element(f"{_SVG}title")
            tip.text = tips[identifier]
            element.insert(0, tip)
        _clean(element, name, used, markers)
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": title}
    text = ET.tostring(root, encoding="unicode").replace("ns0:", "").replace("xmlns:ns0", "xmlns")
    return re.sub(r">\s+<", "><", text)


def _references(root: ET.Element) -> dict[str, int]:
    """Return the ids to which something in the figure refers, numbered."""
    found: dict[str, int] = {}
    for element in root.iter():
        for value in element.attrib.values():
            for identifier in re.findall(r"(?:^#|url\(#)([^)]+)", value):
                found.setdefault(identifier, len(found))
    return found


def _clean(
    element: ET.Element, name: str, used: Mapping[str, int], markers: Mapping[Any, str | None]
) -> None:
    identifier = element.attrib.pop("id", "")
    if identifier in used:
        element.set("id", f"{name}-{used[identifier]}")
    target = element.attrib.pop(_XLINK, None)
    if target is not None:
        if element.get("style") == markers.get(target[1:]):
            element.attrib.pop("style", None)  # the mark has it already: thousands of uses need not repeat it
        element.set("href", f"#{name}-{used[target[1:]]}")
    for key, value in list(element.attrib.items()):
        if key == "clip-path":
            element.set(key, re.sub(r"#([^)]+)", lambda match: f"#{name}-{used[match.group(1)]}", value))
        elif key == "style":
            element.set(key, _styled(value))
        elif key in ("d", "x", "y", "width", "height", "transform"):
            element.set(key, re.sub(r"-?\d+\.\d{2,}", lambda match: f"{float(match.group()):.1f}", value))


def _styled(style: str) -> str:
    """Replace placeholder colours with the page's, and remove the font family, which the page sets."""
    for role, colour in COLOUR.items():
        style = style.replace(colour, f"var(--{role})")
    style = re.sub(r"font-family: [^;]+(; |$)", "", style)
    style = re.sub(r"font: (bold |[0-9]{3} )?([0-9.]+px) [^;]+", r"font-size: \2; font-weight: \1", style)
    return style.replace("font-weight: ;", "").replace("font-weight: bold ", "font-weight: 600")
