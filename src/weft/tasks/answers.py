"""Predictions of a head for given rows: classes or values of rows or tokens, and the log-probability of each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.core.errors import InputError, UnsupportedError
from weft.core.model import Classifier, EncoderInputs, Model, Readout
from weft.core.span import Span
from weft.core.strict_json import Record, plain
from weft.data.labelled import Frame
from weft.evaluation.measuring import evaluating
from weft.evaluation.score import Scored, ScoredRow
from weft.tasks.masked import mask_of
from weft.tokenizers import Tokenizer

ROWS = 16
"""Rows of a batch; the results do not depend on it."""


@dataclass(frozen=True)
class Answer(Record):
    """The prediction of a classifier for one row.

    Attributes:
        tokens: the row's ids.
        labels: names of the classes, or their numbers where they have none; empty for values.
        scores: log-probabilities of the classes in nats, or values: of the row, or of each token.
        pooled: whether the prediction is for the row; otherwise there is one for each token.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    pooled: bool

    @property
    def best(self) -> tuple[str, ...]:
        """The most probable class of the row, or of each token; empty for values."""
        chosen = (max(range(len(row)), key=row.__getitem__) for row in self.scores)
        return tuple(self.labels[place] for place in chosen) if self.labels else ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        tokens, labels, scores = plain((self.tokens, self.labels, self.scores))
        return {"tokens": tokens, "labels": labels, "best": plain(self.best), "scores": scores}


class TextRow(NamedTuple):
    """A text, or a pair of texts, as a row: its ids, and how many at its end belong to the second text."""

    tokens: tuple[int, ...]
    second: int


def text_row(tokenizer: Tokenizer, *texts: str) -> TextRow:
    """One or two texts as a row: an opening token, and a closing token after each text, as models with heads are
    trained (see `weft.data.labelled`)."""
    tokens, second, _ = Frame(tokenizer).around([tokenizer.measure(text) for text in texts])
    return TextRow(tuple(tokens.tolist()), second)


def classify(model: Model, rows: Sequence[Sequence[int]], seconds: Sequence[int] | None = None) -> tuple[Answer, ...]:
    """Predict the classes or values of each row.

    Args:
        model: with a head that predicts classes or values.
        rows: ids.
        seconds: of each row, how many ids at its end belong to the second text of a pair; None: none.

    Raises:
        UnsupportedError: the model has no head that predicts classes or values.
        InputError: a row is empty, too long, or has ids outside the vocabulary.
    """
    head = model.head
    if not isinstance(head, Classifier):
        raise UnsupportedError(f"a model of kind {model.config.kind!r} without a head that predicts classes or values.",
                               where="model.head", remedy="Give a model with head: pooled or per_token.")
    _check(model, rows)
    labels = () if head.values else head.labels or tuple(map(str, range(head.n_outputs)))
    found: list[Answer] = []
    with evaluating(model) as device:
        for tokens, span, h in _read(model, rows, [0] * len(rows) if seconds is None else seconds, device):
            scores = head.scores(h, span).double()
            scores = scores if head.values else scores.log_softmax(-1)
            found += [Answer(row, labels, _plain(scores[place], len(row), pooled=head.pooled), head.pooled)
                      for place, row in enumerate(tokens)]
    return tuple(found)


def score_hidden(model: Model, rows: Sequence[Sequence[int]], tokenizer: Tokenizer | None) -> Scored:
    """The log-probability of every token given those on both sides, each hidden in turn: a row's total is its
    pseudo-log-likelihood (Salazar et al. 2020, equation 1), which is not the log-probability of the row. Special tokens
    are read and not scored.

    Raises:
        UnsupportedError: the model has no head that predicts tokens.
        InputError: there is no tokenizer, or a row is empty, too long, or has ids outside the vocabulary.
    """
    head = model.head
    if not isinstance(head, Readout):
        raise UnsupportedError(f"a model of kind {model.config.kind!r} without a head that predicts tokens.",
                               where="model.head",
                               remedy="Give a language model, or an encoder with head: masked_token.")
    if tokenizer is None:
        raise InputError("there is no tokenizer, whose mask token replaces a hidden token.", where="tokenizer",
                         remedy="Give a checkpoint that has one.")
    _check(model, rows)
    special = {*tokenizer.special_tokens.values(), tokenizer.bos_id, tokenizer.eos_id}
    found = []
    with evaluating(model) as device:
        for row in rows:
            here = torch.tensor(row, device=device)
            places = [place for place, token in enumerate(row) if token not in special]
            known: dict[int, float] = {}
            for first in range(0, len(places), ROWS):
                chosen = places[first:first + ROWS]
                known |= dict(zip(chosen, _hidden(model, head, here, chosen, mask_of(tokenizer)), strict=True))
            found.append(ScoredRow(tuple(row), tuple(known.get(place) for place in range(len(row)))))
    return Scored(tuple(found))


def _hidden(model: Model, head: Readout, row: Tensor, places: list[int], mask: int) -> list[float]:
    """The log-probability of the tokens at ``places``, each hidden in a copy of the row."""
    tokens = row.expand(len(places), -1)
    here = torch.tensor(places, device=tokens.device)[:, None]
    targets = tokens.gather(1, here)
    h = model.vectors(_inputs(model, tokens.scatter(1, here, mask), torch.zeros_like(tokens))).y
    h = h.gather(1, here[..., None].expand(-1, 1, h.shape[-1]))
    values: list[float] = head.log_prob(h, targets).double().flatten().tolist()
    return values


def _read(model: Model, rows: Sequence[Sequence[int]], seconds: Sequence[int],
          device: torch.device) -> Iterator[tuple[list[tuple[int, ...]], Span, Tensor]]:
    """Batches of rows with their spans and hidden vectors."""
    for first in range(0, len(rows), ROWS):
        group = [tuple(row) for row in rows[first:first + ROWS]]
        counts = torch.tensor([len(row) for row in group], device=device)
        tokens = counts.new_zeros(len(group), int(counts.max()))
        types = torch.zeros_like(tokens)
        for place, row in enumerate(group):
            tokens[place, :len(row)] = counts.new_tensor(row)
            types[place, len(row) - seconds[first + place]:len(row)] = 1
        span = Span(count=counts)
        yield group, span, model.vectors(_inputs(model, tokens, types), span).y


def _inputs(model: Model, tokens: Tensor, types: Tensor) -> EncoderInputs:
    """The inputs of texts or pairs, with the types 0 and 1 of their tokens if the model reads types."""
    return EncoderInputs(tokens=tokens, types=types if "types" in model.reads() else None)


def _plain(scores: Tensor, count: int, *, pooled: bool) -> tuple[tuple[float, ...], ...]:
    rows = scores[None] if pooled else scores[:count]
    return tuple(tuple(row) for row in rows.tolist())


def _check(model: Model, rows: Sequence[Sequence[int]]) -> None:
    limit, size = model.limit(), model.vocab_size
    for index, row in enumerate(rows):
        if not row:
            raise InputError("no tokens.", where=f"rows[{index}]", remedy="Give at least one.")
        if limit is not None and len(row) > limit:
            raise InputError(f"{len(row)} tokens, and this model has positions for {limit} tokens.",
                             where=f"rows[{index}]", remedy="Give a shorter row.")
        if not all(0 <= token < size for token in row):
            raise InputError(f"an id outside the vocabulary, 0 .. {size - 1}.", where=f"rows[{index}]",
                             remedy="Encode the text with the tokenizer that the model was trained with.")
