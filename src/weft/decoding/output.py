"""The results of decoding: single tokens as they are chosen, and whole rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from weft.core.strict_json import Record, without_none

Finish: TypeAlias = Literal["length", "stop_token", "stop_string"]


@dataclass(frozen=True)
class NewToken:
    """One token, as `stream` yields it.

    Attributes:
        row: index of the row.
        token: the token's id.
        log_prob: the token's log-probability in nats, before temperature and truncation; None unless requested.
        text: the text that no later token can change any more (often empty); None without a tokenizer.
        finish: why this token is the row's last; None if it is not the last.
    """

    row: int
    token: int
    log_prob: float | None
    text: str | None
    finish: Finish | None


@dataclass(frozen=True)
class GeneratedRow(Record):
    """The continuation of one row.

    Attributes:
        tokens: the new ids, including the stop token or the token that completed a stop string.
        text: their text, without the stop string; None without a tokenizer.
        log_probs: log-probability of each token in nats, before temperature and truncation; None unless requested.
        finish: ``length`` (max_new_tokens reached), ``stop_token`` or ``stop_string``.
    """

    tokens: tuple[int, ...]
    text: str | None
    log_probs: tuple[float, ...] | None
    finish: Finish

    def to_json(self) -> dict[str, Any]:
        """Return plain data without the fields that are None."""
        return without_none(super().to_json())


@dataclass(frozen=True)
class Generated(Record):
    """The continuation of each prompt, in the order of the prompts."""

    rows: tuple[GeneratedRow, ...]
