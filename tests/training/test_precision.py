"""What computing in bfloat16 costs in exactness over hundreds of tokens, and what is kept wider so that it costs no
more."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.config import parse, parse_part
from weft.core.declarations import Trait
from weft.core.errors import ConfigError
from weft.core.layer import Chooser, Layer, traits_of
from weft.core.part import kept_dtypes
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.core.span import Memory, Span
from weft.linear.linear import Linear
from weft.norms.batchnorm import BatchNorm
from weft.training.precision import Precision, narrowed

WIDTH, STEPS = 16, 512
BOUND = 0.015
"""bfloat16 rounds by up to 0.4 %: inputs, weights, a few products and their results. Dynamics in it would be off by
20 % (measured: S4D 0.21, an LSTM that remembers 0.20)."""


def plain(part: type[PartConfig]) -> list[PartConfig]:
    """The part without any field given, if it can be, and be built for so small a model."""
    try:
        found = parse(part, {})
        found.build(Dims(WIDTH, 11, STEPS))
    except ConfigError:
        return []
    return [found]


def parts() -> Iterator[Any]:
    for group in ("mixer", "feedforward"):
        for part in REGISTRY.parts(group):
            for index, example in enumerate([*plain(part), *part.examples()]):
                yield pytest.param(example, id=f"{part.kind} {index}")


def built(config: PartConfig) -> Layer:
    torch.manual_seed(0)
    giver = config.giver()
    if giver is not None:
        config = parse_part(("block",), {"kind": "pre", "norm": "none", "layers": [giver, config]})
    layer = config.build(Dims(WIDTH, 11, STEPS))
    assert isinstance(layer, Layer)
    return layer.eval()


def error(layer: Layer, narrow: Layer) -> float:
    """The root-mean-square difference relative to the outputs', over all tokens, in one piece."""
    x = torch.randn(2, STEPS, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.no_grad():
        exact = layer(x.float(), None, Span(memory=Memory(x.float()))).y
        found = narrow(x, None, Span(memory=Memory(x))).y
    assert found.dtype == torch.bfloat16
    return float((found.float() - exact).norm() / exact.norm())


def unavoidable(layer: Layer) -> float:
    """The error of the layer in float32 with the weights and the results of its maps rounded to bfloat16, by which they
    are what they are in it. Some layers magnify that: lengths of short vectors are divided by."""
    def rounded(part: torch.nn.Module, given: tuple[Tensor, ...], y: Tensor) -> Tensor:
        return y.bfloat16().to(y.dtype)

    copied = copy.deepcopy(layer).bfloat16().float()
    for part in copied.modules():
        if isinstance(part, Linear):
            part.register_forward_hook(rounded)
    x = torch.randn(2, STEPS, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    with torch.no_grad():
        exact, found = (each(x, None, Span(memory=Memory(x))).y for each in (layer, copied))
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("config", list(parts()))
def test_five_hundred_tokens_in_bfloat16_are_near_those_in_float32(config: PartConfig) -> None:
    layer = built(config)
    if not any(isinstance(part, Chooser) for part in layer.modules()):  # which jumps where two scores are equal
        assert error(layer, copy.deepcopy(layer).bfloat16()) < max(BOUND, 1.5 * unavoidable(layer))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_network_that_remembers_keeps_what_it_adds(kind: str) -> None:
    """Both have the same rounded weights, so that only what is computed with them differs."""
    layer: Any = built(parse_part(("mixer",), {"kind": kind}))
    with torch.no_grad():
        layer.input.bias[WIDTH:2 * WIDTH] += 6  # forgets a 400th part at every token
    layer.bfloat16()
    assert error(copy.deepcopy(layer).float(), layer) < BOUND


@pytest.mark.parametrize("kind", ["lstm", "gru", "elman", "s4d"])
def test_a_state_that_is_added_to_is_in_float32(kind: str) -> None:
    layer = built(parse_part(("mixer",), {"kind": kind})).bfloat16()
    x = torch.randn(1, 3, WIDTH).bfloat16()
    state = layer(x, layer.init_state(1)).state
    assert {tensor.dtype for tensor, _ in state.tensors().values() if tensor.is_floating_point()} == {torch.float32}
    assert layer(x[:, :1], state.to(dtype=torch.bfloat16)).y.dtype == torch.bfloat16


def all_exact(model: torch.nn.Module) -> list[Tensor]:
    exact = kept_dtypes(model).exact
    return [each for each in (*model.parameters(), *model.buffers()) if id(each) in exact]


def model() -> Any:
    return decoder({"kind": "pre", "layers": ["s4d", "mlp"], "norm": "batchnorm"})


def decoder(block: dict[str, Any]) -> Any:
    return parse_part(("model",), {"kind": "decoder", "vocab_size": 11, "d_model": 8, "blocks": [block]}).build(None)


def test_what_a_part_needs_exact_is_left_wide_by_every_cast_and_by_training() -> None:
    original = model()
    assert len(all_exact(original)) == 4 + 2 * 2
    double = copy.deepcopy(original).double()
    for found in (copy.deepcopy(original).to(torch.bfloat16), copy.deepcopy(original).half(),
                  copy.deepcopy(double).bfloat16(), narrowed(original, torch.bfloat16),
                  Precision(original, torch.bfloat16).working):
        for tensor, wanted in zip(all_exact(found), all_exact(original), strict=True):
            assert tensor.dtype == torch.float32 and torch.equal(tensor, wanted)
        assert found.embedding.tokens.weight.dtype in (torch.bfloat16, torch.float16)
    assert {tensor.dtype for tensor in all_exact(double)} == {torch.float64}
    assert {tensor.device.type for tensor in all_exact(copy.deepcopy(original).to("meta", torch.bfloat16))} == {"meta"}


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm", "batchnorm"])
def test_weights_of_norms_move_in_training_by_less_than_bfloat16_can(norm: str) -> None:
    original: Any = decoder({"kind": "pre", "layers": ["mlp"], "norm": norm})
    precision = Precision(original, torch.bfloat16)
    weight, copied = (each.get_submodule("stack.layers.0.norms.0").get_parameter("weight")
                      for each in (original, precision.working))
    with torch.no_grad():
        weight.add_(3e-4)
    precision.refresh()
    assert torch.equal(weight, copied) and copied.dtype == torch.float32
    assert precision.working(torch.zeros(1, 3, dtype=torch.int64)).y.dtype == torch.bfloat16
    assert copy.deepcopy(original).bfloat16().stack.layers[0].norms[0].weight.dtype == torch.bfloat16
    double = Precision(copy.deepcopy(original).double(), torch.bfloat16).working
    assert double(torch.zeros(1, 3, dtype=torch.int64)).y.dtype == torch.bfloat16


def test_gradients_are_cast_as_their_parameters() -> None:
    found = model()
    found(torch.zeros(1, 3, dtype=torch.int64)).y.sum().backward()
    found.bfloat16()
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in found.parameters())


def test_running_statistics_move_on_by_less_than_bfloat16_can_add() -> None:
    norm = BatchNorm(1).bfloat16()
    norm.running_mean.fill_(1.0)
    for _ in range(100):
        norm(torch.full((1, 8, 1), 1.02).bfloat16())
    # Every batch moves the mean by a tenth of what is left of 0.02, below bfloat16's spacing of 0.008 near one.
    assert abs(float(norm.running_mean) - float(torch.tensor(1.02).bfloat16())) < 1e-4


def test_a_model_of_state_spaces_computes_in_the_dtype_it_was_cast_to() -> None:
    block = {"kind": "pre", "layers": ["s4d", {"kind": "attention", "n_heads": 2}]}
    layer = parse_part(("block",), block).build(Dims(8)).bfloat16()
    kinds = {path: tensor.dtype for path, (tensor, _) in layer.init_state(1, capacity=4).tensors().items()}
    assert kinds["layers.1.keys"] == torch.bfloat16 and kinds["layers.0.modes"] == torch.float32
    assert Trait.BIDIRECTIONAL not in traits_of(layer)
