"""Speculation: a row's next tokens are guessed, read by the model in one call with those that were chosen, and taken as
far as they are what the row chooses.

At every position that was read ahead a row chooses its token as it does without guesses, by the same random number;
where that is the guess, the next position counts too. So a row's tokens are those that it has without guesses, greedy
or drawn, under any setting: a guess is taken with the probability that the model gives it (Leviathan et al. 2023,
section 2.3, with drafts that are certain). Then the state is left with what was taken: one that is stored by order of
tokens is cut, and any other, recurrent or rolling, is taken back by `weft.core.rows.rewind` and reads it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.model import LanguageModel, ModelState
from weft.core.rows import Mark, mark, rewind
from weft.core.span import Span
from weft.decoding.mode import device_of
from weft.decoding.prompts import kept, ragged
from weft.decoding.sampling import ensure
from weft.decoding.session import Session
from weft.serving.prefixes import is_cuttable


class Drafts(ABC):
    """Guesses how a row goes on.

    Args:
        most: number of tokens of a draft, at least 1.
    """

    def __init__(self, most: int) -> None:
        ensure("most", most, most >= 1)
        self.most = most

    @abstractmethod
    def draft(self, tokens: Sequence[int]) -> list[int]:
        """At most ``most`` tokens that may follow ``tokens``, which grow from call to call."""


@final
class PromptDrafts(Drafts):
    """Drafts from the row itself: the tokens that followed its last ones where these stood before (prompt look-up), and
    behind them the draft itself. For text that repeats its prompt, as in editing and summing up.

    Args:
        longest: number of last tokens that are looked for; fewer where so many did not stand there.
    """

    def __init__(self, most: int, longest: int = 3) -> None:
        super().__init__(most)
        self._longest = longest

    def draft(self, tokens: Sequence[int]) -> list[int]:
        for length in range(min(self._longest, len(tokens) - 1), 0, -1):
            goal = tuple(tokens[-length:])
            for first in range(len(tokens) - length - 1, -1, -1):
                if tuple(tokens[first : first + length]) == goal:
                    text = list(tokens)
                    for place in range(first + length, first + length + self.most):
                        text.append(text[place])
                    return text[len(tokens) :]
        return []


@final
class ModelDrafts(Drafts):
    """The most probable tokens of another model with the same vocabulary, which ought to be much smaller.

    Args:
        model: in evaluation mode; of any kind.
    """

    def __init__(self, model: LanguageModel, most: int) -> None:
        super().__init__(most)
        self._model, self._read = model, list[int]()
        self._state: ModelState | None = None

    @torch.inference_mode()
    def draft(self, tokens: Sequence[int]) -> list[int]:
        if self._state is None or len(tokens) <= len(self._read) or list(tokens[: len(self._read)]) != self._read:
            self._state, self._read = self._model.init_state(1, device=device_of(self._model)), []
        best, state = self._run(tokens[len(self._read) :], self._state)
        here, found = mark(state), [best]
        while len(found) < self.most:
            best, state = self._run(found[-1:], state)
            found.append(best)
        self._state, self._read = rewind(state, here), list(tokens)
        return found

    def _run(self, tokens: Sequence[int], state: ModelState) -> tuple[int, ModelState]:
        """The most probable token after ``tokens``, and the state after them."""
        out = self._model.hidden(torch.tensor([list(tokens)], device=device_of(self._model)), state)
        return int(self._model.readout.logits(out.y[:, -1:])[0, -1].argmax()), kept(out.state)


class _Ahead(NamedTuple):
    """A call on guesses: tokens [B,T], how many were read [B], the most of a row, the mark before, the state after."""

    guesses: Mapping[int, list[int]]
    tokens: Tensor
    read: Tensor
    bound: int
    before: Mark[ModelState]
    state: ModelState
    logits: Tensor


@final
class DraftingSession(Session):
    """A session whose rows, by place, read ``guesses`` with the tokens that the next `advance` is given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.guesses: Mapping[int, list[int]] = {}
        self._ahead: _Ahead | None = None
        super().__init__(*args, **{**options, "plain": True})  # a tape would have to be recorded after every guess

    @torch.inference_mode()
    def advance(self, tokens: Int64[Tensor, " B"], moving: Tensor | None = None) -> None:
        """Consume one token in every row, and its guesses; `settle` has to follow."""
        guesses, self.guesses = self.guesses, {}
        if not guesses:
            super().advance(tokens, moving)
            return
        batch = ragged([[token, *guesses.get(place, ())] for place, token in enumerate(tokens.tolist())], self.device)
        batch.count[sorted(self._free)] = 0
        ends = [read + count for read, count in zip(self.read, batch.count.tolist(), strict=True)]
        counts, bound = batch.count if self._free else batch.counts, max(ends)  # without counts no masks are made
        state = self.state
        before = mark(state)
        out = self.model.hidden(batch.tokens, state, Span(
            count=counts, bound=bound, uniform=counts is None and min(ends) == bound))
        logits = self.model.readout.logits(out.y)
        self._ahead = _Ahead(guesses, batch.tokens, batch.count, bound, before, kept(out.state), logits.to(
            torch.promote_types(logits.dtype, torch.float32)))
        self.logits = self._ahead.logits[:, 0]

    @property
    def drafted(self) -> Mapping[int, list[int]]:
        """The guesses that were read and not settled, by place."""
        return {} if self._ahead is None else self._ahead.guesses

    def look(self, place: int, tokens: Mapping[int, int]) -> list[int]:
        """Let the logits be those after so many guesses, and return the rows whose last one was the given token."""
        assert self._ahead is not None, "guesses were read"
        found = [row for row, token in tokens.items() if self._ahead.guesses.get(row, ())[place - 1 : place] == [token]]
        self.logits = self._ahead.logits[:, place] if found else self.logits
        return found

    @torch.inference_mode()
    def settle(self, taken: Mapping[int, int]) -> None:
        """Let the state hold the tokens that were chosen, and of each row as many guesses as were ``taken``."""
        assert self._ahead is not None, "guesses were read"
        (_, tokens, count, bound, before, state, _), self._ahead = self._ahead, None
        wanted = count.clamp(max=1)
        for place, number in taken.items():
            wanted[place] = 1 + number
        if is_cuttable(state):
            limit = before.kept.clock.seen + wanted
            state = state.map(lambda tensor, spec: tensor.minimum(limit) if spec.restarts else tensor)
        elif not torch.equal(wanted, count):
            most = int(wanted.max())
            back = self.model.hidden(tokens[:, :most], rewind(state, before), Span(count=wanted, bound=bound))
            state = kept(back.state)
        self._steps.go_on_from(state)
        for line, number in zip(self._lines, wanted.tolist(), strict=True):
            line.read += number
