"""Sampling a token from logits: small pure functions on [B,V], applied in this order:

    constraint -> bias -> repetition penalty -> presence and frequency penalty -> temperature -> top-k -> top-p -> min-p
    -> draw

A row's constraint (`weft.decoding.choosing`), top-k, top-p and min-p set the logits of the tokens they remove to -inf;
the last three always leave at least one token. The constraint comes first, so that the others narrow the choice among
the tokens that it allows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from weft.core.errors import InputError

NOISE_BLOCK = 256
"""Random numbers generated for a row at once. A constant, so that a row's numbers do not depend on how many it uses."""


def ensure(name: str, value: object, holds: bool, remedy: str = "Give 1 or more.") -> None:
    """Refuse the value of an option. Raises `InputError`: it does not hold that it is in its range."""
    if not holds:
        raise InputError(f"{value} is out of range.", where=name, remedy=remedy)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: divisor of the logits; 0 chooses the most probable token.
        top_k: keep only the k most probable tokens (Fan et al. 2018).
        top_p: keep only the smallest set of most probable tokens whose probabilities sum to at least p (Holtzman et al.
            2020).
        min_p: keep only tokens at least p times as probable as the most probable one (Nguyen et al. 2024).
        repetition_penalty: for tokens already in the row, positive logits are divided by it and others multiplied
            (Keskar et al. 2019, section 4.1, with the usual correction for negative logits).
        presence_penalty: subtracted from the logits of the row's new tokens so far.
        frequency_penalty: subtracted from them likewise, once for each time that the token was chosen. Both as OpenAI
            defines them: tokens of the prompt do not count.
        bias: ids with the numbers that are added to their logits.

    Raises:
        InputError: a value out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        ensure("temperature", self.temperature, 0 <= self.temperature < math.inf, "Give 0 (greedy) or more.")
        ensure("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "Give a whole number from 1.")
        ensure("top_p", self.top_p, self.top_p is None or 0 < self.top_p <= 1, "Give a number above 0, at most 1.")
        ensure("min_p", self.min_p, self.min_p is None or 0 <= self.min_p <= 1, "Give a number from 0 to 1.")
        ensure("repetition_penalty", self.repetition_penalty, 0 < self.repetition_penalty < math.inf,
               "Give a positive number; 1 changes nothing.")
        added = [(f"bias of id {token}", value) for token, value in self.bias]
        for name, value in (("presence_penalty", self.presence_penalty),
                            ("frequency_penalty", self.frequency_penalty), *added):
            ensure(name, value, math.isfinite(value), "Give a finite number; 0 changes nothing.")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always chosen."""
        return self.temperature == 0

    def choose(self, logits: Float[Tensor, "B V"], seen: Bool[Tensor, "B V"] | None,
               uniform: Float64[Tensor, " B"] | None,
               counts: Int64[Tensor, "B V"] | None = None) -> Int64[Tensor, " B"]:
        """Choose the next token of each row.

        Args:
            seen: True for the tokens that occur in each row; None without a repetition penalty.
            uniform: a random number in [0, 1) for each row; ignored if greedy.
            counts: how often each token was chosen in each row; None without a presence or frequency penalty.
        """
        if self.bias:
            ids, values = zip(*self.bias, strict=True)
            logits = logits.index_add(1, torch.tensor(ids, device=logits.device),
                                      logits.new_tensor(values).expand(len(logits), -1))
        if seen is not None:
            logits = penalise_repetition(logits, seen, self.repetition_penalty)
        if counts is not None:
            logits = logits - self.frequency_penalty * counts - self.presence_penalty * (counts > 0)
        if self.greedy:
            return logits.argmax(-1)
        assert uniform is not None, "sampling needs a random number for each row"
        return draw(self.narrowed(logits / self.temperature), uniform)

    def narrowed(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """The logits, already divided by the temperature, of the tokens that top-k, top-p and min-p keep."""
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        return logits if self.min_p is None else keep_min_p(logits, self.min_p)


GREEDY = Sampling(temperature=0.0)
"""Chooses the most probable token; among equally probable ones, the lowest id."""

PENALTIES = frozenset({"repetition_penalty", "presence_penalty", "frequency_penalty"})
"""Settings that change greedy text too, and so do not ask for sampling."""


def combined(options: Mapping[str, float | None], said: Mapping[str, Any], *, draws: bool) -> Sampling:
    """The sampling that explicit options describe, and a model's files where no option does.

    Args:
        options: values by the names of `Sampling`'s fields; None: not given. One that narrows the choice, or a
            temperature above 0, asks for sampling whatever the files say.
        said: values likewise, and ``do_sample``: whether tokens are drawn.
        draws: whether they are where neither decides.

    Raises:
        InputError: a value out of range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given.keys() <= PENALTIES:
        draws = said.get("do_sample", draws)
    else:
        draws = given.get("temperature") != 0
    fields = Sampling.__dataclass_fields__ if draws else PENALTIES
    heeded = {name: said[name] for name in fields if name in said}
    values: dict[str, Any] = {**heeded, **given}
    return replace(Sampling() if draws else GREEDY, **values)


def penalise_repetition(logits: Float[Tensor, "B V"], seen: Bool[Tensor, "B V"],
                        penalty: float) -> Float[Tensor, "B V"]:
    """Divide the positive logits of seen tokens by ``penalty``, and multiply their other logits by it."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Keep the k largest logits, and all that equal the k-th."""
    if k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < least, -math.inf)


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Keep the most probable tokens, up to and including the one at which their cumulative probability reaches p."""
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    probability = ordered.double().softmax(-1)
    before = probability.cumsum(-1) - probability
    beyond = before >= p
    beyond[:, 0] = False
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, index, beyond), -math.inf)


def keep_min_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Keep the tokens with at least p times the largest probability."""
    if p == 0:
        return logits
    least = logits.max(-1, keepdim=True).values + math.log(p)
    return logits.masked_fill(logits < least, -math.inf)


def draw(logits: Float[Tensor, "B V"], uniform: Float64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Sample from the softmax by inversion: return the first token whose cumulative probability exceeds ``uniform``.
    With one number for each row, a row's sample depends on its own logits and number alone."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    goal = uniform[:, None] * cumulative[:, -1:]
    return (cumulative <= goal).sum(-1).clamp(max=logits.shape[-1] - 1)


def noise(seed: int, row: int) -> Iterator[float]:
    """Yield a uniform random number in [0, 1) for each token of a row, from a generator that is seeded by ``seed`` and
    the row's index alone."""
    digest = hashlib.sha256(f"{seed}/{row}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    while True:
        yield from torch.rand(NOISE_BLOCK, generator=generator, dtype=torch.float64).tolist()
