"""Batches of `transformers`, with padding in any column, read by a model whose rows advance by counts.

The modelling files of `weft.interop.huggingface.with_code`, also old ones, import this module: names and meanings must
not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.errors import InputError
from weft.core.heads import outputs
from weft.core.images import ImageModel
from weft.core.layer import traits_of
from weft.core.model import EncodedSource, EncoderInputs, LanguageModel, Model, ModelState
from weft.core.span import Memory, Output, Span

NO_TARGET = -100
"""The label of tokens that are not predicted."""


@dataclass(frozen=True)
class Packed:
    """Rows without their padding, aligned on the left.

    Attributes:
        tokens: ids [B,L]; 0 beyond a row's count.
        count: tokens of each row; None: L in every row.
        place: number of tokens of the row up to and including each column. None: there is no padding.
    """

    tokens: Int64[Tensor, "B L"]
    count: Int64[Tensor, " B"] | None
    place: Int64[Tensor, "B T"] | None

    def columns(self, h: Tensor, before: Tensor | None = None) -> Tensor:
        """Map [B,L,...] to columns [B,T,...]; padding gets the values of the token before it.

        Args:
            before: [B,1,...] of the last token of an earlier chunk; None: there was none, and padding before a row's
                first token gets the values of that token.
        """
        if self.place is None:
            return h
        rows = torch.arange(h.shape[0], device=h.device)[:, None]
        return torch.cat([h[:, :1] if before is None else before, h], dim=1)[rows, self.place]


def pack(tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None) -> Packed:
    """The rows of a batch without their padding; ``mask`` is true for tokens, None where there is no padding."""
    if mask is None or bool(mask.all()):
        return Packed(tokens, None, None)
    count = mask.sum(1)
    longest = max(1, int(count.max()))
    moved = torch.where(mask, tokens, 0).gather(1, _tokens_first(mask))[:, :longest]
    return Packed(moved, count, mask.cumsum(1))


def _tokens_first(mask: Bool[Tensor, "B T"]) -> Int64[Tensor, "B T"]:
    """The columns of each row: first those of tokens, then those of padding, each in order."""
    return (~mask).long().argsort(dim=1, stable=True)


class Reading:
    """The state of a batch that is read chunk by chunk. It holds no model, so it can be copied.

    A model whose rotation depends on the document's length has no state that serves all lengths: for such a model all
    tokens are kept and read again with each chunk.

    Attributes:
        columns: read so far, padding included.
    """

    def __init__(self) -> None:
        self.columns = 0
        self._state: ModelState | None = None
        self._bound, self._level = 0, True
        self._last: Tensor | None = None
        self._tokens: Tensor | None = None
        self._mask: Tensor | None = None

    def select(self, rows: Int64[Tensor, " rows"]) -> None:
        """Select rows, in this order; repeats are allowed."""
        if self._state is not None:
            self._state = self._state.select(rows)
        if self._last is not None:
            self._last = self._last.index_select(0, rows)
        if self._tokens is not None and self._mask is not None:
            self._tokens, self._mask = self._tokens.index_select(0, rows), self._mask.index_select(0, rows)

    def read(self, model: LanguageModel, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None,
             memory: Memory | None = None) -> Output[ModelState]:
        """Read a chunk; return its hidden vectors by column, [B,T,...]. The source that the first chunk gives is kept
        with the state."""
        anew = Trait.DECLARED_LENGTH in traits_of(model) if self.columns == 0 else self._tokens is not None
        self.columns += tokens.shape[1]
        if anew:
            return self._read_anew(model, tokens, mask, memory)
        return self._read_on(model, pack(tokens, mask), memory)

    def _read_on(self, model: LanguageModel, packed: Packed, memory: Memory | None) -> Output[ModelState]:
        state, fresh = self._state, self._state is None
        if state is None:
            state = model.init_state(packed.tokens.shape[0], device=packed.tokens.device, memory=memory)
        self._bound += packed.tokens.shape[1]
        self._level = self._level and packed.count is None
        span = Span(count=packed.count, fresh=fresh, bound=self._bound, uniform=self._level)
        out = model.hidden(packed.tokens, state, span)
        y = packed.columns(out.y, self._last)
        self._state, self._last = out.state, y[:, -1:]
        return out._replace(y=y)

    def _read_anew(self, model: LanguageModel, tokens: Tensor, mask: Tensor | None, memory: Memory | None
                   ) -> Output[ModelState]:
        steps = tokens.shape[1]
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        if self._tokens is not None and self._mask is not None:
            tokens, mask = torch.cat([self._tokens, tokens], dim=1), torch.cat([self._mask, mask], dim=1)
        self._tokens, self._mask = tokens, mask
        out = read(model, tokens, mask, memory=memory)
        return out._replace(y=out.y[:, tokens.shape[1] - steps:])


def read(model: LanguageModel, tokens: Int64[Tensor, "B T"], mask: Tensor | None = None,
         reading: Reading | None = None, memory: Memory | None = None) -> Output[ModelState]:
    """Hidden vectors [B,T,...] of a batch by column: those of each token as if its row were alone; padding has those of
    the token before it.

    Args:
        tokens: ids; arbitrary where ``mask`` is 0.
        mask: 0 for padding, in any column; None: there is none.
        reading: the state after earlier chunks, which is updated. None: the batch is read from the start, and no
            state is kept.
        memory: the encoded source of an encoder-decoder, see `memory_of`.

    Raises:
        InputError: a mask of another shape than the tokens.
    """
    _require_like(mask, tokens)
    tokens, flags = tokens.long(), None if mask is None else mask.bool()
    if reading is not None:
        return reading.read(model, tokens, flags, memory)
    packed = pack(tokens, flags)
    out = model.hidden(packed.tokens, None, Span(count=packed.count, memory=memory))
    return out._replace(y=packed.columns(out.y))


def read_source(model: LanguageModel, tokens: Int64[Tensor, "B S"], mask: Tensor | None = None
                ) -> tuple[Float[Tensor, "B S D"], EncodedSource]:
    """The encoded source of an encoder-decoder, by column and as `read` takes it.

    Args:
        tokens: ids; arbitrary where ``mask`` is 0.
        mask: 0 for padding, in any column; None: there is none.

    Raises:
        InputError: a mask of another shape than the tokens.
    """
    _require_like(mask, tokens)
    packed = pack(tokens.long(), None if mask is None else mask.bool())
    encoded = model.encoded(EncoderInputs(packed.tokens), Span(count=packed.count))
    return packed.columns(encoded.memory.h), encoded


def memory_of(columns: Float[Tensor, "B S D"], mask: Tensor | None = None) -> Memory:
    """The encoded source as `read` takes it, from its columns; ``mask`` is 0 for padding."""
    if mask is None or bool(mask.bool().all()):
        return Memory(columns)
    count = mask.bool().sum(1)
    order = _tokens_first(mask.bool())[:, :max(1, int(count.max())), None]
    return Memory(columns.gather(1, order.expand(-1, -1, columns.shape[2])), count)


def read_whole(model: Model, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None,
               global_tokens: Tensor | None = None) -> Output[ModelState]:
    """The outputs of a model's head for whole rows: [B,C] of rows, or [B,T,...] of tokens by column, see `read`; the
    hidden vectors without a head.

    Args:
        tokens: ids [B,T], or images [B,C,H,W] for a model that reads these.
        mask: 0 for padding, in any column; None: there is none.
        types: segments [B,T]; left out of a model with one.
        global_tokens: 1 for each token that is global, for a model that reads these.

    Raises:
        InputError: a mask of another shape than the tokens.
    """
    if isinstance(model, ImageModel):
        out, span = model.vectors(model.images(tokens)), Span()
        return out._replace(y=outputs(model.head, out.y, span))
    _require_like(mask, tokens)
    flags = None if mask is None else mask.bool()
    packed, sizes = pack(tokens.long(), flags), model.reads()
    beside = [None if given is None or sizes.get(name, 0) < 2 else pack(given.long(), flags).tokens
              for name, given in (("types", types), ("globals_", global_tokens))]
    inputs = EncoderInputs(packed.tokens, beside[0], None if beside[1] is None else beside[1].bool())
    out, span = model.vectors(inputs, Span(count=packed.count)), Span(count=packed.count)
    found = outputs(model.head, out.y, span)
    return out._replace(y=found if found.ndim == 2 else packed.columns(found))


def _require_like(mask: Tensor | None, tokens: Tensor) -> None:
    """Refuse a mask of another shape than the tokens."""
    if mask is not None and mask.shape != tokens.shape:
        raise InputError(f"shape {tuple(mask.shape)} for tokens of shape {tuple(tokens.shape)}.",
                         where="attention_mask", remedy="Give a number for each token, 0 for padding.")


def in_rows(logits: Float[Tensor, "B T V"], labels: Int64[Tensor, "B T"],
            mask: Tensor | None) -> tuple[Float[Tensor, "B T V"], Int64[Tensor, "B T"]]:
    """Logits and labels with each row's padding moved to its end and its labels set to `NO_TARGET`, so that labels,
    shifted by one, match the logits of the token before."""
    if mask is None:
        return logits, labels
    flags = mask.bool()
    order = _tokens_first(flags)
    labels = labels.masked_fill(~flags, NO_TARGET).gather(1, order)
    return logits.gather(1, order[..., None].expand_as(logits)), labels
