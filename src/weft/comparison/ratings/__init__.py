"""Ratings of models from pairwise preferences.

    games              who met whom and who won: read from a file, or from triples
    elo                ratings that every game moves (Elo 1978)
    bradley_terry      ratings of maximum likelihood (Bradley and Terry 1952)
    existence          whether that maximum exists (Ford 1957)
    rate               ratings with bootstrap intervals, in order
"""

from __future__ import annotations

from weft.comparison.ratings.bradley_terry import BradleyTerry
from weft.comparison.ratings.elo import Elo
from weft.comparison.ratings.games import GameFields, Games, games_of, read_games
from weft.comparison.ratings.rate import Rated, Ratings, Resampling, rated

__all__ = ["BradleyTerry", "Elo", "GameFields", "Games", "Rated", "Ratings", "Resampling", "games_of", "rated",
           "read_games"]
