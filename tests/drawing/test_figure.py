"""Drawings as files: colours of both themes in place of variables, and nothing that asks for another file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from weft.drawing.chart import Curve, chart
from weft.drawing.figure import DARK, LIGHT, MODELS_DARK, MODELS_LIGHT, RULES, Cells, Figure, cells_figure, page_rules
from weft.drawing.marks import wrapped
from weft.drawing.markup import Markup, field, png, tag


def curves() -> Figure:
    return chart("it", "Title & more", "words", [Curve("a", [(0, 1.0), (1, 2.0)]), Curve("b", [(0, 2.0)], 3)], "x", "y")


def test_a_file_has_the_colours_of_both_themes_and_no_variables() -> None:
    text = curves().alone()
    assert "var(" not in text
    light, dark = text.split("@media (prefers-color-scheme:dark)")
    for colour in (MODELS_LIGHT[0], MODELS_LIGHT[3], LIGHT["quiet"], LIGHT["paper"]):
        assert colour in light, colour
    for colour in (MODELS_DARK[0], MODELS_DARK[3], DARK["quiet"], DARK["paper"]):
        assert colour in dark, colour
    assert MODELS_LIGHT[1] not in light, "rules that nothing needs are left out"
    assert ".box{" not in text and "Title &amp; more" in text
    assert not re.search(r"(?:href|src)=\"(?!data:)|url\(", text)


def test_a_page_s_rules_concern_its_drawings_alone() -> None:
    found = re.findall(r"([^{}]+)\{", page_rules())
    assert all(selector.startswith(".figure ") for selectors in found for selector in selectors.split(","))
    assert len(found) == RULES.count("{")


def test_inline_drawings_keep_their_size_and_names() -> None:
    inline = curves().inline()
    assert 'style="width:360px"' in inline and 'aria-labelledby="it-t it-d"' in inline and "<style" not in inline


def test_a_grid_marks_shares_and_own_keys() -> None:
    figure = cells_figure("g", "t", "d", [Cells("h", [[1.0, 0.0], [0.5, 1.0]])], cell=10, per_row=2)
    cells = [(each.attrib["class"], each.attrib.get("fill-opacity"))
             for each in ElementTree.fromstring(figure.inline()).iter("rect")]
    assert cells == [("own", None), ("unlit", None), ("lit", "0.5"), ("own", None)]


def test_a_field_takes_numbers_between_minus_one_and_one_alone() -> None:
    assert png([[0.0, 1.0], [-1.0, 0.5]]).startswith(b"\x89PNG")
    for wrong in (1.5, -1.01, float("nan")):
        with pytest.raises(ValueError, match="is not between -1 and 1"):
            png([[wrong]])


def test_a_field_in_a_file_is_data_inside_it() -> None:
    figure = Figure("f", "t", "d", 10, 10, Markup(tag("g", None, field(0, 0, 5, 5, [[1.0]]))))
    [image] = [each for each in ElementTree.fromstring(figure.alone()).iter() if each.tag.endswith("image")]
    assert image.attrib["href"].startswith("data:image/png;base64,")


def test_words_are_broken_at_spaces_and_the_last_line_is_shortened() -> None:
    assert wrapped("a bb ccc", 4, 3) == ["a bb", "ccc"]
    assert wrapped("aaaa bbbb cccc dddd", 9, 2) == ["aaaa bbbb", "cccc dddd"]
    assert wrapped("aaaa bbbb cccc dddd eeee", 9, 2) == ["aaaa bbbb", "cccc…eeee"]
    assert wrapped("a\u00a0b c", 3) == ["a\u00a0b", "c"]
