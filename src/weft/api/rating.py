"""Ratings of models from pairwise preferences."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from weft.comparison.ratings import (
    BradleyTerry,
    Elo,
    GameFields,
    Ratings,
    Resampling,
    games_of,
    rated,
    read_games,
)
from weft.comparison.ratings.games import Game
from weft.core.errors import InputError


def rate(games: str | Path | Iterable[Game], method: Elo | BradleyTerry | None = None, *,
         fields: GameFields | None = None, resampling: Resampling | None = None) -> Ratings:
    """Rate models by games between two of them, each won by one or tied.

    Args:
        games: a CSV, TSV or JSONL file; or triples of two names and the winner, which is one of the names, a word that
            files may hold (see `weft.comparison.ratings.games.WORDS`), or None for a tie.
        method: with its numbers; None: `BradleyTerry`.
        fields: of the file, see `GameFields`.
        resampling: of the games, for the intervals; None: 1,000 samples.

    Raises:
        DataError: the file or a game cannot be read; Bradley-Terry's likelihood has no maximum.
        InputError: fields are named and the games are no file.
    """
    if isinstance(games, str | Path):
        found = read_games(games, fields)
    elif fields is not None:
        raise InputError("fields are those of a file, and these games are triples.", where="fields",
                         remedy="Leave them out.")
    else:
        found = games_of(games)
    return rated(found, BradleyTerry() if method is None else method,
                 Resampling() if resampling is None else resampling)
