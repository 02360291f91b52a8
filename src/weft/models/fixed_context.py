"""Language models that depend on the last n-1 tokens of a document alone: n-grams, Bengio's network."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.clock import Clock
from weft.core.compiling import require
from weft.core.declarations import Declared, Trait
from weft.core.errors import InputError
from weft.core.model import LanguageModel, ModelConfig, ModelState
from weft.core.span import Memory, Output, Span
from weft.core.state import tensor_field


@dataclass(frozen=True)
class FixedContextState(ModelState):
    """The last n-1 tokens of each row's document.

    Attributes:
        tokens: ids, oldest first; before the document's first token the start symbol, whose id is the vocabulary size.
    """

    tokens: Int64[Tensor, "B P"] = tensor_field(keeps_dtype=True)


class FixedContextModel(LanguageModel):
    """A distribution over the next token given the last P = n-1.

    A subclass implements `represent`, the input of its readout.

    Args:
        reach: P, the number of tokens on which the next one depends.
    """

    def __init__(self, config: ModelConfig, reach: int) -> None:
        super().__init__(config)
        self.reach = reach
        self.start_id = config.vocab_size

    def declares(self) -> Declared:
        return Declared(traits=frozenset({Trait.TOKENS_ONLY}), borders=(self.reach + 1,))

    @abstractmethod
    def represent(self, contexts: Int64[Tensor, "B T P"]) -> Tensor:
        """The input of the readout, [B,T,...], from the P tokens up to and including each; the start symbol fills
        contexts before a document's first token."""

    def read(self, tokens: Int64[Tensor, "B T"], span: Span) -> Int64[Tensor, "B T"]:
        """The chunk's tokens as contexts contain them."""
        return tokens

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype,
              memory: Memory | None) -> FixedContextState:
        rows = clock.seen.shape[0]
        return FixedContextState(clock, self.fingerprint, clock.seen.new_full((rows, self.reach), self.start_id))

    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        tokens = span.clean(tokens.long())  # padding may hold values that are no ids
        require((tokens >= 0) & (tokens < self.vocab_size), InputError,
                f"an id outside the vocabulary, 0 .. {self.vocab_size - 1}.", where="tokens",
                remedy="Encode the text with the tokenizer that the model was trained with.")
        tokens = self.read(tokens, span)
        if state is None:
            inputs = torch.cat([tokens.new_full((tokens.shape[0], self.reach), self.start_id), tokens], dim=1)
            return Output(self.represent(self._contexts(inputs, span)), None)
        assert isinstance(state, FixedContextState)
        inputs = torch.cat([state.tokens, tokens], dim=1)
        h = self.represent(self._contexts(inputs, span))
        return Output(h, replace(state, clock=span.after, tokens=self._last(inputs, span)))

    def _contexts(self, inputs: Int64[Tensor, "B P+T"], span: Span) -> Int64[Tensor, "B T P"]:
        """For each of the chunk's tokens the last P up to and including it."""
        if self.reach == 0:
            return inputs[..., None][..., :0]
        contexts = inputs.unfold(1, self.reach, 1)[:, 1:]
        if not span.packed:
            return contexts
        distance = torch.arange(self.reach - 1, -1, -1, device=inputs.device)
        age = (span.ticks.order - span.ticks.begin)[..., None]
        return contexts.masked_fill(distance > age, self.start_id)

    def _last(self, inputs: Int64[Tensor, "B P+T"], span: Span) -> Int64[Tensor, "B P"]:
        """The last P tokens of each row up to its count, with the start symbol for earlier documents' tokens."""
        steps = inputs.shape[1] - self.reach
        if span.count is None:
            last = inputs[:, steps:].clone()  # a view would keep the memory of the whole chunk allocated
        else:
            last = inputs.gather(1, span.count[:, None] + torch.arange(self.reach, device=inputs.device))
        if not span.packed:
            return last
        distance = torch.arange(self.reach, 0, -1, device=inputs.device)
        return last.masked_fill(distance > (span.after.seen - span.after.begin)[:, None], self.start_id)
