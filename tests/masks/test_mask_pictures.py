"""Masks drawn: the patterns of Child et al. (2019) for six tokens and a stride of three, drawn by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from weft.masks import Causal, Documents, Mask, PerHead, Prefix, Strided, SymmetricWindow, Window, parse_mask
from weft.masks.picture import HIDDEN, OWN, SEEN

PICTURES = {
    "causal": "#..... ##.... ###... ####.. #####. ######",
    "window(3)": "#..... ##.... ###... .###.. ..###. ...###",
    "window(4)": "#..... ##.... ###... ####.. .####. ..####",
    "strided(3)": "#..... .#.... ..#... #..#.. .#..#. ..#..#",
    "window(3) | strided(3)": "#..... ##.... ###... ####.. .####. ..####",
    "block(3)": "#..... ##.... ###... ...#.. ...##. ...###",
    "segments(2, 1)": "#..... ##.... .##... .###.. ...##. ...###",
    "fixed(3, 1)": "...... ...... ..#... ..#... ..#... ..#..#",
    "block(3) | fixed(3, 1)": "#..... ##.... ###... ..##.. ..###. ..####",
    "fixed(3, 1, 1)": "...... .#.... .#.... .#.... .#..#. .#..#.",
    "symmetric_window(1, 2)": "###... ####.. .####. ..#### ...### ....##",
    "symmetric_window(1, 2, 2)": "#.#.#. .#.#.# #.#.#. .#.#.# ..#.#. ...#.#",
    "dilated(2, 2)": "#..... .#.... #.#... .#.#.. ..#.#. ...#.#",
    "causal & (window(2) | global(0))": "#..... ##.... ###... #.##.. #..##. #...##",
    "global(0)": "###### #..... #..... #..... #..... #.....",
    "~causal": ".##### ..#### ...### ....## .....# ......",
}


def lines(picture: str) -> list[str]:
    return picture.replace(" ", "").split("\n")


@pytest.mark.parametrize("text", PICTURES)
def test_pictures_drawn_by_hand(text: str) -> None:
    assert lines(parse_mask(text).draw(6)) == PICTURES[text].split()


def test_documents_and_prefix_are_drawn_where_they_are_given() -> None:
    begins = torch.tensor([[True, False, False, True, False, False]])
    prefix = torch.tensor([[True, True, False, True, True, False]])
    assert lines((Causal() & Documents()).draw(begins=begins)) == PICTURES["block(3)"].split()
    fenced = ((Causal() | Prefix()) & Documents()).draw(begins=begins, prefix=prefix)
    assert lines(fenced) == ["##....", "##....", "###...", "...##.", "...##.", "...###"]


def test_a_continuation_draws_its_last_rows() -> None:
    assert lines(Causal().draw(2, 5)) == ["####.", "#####"]


def test_heads_that_differ_are_drawn_one_after_another() -> None:
    picture = PerHead(Window(2), Strided(2)).draw(3)
    assert picture.split("\n\n") == ["head 0\n# . .\n# # .\n. # #", "head 1\n# . .\n. # .\n# . #"]


@pytest.mark.parametrize("mask", [Causal() & Window(2), SymmetricWindow(1, 1), PerHead(Window(2), Strided(3))],
                         ids=repr)
def test_svg_shows_every_pair_where_it_stands(mask: Mask) -> None:
    root = ElementTree.fromstring(mask.svg(4, 5))
    space = "{http://www.w3.org/2000/svg}"
    cells = root.findall(f"{space}rect")
    dense = mask.dense(4, 5)[0]
    assert len(cells) == dense.numel()
    for cell, (head, row, column) in zip(cells, torch.cartesian_prod(*map(torch.arange, dense.shape)).tolist(),
                                         strict=True):
        colour = (OWN if column == row + 1 else SEEN) if dense[head, row, column] else HIDDEN
        assert (cell.get("fill"), cell.get("x"), cell.get("y")) == (
            colour, str(head * (5 * 16 + 24) + column * 16), str(20 + row * 16))
    assert max(int(cell.get("x", "0")) + 16 for cell in cells) <= int(root.get("width", "0"))
    assert int(cells[-1].get("y", "0")) + 16 == int(root.get("height", "0"))
    assert root.findtext(f"{space}title") == repr(mask)
