"""`Layer`, `LanguageModel` and `Encoder`: what they check, zero and pass on, for every part."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.config import parse
from weft.core.declarations import Declared, Trait
from weft.core.errors import StateError
from weft.core.layer import Layer, LayerState, Part, Pointwise, advance, traits_of
from weft.core.model import EncoderInputs, parameter_count
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.span import Boundaries, Memory, Output, Span
from weft.core.state import tensor_field
from weft.feedforward.mlp import MLPConfig
from weft.models.decoder import Decoder, DecoderConfig


@dataclass(frozen=True)
class Total(LayerState):
    """The sum so far."""

    total: Tensor = tensor_field()


class Sums(Layer):
    """y_t = x_0 + ... + x_t + 1, written without a thought for padding."""

    state_type = Total

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1, dtype=dtype))

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> Total:
        return Total(clock, torch.zeros(clock.seen.shape[0], 2, dtype=dtype, device=clock.seen.device))

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        if state is None:
            return Output(x.cumsum(1) + self.one, None)
        assert isinstance(state, Total)
        sums = state.total[:, None] + x.cumsum(1)
        after = state.total if x.shape[1] == 0 else sums[:, -1]
        return Output(sums + self.one, state.replace(clock=span.after, total=after))


class Doubles(Pointwise):
    """y = 2 x."""

    def each(self, x: Tensor) -> Tensor:
        return 2 * x


class Ahead(Part):
    """A part with a trait."""

    def declares(self) -> Declared:
        return Declared(traits=frozenset({Trait.BIDIRECTIONAL}))


class Apart(Ahead):
    """A part whose trait is its own affair."""

    def declares(self) -> Declared:
        return replace(super().declares(), own_law=True)


def model(**fields: object) -> Decoder:
    data = {"vocab_size": 7, "d_model": 4, "blocks": [{"kind": "pre", "layers": ["gru"]}], **fields}
    return parse(DecoderConfig, data).build().double()


def test_padding_neither_enters_nor_leaves_a_layer() -> None:
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [torch.nan, 9.0]]], dtype=torch.float64)
    layer = Sums()
    out = layer(x, layer.init_state(2), Span(count=torch.tensor([2, 1])))
    assert out.y.tolist() == [[[2.0, 3.0], [5.0, 7.0]], [[6.0, 7.0], [0.0, 0.0]]]
    assert out.state.total.tolist() == [[4.0, 6.0], [5.0, 6.0]]
    assert out.state.clock.seen.tolist() == [2, 1]


def test_a_state_is_threaded_and_without_one_nothing_is_kept() -> None:
    x = torch.ones(1, 3, 2, dtype=torch.float64)
    layer = Sums()
    first = layer(x[:, :2], layer.init_state(1))
    second = layer(x[:, 2:], first.state)
    assert second.y.tolist() == [[[4.0, 4.0]]]
    assert second.state.clock.seen.tolist() == [3]
    assert layer(x).state is None
    assert layer(x).y[0, 2].tolist() == [4.0, 4.0]


def test_a_state_starts_as_the_layer_is_or_as_it_is_told() -> None:
    layer = Sums(torch.float32)
    assert layer.init_state(2).total.dtype is torch.float32
    assert layer.init_state(2, dtype=torch.float64).total.dtype is torch.float64
    assert layer.init_state(2, device="meta").total.device.type == "meta"
    assert Sums().to("meta").init_state(2).clock.seen.device.type == "meta"
    assert layer.init_state(2, horizon=torch.tensor([3, 5])).clock.horizon.tolist() == [3, 5]
    assert Doubles().init_state(3).batch() == 3


def test_another_layer_s_state_is_refused() -> None:
    x = torch.ones(1, 1, 2, dtype=torch.float64)
    with pytest.raises(StateError, match=r"Sums: got a LayerState where this layer keeps a Total. Pass a state that"):
        Sums()(x, Doubles().init_state(1))
    with pytest.raises(StateError, match=r"Doubles: got a Total where this layer keeps a LayerState"):
        Doubles()(x, Sums().init_state(1))


def test_another_number_of_rows_is_refused() -> None:
    with pytest.raises(StateError, match=r"Sums: a state of 3 rows for 1 rows of input. Select the rows first, or sta"):
        Sums()(torch.ones(1, 1, 2), Sums().init_state(3))


def test_a_pointwise_layer_keeps_only_the_clock() -> None:
    layer = Doubles()
    out = layer(torch.ones(2, 3, 1), layer.init_state(2), Span(count=torch.tensor([3, 1])))
    assert out.y.flatten().tolist() == [2.0, 2.0, 2.0, 2.0, 0.0, 0.0]
    assert out.state.clock.seen.tolist() == [3, 1]
    assert advance(None, Span()) is None


def test_traits_are_those_of_all_parts_but_of_parts_that_stand_apart() -> None:
    assert traits_of(nn.Sequential(nn.Linear(2, 2), nn.Sequential(Ahead()))) == {Trait.BIDIRECTIONAL}
    assert traits_of(nn.Sequential(Apart())) == frozenset()
    assert traits_of(Apart()) == {Trait.BIDIRECTIONAL}


def test_another_model_s_state_is_refused() -> None:
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    one, other = model(), model(d_model=6)
    with pytest.raises(StateError, match=r"^state: the state belongs to another model. Use a state from this model's"):
        one(tokens, other.init_state(2))
    with pytest.raises(StateError, match=r"^state: the state belongs to another model."):
        one(tokens, Sums().init_state(2))  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"^state: a state of 3 rows for 2 rows of tokens. Select the rows first"):
        one(tokens, one.init_state(3))
    assert one(tokens, model().init_state(2)).state.clock.seen.tolist() == [1, 1]  # the same configuration's


def test_the_fingerprint_is_of_the_whole_configuration() -> None:
    one = model().config
    assert one.fingerprint() == model().config.fingerprint()
    others = [model(context=9), model(blocks=[{"kind": "pre", "layers": ["lstm"]}]), model(norm="rmsnorm")]
    assert len({one.fingerprint(), *(each.config.fingerprint() for each in others)}) == 4


def test_logits_are_the_readout_of_the_hidden_vectors() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(7, (2, 5))
    one = model()
    span = Span(count=torch.tensor([5, 2]))
    hidden = one.hidden(tokens, None, span)
    assert hidden.y[1, 2:].abs().max() == 0
    assert torch.equal(one(tokens, None, span).y, one.readout.logits(hidden.y))


def test_a_model_without_an_encoder_takes_no_source() -> None:
    with pytest.raises(StateError, match=r"Decoder: this model has no encoder, so it takes no source. Give rows of"):
        model().encode(EncoderInputs(tokens=torch.zeros(1, 1, dtype=torch.int64)))


def test_a_state_is_as_the_model_is_or_as_it_is_told() -> None:
    one = model()
    floats = {tensor.dtype for tensor, spec in one.init_state(2).tensors().values() if tensor.is_floating_point()}
    assert floats == {torch.float64}
    assert one.init_state(2, device="meta").clock.seen.device.type == "meta"
    assert one.init_state(2, horizon=4).clock.horizon.tolist() == [4, 4]


def test_parameters_that_are_shared_are_counted_once() -> None:
    shared = nn.Linear(3, 2)
    assert parameter_count(nn.ModuleList([shared, shared, nn.Linear(2, 2, bias=False)])) == 8 + 4


@pytest.mark.parametrize(("name", "told"), [
    ("borders", "Return it as a field of weft.core.declarations.Declared from the method `declares`."),
    ("begin_step", "Inherit from weft.core.declarations.StepHooks too."),
    ("inference", "Inherit from weft.core.declarations.HasInferenceForm too.")])
def test_a_declaration_that_would_not_be_read_is_refused_when_its_class_is_made(name: str, told: str) -> None:
    with pytest.raises(TypeError, match=rf"Deaf: {name} would not be read\. {re.escape(told)}"):
        type("Deaf", (Pointwise,), {name: lambda self: ()})


@pytest.mark.parametrize("name", ["source", "title", "also_called"])
def test_a_card_that_would_not_be_read_is_refused_likewise(name: str) -> None:
    told = "Give it as a field of weft.core.part_config.About in the attribute `about`."
    with pytest.raises(TypeError, match=rf"Deaf: {name} would not be read\. {re.escape(told)}"):
        type("Deaf", (MLPConfig,), {"__module__": __name__, "__annotations__": {name: ClassVar[str]}, name: "x"})
    kept: Any = type("Read", (MLPConfig,), {"__module__": __name__, "__annotations__": {name: str}, name: "a field"})
    assert kept(d_ff=3).model_dump()[name] == "a field"


class Narrowing(RecurrentLayer[Tensor]):
    """Carries its last token, which it computes in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Identity()

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((4,),)

    def project(self, x: Tensor, before: Carried, span: Span) -> Tensor:
        return x

    def recur(self, projected: Tensor, before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        return Recurred(projected, (projected[:, -1].bfloat16(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_recurrences_state_keeps_its_dtype_whatever_the_numbers_have(dtype: torch.dtype) -> None:
    layer = Narrowing()
    found = layer(torch.ones(2, 3, 4, dtype=dtype), layer.init_state(2, dtype=dtype)).state
    assert found.h.dtype == dtype and found.h.tolist() == torch.ones(2, 4).tolist()
