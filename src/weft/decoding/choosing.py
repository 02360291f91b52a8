"""The choice of the next token of every row of a session, each row with its own sampling settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.decoding.rows import Row
from weft.decoding.sampling import GREEDY, Noise, Sampling
from weft.decoding.session import Session
from weft.decoding.stopping import NEVER, Ending


@final
@dataclass(frozen=True)
class RowSettings:
    """How one row is continued, independently of the other rows of its batch.

    Attributes:
        max_new_tokens: maximum number of new tokens.
        sampling: how the tokens are chosen.
        ending: what ends the row before ``max_new_tokens``.
        row: the row's index, which names it in results and errors and, with ``seed``, determines its random numbers.
        seed: seed of the random numbers.
        log_probs: whether to return the model's log-probability of each token.
    """

    max_new_tokens: int
    sampling: Sampling = GREEDY
    ending: Ending = NEVER
    row: int = 0
    seed: int = 0
    log_probs: bool = False


@final
class Choosing:
    """The state of the choice of a row's tokens besides the logits: its random numbers and, under a repetition penalty,
    the set of its tokens so far."""

    def __init__(self, prompt: Row, settings: RowSettings, vocab_size: int) -> None:
        self.settings = settings
        self.noise = Noise(settings.seed, settings.row)
        self.seen: Bool[Tensor, " V"] | None = None
        if settings.sampling.repetition_penalty != 1:
            self.seen = torch.zeros(vocab_size, dtype=torch.bool)
            self.seen[list(prompt.tokens)] = True

    @property
    def plainly_greedy(self) -> bool:
        """Whether the token with the largest unmodified logit is chosen."""
        return self.settings.sampling.greedy and self.seen is None


def choose(session: Session, rows: Mapping[int, Choosing],
           known: int | None) -> tuple[Int64[Tensor, " B"], Mapping[int, float]]:
    """Choose the next token of every row.

    Args:
        session: the session that holds the logits.
        rows: the rows to choose for, by place in the batch.
        known: ids from this one on are not chosen.

    Returns:
        The tokens [B], which are meaningless at places outside ``rows``; and by place the log-probabilities of the
        rows whose settings request them.

    Raises:
        FailedError: NaN or infinity in a row of ``rows``, or no token with a probability above zero.
    """
    tokens = session.likeliest({place: row.settings.row for place, row in rows.items()}, known)
    for sampling, places in _alike(rows):
        index = torch.tensor(places, device=tokens.device)
        drawn = _drawn(session.logits.index_select(0, index)[:, :known], sampling, [rows[place] for place in places])
        tokens = tokens.index_copy(0, index, drawn)
    requested = [place for place, row in rows.items() if row.settings.log_probs]
    if not requested:
        return tokens, {}
    values: list[float] = session.log_probs().gather(1, tokens[:, None])[:, 0].tolist()
    return tokens, {place: values[place] for place in requested}


def _alike(rows: Mapping[int, Choosing]) -> Iterator[tuple[Sampling, list[int]]]:
    """Yield groups of places with equal sampling settings, without the rows that are plainly greedy."""
    groups: dict[Sampling, list[int]] = {}
    for place, row in rows.items():
        if not row.plainly_greedy:
            groups.setdefault(row.settings.sampling, []).append(place)
    yield from groups.items()


def _drawn(logits: Tensor, sampling: Sampling, rows: Sequence[Choosing]) -> Tensor:
    """Choose the tokens of rows with equal sampling settings from their logits [rows,V]."""
    uniform = None
    if not sampling.greedy:
        uniform = torch.tensor([row.noise.next() for row in rows], dtype=torch.float64, device=logits.device)
    marks = [row.seen for row in rows if row.seen is not None]
    seen = torch.stack(marks)[:, : logits.shape[1]].to(logits.device) if marks else None
    tokens = sampling.choose(logits, seen, uniform)
    if marks:
        for mark, token in zip(marks, tokens.tolist(), strict=True):
            mark[token] = True
    return tokens
