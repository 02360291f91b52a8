"""Weft from Python: load, train, compare, check, generate, score and evaluate models. Each command of the command line
calls one of these functions and prints its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.later import names_of

if TYPE_CHECKING:
    from weft.api.functions import *  # noqa: F403

__getattr__ = names_of(__name__, "weft.api.functions")
