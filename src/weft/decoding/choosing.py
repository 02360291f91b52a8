"""The choice of the next token of every row of a session, each row with its own sampling settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.errors import FailedError, WeftError
from weft.core.model import LanguageModel
from weft.decoding.rows import Row, require_token
from weft.decoding.sampling import GREEDY, Sampling, ensure, noise
from weft.decoding.session import Session
from weft.decoding.stopping import NEVER, Ending
from weft.gpu.ahead import tokens_ahead
from weft.tokenizers import Tokenizer

Told: TypeAlias = tuple[float | None, tuple[tuple[int, float], ...]]
"""The log-probability of a token, and the most probable ids with theirs, best first; None and empty if not wanted."""
UNTOLD: Told = (None, ())


class Constraint(Protocol):
    """The tokens with which one row may be continued, such as those of a grammar. Where it raises an exception, its row
    fails and the others go on."""

    def allowed(self) -> Bool[Tensor, " V"]:
        """Return which of the model's ids may be chosen next; those that end the row where it may end."""

    def push(self, token: int) -> bool:
        """Consume the token that was chosen, and return whether the row is complete: no other may follow."""


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
        top: number of the most probable tokens to return with each token, with their log-probabilities.
        constraint: makes the constraint of the row before its first token; None: any token may be chosen.
    """

    max_new_tokens: int
    sampling: Sampling = GREEDY
    ending: Ending = NEVER
    row: int = 0
    seed: int = 0
    log_probs: bool = False
    top: int = 0
    constraint: Callable[[], Constraint] | None = None

    def require_usable(self, model: LanguageModel, tokenizer: Tokenizer | None) -> None:
        """Refuse settings that do not suit the model. Raises `InputError`: an ending that could not end a row, a bias
        of an id outside the vocabulary, or a negative ``top``."""
        self.ending.require_usable(model, tokenizer)
        for token, _ in self.sampling.bias:
            require_token(token, model.vocab_size, "sampling.bias")
        ensure("top", self.top, self.top >= 0, "Give 0 or more.")


@final
class Choosing:
    """The state of the choice of a row's tokens besides the logits: its random numbers, the set of its tokens so far
    under a repetition penalty, the number of times that each was chosen under a presence or frequency penalty, its
    constraint, and whether that allows no further token (``complete``). Where nothing alters the choice, the largest
    logit decides (``plainly_greedy``), or it and a random number (``from_logits_alone``), and nothing else is told."""

    def __init__(self, prompt: Row, settings: RowSettings, vocab_size: int) -> None:
        self.settings, sampling = settings, settings.sampling
        self.noise = noise(settings.seed, settings.row)
        self.seen: Bool[Tensor, " V"] | None = None
        self.counts: Int64[Tensor, " V"] | None = None
        if sampling.repetition_penalty != 1:
            self.seen = torch.zeros(vocab_size, dtype=torch.bool)
            self.seen[list(prompt.tokens)] = True
        if sampling.presence_penalty or sampling.frequency_penalty:
            self.counts = torch.zeros(vocab_size, dtype=torch.int64)
        self.constraint = None if settings.constraint is None else settings.constraint()
        self.complete = False
        alone = not sampling.bias and self.seen is None and self.counts is None and self.constraint is None
        self.plainly_greedy = alone and sampling.greedy
        self.from_logits_alone = alone and not settings.log_probs and not settings.top


def choose(session: Session, rows: Mapping[int, Choosing],
           known: int | None) -> tuple[Int64[Tensor, " B"], Mapping[int, Told], dict[int, FailedError]]:
    """Choose the next token of every row.

    Args:
        session: the session that holds the logits.
        rows: the rows to choose for, by place in the batch.
        known: ids from this one on are not chosen.

    Returns:
        The tokens [B], which are meaningless at places outside ``rows`` and of rows that fail; by place the
        log-probabilities of the rows whose settings request them; and by place the errors of the rows that fail: NaN or
        infinity, no token with a probability above zero, or an exception of the constraint.
    """
    named, groups = {place: row.settings.row for place, row in rows.items()}, dict[Sampling, dict[int, Choosing]]()
    ahead = session.ahead and all(row.from_logits_alone for row in rows.values())
    tokens, failed = (torch.empty(0), {}) if ahead else session.likeliest(named, known)
    for place, row in rows.items():
        if not (row.plainly_greedy or place in failed):
            groups.setdefault(row.settings.sampling, {})[place] = row
    if ahead:
        noises = {sampling: {place: row.noise for place, row in group.items()} for sampling, group in groups.items()}
        tokens, best = tokens_ahead(session.logits[:, :known], noises, session.run_ahead)
        return tokens, {}, session.faults(best, named)
    for group in groups.values():
        index = torch.tensor(list(group), device=tokens.device)
        logits = _allowed(session.logits.index_select(0, index)[:, :known], group, failed)
        tokens = tokens.index_copy(0, index, drawn := _drawn(logits, list(group.values())))
        for (place, row), token in zip(group.items(), drawn.tolist(), strict=True):
            if row.constraint is not None and place not in failed:
                with _alone(place, row, failed):
                    row.complete = row.constraint.push(token)
    requested = {place: row.settings.top for place, row in rows.items() if row.settings.log_probs or row.settings.top}
    return tokens, _told(session, tokens, requested, known) if requested else {}, failed


def _allowed(logits: Tensor, group: Mapping[int, Choosing], failed: dict[int, FailedError]) -> Tensor:
    """The logits [rows,V] of a group, -inf for what constraints do not allow; ``failed`` takes those that cannot."""
    masks = dict[int, Tensor]()
    for order, (place, row) in enumerate(group.items()):
        if row.constraint is not None:
            with _alone(place, row, failed):
                masks[order] = row.constraint.allowed()[: logits.shape[1]]
    if not masks:
        return logits
    index, places = torch.tensor(list(masks), device=logits.device), list(group)
    kept = logits.index_select(0, index).masked_fill(~torch.stack(list(masks.values())).to(logits.device), -math.inf)
    for order, best in zip(masks, kept.max(-1).values.tolist(), strict=True):
        with _alone(places[order], group[places[order]], failed):
            if best == -math.inf:
                raise FailedError("it allows no token to which the model gives a probability above zero")
    return logits.index_copy(0, index, kept)


@contextmanager
def _alone(place: int, row: Choosing, failed: dict[int, FailedError]) -> Iterator[None]:
    """Inside, an exception of a row's constraint, which may be anybody's, fails that row alone."""
    try:
        yield
    except Exception as error:  # whose words may name files of this machine
        reason = error.what if isinstance(error, WeftError) else type(error).__name__
        failed[place] = FailedError(f"the constraint failed ({reason}).", where=f"rows[{row.settings.row}]",
                                    remedy="Try again, or use another constraint.")


def _drawn(logits: Tensor, rows: Sequence[Choosing]) -> Tensor:
    """Choose the tokens of rows with equal sampling settings from their logits [rows,V]."""
    uniform, sampling = None, rows[0].settings.sampling
    if not sampling.greedy:
        uniform = torch.tensor([next(row.noise) for row in rows], dtype=torch.float64, device=logits.device)
    marks = [row.seen for row in rows if row.seen is not None]
    sums = [row.counts for row in rows if row.counts is not None]
    seen, counts = (torch.stack(each)[:, : logits.shape[1]].to(logits.device) if each else None
                    for each in (marks, sums))
    tokens = sampling.choose(logits, seen, uniform, counts)
    if marks or sums:
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if row.seen is not None:
                row.seen[token] = True
            if row.counts is not None:
                row.counts[token] += 1
    return tokens


def _told(session: Session, tokens: Tensor, requested: Mapping[int, int], known: int | None) -> Mapping[int, Told]:
    """The log-probabilities of the chosen tokens [B], at the places ``requested``, each with the number of the most
    probable tokens that are told beside it."""
    index = torch.tensor(list(requested), device=tokens.device)
    log_probs = session.logits.index_select(0, index).log_softmax(-1)
    values = log_probs.gather(1, tokens[index, None])[:, 0].tolist()
    best = log_probs[:, :known].topk(min(max(requested.values()), log_probs[:, :known].shape[1]))
    told = zip(requested.items(), values, best.values.tolist(), best.indices.tolist(), strict=True)
    return {place: (value, tuple((token, each) for each, token in sorted(
        zip(likely, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))[:top] if each > -math.inf))
        for (place, top), value, likely, ids in told}
