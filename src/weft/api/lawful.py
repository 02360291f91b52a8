"""The check of parts from outside Weft against the laws before they are trained or compared."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import LawError
from weft.core.model import ModelConfig
from weft.laws.check import check
from weft.laws.forms import outside_forms
from weft.masks.configured import parts_and_masks

OWN = "weft."


def outside_parts(config: ModelConfig) -> list[str]:
    """Return the kinds of the parts and masks that come from a plugin's file or another installed package."""
    return sorted({each.kind for each in parts_and_masks(config) if not type(each).__module__.startswith(OWN)})


def require_lawful(config: ModelConfig, report: Callable[[str], None] | None = None, *, where: str = "model") -> None:
    """Run the laws on a small twin of a model that has parts or masks from outside Weft, or where operations have
    forms from outside. In training, a model that breaks a law computes something other than in decoding, or has wrong
    gradients.

    Args:
        config: the model's configuration.
        report: called with lines of progress.
        where: the configuration stands, for the message.

    Raises:
        LawError: the model breaks a law; the message gives the worst finding.
    """
    forms = [f"the form {form.name} of {operation.name}" for operation, form in outside_forms()]
    names = ", ".join([*outside_parts(config), *forms])
    if not names:
        return
    report = report or _silent
    report(f"checking the laws on a small twin of the model, which has parts from outside Weft ({names})")
    result = check(config)
    if not result.holds:
        worst, *others = next(each for each in result.reports() if not each.holds).broken()
        more = f" and {len(others)} further findings" if others else ""
        raise LawError(f"the model breaks a law: {worst.law}: {worst.case}: {worst.difference:.2e} > {worst.bound:.0e}"
                       f"{more}. A model that breaks a law may compute something else in decoding than in training, "
                       "or have wrong gradients.",
                       where=f"{where} ({names})",
                       remedy="Run weft check for all findings and correct the part, or take it nevertheless with "
                              "--unchecked (unchecked=True).")
    report(f"every law holds ({result.seconds:.1f} s)")


def _silent(line: str) -> None:
    """Discard a line."""
