"""The picture of a mask is the mask: every cell, token by token, or the share of its pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pictures.reading import grids
from weft.api import read_model
from weft.core.base_model import built_empty
from weft.core.model import parse_model
from weft.masks import parse_mask
from weft.pictures.masks import blocks_in, mask_figure, mask_figures, shares_of


@pytest.mark.parametrize("text", ["causal", "bidirectional", "causal & window(4)", "causal & (window(2) | global(0))",
                                  "causal & (window(4) | strided(4))", "block(4) | fixed(4, 1)", "segments(3, 2)"])
def test_every_cell_is_an_allowed_pair(text: str) -> None:
    mask = parse_mask(text)
    [grid] = grids(mask_figure(mask, "m"))
    expected = mask.dense(len(grid)).expand(1, 1, -1, -1)[0, 0]
    assert torch.equal(torch.tensor(grid) > 0, expected)


def test_rows_are_queries() -> None:
    [grid] = grids(mask_figure(parse_mask("causal"), "m"))
    assert grid[0][1:] == [0.0] * 11 and grid[11] == [1.0] * 12  # the first query sees one key, the last sees all


def test_heads_that_differ_are_drawn_beside_one_another() -> None:
    mask = parse_mask("per_head(window(4), strided(4))")
    dense = mask.dense(12)[0]
    found = grids(mask_figure(mask, "m"))
    assert [torch.equal(torch.tensor(grid) > 0, head) for grid, head in zip(found, dense, strict=True)] == [True, True]


def test_prefixes_documents_and_facts_are_drawn_with_some() -> None:
    prefix = grids(mask_figure(parse_mask("causal | prefix"), "m"))[0]
    assert all(prefix[0][key] == (1.0 if key < 4 else 0.0) for key in range(12))
    documents = grids(mask_figure(parse_mask("causal & documents"), "m"))[0]
    assert documents[6] == [0.0] * 6 + [1.0] + [0.0] * 5
    types = grids(mask_figure(parse_mask("causal & same_type"), "m"))[0]
    assert types[11] == [0.0] * 6 + [1.0] * 6


def test_a_long_window_is_drawn_in_cells_by_the_share_of_its_pairs() -> None:
    found = shares_of(parse_mask("causal & window(512)"))
    assert (found.tokens, found.cell, len(found.heads[0])) == (1024, 32, 32)
    cells = np.array(found.heads[0])
    dense = parse_mask("causal & window(512)").dense(1024)[0, 0].double()
    exact = dense.reshape(32, 32, 32, 32).mean((1, 3)).numpy()
    inside = (exact == 0) | (exact == 1)
    assert np.array_equal(cells[inside], exact[inside])
    # 12 by 12 of 32 by 32 pairs of a cell that the border cuts: within 3 standard errors of its share.
    assert np.abs(cells - exact).max() < 0.25 and abs(cells.mean() - exact.mean()) < 0.01
    assert "32 by 32 tokens" in str(mask_figure(parse_mask("causal & window(512)"), "m").caption)


def test_a_context_shorter_than_the_window_bounds_the_picture() -> None:
    assert shares_of(parse_mask("causal & window(4096)"), 256).tokens == 256


def test_a_model_s_masks_are_drawn_once_with_their_blocks() -> None:
    def block(mask: str) -> dict[str, object]:
        return {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": mask}]}

    model = built_empty(parse_model({"kind": "decoder", "vocab_size": 5, "d_model": 8, "blocks": [
        {"repeat": 2, "of": [{"repeat": 2, "of": [block("causal & window(4)")]}, block("causal")]}]}))
    assert [(figure.title, figure.caption) for figure in mask_figures(model)] == [
        ("causal & window(4)", "Blocks 0, 1, 3, 4."), ("causal", "Blocks 2, 5.")]
    both = mask_figures(built_empty(read_model("encoder_decoder")))
    assert [figure.caption for figure in both] == ["Blocks 0 to 2.", "Encoder, blocks 0 to 2."]


def test_places_in_words() -> None:
    assert blocks_in(["stack.layers.3.layers.0"]) == "block 3"
    assert blocks_in(["embedding.position"]) == ""
