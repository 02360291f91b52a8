"""Maps of four bits an entry: how near they are, how they lie, and that ties, casts and files keep them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from linear.small import EXACT, LAYERS, TOKENS, model
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.decoding import generate
from weft.laws.run import examine
from weft.laws.subject import model_subject
from weft.linear.linear import Linear
from weft.linear.merging import merged
from weft.linear.quantised import Int4Config, Int4Matrix, QuantisedEmbedding, QuantisedLinear
from weft.ops.int4_linear import FARTHEST, GROUP, four_bits, int4_linear, integers, matrix
from weft.training.precision import Precision

INT4 = {"kind": "int4", "maps": ["*"]}


def test_entries_are_within_their_step_and_lie_where_the_docstring_says() -> None:
    weight = torch.randn(6, 75, dtype=torch.float64) * torch.tensor([1e-9, 1.0, 30.0, 1e6, 0.0, 1.0])[:, None]
    values, scale = four_bits(weight)
    assert values.dtype == torch.uint8 and values.shape == (6, 48)
    assert scale.dtype == torch.bfloat16 and scale.shape == (6, 3)
    made, q = matrix(values, scale, 75, torch.float64), integers(values)
    steps = scale.double().abs().repeat_interleave(GROUP, 1)[:, :75]
    assert ((made - weight).abs() <= FARTHEST * steps * (weight != 0)).all()
    inside = (q > -8).logical_and(q < 7).flatten(1)[:, :75]
    assert ((made - weight).abs()[inside] <= 0.5 * steps[inside] * (1 + 1e-9)).all()
    for row, byte in ((1, 0), (2, 20), (5, 47)):  # by hand: input 32 g + i below, 32 g + 16 + i above
        g, i = divmod(byte, 16)
        assert int(values[row, byte]) == int(q[row, g, i] + 8) + 16 * int(q[row, g, i + 16] + 8)
    assert q[:, 2, 11:].eq(0).all(), "inputs beyond the last count as zeros"


def test_the_scale_with_the_smaller_error_is_taken() -> None:
    for group in (torch.linspace(-8, 6, GROUP), torch.linspace(-7, 7, GROUP), -torch.linspace(-8, 6, GROUP)):
        values, scale = four_bits(group[None])
        off = (matrix(values, scale, GROUP, torch.float32) - group).square().sum()
        for step in (group[group.abs().argmax()] / -8, group.abs().max() / 7):
            step = step.bfloat16().float()
            assert off <= ((group / step).round().clamp(-8, 7) * step - group).square().sum() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_the_product_is_that_of_the_floats_that_it_stands_for(dtype: torch.dtype) -> None:
    values, scale = four_bits(torch.randn(6, 77, dtype=torch.float64))
    x = torch.randn(3, 2, 77, dtype=torch.float64).to(dtype)
    wanted = x.double() @ matrix(values, scale, 77, torch.float64).t()
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]  # one rounding, sums of size 10
    assert_close(int4_linear(x, values, scale).double(), wanted, rtol=bound, atol=bound * 10)


def test_gradients_go_through_to_the_inputs_and_the_bias() -> None:
    quick = Int4Config().rewriter()(Linear(5, 3).double())
    assert isinstance(quick, QuantisedLinear) and [name for name, _ in quick.named_parameters()] == ["bias"]
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(quick, x) and torch.autograd.gradgradcheck(quick, x)


def test_a_whole_model_is_near_the_floats_and_equal_to_what_it_stands_for() -> None:
    floats, quick = model([]).eval(), model([INT4]).eval()
    assert_close(merged(quick)(TOKENS).y, quick(TOKENS).y, **EXACT)
    off = (quick(TOKENS).y - floats(TOKENS).y).abs().max() / floats(TOKENS).y.abs().max()
    assert 1e-3 < off < 1.0  # half of 1/8 an entry, through six layers
    assert all(isinstance(expert.down.matrix, Int4Matrix) for expert in quick.stack.layers[0].layers[2].experts)


def test_a_tied_embedding_goes_with_its_readout_and_files_and_casts_keep_both(tmp_path: Path) -> None:
    quick = model([INT4]).eval()
    assert isinstance(quick.embedding.tokens, QuantisedEmbedding)
    assert quick.embedding.tokens.matrix is quick.readout.map.matrix
    save_checkpoint(tmp_path / "a", quick, None)
    loaded = load_checkpoint(tmp_path / "a").model
    assert loaded.embedding.tokens.matrix is loaded.readout.map.matrix
    for cast in (loaded, copy.deepcopy(loaded), copy.deepcopy(loaded).to(torch.float64)):
        assert torch.equal(cast(TOKENS).y, quick(TOKENS).y)
    scale = quick.readout.map.matrix.scale.clone()
    for other in (copy.deepcopy(quick).float(), Precision(copy.deepcopy(quick).float(), torch.bfloat16).working):
        kept = other.readout.map.matrix
        assert kept.scale.dtype == torch.bfloat16 and torch.equal(kept.scale, scale)
        assert kept.values.dtype == torch.uint8


def test_it_takes_four_and_a_half_bits(tmp_path: Path) -> None:
    quick = model([{"kind": "int4"}], [{"kind": "glu", "d_ff": 640}]).float().stack.layers[0].layers[0].down.matrix
    held = sum(tensor.numel() * tensor.element_size() for tensor in quick.buffers())
    assert 8 * held == 4.5 * quick.in_features * quick.out_features


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_saved_loaded_checked_and_decoded(dtype: torch.dtype, tmp_path: Path) -> None:
    quick = model([INT4, {"kind": "lora", "maps": ["qkv"]}], LAYERS[:2]).to(dtype).eval()
    save_checkpoint(tmp_path / "a", quick, None)
    loaded = load_checkpoint(tmp_path / "a")
    assert torch.equal(loaded.model(TOKENS).y, quick(TOKENS).y) and quick(TOKENS).y.dtype == dtype
    wanted = generate(quick, [[1, 2, 3]], max_new_tokens=30)
    assert generate(loaded.model, [[1, 2, 3]], max_new_tokens=30) == wanted
    if dtype is torch.float32:
        found = examine(model_subject("quick", loaded.model.double(), bound=1e-9), laws=(
            "split", "persistence", "precision", "inference", "rewriting", "saving"))
        assert found.holds, found.broken()
