"""Pairwise preferences: who met whom, and who won. Checks of the numbers that define a scale of ratings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

from weft.core.errors import DataError, InputError
from weft.data.compression import content_suffix
from weft.data.records import JSONL_SUFFIXES, TABLE_SUFFIXES, field_names, records, text_of

SUFFIXES = TABLE_SUFFIXES | JSONL_SUFFIXES
FIRST, TIE, SECOND = 1.0, 0.5, 0.0
"""Scores of the first of two models."""

WORDS = {"model_a": FIRST, "model_b": SECOND, "tie": TIE, "draw": TIE,
         "tie (bothbad)": TIE, "tie (both bad)": TIE, "both_bad": TIE, "bothbad": TIE}
"""What the winner's field may hold, in lower case, besides the name of one of the two models."""

FLAGS = {"winner_model_a": FIRST, "winner_model_b": SECOND, "winner_tie": TIE}
"""Fields of which exactly one is 1 or true, where no field names the winner."""

SET = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}

Game: TypeAlias = tuple[str, str, Any]
"""The two names, and the winner: one of the names, a word of ``WORDS``, or None for a tie."""


class GameFields(NamedTuple):
    """The fields of a file of preferences, which the published data of arenas name so by default.

    Attributes:
        model_a_field: the first model's name.
        model_b_field: the second's.
        winner_field: who won; None: ``winner`` if the file has it, or else the three fields ``winner_model_a``,
            ``winner_model_b`` and ``winner_tie``, of which one is 1 or true.
    """

    model_a_field: str = "model_a"
    model_b_field: str = "model_b"
    winner_field: str | None = None


@dataclass(frozen=True, eq=False)
class Games:
    """N games between M models, in order.

    Attributes:
        names: of the models, sorted.
        first: places in ``names`` of the first of the two.
        score: of the first: 1 won, 0.5 tied, 0 lost.
    """

    names: tuple[str, ...]
    first: Int64[np.ndarray, " N"]
    second: Int64[np.ndarray, " N"]
    score: Float64[np.ndarray, " N"]

    @property
    def ties(self) -> int:
        """Games that no one won."""
        return int((self.score == TIE).sum())

    def played(self) -> Int64[np.ndarray, " M"]:
        """Games of each model."""
        return np.bincount(self.first, minlength=len(self.names)) + np.bincount(self.second, minlength=len(self.names))

    def points(self) -> Float64[np.ndarray, " M"]:
        """Games that each model won, ties counted as halves."""
        most = len(self.names)
        return (np.bincount(self.first, weights=self.score, minlength=most)
                + np.bincount(self.second, weights=1 - self.score, minlength=most))


def read_games(path: str | Path, fields: GameFields | None = None) -> Games:
    """The games of a CSV, TSV or JSONL file. Raises `DataError`: there is no such file, or its name ends otherwise; a
    field is missing; a winner is neither of the two models; a model meets itself; no game is in the file."""
    path, fields = Path(path), GameFields() if fields is None else fields
    suffix = content_suffix(path)
    if path.is_dir() or suffix not in SUFFIXES:
        what = "a folder" if path.is_dir() else f"its name ends in {suffix or 'nothing'}"
        raise DataError(f"preferences are read from files of {', '.join(sorted(SUFFIXES))}, and this is not one: "
                        f"{what}.", where=str(path), remedy="Give such a file, or rename it to the suffix of its "
                        f"format{' (one JSON object a line: .jsonl)' * (suffix == '.json')}.")
    return _collected(_in_file(path, suffix, fields), str(path))


def games_of(given: Iterable[Game]) -> Games:
    """Games from triples of two names and the winner, for which None stands for a tie. Raises `DataError`: as
    `read_games`; ``where`` has the place of the game."""
    return _collected(((f"games[{place}]", first, second, _score(first, second, winner, f"games[{place}]"))
                       for place, (first, second, winner) in enumerate(given)), "games")


def _collected(found: Iterable[tuple[str, str, str, float]], where: str) -> Games:
    firsts, seconds, scores, places = [], [], [], dict[str, int]()
    for row, first, second, score in found:
        if first == second:
            raise DataError(f"{first!r} meets itself, which says nothing about it.", where=row,
                            remedy="Leave that game out.")
        firsts.append(places.setdefault(first, len(places)))
        seconds.append(places.setdefault(second, len(places)))
        scores.append(score)
    if not scores:
        raise DataError("there is no game.", where=where, remedy="Give one game a line.")
    names = tuple(sorted(places))
    sorted_places = np.empty(len(names), np.int64)
    sorted_places[[places[name] for name in names]] = np.arange(len(names))
    return Games(names, sorted_places[firsts], sorted_places[seconds], np.array(scores))


def _in_file(path: Path, suffix: str, fields: GameFields) -> Iterator[tuple[str, str, str, float]]:
    present = field_names(path, suffix)
    winner = "winner" if fields.winner_field is None else fields.winner_field
    names = {"model_a_field": fields.model_a_field, "model_b_field": fields.model_b_field}
    flagged = fields.winner_field is None and "winner" not in present and set(FLAGS) <= set(present)
    asked = {**names, **({name: name for name in FLAGS} if flagged else {"winner_field": winner})}
    for record in records(path, suffix, asked):
        first, second = (text_of(value, setting, field, record.where).strip()
                         for value, (setting, field) in zip(record.values[:2], names.items(), strict=True))
        if not first or not second:
            raise DataError("a model without a name.", where=record.where, remedy="Name both models of every game.")
        score = (_flagged(record.values[2:], record.where) if flagged
                 else _score(first, second, _said(record.values[2], winner, record.where, suffix), record.where))
        yield record.where, first, second, score


def _said(value: Any, field: str, where: str, suffix: str) -> str:
    """The winner's field: a file says ties in a word, since nothing at all may as well be an answer that is missing."""
    if value is None or not str(value).strip():
        empty = "null" if suffix in JSONL_SUFFIXES and value is None else "empty"
        raise DataError(f"the field {field!r} is {empty}.", where=where,
                        remedy="Name the winner, or write tie, or leave that game out.")
    return str(value).strip()


def _score(first: str, second: str, winner: Any, where: str) -> float:
    if winner is None:
        return TIE
    by_name = {first: FIRST, second: SECOND}.get(winner)
    by_word = WORDS.get(str(winner).lower())
    if by_name is not None and by_word is not None and by_name != by_word:
        raise DataError(f"the winner {winner!r} is the name of one model and the word for another outcome.",
                        where=where, remedy="Give that model another name.")
    score = by_word if by_name is None else by_name
    if score is None:
        raise DataError(f"the winner is {str(winner)!r}, and the game is between {first!r} and {second!r}.",
                        where=where, remedy="Write one of these two names, model_a, model_b, or tie.")
    return score


def _flagged(values: tuple[Any, ...], where: str) -> float:
    said = [SET.get(str(value).strip().lower()) for value in values]
    if None in said or said.count(True) != 1:
        shown = ", ".join(f"{name} {value!r}" for name, value in zip(FLAGS, values, strict=True))
        raise DataError(f"exactly one of the outcomes must be 1 and the others 0: {shown}.", where=where,
                        remedy="Correct that row, or leave it out.")
    return list(FLAGS.values())[said.index(True)]


def require_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite. Raises `InputError`: it is not."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{value}, which must be positive and finite.", where=name, remedy="Give a positive number.")
