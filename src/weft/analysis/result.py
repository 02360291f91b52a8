"""`Result`: base of what analyses return."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """A frozen record of numbers, strings, and other results."""

    def plain(self) -> dict[str, Any]:
        """The same as plain JSON data."""
        return dataclasses.asdict(self)
