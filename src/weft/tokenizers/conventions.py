"""How the makers of a published vocabulary use it: facts that are read with it, kept, and used by others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, final

from weft.core.strict_json import Record


@final
@dataclass(frozen=True)
class Conventions(Record):
    """What the files beside a vocabulary say about its use. Encoding does not depend on any of it.

    Attributes:
        adds_bos: whether the model expects the opening token before a text; None when nothing says.
        adds_eos: whether it expects the closing token after one; likewise.
        end_ids: ids besides ``eos_id`` that end a generation (a chat model's end of turn).
        chat_templates: Jinja source by name; the only or usual one is called ``default``.
    """

    adds_bos: bool | None = None
    adds_eos: bool | None = None
    end_ids: tuple[int, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what nothing says is left out."""
        return {name: value for name, value in super().to_json().items() if value not in (None, [], {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; what a later version has added says nothing."""
        return super().from_json({field.name: data[field.name] for field in fields(cls) if field.name in data})


NO_CONVENTIONS = Conventions()
"""Of tokenizers that were trained here."""
