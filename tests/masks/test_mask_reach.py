"""What layers of attention reach: Child et al. 2019, section 4.2 and figure 3, counted and drawn by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable

import pytest
import torch

from weft.core.errors import InputError
from weft.masks import Bidirectional, Causal, Fixed, GlobalTokens, Mask, Strided, Window, as_image, parse_mask, reach
from weft.masks.picture import HIDDEN, OWN, SEEN

SIDE = 6
IMAGE = SIDE * SIDE

PIXELS = {  # of the query in row 3, column 3 (index 21) of an image of 6 x 6 pixels
    "causal": "###### ###### ###### ###@.. ...... ......",
    "window(6)": "...... ...... ....## ###@.. ...... ......",
    "strided(6)": "...#.. ...#.. ...#.. ...@.. ...... ......",
    "window(6) | strided(6)": "...#.. ...#.. ...### ###@.. ...... ......",
    "block(6)": "...... ...... ...... ###@.. ...... ......",
    "fixed(6, 1)": ".....# .....# .....# ...@.. ...... ......",
    "block(6) | fixed(6, 1)": ".....# .....# .....# ###@.. ...... ......",
}


@pytest.mark.parametrize("text", PIXELS)
def test_the_keys_of_a_pixel_are_those_of_the_figure(text: str) -> None:
    assert as_image(parse_mask(text), 21, SIDE, SIDE).replace(" ", "").split("\n") == PIXELS[text].split()


def test_both_heads_of_a_pixel() -> None:
    heads = as_image(parse_mask("per_head(window(6), strided(6))"), 21, SIDE, SIDE)
    assert heads.split("\n\n")[1].replace(" ", "") == "head1\n" + PIXELS["strided(6)"].replace(" ", "\n")


CONNECTED: dict[str, Callable[[int, int], bool]] = {
    "window(6)": lambda i, j: i - j < SIDE,
    "strided(6)": lambda i, j: (i - j) % SIDE == 0,
    "block(6)": lambda i, j: i // SIDE == j // SIDE,
    "fixed(6, 1)": lambda i, j: j % SIDE == SIDE - 1,
}


@pytest.mark.parametrize("text", list(PIXELS)[1:])
def test_the_connectivity_of_all_pixels_is_that_of_the_figure(text: str) -> None:
    """The lower row of the figure: a band or blocks on the diagonal, and lines at the stride."""
    parts = [CONNECTED[part] for part in text.split(" | ")]
    wanted = [[j <= i and any(part(i, j) for part in parts) for j in range(IMAGE)] for i in range(IMAGE)]
    assert parse_mask(text).dense(IMAGE)[0, 0].tolist() == wanted


def walked(masks: list[Mask], steps: int) -> torch.Tensor:
    """The same numbers by a walk from each query down: a state is a token and how many layers lie below it."""
    seen = [mask.dense(steps)[0].any(0).tolist() for mask in masks]
    found = torch.zeros(steps, steps, dtype=torch.int64)
    for count in range(1, 3 * steps):
        for query in range(steps):
            places, queue = {query}, deque([(query, count)])
            visited = {(query, count)}
            while queue:
                token, left = queue.popleft()
                if left == 0:
                    places.add(token)
                    continue
                below = seen[(left - 1) % len(masks)][token]
                for key in {token, *(index for index, sees in enumerate(below) if sees)}:
                    if (key, left - 1) not in visited:
                        visited.add((key, left - 1))
                        queue.append((key, left - 1))
            for key in places:
                found[query, key] = found[query, key] or count
    return found


@pytest.mark.parametrize("texts", [["causal & window(3)"], ["strided(3)"], ["block(3)", "fixed(3, 1)"],
                                   ["fixed(3, 1)", "block(3)"], ["per_head(window(2), strided(3))"],
                                   ["symmetric_window(1, 0)", "symmetric_window(0, 2)"],
                                   ["dilated(2, 2)", "window(2)"]])
def test_products_of_masks_count_the_layers_of_the_shortest_walk(texts: list[str]) -> None:
    masks = [parse_mask(text) for text in texts]
    assert torch.equal(reach(masks, 8).layers, walked(masks, 8))


@pytest.mark.parametrize(("texts", "longest"), [
    (["causal"], 1), (["bidirectional"], 1),
    (["window(6)"], 7),  # 35 tokens back in steps of 5
    (["strided(6)"], None), (["fixed(6, 1)"], None),
    (["window(6) | strided(6)"], 2), (["per_head(window(6), strided(6))"], 2),
    (["window(6)", "strided(6)"], 2), (["strided(6)", "window(6)"], 2),
    (["block(6) | fixed(6, 1)"], 2), (["block(6)", "fixed(6, 1)"], 2),
    (["fixed(6, 1)", "block(6)"], 3),  # the summary must lie above what it sums up
    (["causal", "causal & window(6)"], 1),  # GPT-3's alternation
    (["window(6) | global(0)"], 2),
    (["causal & (window(6) | global(0))"], 7),  # a causal sink passes nothing on
])
def test_two_layers_of_a_factorised_pattern_reach_every_pixel(texts: list[str], longest: int | None) -> None:
    assert reach([parse_mask(text) for text in texts], IMAGE).max_path_length() == longest


def test_a_stack_reaches_as_far_as_its_windows_together() -> None:
    found = reach(Causal() & Window(4), 20)
    for count in (1, 2, 3):
        assert torch.equal(found.after(count), Window(3 * count + 1).dense(20)[0, 0])
    assert found.share(3) == float(Window(10).dense(20)[0, 0].sum()) / 210
    assert found.share(7) == 1.0
    assert reach([Window(3), Bidirectional()], 5).wanted().all()
    assert not reach(Strided(2), 5).layers[4, 3]


def test_it_is_drawn_with_the_number_of_layers() -> None:
    found = reach(Causal() & Window(2), 4)
    assert found.draw() == "1 . . .\n1 1 . .\n2 1 1 .\n3 2 1 1"
    assert reach(Causal() & Window(2), 12).draw().split("\n")[11] == "11 10  9  8  7  6  5  4  3  2  1  1"
    root = ElementTree.fromstring(found.svg())
    space = "{http://www.w3.org/2000/svg}"
    cells = root.findall(f"{space}rect")
    counts = [int(cell.findtext(f"{space}title") or 0) for cell in cells]
    assert counts == found.layers.flatten().tolist()
    colours = dict(zip(counts, (cell.get("fill") for cell in cells), strict=True))
    assert (colours[0], colours[1], colours[3]) == (HIDDEN, OWN, SEEN)
    assert root.findtext(f"{space}title") == "causal & window(2): max path length 3"
    assert reach(Fixed(3, 1), 4).svg().count("max path length none") == 2


@pytest.mark.parametrize(("masks", "steps"), [([], 3), (GlobalTokens(0), 0)])
def test_nothing_is_refused(masks: list[Mask] | Mask, steps: int) -> None:
    with pytest.raises(InputError, match=r"reach: \d masks and \d tokens. Give at least one mask and one token."):
        reach(masks, steps)


def test_a_query_outside_the_image_is_refused() -> None:
    with pytest.raises(InputError, match=r"query 36 of an image of 6 x 6 pixels\. Give an index from 0 to 35\."):
        as_image(Causal(), 36, 6, 6)
