"""Predictions of a head for given rows: classes or values of rows or tokens, and the log-probability of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.core.errors import InputError, UnsupportedError
from weft.core.model import Classifier, Model, Readout
from weft.core.strict_json import Record, plain
from weft.data.labelled import Frame
from weft.data.labelled_words import first_tokens
from weft.data.pairs import ends_of
from weft.evaluation.measuring import evaluating
from weft.evaluation.score import Scored, ScoredRow
from weft.tasks.masked import mask_of
from weft.tasks.whole_rows import ROWS, WholeRow, inputs_of, read, whole_rows
from weft.tokenizers import Tokenizer


@dataclass(frozen=True)
class Answer(Record):
    """The prediction of a classifier for one row.

    Attributes:
        tokens: the row's ids.
        labels: names of the classes, or their numbers where they have none; empty for values.
        scores: log-probabilities of the classes in nats, or values: of the row, of each token, or of each word.
        pooled: whether the prediction is for the row; otherwise there is one for each token or word.
        words: of a row of words, which each have one prediction; empty for other rows.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    pooled: bool
    words: tuple[str, ...] = ()

    @property
    def best(self) -> tuple[str, ...]:
        """The most probable class of the row, or of each token or word; empty for values."""
        chosen = (max(range(len(row)), key=row.__getitem__) for row in self.scores)
        return tuple(self.labels[place] for place in chosen) if self.labels else ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        tokens, labels, scores = plain((self.tokens, self.labels, self.scores))
        words = {"words": plain(self.words)} if self.words else {}
        return {"tokens": tokens, **words, "labels": labels, "best": plain(self.best), "scores": scores}


def text_row(tokenizer: Tokenizer, *texts: str) -> tuple[tuple[int, ...], int]:
    """The ids of one or two texts as a row, and how many at its end belong to the second: an opening token, and a
    closing token after each text, as models with heads are trained (see `weft.data.labelled`)."""
    tokens, second, _ = Frame(tokenizer).around([tokenizer.measure(text) for text in texts])
    return tuple(tokens.tolist()), second


class TextOfWords(NamedTuple):
    """Words as a row: its ids, and the place of each word's first token, which has the word's class."""

    tokens: tuple[int, ...]
    first: tuple[int, ...]


def text_of_words(tokenizer: Tokenizer, words: Sequence[str], where: str) -> TextOfWords:
    """Words, with a space between two, as the task `classify_tokens` reads them. Raises `DataError`: a word has no
    first token of its own, see `weft.data.labelled_words.first_tokens`."""
    text, (opening, closing) = tokenizer.measure(" ".join(words)), ends_of(tokenizer)
    first = first_tokens(words, text.byte_lengths, where) + len(opening)
    return TextOfWords(tuple(np.concatenate([opening, text.ids, closing]).tolist()), tuple(first.tolist()))


def by_word(answer: Answer, words: Sequence[str], first: Sequence[int]) -> Answer:
    """The prediction for each word out of that for each token."""
    return replace(answer, scores=tuple(answer.scores[place] for place in first), words=tuple(words))


def classify(model: Model, rows: Sequence[WholeRow | Sequence[int]],
             seconds: Sequence[int] | None = None, *, size: int = ROWS) -> tuple[Answer, ...]:
    """Predict the classes or values of each row.

    Args:
        model: with a head that predicts classes or values.
        rows: ids, or rows with the types of their tokens and global tokens.
        seconds: of each row, how many ids at its end belong to the second text of a pair; None: none.
        size: number of rows that are computed at once; the results do not depend on it.

    Raises:
        UnsupportedError: the model has no head that predicts classes or values.
        InputError: see `weft.tasks.whole_rows.whole_rows`.
    """
    head = model.head
    if not isinstance(head, Classifier):
        raise UnsupportedError(f"a model of kind {model.config.kind!r} without a head that predicts classes or values.",
                               where="model.head", remedy="Give a model with head: pooled or per_token.")
    checked = whole_rows(model, rows, seconds)
    labels = () if head.values else head.labels or tuple(map(str, range(head.n_outputs)))
    found: list[Answer] = []
    with evaluating(model) as device:
        for group, span, h in read(model, checked, device, size):
            scores = head.scores(h, span).double()
            scores = scores if head.values else scores.log_softmax(-1)
            plain_scores = (_plain(each, len(row.tokens), pooled=head.pooled)
                            for each, row in zip(scores, group, strict=True))
            found += [Answer(row.tokens, labels, each, head.pooled)
                      for row, each in zip(group, plain_scores, strict=True)]
    return tuple(found)


def score_hidden(model: Model, rows: Sequence[WholeRow | Sequence[int]], tokenizer: Tokenizer | None) -> Scored:
    """The log-probability of every token given those on both sides, each hidden in turn: a row's total is its
    pseudo-log-likelihood (Salazar et al. 2020, equation 1), which is not the log-probability of the row. Special tokens
    are read and not scored.

    Raises:
        UnsupportedError: the model has no head that predicts tokens.
        InputError: there is no tokenizer, its mask is outside the model's vocabulary, or see
            `weft.tasks.whole_rows.whole_rows`.
    """
    head = model.head
    if not isinstance(head, Readout):
        raise UnsupportedError(f"a model of kind {model.config.kind!r} without a head that predicts tokens.",
                               where="model.head",
                               remedy="Give a language model, or an encoder with head: masked_token; or ask for what "
                               "the model gives instead (logits=True, --logits FILE).")
    if tokenizer is None:
        raise InputError("there is no tokenizer, whose mask token replaces a hidden token.", where="tokenizer",
                         remedy="Give a checkpoint that has one.")
    checked, mask = whole_rows(model, rows), mask_of(tokenizer)
    if mask >= model.vocab_size:
        raise InputError(f"the tokenizer {tokenizer.name} has no mask token, which replaces a hidden token.",
                         where="tokenizer", remedy="Give a checkpoint whose tokenizer has one.")
    special = {*tokenizer.special_tokens.values(), tokenizer.bos_id, tokenizer.eos_id}
    found = []
    with evaluating(model) as device:
        for row in checked:
            places = [place for place, token in enumerate(row.tokens) if token not in special]
            known: dict[int, float] = {}
            for first in range(0, len(places), ROWS):
                chosen = places[first:first + ROWS]
                known |= dict(zip(chosen, _hidden(model, head, row, chosen, mask, device), strict=True))
            found.append(ScoredRow(row.tokens, tuple(known.get(place) for place in range(len(row.tokens)))))
    return Scored(tuple(found))


def _hidden(model: Model, head: Readout, row: WholeRow, places: list[int], mask: int,
            device: torch.device) -> list[float]:
    """The log-probability of the tokens at ``places``, each hidden in a copy of the row."""
    copies = [replace(row, tokens=(*row.tokens[:place], mask, *row.tokens[place + 1:])) for place in places]
    here = torch.tensor(places, device=device)[:, None]
    targets = torch.tensor([row.tokens[place] for place in places], device=device)[:, None]
    h = model.vectors(inputs_of(copies, device)).y
    h = h.gather(1, here[..., None].expand(-1, 1, h.shape[-1]))
    values: list[float] = head.log_prob(h, targets).double().flatten().tolist()
    return values


def _plain(scores: Tensor, count: int, *, pooled: bool) -> tuple[tuple[float, ...], ...]:
    rows = scores[None] if pooled else scores[:count]
    return tuple(tuple(row) for row in rows.tolist())
