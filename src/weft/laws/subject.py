"""`Subject`: one interface of layers, language models and encoders for the laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from weft.core.declarations import Trait
from weft.core.layer import Layer, LayerState, computing_dtype, facts_of, source_width, traits_of
from weft.core.model import Encoder, EncoderInputs, LanguageModel, Model, ModelState
from weft.core.span import WHOLE, Memory, Output, Span

Call = Callable[[Tensor, LayerState | None, Span], Output[LayerState]]

CALL = "in a call of "
"""How the note begins that an error of a call gets (`noted`)."""

SOURCE_STEPS = 5
"""Tokens of the source that cross-attention reads."""


@dataclass(frozen=True)
class Subject:
    """A layer or a model, and what the laws call.

    Attributes:
        name: the name in reports.
        module: the layer or model, in evaluation mode.
        call: (x, state, span) -> Output, whose y is a float tensor.
        start: (batch, memory, capacity, horizon) -> the state before the first token.
        inputs: (batch, steps, generator) -> a random x.
        memory: (batch, generator) -> a random source; None if the subject takes none.
        traits: the traits of the module, which replace laws by weaker ones.
        remake: the same subject with another module: a copy in another dtype, on another device or with other weights.
        bound: the largest difference of values that is allowed; gradients may differ ten times as much.
        steps: tokens of a row.
        thorough: whether every combination of cuts, buffers and gradients is run; otherwise a few random ones.
        limit: the most tokens of a document; None for any number.
        rebuild: the module built anew from its configuration, with other random weights and before any call; None if
            the subject was made from a module alone.
    """

    name: str
    module: nn.Module
    call: Call
    start: Callable[[int, Memory | None, int | None, int | None], LayerState]
    inputs: Callable[[int, int, torch.Generator], Tensor]
    memory: Callable[[int, torch.Generator], Memory | None]
    traits: frozenset[Trait]
    remake: Callable[[nn.Module], Subject]
    bound: float = 1e-10
    steps: int = 11
    thorough: bool = True
    limit: int | None = None
    rebuild: Callable[[], nn.Module] | None = None

    @property
    def stateful(self) -> bool:
        """Whether it can be run in pieces."""
        return Trait.BIDIRECTIONAL not in self.traits

    @property
    def differentiable(self) -> bool:
        """Whether the laws' gradient half applies."""
        return Trait.NOT_DIFFERENTIABLE not in self.traits

    @property
    def gradient_bound(self) -> float:
        """The largest difference of gradients, which sum over many tokens and so have larger rounding errors."""
        return 10 * self.bound

    def whole(self, x: Tensor, memory: Memory | None, span: Span = WHOLE) -> Output[LayerState]:
        """A call without a state."""
        return self.call(x, None, replace(span, memory=memory))


def layer_subject(name: str, layer: Layer, d_model: int, *, steps: int = 11, bound: float = 1e-10) -> Subject:
    """The subject of a layer: its inputs are Gaussian vectors in the layer's dtype."""
    own = next(chain(layer.parameters(), layer.buffers()), torch.zeros(()))
    kind = computing_dtype(layer) or next(layer.parameters(), torch.zeros((), dtype=torch.float64)).dtype

    def inputs(batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(batch, length, d_model, generator=generator, dtype=torch.float64).to(own.device, kind)

    def memory(batch: int, generator: torch.Generator) -> Memory:
        return Memory(inputs(batch, SOURCE_STEPS, generator), _counts(batch, SOURCE_STEPS, generator).to(own.device))

    def start(batch: int, source: Memory | None, capacity: int | None, horizon: int | None) -> LayerState:
        return layer.init_state(batch, capacity=capacity, memory=source, horizon=horizon, dtype=kind)

    def remake(module: nn.Module) -> Subject:
        assert isinstance(module, Layer)
        return layer_subject(name, module, d_model, steps=steps, bound=bound)

    def call(x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        return layer(x, state, with_facts(span, x, read))  # type: ignore[no-any-return]

    read = sorted(facts_of(layer))
    return Subject(name, layer.eval(), noted(call if read else layer, kind), start, inputs, memory, traits_of(layer),
                   remake, bound, steps)


def model_subject(name: str, model: LanguageModel, *, steps: int = 11, bound: float = 1e-10) -> Subject:
    """The subject of a language model: its inputs are random ids, its outputs logits."""
    device = next(iter([*model.parameters(), *model.buffers()]), torch.zeros(())).device
    floats = next(iter(model.parameters()), torch.zeros(())).dtype
    width = None if model.takes_source else source_width(model)

    read = sorted(facts_of(model))

    def inputs(batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(model.vocab_size, (batch, length), generator=generator).to(device)

    def memory(batch: int, generator: torch.Generator) -> Memory | None:
        counts = _counts(batch, SOURCE_STEPS, generator).to(device)
        if width is not None:
            shape = (batch, SOURCE_STEPS, width)
            return Memory(torch.randn(shape, generator=generator, dtype=torch.float64).to(device, floats), counts)
        if not model.takes_source:
            return None
        return model.encode(EncoderInputs(tokens=inputs(batch, SOURCE_STEPS, generator)), Span(count=counts))

    def call(x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        assert state is None or isinstance(state, ModelState)
        out = model(x, state, with_facts(span, x, read))
        return Output(out.y, out.state, out.losses)

    def start(batch: int, source: Memory | None, capacity: int | None, horizon: int | None) -> LayerState:
        return model.init_state(batch, capacity=capacity, memory=source, horizon=horizon)

    def remake(module: nn.Module) -> Subject:
        assert isinstance(module, LanguageModel)
        return model_subject(name, module, steps=steps, bound=bound)

    return Subject(name, model.eval(), noted(call, floats), start, inputs, memory, traits_of(model), remake, bound,
                   steps, limit=model.limit())


def whole_subject(name: str, model: Model, *, bound: float = 1e-10) -> Subject:
    """The subject of any model."""
    if isinstance(model, LanguageModel):
        return model_subject(name, model, bound=bound)
    assert isinstance(model, Encoder), "a model is a language model or an encoder"
    return encoder_subject(name, model, bound=bound)


def encoder_subject(name: str, encoder: Encoder, *, steps: int = 11, bound: float = 1e-10) -> Subject:
    """The subject of an encoder: its inputs are random ids, or Gaussian patches, in rows of ``steps`` or as long as its
    positions allow."""
    own, known, limit = next(encoder.parameters()), encoder.reads(), encoder.limit()

    def inputs(batch: int, length: int, generator: torch.Generator) -> Tensor:
        if "patches" in known:
            shape = (batch, length, known["patches"])
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(own.device, own.dtype)
        return torch.randint(known["tokens"], (batch, length), generator=generator).to(own.device)

    def call(x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        return Output(encoder(EncoderInputs.of(x), span), None)

    def remake(module: nn.Module) -> Subject:
        assert isinstance(module, Encoder)
        return encoder_subject(name, module, steps=steps, bound=bound)

    def start(batch: int, source: Memory | None, capacity: int | None, horizon: int | None) -> LayerState:
        raise AssertionError("an encoder has no state")

    def memory(batch: int, generator: torch.Generator) -> Memory | None:
        return None

    return Subject(name, encoder.eval(), noted(call, own.dtype), start, inputs, memory, traits_of(encoder), remake,
                   bound, steps if limit is None else min(steps, limit), limit=limit)


def noted(call: Call, dtype: torch.dtype) -> Call:
    """The call, whose errors get a note of the tokens, of the dtype, and of what else it was given."""
    def run(x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        try:
            return call(x, state, span)
        except Exception as error:
            tokens = {0: "no tokens", 1: "one token"}.get(x.shape[1], f"{x.shape[1]:,} tokens")
            given = {"a state": state, "documents": span.begins, "counts": span.count}
            listed = [name for name, value in given.items() if value is not None]
            kind = str(dtype).removeprefix("torch.")
            error.add_note(f"{CALL}{tokens} in {kind}{' with ' if listed else ''}{' and '.join(listed)}")
            raise

    return run


def with_facts(span: Span, x: Tensor, names: Sequence[str]) -> Span:
    """The span with a fact of each name for every token: 0 or 1, computed from the token's own input, so that a token
    has the same facts in any piece, row and document."""
    def fact(index: int) -> Tensor:
        return x[..., index % x.shape[2]] > 0 if x.is_floating_point() else (x >> index) & 1

    return replace(span, facts={name: fact(index) for index, name in enumerate(names)}) if names else span


def _counts(batch: int, steps: int, generator: torch.Generator) -> Tensor:
    """Random lengths [B] of sources, at least one token each."""
    return torch.randint(1, steps + 1, (batch,), generator=generator)
