"""Beam search: the most probable continuations under a length penalty, from the best few hypotheses of every step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from weft.core.errors import FailedError, InputError
from weft.core.model import LanguageModel
from weft.core.strict_json import Record, plain, without_none
from weft.decoding.choosing import RowSettings
from weft.decoding.mode import evaluation_mode
from weft.decoding.prompts import of_each_row, prepare
from weft.decoding.rows import Row, RowLike, parse_rows, require_token
from weft.decoding.sampling import ensure
from weft.decoding.session import Session
from weft.decoding.stopping import text_behind
from weft.tokenizers import Tokenizer

MOST_PENALTY = 20
"""Of the exponent of the length: 10 million tokens to the power of 44 are beyond a float. Published ones are below
2."""
LengthFormula: TypeAlias = Literal["power", "gnmt"]
"""How a log-probability is divided by a power of the length: see `length_divisor`."""


def length_divisor(length: int, penalty: float, formula: LengthFormula) -> float:
    """lp(y), by which log p(y) is divided to rank hypotheses of different lengths.

        power   lp(y) = |y|^a
        gnmt    lp(y) = ((5 + |y|) / 6)^a        (Wu et al. 2016, equation 14; Vaswani et al. 2017 take a = 0.6)

    |y| counts the tokens of y with the one that ends it. Both are 1 with a = 0, and equal with |y| = 1.

    Args:
        length: |y|, at least 1.
    """
    return math.pow(length if formula == "power" else (5 + length) / 6, penalty)


@dataclass(frozen=True)
class Hypothesis(Record):
    """One continuation.

    Attributes:
        tokens: the new ids, including the stop token where there is one.
        log_prob: log-probability of all new tokens together, in nats.
        score: ``log_prob`` divided by `length_divisor`, by which hypotheses are ranked.
        stopped: whether the hypothesis ends with a stop token.
        text: the text of the new ids; None without a tokenizer.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    stopped: bool
    text: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data without the fields that are None."""
        return without_none(super().to_json())


@dataclass(frozen=True)
class Beams(Record):
    """The hypotheses of each prompt, the best first."""

    rows: tuple[tuple[Hypothesis, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the hypotheses of each row."""
        return {"rows": [{"hypotheses": plain(row)} for row in self.rows]}


def beam_search(model: LanguageModel, rows: Sequence[RowLike], *, max_new_tokens: int | Sequence[int],
                beams: int = 4, length_penalty: float = 1.0, length_formula: LengthFormula = "power",
                stop: Sequence[int] = (), tokenizer: Tokenizer | None = None, start: int | None = None,
                batch_size: int | None = None, spelled: Sequence[int] = ()) -> Beams:
    """Search the continuation y of each row with the largest log p(y) / lp(y), see `length_divisor`.

    At every step the candidates are all one-token extensions of the active hypotheses, ranked by log p. A candidate
    that ends with a stop token is finished if it is among the ``beams`` best; the ``beams`` best of the others stay
    active. A row is done when no active hypothesis can exceed the score of its worst finished one. With as many beams
    as there are hypotheses the search is exhaustive.

    Args:
        model: any causal language model.
        rows: prompts of different lengths, searched together and independently of each other.
        max_new_tokens: maximum number of tokens of a hypothesis, of all rows or of each.
        beams: number of hypotheses kept for each row, and the most that are returned.
        length_penalty: a; 0 ranks by log p; 1 ranks by its mean over tokens, with the formula ``power``.
        length_formula: see `length_divisor`.
        stop: ids that end a hypothesis.
        tokenizer: decodes the text; ids outside its vocabulary (a model's rounded-up vocabulary) are never chosen.
        start: the token that begins a document, put before empty prompts.
        batch_size: number of rows that are searched together, those of similar lengths of source and prompt; it does
            not change the results. None: all.
        spelled: special tokens that the text spells; it leaves out all others.

    Raises:
        InputError: rows or options that cannot be used.
        UnsupportedError: the model is bidirectional.
        FailedError: the model returns NaN, or probability zero for every token.
    """
    _require_options(beams, length_penalty, length_formula, batch_size)
    for place, token in enumerate(stop):
        require_token(token, model.vocab_size, f"stop[{place}]")
    prompts = prepare(model, parse_rows(list(rows)), max_new_tokens=max_new_tokens, start=start)
    most = of_each_row(max_new_tokens, len(prompts), "max_new_tokens")
    known = model.vocab_size if tokenizer is None else tokenizer.vocab_size
    rule = SearchRule(beams, length_penalty, length_formula, frozenset(stop), known)
    searches = _searched(model, prompts, most, rule, batch_size)
    return Beams(tuple(tuple(_with_text(hypothesis, row, tokenizer, spelled) for hypothesis in search.best())
                       for row, search in zip(prompts, searches, strict=True)))


def _searched(model: LanguageModel, prompts: Sequence[Row], most: Sequence[int], rule: SearchRule,
              batch_size: int | None) -> list[_Search]:
    """The finished search of each prompt."""
    searches = [_Search(index, rule, most[index]) for index in range(len(prompts))]
    with evaluation_mode(model):
        for group in _by_length(prompts, [place for place in range(len(prompts)) if most[place]], batch_size):
            session = Session(model, [prompts[place] for place in group],
                              max_new_tokens=max(most[place] for place in group))
            deque(_steps(session, [searches[place] for place in group], rule), maxlen=0)
    return searches


def begin_search(model: LanguageModel, prompt: Row, settings: RowSettings, rule: SearchRule,
                 tokenizer: Tokenizer | None) -> Iterator[tuple[Hypothesis, ...]]:
    """A search that has read its prompt: an iterator that yields nothing (an empty tuple) after every step and the
    hypotheses at last. To be used in inference mode, with a model in evaluation mode; see `beam_search`."""
    most, spelled = settings.max_new_tokens, settings.ending.spelled
    session, search = Session(model, [prompt], max_new_tokens=most), _Search(0, rule, most)
    ended = (tuple(_with_text(each, prompt, tokenizer, spelled) for each in search.best()) for _ in (None,))
    return chain((() for _ in _steps(session, [search], rule)), ended)


def _by_length(prompts: Sequence[Row], places: Sequence[int], batch_size: int | None) -> list[list[int]]:
    """The ``places`` of prompts in groups of at most ``batch_size``, first the longest, which need the most memory."""
    places = sorted(places, key=lambda place: (-len(prompts[place].source or ()), -len(prompts[place].tokens)))
    size = max(1, len(places)) if batch_size is None else batch_size
    return [places[first:first + size] for first in range(0, len(places), size)]


def _with_text(hypothesis: Hypothesis, prompt: Row, tokenizer: Tokenizer | None, spelled: Sequence[int]) -> Hypothesis:
    """Return the hypothesis with its text, or unchanged without a tokenizer."""
    if tokenizer is None:
        return hypothesis
    return replace(hypothesis, text=text_behind(tokenizer, prompt.tokens, hypothesis.tokens, spelled))


def _require_options(beams: int, length_penalty: float, formula: str, batch_size: int | None) -> None:
    ensure("beams", beams, beams >= 1)
    ensure("length_penalty", length_penalty, 0 <= length_penalty <= MOST_PENALTY, f"Give 0 to {MOST_PENALTY}.")
    if formula not in get_args(LengthFormula):
        raise InputError(f"unknown formula {formula!r}.", where="length_formula",
                         remedy=f"Give {' or '.join(map(repr, get_args(LengthFormula)))}.")
    ensure("batch_size", batch_size, batch_size is None or batch_size >= 1)


@dataclass(frozen=True)
class SearchRule:
    """The options of `beam_search`; ids from ``known`` on are never chosen."""

    beams: int
    length_penalty: float
    length_formula: LengthFormula
    stop: frozenset[int]
    known: int

    def score(self, log_prob: float, length: int) -> float:
        """Return the score of a hypothesis of ``length`` tokens."""
        return log_prob / length_divisor(length, self.length_penalty, self.length_formula)


class _Search:
    """The active and finished hypotheses of one prompt, of at most ``most`` tokens."""

    def __init__(self, row: int, rule: SearchRule, most: int) -> None:
        self.row, self._rule, self._most = row, rule, most
        self.live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        self._finished: list[Hypothesis] = [] if most else [Hypothesis((), 0.0, 0.0, False)]

    def take(self, candidates: Sequence[tuple[int, int, float]]) -> list[int]:
        """Keep the best candidates, and return the index of the hypothesis that each new active one extends.

        Args:
            candidates: (index of an active hypothesis, next token, log p), in descending order of log p.
        """
        parents: list[int] = []
        live: list[tuple[tuple[int, ...], float]] = []
        for rank, (parent, token, log_prob) in enumerate(candidates):
            tokens = (*self.live[parent][0], token)
            if token in self._rule.stop:
                if rank < self._rule.beams:
                    self._finish(tokens, log_prob, True)
            elif len(live) < self._rule.beams:
                live.append((tokens, log_prob))
                parents.append(parent)
        self.live = live
        if live and len(live[0][0]) == self._most:
            for tokens, log_prob in live:
                self._finish(tokens, log_prob, False)
            self.live = []
        elif self._settled():
            self.live = []
        return parents if self.live else []

    def best(self) -> tuple[Hypothesis, ...]:
        """Return the finished hypotheses, the best first. Raises `FailedError`: no hypothesis has finished."""
        if not self._finished:
            raise FailedError("the model assigns probability zero to every continuation.", where=f"rows[{self.row}]",
                              remedy="Use a model with smoothing, or more beams.")
        ranked = sorted(self._finished, key=lambda hypothesis: -hypothesis.score)
        return tuple(ranked[: self._rule.beams])

    def _finish(self, tokens: tuple[int, ...], log_prob: float, stopped: bool) -> None:
        self._finished.append(Hypothesis(tokens, log_prob, self._rule.score(log_prob, len(tokens)), stopped))

    def _settled(self) -> bool:
        """Return whether no active hypothesis can enter the best finished ones.

        A log-probability only decreases with further tokens, so the upper bound of an active hypothesis's score is its
        present log-probability divided by the penalty of the full length.
        """
        if not self.live or len(self._finished) < self._rule.beams:
            return not self.live
        return self._rule.score(self.live[0][1], self._most) <= self.best()[-1].score


def _steps(session: Session, searches: Sequence[_Search], rule: SearchRule) -> Iterator[None]:
    """Extend the active hypotheses of all prompts together until none is left, a token at every step."""
    active = list(searches)
    while active:
        sizes = [len(search.live) for search in active]
        owners = [search.row for search in active for _ in search.live]
        session.require_numbers(dict(enumerate(owners)))
        reached = [log_prob for search in active for _, log_prob in search.live]
        before = torch.tensor(reached, dtype=torch.float64, device=session.device)
        # log p of every extension of every active hypothesis, [B,V]; -inf where an extension is impossible.
        totals = session.logits.log_softmax(-1).double() + before[:, None]
        totals = totals.nan_to_num(nan=-math.inf, neginf=-math.inf)[:, :rule.known]
        places: list[int] = []
        tokens: list[int] = []
        first = 0
        for search, size in zip(active, sizes, strict=True):
            parents = search.take(_ranked(totals[first : first + size], rule))
            places += [first + parent for parent in parents]
            tokens += [hypothesis[-1] for hypothesis, _ in search.live]
            first += size
        active = [search for search in active if search.live]
        if active:
            session.select(torch.tensor(places, device=session.device))
            session.advance(torch.tensor(tokens, device=session.device))
        yield


def _ranked(totals: Tensor, rule: SearchRule) -> list[tuple[int, int, float]]:
    """Return the best extensions of a prompt's active hypotheses: so many that ``beams`` of them end with no stop
    token, of which each hypothesis contributes ``len(rule.stop)`` at most."""
    vocab_size = totals.shape[1]
    number = min(rule.beams * (1 + len(rule.stop)), totals.numel())
    values, places = totals.flatten().topk(number)
    return [(place // vocab_size, place % vocab_size, value)
            for place, value in zip(places.tolist(), values.tolist(), strict=True) if value > -math.inf]
