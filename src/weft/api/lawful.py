"""The check of parts from outside Weft against the laws before they are trained."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import LawError
from weft.core.model import ModelConfig
from weft.core.part_config import parts_in
from weft.laws.check import check
from weft.training import Event, Notice

OWN = "weft."


def outside_parts(config: ModelConfig) -> list[str]:
    """Return the kinds of the parts that come from a plugin's file or another installed package."""
    return sorted({part.kind for part in parts_in(config) if not type(part).__module__.startswith(OWN)})


def require_lawful(config: ModelConfig, on_event: Callable[[Event], None] | None = None) -> None:
    """Run the laws on a small twin of a model that has parts from outside Weft. In training, a model that breaks a law
    computes something other than in decoding.

    Args:
        config: the model's configuration.
        on_event: called with notices of progress.

    Raises:
        LawError: the model breaks a law; the message gives the worst finding.
    """
    names = ", ".join(outside_parts(config))
    if not names:
        return
    report = on_event or _silent
    report(Notice(0, f"checking the laws on a small twin of the model, which has parts from outside Weft ({names})"))
    result = check(config)
    if not result.holds:
        worst, *others = result.twin.broken()
        more = f" and {len(others)} further findings" if others else ""
        raise LawError(f"the model breaks a law: {worst.law}: {worst.case}: {worst.difference:.2e} > {worst.bound:.0e}"
                       f"{more}. In decoding it would compute something other than in training.",
                       where=f"model ({names})",
                       remedy="Run weft check for all findings and correct the part, or train it nevertheless with "
                              "--unchecked (unchecked=True).")
    report(Notice(0, f"every law holds ({result.seconds:.1f} s)"))


def _silent(event: Event) -> None:
    """Discard an event."""
