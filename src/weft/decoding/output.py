"""What decoding gives: tokens as they come, rows when they have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from weft.core.strict_json import Record, without_none

Finish: TypeAlias = Literal["length", "stop_token", "stop_string"]


@dataclass(frozen=True)
class NewToken:
    """One token, as `stream` gives it.

    Attributes:
        row: index of the row.
        token: its id.
        log_prob: in nats, under the model itself; None unless asked for.
        text: text that is certain now (often empty); None without a tokenizer.
        finish: why this token is the row's last; None when it is not.
    """

    row: int
    token: int
    log_prob: float | None
    text: str | None
    finish: Finish | None


@dataclass(frozen=True)
class GeneratedRow(Record):
    """What was generated for one row.

    Attributes:
        tokens: the new ids, with the stop token or the token that completed a stop string.
        text: their text, without the stop string; None without a tokenizer.
        log_probs: of each token, in nats, under the model itself (before temperature and the like); None unless asked
            for.
        finish: ``length`` (max_new_tokens reached), ``stop_token`` or ``stop_string``.
    """

    tokens: tuple[int, ...]
    text: str | None
    log_probs: tuple[float, ...] | None
    finish: Finish

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return without_none(super().to_json())


@dataclass(frozen=True)
class Generated(Record):
    """A row of new tokens for each prompt, in order."""

    rows: tuple[GeneratedRow, ...]
