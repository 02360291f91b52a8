"""Maps of eight bits an entry: how near they are, what is kept, and that ties, casts and files keep them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from linear.small import EXACT, LAYERS, TOKENS, model, stirred
from training.tiny_runs import same_weights, tiny_run
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.checkpoints.tensors import read_tensors
from weft.core.config import parse_part
from weft.decoding import CompiledStep, generate
from weft.laws.run import examine
from weft.laws.subject import model_subject
from weft.linear.linear import Linear
from weft.linear.merging import merged
from weft.linear.quantised import Int8Config, Int8Matrix, QuantisedEmbedding, QuantisedLinear
from weft.linear.rewrite import rewritten
from weft.ops.int8_linear import BLOCK, FEW_ROWS, INT8_LINEAR, Int8Call, int8_linear, quantised
from weft.training import train
from weft.training.precision import Precision

INT8 = {"kind": "int8", "maps": ["*"]}


def test_no_entry_is_farther_than_half_a_step_and_the_largest_is_exact() -> None:
    weight = torch.randn(5, 300, dtype=torch.float64) * torch.tensor([1e-8, 1.0, 30.0, 1e4, 0.0])[:, None]
    values, scale = quantised(weight)
    made = values.double() * scale[:, None]
    assert values.dtype == torch.int8 and values.abs().max() == 127
    assert ((made - weight).abs() <= scale[:, None] / 2 * (1 + 1e-12)).all()
    assert_close(made.abs().amax(1), weight.abs().amax(1), rtol=1e-12, atol=0)
    # Rounded to the nearest: the mean error is no drift, a quarter of a step at most of 1,200 uniform ones.
    assert ((made - weight)[:4] / scale[:4, None]).mean().abs() < 0.05


def test_the_bound_of_a_map_and_of_an_embedding_is_reached_and_never_passed() -> None:
    """Entries halfway between two steps are as far as any can be, and an input with the signs of their errors adds all
    of them; of 64 only the largest is exact."""
    steps = torch.arange(64, dtype=torch.float64) - 32.5
    scales = torch.tensor([0.3, 1.5], dtype=torch.float64)[:, None]
    weight = scales * torch.stack([steps, steps.flip(0)]).index_fill(1, torch.tensor([0]), 127.0)
    matrix = Int8Matrix(weight)
    errors = matrix.weight() - weight
    for x in (errors.sign(), torch.randn(50, 64, dtype=torch.float64)):
        share = (matrix.product(x) - x @ weight.t()).abs() / matrix.off(x)
        assert (share <= 1 + 1e-9).all()  # rounding of float64
    worst = (errors.sign() @ errors.t()).diagonal() / matrix.off(errors.sign()).diagonal()
    assert (worst > 0.9).all(), worst
    tokens = torch.arange(2)
    assert_close(errors.abs().amax(1, keepdim=True), matrix.off_rows(tokens), rtol=1e-9, atol=0)
    assert_close(matrix.rows(tokens), matrix.weight(), rtol=0, atol=0)


@torch.inference_mode()
def test_every_form_takes_weights_that_are_strided() -> None:
    """As of a transposed matrix, or of every second row; PyTorch's own product refuses them."""
    values, scale = quantised(torch.randn(64, 64))
    x = torch.randn(2, 32).bfloat16()
    for strided, scales in ((values[:32, :32], scale[:32]), (values[::2, 32:], scale[::2]), (values.t()[:32, :32],
                                                                                            scale[:32])):
        wanted = x.double() @ (strided.double() * scales.double()[:, None]).t()
        for form in INT8_LINEAR.forms():
            call = Int8Call(x, strided, scales)
            if INT8_LINEAR.can(form, call):
                # bfloat16 rounds by 2^-9, twice, results of size 10.
                assert_close(form.run(call).double(), wanted, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [32, 33])
@torch.inference_mode()
def test_the_product_is_that_of_the_floats_that_it_stands_for(dtype: torch.dtype, size: int) -> None:
    values, scale = quantised(torch.randn(6, size, dtype=torch.float64))
    x = torch.randn(3, 2, size, dtype=torch.float64).to(dtype)
    wanted = x.double() @ (values.double() * scale.double()[:, None]).t()
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]  # two roundings, sums of size 10
    assert_close(int8_linear(x, values, scale).double(), wanted, rtol=bound, atol=bound * 10)


@pytest.mark.parametrize(("dtype", "more", "name"), [(torch.bfloat16, 0, "packed"), (torch.bfloat16, 1, "reference"),
                                                     (torch.float32, 0, "reference")])
@torch.inference_mode()
def test_products_with_integers_are_for_a_few_narrow_rows(dtype: torch.dtype, more: int, name: str) -> None:
    values, scale = quantised(torch.randn(6, BLOCK))
    # The product in C, which comes first up to a number of rows of its own, takes no scales in float64.
    call = Int8Call(torch.randn(FEW_ROWS + more, BLOCK).to(dtype), values, scale.double())
    assert INT8_LINEAR.choose(call).form.name == name


def test_gradients_go_through_to_the_inputs_and_the_bias() -> None:
    quick = Int8Config().rewriter()(Linear(5, 3).double())
    assert isinstance(quick, QuantisedLinear) and isinstance(quick.matrix, Int8Matrix)
    assert [name for name, _ in quick.named_parameters()] == ["bias"]
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(quick, x) and torch.autograd.gradgradcheck(quick, x)


def test_a_whole_model_is_near_the_floats_and_equal_to_what_it_stands_for() -> None:
    floats, quick = model([]).eval(), model([INT8]).eval()
    plain = merged(quick)
    assert_close(plain(TOKENS).y, quick(TOKENS).y, **EXACT)
    off = (quick(TOKENS).y - floats(TOKENS).y).abs().max() / floats(TOKENS).y.abs().max()
    assert 1e-4 < off < 0.2  # half of 1/127 an entry, through six layers
    assert isinstance(quick.stack.layers[0].layers[2].router, Linear)  # its scores decide, so they stay exact
    assert all(isinstance(expert.down.matrix, Int8Matrix) for expert in quick.stack.layers[0].layers[2].experts)


@pytest.mark.parametrize("maps", [["*"], ["readout"]])
def test_a_tied_embedding_goes_with_its_readout(maps: list[str], tmp_path: Path) -> None:
    quick = model([{**INT8, "maps": maps}]).eval()
    assert isinstance(quick.embedding.tokens, QuantisedEmbedding)
    assert quick.embedding.tokens.matrix is quick.readout.map.matrix
    save_checkpoint(tmp_path / "a", quick, None)
    names = read_tensors(tmp_path / "a/model.safetensors")
    assert sorted(name for name in names if name.startswith(("embedding", "readout"))) == [
        f"embedding.tokens.matrix.{name}" for name in ("like", "scale", "values")]
    loaded = load_checkpoint(tmp_path / "a").model
    assert loaded.embedding.tokens.matrix is loaded.readout.map.matrix
    for cast in (loaded, copy.deepcopy(loaded), copy.deepcopy(loaded).to(torch.float64)):
        assert same_weights(cast, quick)
        # Where in memory a matrix begins decides the last bits of a product on some processors.
        assert_close(cast(TOKENS).y, quick(TOKENS).y, **EXACT)
    plain = merged(quick)
    assert plain.readout.weight is plain.embedding.tokens.weight
    assert_close(plain(TOKENS).y, quick(TOKENS).y, **EXACT)


def test_three_that_share_a_matrix_share_it_afterwards() -> None:
    attention = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
    encoder = {"kind": "encoder", "vocab_size": 11, "d_model": 8, "blocks": [{"kind": "pre", "layers": [attention]}]}
    torch.manual_seed(0)
    found: Any = parse_part(("model",), {
        "kind": "encoder_decoder", "vocab_size": 11, "d_model": 8, "encoder": encoder, "tied_source": True,
        "rewrites": [INT8],
        "blocks": [{"kind": "pre", "layers": [{"kind": "cross_attention", "n_heads": 2}]}]}).build(None)
    assert found.encoder.embedding.tokens.matrix is found.embedding.tokens.matrix is found.readout.map.matrix


def test_without_a_pattern_readouts_and_embeddings_stay_as_they_are() -> None:
    quick = model([{"kind": "int8"}])
    assert quick.readout.weight is quick.embedding.tokens.weight
    assert {name for name, _ in quick.named_parameters() if name.endswith("weight") and "norm" not in name} == {
        "embedding.tokens.weight", "stack.layers.0.layers.2.router.weight", "stack.layers.0.layers.4.recurrent_weight"}


def test_it_takes_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    wide = [{"kind": "glu", "d_ff": 600}]
    for name, found in (("floats", model([], wide)), ("quick", model([{"kind": "int8"}], wide))):
        save_checkpoint(tmp_path / name, found.float(), None)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("quick", "floats")]
    assert sizes[0] < 0.6 * sizes[1]  # rows of 8 and 600, so that gate and up have a scale for eight entries


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_saved_loaded_checked_and_decoded_in_every_way(dtype: torch.dtype, tmp_path: Path) -> None:
    quick = model([INT8, {"kind": "lora", "maps": ["qkv"]}], LAYERS[:2]).to(dtype).eval()
    matrix = quick.stack.layers[0].layers[1].gate.matrix
    assert (matrix.values.dtype, matrix.like.dtype) == (torch.int8, dtype)
    save_checkpoint(tmp_path / "a", quick, None)
    loaded = load_checkpoint(tmp_path / "a")
    assert torch.equal(loaded.model(TOKENS).y, quick(TOKENS).y) and quick(TOKENS).y.dtype == dtype
    wanted = generate(quick, [[1, 2, 3]], max_new_tokens=30)
    assert generate(loaded.model, [[1, 2, 3]], max_new_tokens=30) == wanted
    torch._dynamo.reset()
    if dtype is torch.float32:
        assert generate(quick, [[1, 2, 3]], max_new_tokens=30,
                        compiled=CompiledStep(quick, backend="aot_eager")) == wanted
        laws = ("split", "packed", "persistence", "precision", "inference", "rewriting", "saving")
        found = examine(model_subject("quick", loaded.model.double(), bound=1e-9), laws=laws)
        assert found.holds, found.broken()


def test_scales_are_exact_in_narrow_models() -> None:
    quick = model([INT8]).float()
    scale = quick.readout.map.matrix.scale.clone()
    working = Precision(quick, torch.bfloat16).working
    assert torch.equal(working.readout.map.matrix.scale, scale) and working(TOKENS).y.dtype == torch.bfloat16


def test_lora_on_whole_numbers_is_trained_by_a_run(tmp_path: Path) -> None:
    layers = [{"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "glu", "d_ff": 16}]
    model_ = {"kind": "decoder", "d_model": 12, "context": 8, "blocks": [{"kind": "pre", "layers": layers}],
              "rewrites": ["int8", {"kind": "lora", "rank": 2}]}
    result = train(tiny_run(tmp_path, model_, steps=30), tmp_path / "run")
    torch.manual_seed(result.config.seed)
    start: dict[str, Tensor] = result.config.model.build().state_dict()
    moved = {name for name, tensor in result.model.state_dict().items() if not torch.equal(tensor, start[name])}
    assert moved == {name for name in start if ".a." in name or ".b." in name}


def test_weights_that_were_read_are_rewritten_too() -> None:
    floats = model([])
    found: Any = rewritten(copy.deepcopy(floats), [Int8Config()])
    qkv, plain = found.stack.layers[0].layers[0].qkv, floats.stack.layers[0].layers[0].qkv
    assert_close(qkv.dense()[0], plain.weight, rtol=0, atol=float(qkv.matrix.scale.max()) / 2 * 1.001)
    assert stirred(found) is found and isinstance(plain, nn.Linear)
