"""Training: run configurations, optimisers, schedules, the loop, and the run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.later import names_of

if TYPE_CHECKING:
    from weft.training.names import *  # noqa: F403

__getattr__ = names_of(__name__, "weft.training.names")
