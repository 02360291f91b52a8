"""`Model` and its subclasses `LanguageModel` and `Encoder`: the interfaces on which the rest of Weft depends.

    Model           vectors(inputs, span) -> Output(h, None, losses)        the input of a head, for whole rows
    LanguageModel   hidden(tokens[B,T], state, span) -> Output(h, state, losses)
                    readout.logits(h)  readout.log_prob(h, targets)
                    forward = logits of hidden
    Encoder         forward = the vectors

Everything about models can be imported from here: `Model` and its configuration are defined in
`weft.core.base_model`, heads in `weft.core.heads`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.base_model import (
    MODELS,
    EncoderInputs,
    Model,
    ModelConfig,
    ModelState,
    Resizable,
    built_model,
    parameter_count,
    parse_model,
    trained_count,
)
from weft.core.clock import Clock
from weft.core.declarations import Declared, Trait
from weft.core.errors import InputError, StateError, UnsupportedError
from weft.core.heads import Classifier, Head, Readout
from weft.core.layer import beginning
from weft.core.part import require_read
from weft.core.span import WHOLE, Loss, Memory, Output, Span

__all__ = ["MODELS", "Classifier", "Counted", "EncodedSource", "Encoder", "EncoderInputs", "Head", "LanguageModel",
           "Model",
           "ModelConfig", "ModelState", "Readout", "Resizable", "built_model", "language_model", "parameter_count",
           "parse_model", "trained_count"]


class EncodedSource(NamedTuple):
    """An encoded source, and the auxiliary losses of the encoder (load balance of experts)."""

    memory: Memory
    losses: tuple[Loss, ...] = ()


class LanguageModel(Model, ABC):
    """A distribution over the next token given the tokens before it, threaded by a state, under one law: running rows
    in any pieces, threading the state, equals running them whole."""

    readout: Readout
    takes_source: ClassVar[bool] = False
    """Whether it reads a source through `encode`, as an encoder-decoder does."""

    source_vocab_size: int = 0
    """Number of ids of the source; 0 without one."""

    def source_limit(self) -> int | None:
        """The most tokens a source may have (learned positions of the encoder); None when there is no limit."""
        return None

    def init_state(self, batch: int, *, capacity: int | None = None, dtype: torch.dtype | None = None,
                   device: torch.device | str | None = None, memory: Memory | None = None,
                   horizon: int | Tensor | None = None) -> ModelState:
        """The state before the first token; the arguments are those of `Layer.init_state`."""
        clock, kind = beginning(self, batch, capacity=capacity, dtype=dtype, device=device, horizon=horizon)
        return self.start(clock, capacity=capacity, dtype=kind, memory=memory)

    @abstractmethod
    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> ModelState:
        """The state before the first token on ``clock``."""

    @abstractmethod
    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        """Hidden vectors of a chunk and the state after it. ``span`` is resolved."""

    def hidden(self, tokens: Int64[Tensor, "B T"], state: ModelState | None = None,
               span: Span | None = None) -> Output[ModelState]:
        """The input of the readout for every token of the chunk.

        Args:
            tokens: ids [B,T].
            state: after earlier chunks; consumed. None: start fresh and keep nothing.
            span: None: every row advances by all T tokens.

        Raises:
            StateError: the state belongs to another model, or has another number of rows.
        """
        span = self._resolve(tokens, state, span)
        out = self.run(tokens, state, span)
        return out if span.count is None else out._replace(y=span.clean(out.y))

    def forward(self, tokens: Int64[Tensor, "B T"], state: ModelState | None = None,
                span: Span | None = None) -> Output[ModelState]:
        """Logits [B,T,V] of the next token after each, zero beyond each row's count, with the state and the losses of
        `hidden`."""
        span = self._resolve(tokens, state, span)
        out = self.hidden(tokens, state, span)
        logits = self.readout.logits(out.y)
        return out._replace(y=logits if span.full else span.clean(logits))

    def vectors(self, inputs: EncoderInputs, span: Span | None = None) -> Output[ModelState]:
        extra = [name for name in inputs.given() if name != "tokens"]
        if extra or inputs.tokens is None:
            raise InputError(f"a language model reads tokens alone, not {extra[0] if extra else 'nothing'}.",
                             where="inputs", remedy="Give ids [B,S].")
        return self.hidden(inputs.tokens, None, span)

    def encode(self, inputs: EncoderInputs, span: Span | None = None) -> Memory:
        """The encoded source for `init_state`, in an encoder-decoder. Raises `StateError`: this model has no
        encoder."""
        return self.encoded(inputs, span).memory

    def encoded(self, inputs: EncoderInputs, span: Span | None = None) -> EncodedSource:
        """The encoded source with the encoder's auxiliary losses, for training."""
        raise StateError("this model has no encoder, so it takes no source.", where=type(self).__name__,
                         remedy="Give rows of tokens alone.")

    def _resolve(self, tokens: Tensor, state: ModelState | None, span: Span | None) -> Span:
        if state is not None and (not isinstance(state, ModelState) or state.owner != self.fingerprint
                                  or state.clock.seen.shape[0] != tokens.shape[0]):
            self._require_own(state, tokens.shape[0])
        span = WHOLE if span is None else span
        if span.facts and span.moment is None:
            require_read(span.facts, self)
        return span.resolve(None if state is None else state.clock, tokens)

    def _require_own(self, state: ModelState, batch: int) -> None:
        if not isinstance(state, ModelState) or state.owner != self.fingerprint:
            raise StateError("the state belongs to another model.", where="state",
                             remedy="Use a state from this model's init_state, or load the model it came from.")
        rows = state.clock.seen.shape[0]
        if rows != batch:
            raise StateError(f"a state of {rows} rows for {batch} rows of tokens.", where="state",
                             remedy="Select the rows first, or start a state of that batch.")


class Encoder(Model, ABC):
    """A bidirectional model, in which every token may attend to all others, without a state."""

    def declares(self) -> Declared:
        return Declared(prefix="encoder", own_law=True, traits=frozenset({Trait.BIDIRECTIONAL}))

    def forward(self, inputs: EncoderInputs, span: Span | None = None) -> Float[Tensor, "B S D"]:
        """The hidden vectors of `vectors`."""
        return self.vectors(inputs, span).y


class Counted(LanguageModel):
    """A language model that is fitted in one pass over the text; its traits include NOT_DIFFERENTIABLE."""

    @abstractmethod
    def fit(self, tokens: Int64[Tensor, " N"], begins: Bool[Tensor, " N"] | None = None) -> None:
        """Replace all counts by those of ``tokens``, in which a document begins wherever ``begins`` is true (None: one
        document)."""


def language_model(model: Model, purpose: str, *, where: str = "model") -> LanguageModel:
    """``model`` as a language model, for a purpose that needs probabilities of the next token. Raises
    `UnsupportedError`: it is another model, such as an encoder."""
    if isinstance(model, LanguageModel):
        return model
    raise UnsupportedError(f"{purpose} needs a language model, and a model of kind {model.config.kind!r} predicts no "
                           "next token.",
                           where=where, remedy="Give a decoder or another model of the next token.")
