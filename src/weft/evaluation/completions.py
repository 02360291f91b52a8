"""Log-probabilities of completions: of some tokens, given those before them in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from weft.core.errors import FailedError, InputError, UnsupportedError
from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.core.strict_json import Record
from weft.decoding.mode import declares_length, device_of, evaluation_mode, require_causal, require_room
from weft.decoding.prompts import ragged
from weft.decoding.rows import require_token

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many of how many requests are done."""

AT_ONCE = 64
"""Positions of a row whose logits [T,V] are in memory at once, to find the most probable tokens."""


@dataclass(frozen=True)
class Completion:
    """Tokens to score, and those before them.

    Attributes:
        context: ids that are read first; at least one.
        targets: ids that are scored; at least one.
    """

    context: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Likelihood(Record):
    """The likelihood of a completion under a model.

    Attributes:
        log_prob: the sum of the log-probabilities of the targets, in nats; -inf if one of them has probability zero.
        greedy: whether each target is the most probable token at its place, so that greedy decoding would write them
            (of equally probable tokens that with the lowest id).
        tokens: the number of targets.
        cut: how many tokens of the context were left out, on the left, since the row is longer than the window.
    """

    log_prob: float
    greedy: bool
    tokens: int
    cut: int


def likelihoods(model: LanguageModel, completions: Sequence[Completion], *, window: int, batch_size: int = 8,
                progress: Progress | None = None) -> list[Likelihood]:
    """The likelihood of each completion, in their order.

    The model reads a row of at most ``window`` tokens, the last of which predicts the last target; of a longer one the
    beginning is left out. Completions that read the same tokens, such as one letter each after one question, are
    computed by one row.

    Args:
        model: any causal language model without a source; it is scored in evaluation mode.
        completions: in any order; rows of similar length run together.
        window: the most tokens that a row may read.
        batch_size: rows that run together; it does not change the results.
        progress: told before the first batch and after every batch.

    Raises:
        InputError: no context, no targets, more targets than the window, ids outside the vocabulary, a window beyond
            the model's positions, or a batch size below 1.
        UnsupportedError: the model is bidirectional, or decodes from a source.
        FailedError: the model's output is NaN.
    """
    _require_usable(model, completions, window, batch_size)
    rows: dict[tuple[int, ...], list[int]] = {}
    for place, each in enumerate(completions):
        rows.setdefault((*each.context, *each.targets)[-window - 1 : -1], []).append(place)
    longest = max(map(len, rows), default=0)
    require_room(model, longest, "context", f"rows of {longest} tokens", "Give a smaller context.")
    order = sorted(rows, key=len, reverse=True)
    found: dict[int, Likelihood] = {}
    if progress is not None:
        progress(0, len(completions))
    with evaluation_mode(model), torch.inference_mode():
        for first in range(0, len(order), batch_size):
            group = order[first : first + batch_size]
            for row, h in zip(group, _hidden(model, group), strict=True):
                for place in rows[row]:
                    found[place] = _likelihood(model, h, completions[place], window, place)
            if progress is not None:
                progress(len(found), len(completions))
    return [found[place] for place in range(len(completions))]


def _require_usable(model: LanguageModel, completions: Sequence[Completion], window: int, batch_size: int) -> None:
    require_causal(model, "scoring completions")
    if model.takes_source:
        raise UnsupportedError("this model decodes from a source, and a prompt is none.", where=type(model).__name__,
                               remedy="Give a decoder or another model of running text.")
    if batch_size < 1:
        raise InputError(f"{batch_size} rows.", where="batch_size", remedy="Give 1 or more.")
    for place, each in enumerate(completions):
        where = f"completions[{place}]"
        if not each.context or not each.targets:
            raise InputError(f"no {'context' if each.targets else 'targets'}.", where=where,
                             remedy="Give at least one id before the targets, and at least one target.")
        if len(each.targets) > window:
            raise InputError(f"{len(each.targets)} targets, and a row has {window} tokens.", where=where,
                             remedy="Give a larger context, or shorter completions.")
        for token in (min(*each.context, *each.targets), max(*each.context, *each.targets)):
            require_token(token, model.vocab_size, where)


def _hidden(model: LanguageModel, rows: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The input of the readout for every token of each row, [1,T,...]."""
    batch = ragged(rows, device_of(model))
    h = model.hidden(batch.tokens, None, Span(count=batch.counts,
                                              horizon=batch.count if declares_length(model) else None)).y
    return [h[place : place + 1, : len(row)] for place, row in enumerate(rows)]


def _likelihood(model: LanguageModel, h: Tensor, wanted: Completion, window: int, place: int) -> Likelihood:
    scored = h[:, h.shape[1] - len(wanted.targets) :]
    targets = torch.tensor([wanted.targets], device=h.device)
    total = float(model.readout.log_prob(scored, targets).double().sum())
    if math.isnan(total):
        raise FailedError("the model gives NaN.", where=f"completions[{place}]",
                          remedy="Check the checkpoint with weft check, or use a wider dtype.")
    greedy = all(bool((model.readout.logits(scored[:, first : first + AT_ONCE]).argmax(-1)
                       == targets[:, first : first + AT_ONCE]).all())
                 for first in range(0, len(wanted.targets), AT_ONCE))
    cut = max(0, len(wanted.context) + len(wanted.targets) - window - 1)
    return Likelihood(total, greedy, len(wanted.targets), cut)
