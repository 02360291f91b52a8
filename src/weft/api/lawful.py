"""Parts from outside Weft, held to the laws before they are trained."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import LawError
from weft.core.model import ModelConfig
from weft.core.part_config import parts_in
from weft.laws.check import check
from weft.training import Event, Notice

OWN = "weft."


def outside_parts(config: ModelConfig) -> list[str]:
    """Kinds of the parts that are not Weft's own, from a plugin's file or an installed package."""
    return sorted({part.kind for part in parts_in(config) if not type(part).__module__.startswith(OWN)})


def require_lawful(config: ModelConfig, on_event: Callable[[Event], None] | None = None) -> None:
    """Run the laws on a small twin of a model that has parts from outside: one that breaks them trains something else
    than it decodes.

    Args:
        config: the model's.
        on_event: told what is being done.

    Raises:
        LawError: with the worst finding.
    """
    names = ", ".join(outside_parts(config))
    if not names:
        return
    tell = on_event or _silent
    tell(Notice(0, f"checking the laws on a small twin of the model, which has parts from outside Weft ({names})"))
    found = check(config)
    if not found.holds:
        worst, *others = found.twin.broken()
        more = f" and {len(others)} further findings" if others else ""
        raise LawError(f"the model breaks a law: {worst.law}: {worst.case}: {worst.difference:.2e} > {worst.bound:.0e}"
                       f"{more}. Trained so, it would decode otherwise than it was trained.", where=f"model ({names})",
                       remedy="See weft check for all findings and correct the part, or go on all the same with "
                              "--unchecked (unchecked=True).")
    tell(Notice(0, f"every law holds ({found.seconds:.1f} s)"))


def _silent(event: Event) -> None:
    """For nobody."""
