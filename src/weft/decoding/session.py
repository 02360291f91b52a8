"""Rows that a model continues token by token: one ragged prefill, then steps of one token. Rows may leave at any step,
and others are written to their places in the state's existing tensors.

The logits of every row equal those of that row alone, recomputed in full at every token. If a model's treatment of
tokens depends on the document's length (`weft.positions.regimes`), a row that enters another regime is prefilled again,
separately from the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.errors import FailedError
from weft.core.layer import needs_of
from weft.core.model import LanguageModel, ModelState
from weft.core.rows import retire, trim
from weft.core.span import Memory, Span
from weft.decoding.compiled import CompiledStep
from weft.decoding.mode import declares_length, device_of
from weft.decoding.prompts import PromptState, encode_sources, kept, ragged
from weft.decoding.rows import Row
from weft.decoding.steps import Steps
from weft.gpu.graphs import GraphedCall
from weft.positions.regimes import regimes


class Session:
    """A batch of rows in a model, with the logits of each row's next token.

    A place whose row has left is reset and still computed at every step, since a step of all rows takes the fewest
    operations. Its contents are meaningless until another row is admitted.

    Args:
        model: a model in evaluation mode.
        prompts: the rows of the first places, from `prepare`.
        max_new_tokens: maximum number of new tokens of each row; the state reserves capacity for them.
        begun: the state after the beginning of the only prompt; shorter than the prompt, and in the same regime.
        compiled: the model's compiled step; all rows then advance at every step. None: steps are not compiled.
        plain: run every step through the model's own code, and record no tape (`weft.decoding.steps`).
        size: number of places in the batch; None: one for each prompt.
        capacity: maximum number of tokens that a row may consume; None: that of the longest prompt and its new tokens.
        ahead: whether steps may run before the host has read their tokens, on a GPU: states of rows are not asked for.
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Row], *, max_new_tokens: int = 0,
                 begun: PromptState | None = None, compiled: CompiledStep | None = None, plain: bool = False,
                 size: int | None = None, capacity: int | None = None, ahead: bool = False) -> None:
        self.model, self._compiled = model, None if compiled is None else GraphedCall(compiled)
        self.device, self._needs = device_of(model), needs_of(model)
        self._lines = [_Line(list(row.tokens), row, len(row.tokens)) for row in prompts]
        longest = max(line.read for line in self._lines)
        self._capacity = longest + max(0, max_new_tokens - 1) if capacity is None else capacity
        self._free = set[int]()
        self._by_length = declares_length(model)
        self.ahead, self._started_ahead = ahead and self.device.type == "cuda" and not self._by_length, False
        self._regime = list[int]()
        with torch.inference_mode():
            state, last = self._read_prompts(prompts, begun, self._capacity)
            self.logits = self._logits(last)
            if size is not None and size > len(prompts):
                state = self._with_places(size, prompts, state)
        self._steps = Steps(self._work, state, self._capacity, plain=plain, model=model)

    @property
    def state(self) -> ModelState:
        """The state of all rows."""
        return self._steps.state

    @property
    def by_tape(self) -> bool:
        """Whether steps replay a tape that has been verified (`weft.decoding.steps`)."""
        return self._steps.by_tape

    @property
    def without_graph(self) -> str | None:
        """Why steps are no replays of a CUDA graph (`weft.gpu.graphs`); None where they are."""
        return self._steps.without_graph if self._compiled is None else self._compiled.obstacle

    @property
    def read(self) -> list[int]:
        """The number of tokens that each row's state has consumed."""
        return [line.read for line in self._lines]

    @torch.inference_mode()
    def advance(self, tokens: Int64[Tensor, " B"], moving: Bool[Tensor, " B"] | None = None) -> None:
        """Consume one token in every row, or only in the rows that are ``moving``. What `run_ahead` has begun is not
        done again."""
        started, self._started_ahead = self._started_ahead, False
        if started:
            return
        tokens = tokens.to(self.device)
        moves = [True] * len(self._lines) if moving is None else moving.tolist()
        stale = self._append(tokens.tolist(), moves) if self._by_length else []
        for place in (*stale, *(self._free if self._by_length else ())):
            moves[place] = False
        # The longest row sets the bound up to which all rows' keys are read, so free places are reset before their rows
        # are longer than every active one.
        most = max((line.read for place, line in enumerate(self._lines) if place not in self._free), default=0)
        if ahead := [place for place in self._free if self._lines[place].read >= most]:
            self._begin_again(ahead)
        if any(moves):
            self._step(tokens, None if all(moves) else torch.tensor(moves, device=self.device), moves)
        if stale:
            self._restart(stale)

    def run_ahead(self, tokens: Int64[Tensor, " B"]) -> None:
        """Begin the step of tokens that the host has not read, unless a row has no room for one more."""
        if max(line.read for place, line in enumerate(self._lines) if place not in self._free) < self._capacity:
            self.advance(tokens)
            self._started_ahead = True

    @torch.inference_mode()
    def admit(self, places: Sequence[int], prompts: Sequence[Row], begun: PromptState | None = None) -> None:
        """Replace the rows in these places, and run the model on the new prompts. Tapes and compiled steps stay valid.

        Args:
            places: places in the batch, one for each prompt.
            prompts: rows from `prepare`.
            begun: the state after the beginning of the only prompt, as for the session.
        """
        state, last = self._read_prompts(prompts, begun, max(len(row.tokens) for row in prompts))
        for place, row in zip(places, prompts, strict=True):
            self._lines[place] = _Line(list(row.tokens), row, len(row.tokens))
        self._free.difference_update(places)
        self._started_ahead = False  # a step that is still ahead was of rows that have all ended
        self._put(places, state, self._logits(last))

    @torch.inference_mode()
    def retire(self, places: Sequence[int]) -> None:
        """Remove the rows in these places, which become free."""
        self._free.update(places)
        self._begin_again(list(places))

    @torch.inference_mode()
    def select(self, rows: Int64[Tensor, " rows"]) -> None:
        """Make the batch consist of these rows, in this order; a row may be repeated."""
        chosen = rows.tolist()
        self.logits = self.logits.index_select(0, rows)
        moved = [place for place, row in enumerate(chosen) if row != place]
        if len(chosen) < len(self._lines) or len(chosen) > len(self._lines):
            self._steps.go_on_from(self.state.select(rows))
        elif moved:  # only these are written, into the same tensors, so that a tape stays valid
            self._steps.admit(moved, self.state.select([chosen[place] for place in moved]))
        self._free = {place for place, row in enumerate(chosen) if row in self._free}
        self._lines = [_Line(list(line.tokens), line.prompt, line.read)
                       for line in map(self._lines.__getitem__, chosen)]

    def close(self) -> None:
        """End the session, which is not used afterwards. What was recorded of its steps is kept with the model for the
        next one (`weft.decoding.kept_tape`)."""
        self._steps.close()

    def state_of(self, place: int) -> ModelState:
        """Return the state of one row, from which another session can continue. In a batch of one row it is the
        session's own state, not a copy."""
        return self.state if len(self._lines) == 1 else self.state.select([place])

    def copy_of(self, place: int) -> ModelState:
        """Return a copy of the state of one row; unlike `state_of`, it leaves the session's tape to the next text."""
        return self._steps.copy_of(place)

    def require_numbers(self, rows: Mapping[int, int]) -> None:
        """Check the logits of the places ``rows``, each of which has the row's index as error messages name it. Raises
        `FailedError`: NaN or infinity in one of them."""
        for place, best in enumerate(self.logits.max(-1).values.tolist()):
            if place in rows and not best < math.inf:
                raise _fault(best, rows[place])

    def likeliest(self, rows: Mapping[int, int],
                  known: int | None = None) -> tuple[Int64[Tensor, " B"], dict[int, FailedError]]:
        """Return the most probable token of every row (among equally probable ones, the lowest id), and by place the
        errors of rows with NaN or infinity, or without a token of a probability above zero.

        Args:
            rows: the places to check, as for `require_numbers`.
            known: ids from this one on are not chosen.
        """
        values, tokens = self.logits[:, :known].max(-1)
        return tokens, self.faults(values.tolist(), rows)

    def faults(self, best: Sequence[float], rows: Mapping[int, int]) -> dict[int, FailedError]:
        """Return the errors that `likeliest` returns, from the largest logit of each row."""
        return {place: _fault(best[place], row) for place, row in rows.items()
                if not -math.inf < best[place] < math.inf}

    def _read_prompts(self, prompts: Sequence[Row], begun: PromptState | None, capacity: int) -> tuple[ModelState,
                                                                                                       Tensor]:
        """Return the state after whole prompts, with room for ``capacity`` tokens, and the hidden vectors of their last
        tokens [B,1,D]."""
        if begun is not None and not prompts[0].prefix:
            return self._resume(begun, prompts[0].tokens, capacity)
        memory = encode_sources(self.model, prompts, self.device)
        return self._prefill([row.tokens for row in prompts], [row.prefix for row in prompts], memory, capacity)

    def _prefill(self, rows: Sequence[Sequence[int]], prefixes: Sequence[int], memory: Memory | None,
                 capacity: int) -> tuple[ModelState, Tensor]:
        """Return the state after whole rows, each started with its own length as its horizon, and the hidden vectors of
        their last tokens [B,1,D]."""
        batch = ragged(rows, self.device)
        state = self._started(len(rows), capacity, memory, batch.count)
        span = Span(count=batch.counts, prefix=batch.first(prefixes), fresh=True, bound=batch.longest,
                    uniform=batch.level)
        out = self.model.hidden(batch.tokens, state, span)
        return kept(out.state), out.y[torch.arange(len(rows), device=self.device), batch.count - 1][:, None]

    def _started(self, rows: int, capacity: int, memory: Memory | None, horizon: Tensor) -> ModelState:
        """`LanguageModel.init_state` without its walk over the model's modules, whose result the session stores."""
        clock = self._needs.clock(rows, capacity=capacity, device=self.device, horizon=horizon)
        return self.model.start(clock, capacity=capacity, dtype=self._needs.dtype, memory=memory)

    def _resume(self, begun: PromptState, tokens: Sequence[int], capacity: int) -> tuple[ModelState, Tensor]:
        """Return the state after the rest of a row, and the hidden vector of its last token [1,1,D]."""
        assert tuple(tokens[: len(begun.tokens)]) == begun.tokens and len(begun.tokens) < len(tokens)
        rest = torch.tensor([tokens[len(begun.tokens) :]], dtype=torch.int64, device=self.device)
        out = self.model.hidden(rest, trim(begun.state, capacity), Span(bound=len(tokens), uniform=True))
        return kept(out.state), out.y[:, -1:]

    def _with_places(self, size: int, prompts: Sequence[Row], state: ModelState) -> ModelState:
        """Return a state of ``size`` rows, whose first rows are those of ``state``, and pad the logits likewise."""
        added = range(len(prompts), size)
        self._free = set(added)
        self._lines += [_Line([], prompts[0], 0) for _ in added]
        self.logits = torch.cat([self.logits, self.logits.new_zeros(len(added), self.logits.shape[1])])
        return retire(state.select([*range(len(prompts)), *[0] * len(added)]), added)

    def _put(self, places: Sequence[int], state: ModelState, logits: Tensor) -> None:
        """Write rows and their logits to their places."""
        self._steps.admit(places, state)
        self.logits = self.logits.index_copy(0, torch.tensor(places, device=self.device), logits)

    def _begin_again(self, places: list[int]) -> None:
        for place in places:
            self._lines[place].read = 0
        self._steps.retire(places)

    def _step(self, tokens: Tensor, moving: Tensor | None, moves: Sequence[bool]) -> None:
        for line, moved in zip(self._lines, moves, strict=True):
            line.read += moved
        if self._compiled is not None:
            assert moving is None, "all rows of a compiled step advance"
            logits, state = self._compiled(tokens, self.state)
            self._steps.go_on_from(state)
            self.logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return
        read = self.read
        self.logits = self._steps.take(tokens, moving, max(read), uniform=min(read) == max(read) and moving is None)

    def _work(self, tokens: Tensor, state: ModelState, span: Span) -> tuple[Tensor, ModelState]:
        out = self.model.hidden(tokens[:, None], state, span)
        return self._logits(out.y), kept(out.state)

    def _append(self, tokens: list[int], moves: Sequence[bool]) -> list[int]:
        """Append a token to the rows that advance, and return the places of those that enter another regime."""
        longest = 1 + max(len(line.tokens) for line in self._lines)
        if longest >= len(self._regime):
            self._regime = regimes(self.model, max(longest, self._capacity + 1)).tolist()
        stale = []
        for place, (line, token, moved) in enumerate(zip(self._lines, tokens, moves, strict=True)):
            if moved and place not in self._free:
                line.tokens.append(token)
                if self._regime[len(line.tokens)] != self._regime[len(line.tokens) - 1]:
                    stale.append(place)
        return stale

    def _restart(self, places: list[int]) -> None:
        """Prefill the whole rows at ``places`` again; the others do not change."""
        lines = [self._lines[place] for place in places]
        memory = encode_sources(self.model, [line.prompt for line in lines], self.device)
        prefixes = [line.prompt.prefix for line in lines]
        state, last = self._prefill([line.tokens for line in lines], prefixes, memory, self._capacity)
        for line in lines:
            line.read = len(line.tokens)
        if len(lines) < len(self._lines):
            self._put(places, state, self._logits(last))
            return
        self._steps.go_on_from(state)
        self.logits = self._logits(last)

    def _logits(self, h: Tensor) -> Float[Tensor, "B V"]:
        logits = self.model.readout.logits(h)[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _fault(best: float, row: int) -> FailedError:
    """The error of a row whose largest logit is ``best``, which is not finite."""
    if best == -math.inf:
        return FailedError("the model assigns probability zero to every token.", where=f"rows[{row}]",
                           remedy="Use a model with smoothing.")
    return FailedError(f"the model returned a logit of {best}, so no token can be chosen.", where=f"rows[{row}]",
                       remedy="Check the checkpoint with weft check, or use a wider dtype.")


@final
@dataclass
class _Line:
    """The record of a row in a session, besides its state.

    Attributes:
        tokens: the tokens consumed so far if the model may need them for another prefill; otherwise only the prompt's.
        prompt: the prompt with its source.
        read: number of tokens that the state has consumed.
    """

    tokens: list[int]
    prompt: Row
    read: int
