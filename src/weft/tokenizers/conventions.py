"""How the makers of a published vocabulary use it: facts that are read with it, kept, and used by others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True)
class Conventions:
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

    def plain(self) -> dict[str, Any]:
        """Plain JSON values; what nothing says is left out."""
        found = {
            "adds_bos": self.adds_bos,
            "adds_eos": self.adds_eos,
            "end_ids": list(self.end_ids) or None,
            "chat_templates": dict(self.chat_templates) or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Conventions:
        """The inverse of `plain`."""
        return cls(
            adds_bos=plain.get("adds_bos"),
            adds_eos=plain.get("adds_eos"),
            end_ids=tuple(plain.get("end_ids", ())),
            chat_templates=dict(plain.get("chat_templates", {})),
        )


NO_CONVENTIONS = Conventions()
"""Of tokenizers that were trained here."""
