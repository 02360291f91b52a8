"""The next token of every row of a session, each row by its own rule."""

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
    """How one row is continued, whatever its neighbours do.

    Attributes:
        max_new_tokens: tokens that it gets at most.
        sampling: how they are chosen.
        ending: what ends it before.
        row: its index, by which results and errors name it, and which together with ``seed`` makes its draws.
        seed: of the draws.
        log_probs: give the model's log-probability of each token.
    """

    max_new_tokens: int
    sampling: Sampling = GREEDY
    ending: Ending = NEVER
    row: int = 0
    seed: int = 0
    log_probs: bool = False


@final
class Choosing:
    """What choosing a row's tokens needs besides the logits: its draws, and what it has for a repetition penalty."""

    def __init__(self, prompt: Row, settings: RowSettings, vocab_size: int) -> None:
        self.settings = settings
        self.noise = Noise(settings.seed, settings.row)
        self.seen: Bool[Tensor, " V"] | None = None
        if settings.sampling.repetition_penalty != 1:
            self.seen = torch.zeros(vocab_size, dtype=torch.bool)
            self.seen[list(prompt.tokens)] = True

    @property
    def plainly_greedy(self) -> bool:
        """The most probable token is taken as the model has it."""
        return self.settings.sampling.greedy and self.seen is None


def choose(session: Session, rows: Mapping[int, Choosing],
           known: int | None) -> tuple[Int64[Tensor, " B"], Mapping[int, float]]:
    """Tokens of all rows of the session, those outside ``rows`` being of no meaning, and the log-probabilities that
    were asked for, by place.

    Args:
        session: with the logits.
        rows: by place in the batch.
        known: ids from this one on are not chosen.

    Raises:
        FailedError: NaN or infinity in a row of ``rows``, or no token with a probability above zero.
    """
    tokens = session.likeliest({place: row.settings.row for place, row in rows.items()}, known)
    for sampling, places in _alike(rows):
        index = torch.tensor(places, device=tokens.device)
        found = _drawn(session.logits.index_select(0, index)[:, :known], sampling, [rows[place] for place in places])
        tokens = tokens.index_copy(0, index, found)
    asked = [place for place, row in rows.items() if row.settings.log_probs]
    if not asked:
        return tokens, {}
    values: list[float] = session.log_probs().gather(1, tokens[:, None])[:, 0].tolist()
    return tokens, {place: values[place] for place in asked}


def _alike(rows: Mapping[int, Choosing]) -> Iterator[tuple[Sampling, list[int]]]:
    """Rows of one sampling, which choose in one go; those that take the most probable token are left out."""
    found: dict[Sampling, list[int]] = {}
    for place, row in rows.items():
        if not row.plainly_greedy:
            found.setdefault(row.settings.sampling, []).append(place)
    yield from found.items()


def _drawn(logits: Tensor, sampling: Sampling, rows: Sequence[Choosing]) -> Tensor:
    """Tokens of rows of one sampling."""
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
