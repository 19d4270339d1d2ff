# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md shows what is there."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests import ROOT, architecture


def test_the_picture_is_that_of_the_contracts() -> None:
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.picture(), "run: make docs"


def test_the_passes_are_those_of_the_code() -> None:
    text = architecture.PAGE.read_text(encoding="utf-8")
    assert text == architecture.page(text), "run: make docs"


def test_every_room_is_in_the_picture() -> None:
    drawn = {item.text for item in ET.fromstring(architecture.picture()).iter() if item.tag.endswith("text")}
    rooms = {
        path.parent.name
        for tree in ("plugin_utils", "module_utils")
        for path in (ROOT / "plugins" / tree).rglob("__init__.py")
        if path.parent.name != tree and "programs" not in path.parts
    }
    assert rooms <= drawn
