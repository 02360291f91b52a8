"""Masks for FlexAttention: the block mask holds the same pairs as the dense one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from weft.core.clock import Keys, Ticks
from weft.masks import parse_mask
from weft.masks.picture import lay_out
from weft.masks.terms import mask_mod

TEXTS = ["causal", "causal & window(3) & documents", "(causal | prefix) & documents & padding",
         "bidirectional & padding", "per_head(window(3), strided(3))", "causal & (window(2) | global(0, 5))",
         "~block(3) & per_head(causal, prefix)"]

BEGINS = torch.tensor([[True] + [False] * 9, [True, False, False, True, False, False, False, True, False, False]])
PREFIX = torch.tensor([[True] * 4 + [False] * 6, [True, True, False, False, False, False, False, True, False, False]])


def layout(queries: int) -> tuple[Ticks, Keys]:
    """Two rows of ten tokens: one document, and three of which the last is padding."""
    return lay_out(queries, 10, begins=BEGINS, count=torch.tensor([10, 7]), prefix=PREFIX)


def blocks_with_pairs(found: BlockMask) -> torch.Tensor:
    """[B,H,query blocks,key blocks], true for blocks that are visited."""
    return found.to_dense().bool()


@pytest.mark.parametrize("queries", [10, 4])
@pytest.mark.parametrize("text", TEXTS)
def test_block_masks_hold_the_pairs_of_the_dense_mask(text: str, queries: int) -> None:
    mask, (ticks, keys) = parse_mask(text), layout(queries)
    dense = mask.allowed(ticks, keys, heads=2).expand(2, 2, queries, 10)
    assert torch.equal(create_mask(mask_mod(mask, ticks, keys), 2, 2, queries, 10, device="cpu"), dense)
    found = blocks_with_pairs(mask.block_mask(ticks, keys, heads=2, block_size=2))
    wanted = dense.unfold(2, 2, 2).unfold(3, 2, 2).any(-1).any(-1)
    assert torch.equal(found.expand_as(wanted), wanted)


@pytest.mark.parametrize("text", ["causal & window(3) & documents", "per_head(window(3), strided(3)) & documents"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_the_block_mask_equals_dense_attention(text: str) -> None:
    mask, (ticks, keys) = parse_mask(text), layout(10)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 10, 16, generator=generator, dtype=torch.float64)
    block_mask = mask.block_mask(ticks, keys, heads=2, block_size=4)
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.allowed(ticks, keys))
    # Both sum ten float64 terms, in another order.
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block_mask), wanted, rtol=1e-12, atol=1e-14)


def test_one_row_stands_for_all_rows() -> None:
    """Ticks that agree in all rows have one row; the block mask then serves a batch of any size."""
    mask = parse_mask("causal & window(3)")
    ticks, keys = lay_out(8, None, begins=None, count=None, prefix=None)
    block_mask = mask.block_mask(ticks, keys, block_size=4)
    assert block_mask.shape == (1, 1, 8, 8)
    assert torch.equal(create_mask(block_mask.mask_mod, 3, 2, 8, 8, device="cpu"), mask.dense(8).expand(3, 2, 8, 8))
