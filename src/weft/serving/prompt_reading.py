"""A prompt that is read in pieces, as a batch of one row, with the log-probabilities of its tokens if they are wanted.

A model of which a state serves one length only, a row with a source and one with a prefix are read whole by the batch
(`readable_in_pieces`); the log-probabilities of such a prompt are computed in a call of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from weft.core.model import LanguageModel
from weft.core.rows import cut_out, trim
from weft.core.span import Span
from weft.decoding.mode import declares_length, device_of
from weft.decoding.prompts import PromptState, encode_sources, kept, ragged
from weft.decoding.rows import Row
from weft.serving.requests import TokenLogProb

AT_ONCE = 32
"""Positions of a prompt whose logits are in memory together."""
LONG_CALL, HEADS = 1 << 17, 2
"""Pairs of a token and one that it sees above which attention is computed by parts, and heads of such a part."""


def readable_in_pieces(row: Row, by_length: bool) -> bool:
    """Whether a row can be read in pieces by `PromptReading`; ``by_length``: `declares_length` of the model."""
    return row.source is None and not row.prefix and not by_length


@final
class BetweenOperations(TorchFunctionMode):
    """Calls a function after every operation inside, but for those of the function itself; attention of many tokens
    to many is an operation for each of the heads that share a key."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self._interrupt = interrupt

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func is F.scaled_dot_product_attention and args[0].shape[2] * args[1].shape[2] > LONG_CALL:
            return self._by_heads(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        if func.__name__ != "__get__":  # of an attribute
            self._interrupt()
        return found

    def _by_heads(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attention of queries [B,H,T,F], which are taken so that every part has as many heads as there are keys; of
        heads of their own, a few at a time."""
        mask, group = options.pop("attn_mask", None), q.shape[1] // k.shape[1]
        y = q.new_empty(*q.shape[:3], v.shape[3])
        for first in range(group) if group > 1 else range(0, q.shape[1], HEADS):
            own = slice(first, None, group) if group > 1 else slice(first, first + HEADS)
            shared = slice(None) if group > 1 else own
            y[:, own] = F.scaled_dot_product_attention(
                q[:, own], k[:, shared], v[:, shared], mask if mask is None or mask.shape[1] == 1 else mask[:, own],
                **{**options, "enable_gqa": False})
            self._interrupt()
        return y


@final
class PromptReading:
    """A prompt, and the state after the tokens of it that have been read.

    Args:
        row: at least one token.
        begun: the state after its beginning, shorter than the prompt; consumed. None: nothing has been read.
        top: number of the most probable tokens told for each position; None: no log-probabilities.
        capacity: tokens for which the state has room: as in the batch that continues the row and need not copy it.
    """

    def __init__(self, model: LanguageModel, row: Row, begun: PromptState | None, top: int | None,
                 capacity: int) -> None:
        self._model, self._row, self._top, self._capacity = model, row, top, capacity
        self._log_probs = [TokenLogProb(row.tokens[0], None)]
        self.begun = None if begun is None else PromptState(begun.tokens, trim(begun.state, capacity))

    @property
    def read(self) -> int:
        """The number of tokens that have been read."""
        return 0 if self.begun is None else len(self.begun.tokens)

    @property
    def log_probs(self) -> tuple[TokenLogProb, ...] | None:
        """The log-probabilities of the prompt's tokens, which `finish` completes; None if they are not wanted."""
        return None if self._top is None else tuple(self._log_probs)

    def on_to(self, upto: int) -> None:
        """Read on until ``upto`` tokens have been read, fewer than the prompt has."""
        tokens, device = self._row.tokens, device_of(self._model)
        known = self.begun.tokens if self.begun is not None else ()
        state = self.begun.state if self.begun is not None else self._model.init_state(
            1, capacity=self._capacity, device=device)
        self.begun = None  # the call consumes the state, even if it fails
        piece = torch.tensor([tokens[len(known):upto]], dtype=torch.int64, device=device)
        out = self._model.hidden(piece, state, Span(fresh=not known, bound=upto, uniform=True))
        self.begun = PromptState(tokens[:upto], kept(out.state))
        self._tell(out.y, tokens[len(known) + 1:upto + 1])

    def copy(self) -> PromptState | None:
        """A copy of the state after what has been read; None if nothing has."""
        return None if self.begun is None else PromptState(self.begun.tokens, cut_out(self.begun.state, 0))

    def taken(self) -> PromptState | None:
        """The state, for a call that consumes it. If that fails, the prompt is read again from its beginning."""
        begun, self.begun = self.begun, None
        return begun

    def finish(self) -> None:
        """Complete the log-probabilities, if they are wanted: read all tokens but the last."""
        last = len(self._row.tokens) - 1
        if self._top is None or len(self._log_probs) > last:
            return
        if readable_in_pieces(self._row, declares_length(self._model)):
            self.on_to(last)
            return
        batch = ragged([self._row.tokens], device_of(self._model))
        memory = encode_sources(self._model, [self._row], device_of(self._model))
        out = self._model.hidden(batch.tokens, None, Span(memory=memory, prefix=batch.first([self._row.prefix])))
        self._tell(out.y[:, :-1], self._row.tokens[1:])

    def _tell(self, hidden: Tensor, tokens: tuple[int, ...]) -> None:
        """Append the log-probabilities of ``tokens``, each of which follows one of the vectors ``hidden`` [1,T,D]."""
        if self._top is None:
            return
        for start in range(0, len(tokens), AT_ONCE):
            part = tokens[start:start + AT_ONCE]
            logits = self._model.readout.logits(hidden[:, start:start + len(part)])[0]
            values = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            own = values.gather(1, torch.tensor(part, device=values.device)[:, None])[:, 0].tolist()
            best = values.topk(min(self._top, values.shape[1]), dim=-1)
            for token, value, ids, their in zip(part, own, best.indices.tolist(), best.values.tolist(), strict=True):
                self._log_probs.append(TokenLogProb(token, value, tuple(zip(ids, their, strict=True))))
