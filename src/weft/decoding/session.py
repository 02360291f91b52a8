"""Rows that a model continues token by token: one ragged prefill, then steps of one token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.errors import FailedError, InputError
from weft.core.model import LanguageModel, ModelState
from weft.core.span import Span
from weft.decoding.mode import declares_length, device_of, require_causal, require_room
from weft.decoding.prompts import encode_sources, ragged
from weft.decoding.rows import Row, check_rows, with_start


def prepare(model: LanguageModel, rows: Sequence[Row], *, max_new_tokens: int, start: int | None) -> list[Row]:
    """The prompts that will be continued; everything that can be refused is refused here, before the model runs.

    Args:
        model: any causal language model.
        rows: prompts.
        max_new_tokens: tokens that each row may get.
        start: the token that opens a document, put before prompts that are empty.

    Raises:
        InputError: an id outside the vocabulary, an empty prompt without a start token, more tokens than the model
            has positions for.
        UnsupportedError: a bidirectional model.
    """
    require_causal(model, "decoding")
    if max_new_tokens < 0:
        raise InputError(f"{max_new_tokens} is negative.", where="max_new_tokens", remedy="Give 0 or more.")
    check_rows(rows, model)
    prompts = with_start(rows, start, model, only_empty=True)
    for index, row in enumerate(prompts):
        if not row.tokens:
            raise InputError("an empty prompt, and no start token.", where=f"rows[{index}]",
                             remedy="Give at least one id, or a start token (a tokenizer's bos_id or eos_id).")
        consumed = len(row.tokens) + max(0, max_new_tokens - 1)
        require_room(model, consumed, f"rows[{index}]",
                     f"{len(row.tokens)} tokens of prompt and {max_new_tokens} new ones are {consumed} to read",
                     "Shorten the prompt or lower max_new_tokens.")
    return prompts


class Session:
    """A batch of rows in a model, with the logits of each row's next token.

    Args:
        model: in evaluation mode.
        prompts: from `prepare`.
        max_new_tokens: tokens that each row may get; state is reserved for them, and a model that needs its
            documents' length is told the prompt's length plus this many.
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Row], *, max_new_tokens: int) -> None:
        self.model = model
        self.device = device_of(model)
        batch = ragged([row.tokens for row in prompts], self.device)
        self._level, self._lagging, self._bound = batch.level, False, batch.longest
        with torch.inference_mode():
            horizon = batch.count + max_new_tokens if declares_length(model) else None
            state = model.init_state(len(prompts), capacity=batch.longest + max(0, max_new_tokens - 1),
                                     device=self.device, memory=encode_sources(model, prompts, self.device),
                                     horizon=horizon)
            span = Span(count=batch.counts, fresh=True, bound=batch.longest, uniform=batch.level)
            out = model.hidden(batch.tokens, state, span)
            last = out.y[torch.arange(len(prompts), device=self.device), batch.count - 1][:, None]
            self.state = _kept(out.state)
            self.logits = self._read(last)

    @torch.inference_mode()
    def advance(self, tokens: Int64[Tensor, " B"], moving: Bool[Tensor, " B"] | None = None) -> None:
        """Read one token in every row, or in those that are ``moving``; the others stand still."""
        self._bound += 1
        self._lagging = self._lagging or moving is not None
        count = None if moving is None else moving.long()
        span = Span(count=count, bound=self._bound, uniform=self._level and not self._lagging)
        out = self.model.hidden(tokens[:, None], self.state, span)
        self.state = _kept(out.state)
        self.logits = self._read(out.y)

    @torch.inference_mode()
    def select(self, rows: Int64[Tensor, " rows"]) -> None:
        """Go on with these rows, in this order, repeats allowed; all of them have moved at every step so far."""
        self.state = self.state.select(rows)
        self.logits = self.logits.index_select(0, rows)
        self._lagging = False

    @torch.inference_mode()
    def log_probs(self) -> Float[Tensor, "B V"]:
        """The model's own log-probabilities of the next token, in nats."""
        return self.logits.log_softmax(-1)

    def require_numbers(self, rows: Mapping[int, int]) -> list[float]:
        """The largest logit of every row of the batch.

        Args:
            rows: places in the batch to look at, each with the row's index as the user knows it.

        Raises:
            FailedError: NaN or infinity in one of ``rows``.
        """
        best: list[float] = self.logits.max(-1).values.tolist()
        for place, row in rows.items():
            if math.isnan(best[place]) or best[place] == math.inf:
                raise FailedError(f"the model gives a logit of {best[place]}, so no token can be chosen.",
                                  where=f"rows[{row}]",
                                  remedy="Check the checkpoint with weft check, or use a wider dtype.")
        return best

    def require_choice(self, rows: Mapping[int, int]) -> None:
        """Refuse to choose where nothing can be chosen.

        Raises:
            FailedError: what `require_numbers` refuses, or no token with a probability above zero.
        """
        best = self.require_numbers(rows)
        for place, row in rows.items():
            if best[place] == -math.inf:
                raise FailedError("the model gives every token the probability zero.", where=f"rows[{row}]",
                                  remedy="Use a model with smoothing.")

    def _read(self, h: Tensor) -> Float[Tensor, "B V"]:
        logits = self.model.readout.logits(h)[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _kept(state: ModelState | None) -> ModelState:
    assert state is not None, "a call with a state gives one back"
    return state
