"""Speculative decoding: a draft of several tokens is read by the model in one call, and its first tokens are taken as
far as the model would have chosen them.

    found = speculate(model, [5, 3, 9, 5, 3], 100, PromptDrafts(4))
    found.tokens                    those that the model alone gives; found.calls is how often it was run

A token d of a draft is taken with the probability p(d) that the model gives it under the sampling settings; where it is
refused, the token is drawn from p without d. So tokens have the model's distribution, whatever the draft (Leviathan et
al. 2023, section 2.3, with drafts that are certain), and greedy ones are the model's own. After a refusal the state is
taken back by `weft.core.rows.rewind` and reads the accepted tokens again, which every state allows: also recurrent and
rolling ones, that cannot forget their last tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from weft.core.errors import InputError
from weft.core.model import LanguageModel, ModelState
from weft.core.rows import mark, rewind
from weft.core.span import Span
from weft.decoding import GREEDY, Row, Sampling
from weft.decoding.mode import declares_length, device_of, evaluation_mode
from weft.decoding.prompts import kept, prepare
from weft.decoding.sampling import noise


class Drafts(ABC):
    """Guesses how a row goes on.

    Args:
        most: number of tokens of a draft, at least 1.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise InputError(f"{most} is out of range.", where="most", remedy="Give 1 or more.")
        self.most = most

    @abstractmethod
    def draft(self, tokens: Sequence[int]) -> list[int]:
        """At most ``most`` tokens that may follow ``tokens``, which grow from call to call."""


@final
class PromptDrafts(Drafts):
    """Drafts from the row itself: the tokens that followed its last ones where these stood before (prompt look-up). For
    text that repeats its prompt, as in editing and summing up.

    Args:
        longest: number of last tokens that are looked for; fewer where so many did not stand there.
    """

    def __init__(self, most: int, longest: int = 3) -> None:
        super().__init__(most)
        self._longest = longest

    def draft(self, tokens: Sequence[int]) -> list[int]:
        """See `Drafts.draft`."""
        for length in range(min(self._longest, len(tokens) - 1), 0, -1):
            goal = tuple(tokens[-length:])
            for first in range(len(tokens) - length - 1, -1, -1):
                if tuple(tokens[first : first + length]) == goal:
                    return list(tokens[first + length : first + length + self.most])
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
        """See `Drafts.draft`."""
        if self._state is None or len(tokens) <= len(self._read) or list(tokens[: len(self._read)]) != self._read:
            self._state, self._read = self._model.init_state(1, device=device_of(self._model)), []
        logits, state = _run(self._model, tokens[len(self._read) :], self._state)
        here, found = mark(state), [int(logits[-1].argmax())]
        while len(found) < self.most:
            logits, state = _run(self._model, found[-1:], state)
            found.append(int(logits[-1].argmax()))
        self._state, self._read = rewind(state, here), list(tokens)
        return found


@final
@dataclass(frozen=True)
class Speculated:
    """The continuation of a row.

    Attributes:
        tokens: the new ids.
        drafted: number of tokens that were drafted.
        accepted: how many of them were taken.
        calls: number of times that the model was run after the prompt, of which each gives one token without drafts.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    calls: int


@torch.inference_mode()
def speculate(model: LanguageModel, prompt: Sequence[int], max_new_tokens: int, drafts: Drafts, *,
              sampling: Sampling = GREEDY, stop: Sequence[int] = (), seed: int = 0) -> Speculated:
    """Continue a prompt by as many tokens as it takes alone, in fewer runs of the model where drafts are right.

    Args:
        model: any causal language model.
        prompt: ids, at least one.
        drafts: what guesses the next tokens.
        sampling: how tokens are chosen; without penalties and biases.
        stop: ids that end the row.
        seed: of the random numbers.

    Raises:
        InputError: the prompt or the settings cannot be used, or positions of the model turn with the length.
        UnsupportedError: the model is bidirectional.
    """
    row, = prepare(model, [Row(tuple(prompt))], max_new_tokens=max_new_tokens, start=None)
    _require_draftable(model, sampling)
    tokens, numbers = list(row.tokens), noise(seed, 0)
    drafted = accepted = calls = 0
    new = list[int]()
    with evaluation_mode(model):
        state = model.init_state(1, capacity=len(tokens) + max_new_tokens + drafts.most, device=device_of(model))
        if len(tokens) > 1:
            _, state = _run(model, tokens[:-1], state)
        while len(tokens) - len(row.tokens) < max_new_tokens and set(stop).isdisjoint(new):
            guess = drafts.draft(tokens)[: max_new_tokens - 1 + len(row.tokens) - len(tokens)]
            here = mark(state) if guess else None
            logits, after = _run(model, [tokens[-1], *guess], state)
            new = _taken(logits, guess, sampling, numbers)
            calls, drafted, accepted = calls + 1, drafted + len(guess), accepted + len(new) - 1
            if here is not None and len(new) <= len(guess):
                ids = torch.tensor([[tokens[-1], *guess]], device=logits.device)
                back = model.hidden(ids, rewind(after, here), Span(count=torch.tensor([len(new)], device=ids.device)))
                calls, after = calls + 1, kept(back.state)
            state, tokens = after, tokens + new
    ends = [place for place, token in enumerate(tokens) if place >= len(row.tokens) and token in stop]
    return Speculated(tuple(tokens[len(row.tokens) : ends[0] + 1 if ends else None]), drafted, accepted, calls)


def _require_draftable(model: LanguageModel, sampling: Sampling) -> None:
    plain = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    if sampling != plain or declares_length(model):
        raise InputError("drafts are taken without penalties and biases." if sampling != plain else
                         "positions of this model turn with the length of the row, so no draft can be read ahead.",
                         where="sampling" if sampling != plain else "model", remedy="Continue the row without drafts.")


def _taken(logits: Tensor, guess: Sequence[int], sampling: Sampling, numbers: Iterator[float]) -> list[int]:
    """The accepted tokens of a draft, and the one that the model chooses behind them, from its logits [1 + draft,V]."""
    found = list[int]()
    for place, line in enumerate(logits):
        wanted = guess[place] if place < len(guess) else None
        token = _chosen(line, wanted, sampling, numbers)
        found.append(token)
        if token != wanted:
            break
    return found


def _chosen(logits: Tensor, wanted: int | None, sampling: Sampling, numbers: Iterator[float]) -> int:
    """A token with the distribution that the settings make of logits [V]: ``wanted`` with its probability."""
    if sampling.greedy:
        return int(logits.argmax())
    shares = sampling.narrowed(logits[None] / sampling.temperature)[0].softmax(-1)
    if wanted is not None and next(numbers) < float(shares[wanted]):
        return wanted
    if wanted is not None:
        shares[wanted] = 0
    cumulative = shares.cumsum(0)
    return int((cumulative <= next(numbers) * cumulative[-1]).sum().clamp(max=len(shares) - 1))


def _run(model: LanguageModel, tokens: Sequence[int], state: ModelState) -> tuple[Tensor, ModelState]:
    """The logits after each of ``tokens`` [T,V], and the state after them."""
    out = model.hidden(torch.tensor([list(tokens)], device=device_of(model)), state)
    return model.readout.logits(out.y)[0].double(), kept(out.state)
