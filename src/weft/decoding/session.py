"""Rows that a model continues token by token: one ragged prefill, then steps of one token.

Every row equals that row alone, recomputed in full at every token. Where a model treats a document's tokens by the
document's length (`weft.positions.regimes`), a row that has grown into another regime is prefilled anew, by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.errors import FailedError, InputError
from weft.core.model import LanguageModel, ModelState
from weft.core.rows import admit, trim
from weft.core.span import Memory, Span
from weft.decoding.compiled import CompiledStep
from weft.decoding.mode import declares_length, device_of, require_causal, require_room
from weft.decoding.prompts import encode_sources, ragged
from weft.decoding.rows import Row, check_rows, with_start
from weft.decoding.steps import Steps, watched
from weft.positions.regimes import regimes


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


@dataclass(frozen=True, eq=False)
class Begun:
    """A state that has read the beginning of a row, to go on from.

    Attributes:
        tokens: what it has read.
        state: consumed by whoever goes on with it: clone it to keep it. It reserves nothing.
    """

    tokens: tuple[int, ...]
    state: ModelState


@torch.inference_mode()
def read_on(model: LanguageModel, tokens: Sequence[int], begun: Begun | None = None) -> Begun:
    """Read a row's tokens, those behind ``begun``, in a model without sources and in evaluation mode."""
    device, known = device_of(model), 0 if begun is None else len(begun.tokens)
    rest = torch.tensor([tokens[known:]], dtype=torch.int64, device=device)
    state = begun.state if begun is not None else model.init_state(
        1, device=device, horizon=torch.tensor([len(tokens)], device=device))
    out = model.hidden(rest, state, Span(fresh=begun is None, bound=len(tokens), uniform=True))
    return Begun(tuple(tokens), _kept(out.state))


class Session:
    """A batch of rows in a model, with the logits of each row's next token.

    Args:
        model: in evaluation mode.
        prompts: from `prepare`.
        max_new_tokens: tokens that each row may get; state is reserved for them.
        begun: the beginning of the only prompt, shorter than it and of its regime, read already.
        compiled: the model's step, where it shall be compiled; all rows then move at every step.
        plain: take every step through the model's own code, even where a tape would do (`weft.decoding.steps`).
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Row], *, max_new_tokens: int,
                 begun: Begun | None = None, compiled: CompiledStep | None = None, plain: bool = False) -> None:
        self.model, self._compiled = model, compiled
        self.device = device_of(model)
        lengths = [len(row.tokens) for row in prompts]
        self._level, self._lagging, self._bound = len(set(lengths)) <= 1, False, max(lengths)
        self._capacity = self._bound + max(0, max_new_tokens - 1)
        with torch.inference_mode():
            memory = encode_sources(model, prompts, self.device)
            self._history: _History | None = None
            if declares_length(model):
                self._history = _History([list(row.tokens) for row in prompts], memory,
                                         regimes(model, self._bound + max_new_tokens).tolist())
            if begun is None:
                state, last = self._prefill([row.tokens for row in prompts], memory)
            else:
                state, last = self._resume(begun, prompts[0].tokens)
            self.logits = self._read(last)
        self._steps = Steps(self._work, state, self._capacity, plain=plain or watched(model))

    @property
    def state(self) -> ModelState:
        """What the rows have become."""
        return self._steps.state

    @property
    def by_tape(self) -> bool:
        """The steps are taken by a tape that has been checked (`weft.decoding.steps`)."""
        return self._steps.by_tape

    @torch.inference_mode()
    def advance(self, tokens: Int64[Tensor, " B"], moving: Bool[Tensor, " B"] | None = None) -> None:
        """Read one token in every row, or in those that are ``moving``; the others stand still."""
        self._bound += 1
        self._lagging = self._lagging or moving is not None
        stale = [] if self._history is None else self._history.push(tokens, moving)
        if stale:
            moving = torch.ones_like(tokens, dtype=torch.bool) if moving is None else moving.clone()
            moving[stale] = False
        if len(stale) < tokens.shape[0]:
            self._step(tokens, moving)
        if stale:
            self._restart(stale)

    @torch.inference_mode()
    def select(self, rows: Int64[Tensor, " rows"]) -> None:
        """Go on with these rows, in this order, repeats allowed; all of them have moved at every step so far."""
        self._steps.go_on_from(self.state.select(rows))
        self.logits = self.logits.index_select(0, rows)
        self._lagging = False
        if self._history is not None:
            self._history = self._history.select(rows)

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
        _require_numbers(best, rows)
        return best

    def likeliest(self, rows: Mapping[int, int], known: int | None = None) -> Int64[Tensor, " B"]:
        """The most probable token of every row, the lowest id among equals. Refuses to choose where nothing can be
        chosen.

        Args:
            rows: as for `require_numbers`.
            known: ids from this one on are not chosen.

        Raises:
            FailedError: what `require_numbers` refuses, or no token with a probability above zero.
        """
        values, tokens = self.logits[:, :known].max(-1)
        best: list[float] = values.tolist()
        _require_numbers(best, rows)
        for place, row in rows.items():
            if best[place] == -math.inf:
                raise FailedError("the model gives every token the probability zero.", where=f"rows[{row}]",
                                  remedy="Use a model with smoothing.")
        return tokens

    def _prefill(self, rows: Sequence[Sequence[int]], memory: Memory | None) -> tuple[ModelState, Tensor]:
        """The state after whole rows, each started with its own length, and their last hidden vectors [B,1,D]."""
        batch = ragged(rows, self.device)
        state = self.model.init_state(len(rows), capacity=self._capacity, device=self.device, memory=memory,
                                      horizon=batch.count)
        span = Span(count=batch.counts, fresh=True, bound=batch.longest, uniform=batch.level)
        out = self.model.hidden(batch.tokens, state, span)
        return _kept(out.state), out.y[torch.arange(len(rows), device=self.device), batch.count - 1][:, None]

    def _resume(self, begun: Begun, tokens: Sequence[int]) -> tuple[ModelState, Tensor]:
        """The state after the rest of a row, and its last hidden vector [1,1,D]."""
        assert tuple(tokens[: len(begun.tokens)]) == begun.tokens and len(begun.tokens) < len(tokens)
        rest = torch.tensor([tokens[len(begun.tokens) :]], dtype=torch.int64, device=self.device)
        state = trim(begun.state, self._capacity)
        out = self.model.hidden(rest, state, Span(bound=len(tokens), uniform=True))
        return _kept(out.state), out.y[:, -1:]

    def _step(self, tokens: Tensor, moving: Tensor | None) -> None:
        if self._compiled is not None:
            assert moving is None, "all rows of a compiled step move"
            logits, state = self._compiled(tokens, self.state)
            self._steps.go_on_from(state)
            self.logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return
        uniform = self._level and not self._lagging and moving is None
        self.logits = self._steps.take(tokens, moving, self._bound, uniform=uniform)

    def _work(self, tokens: Tensor, state: ModelState, span: Span) -> tuple[Tensor, ModelState]:
        out = self.model.hidden(tokens[:, None], state, span)
        return self._read(out.y), _kept(out.state)

    def _restart(self, places: list[int]) -> None:
        """Run the rows at ``places`` again, whole, and leave the others as they are."""
        assert self._history is not None, "only rows with a history can be run again"
        state, last = self._prefill(*self._history.texts(places))
        logits = self._read(last)
        if len(places) == self.logits.shape[0]:
            self.logits = logits
            self._steps.go_on_from(state)
            return
        self._steps.go_on_from(admit(self.state, places, state))
        self.logits = self.logits.index_copy(0, torch.tensor(places, device=self.device), logits)

    def _read(self, h: Tensor) -> Float[Tensor, "B V"]:
        logits = self.model.readout.logits(h)[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _require_numbers(best: list[float], rows: Mapping[int, int]) -> None:
    for place, row in rows.items():
        if math.isnan(best[place]) or best[place] == math.inf:
            raise FailedError(f"the model gives a logit of {best[place]}, so no token can be chosen.",
                              where=f"rows[{row}]",
                              remedy="Check the checkpoint with weft check, or use a wider dtype.")


def _kept(state: ModelState | None) -> ModelState:
    assert state is not None, "a call with a state gives one back"
    return state


class _History:
    """What rows of a model with several regimes are run again from: their tokens so far, and their sources."""

    def __init__(self, rows: list[list[int]], memory: Memory | None, regime: list[int]) -> None:
        self._rows, self._memory, self._regime = rows, memory, regime

    def push(self, tokens: Tensor, moving: Tensor | None) -> list[int]:
        """Append a token to the rows that move; gives the places of those whose state does not serve them any more."""
        moves = [True] * len(self._rows) if moving is None else moving.tolist()
        stale = []
        for place, (row, token) in enumerate(zip(self._rows, tokens.tolist(), strict=True)):
            if moves[place]:
                row.append(token)
                if self._regime[len(row)] != self._regime[len(row) - 1]:
                    stale.append(place)
        return stale

    def texts(self, places: list[int]) -> tuple[list[list[int]], Memory | None]:
        """All tokens of the rows at ``places``, and what their sources were encoded to."""
        memory = self._memory
        chosen = None if memory is None else memory.select(torch.tensor(places, device=memory.h.device))
        return [self._rows[place] for place in places], chosen

    def select(self, rows: Tensor) -> _History:
        """These rows, in this order, repeats allowed."""
        memory = None if self._memory is None else self._memory.select(rows)
        return _History([list(self._rows[place]) for place in rows.tolist()], memory, self._regime)
