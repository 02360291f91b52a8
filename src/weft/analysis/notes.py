"""The notes of a plan: traits, costs that the figures do not show, and operators that were not counted."""

from __future__ import annotations

from collections.abc import Iterator

from weft.analysis.flops import Flops
from weft.core.layer import Part, traits_of
from weft.core.model import Model
from weft.core.traits import Trait
from weft.positions.regimes import regimes

DEFINITION = ("A multiplication and an addition are two operations. Matrix products, convolutions, Fourier transforms "
              "and recurrent scans are counted; element-wise work (activations, norms, softmax, rotations, the "
              "experts' routing) is not.")


def all_notes(model: Model, flops: Flops | None) -> tuple[str, ...]:
    """All notes on a model, in whole sentences."""
    notes = list(_trait_notes(model, flops))
    if flops is not None:
        parts = (part for part in model.modules() if isinstance(part, Part))
        remarks = dict.fromkeys(each for part in parts for each in part.declares().remarks)
        notes = [DEFINITION, *notes, *remarks, *_packing_notes(flops)]
        if flops.uncounted:
            notes.append(f"Operators without a formula are not counted: {', '.join(flops.uncounted)}.")
    return tuple(notes)


def _trait_notes(model: Model, flops: Flops | None) -> Iterator[str]:
    traits = traits_of(model)
    if Trait.DECLARED_LENGTH in traits:
        yield _regime_note(model, flops)
    for trait in sorted(traits - {Trait.DECLARED_LENGTH}, key=lambda trait: trait.name):
        yield f"{trait.name.lower().replace('_', ' ').capitalize()}: {trait.value}."


def _regime_note(model: Model, flops: Flops | None) -> str:
    """A note on the lengths at which generation must run the whole text again, and on the cost."""
    context = model.config.context if flops is None else flops.context
    places = (regimes(model, context)[1:].diff().nonzero()[:, 0] + 2).tolist()
    what = "The model's rotation depends on the length of the document"
    if not places:
        return f"{what}; it is the same for all lengths up to {context} tokens."
    first, last = places[0], places[-1]
    if len(places) == 1:
        when = f"At {first} tokens"
    elif len(places) == last - first + 1:
        when = f"At every length from {first} to {last} tokens"
    else:
        when = f"At {len(places)} of the lengths from {first} to {last} tokens"
    cost = "" if flops is None else (f", which takes about {flops.visible:.3g} operations per token at a length of "
                                     f"{context}")
    return f"{what}. {when} the rotation changes, so generation runs the whole text again{cost}."


def _packing_notes(flops: Flops) -> Iterator[str]:
    whole = {part.part: part.full for part in flops.parts}
    for part in flops.fourier:
        yield (f"Packed documents: {part} cannot reset inside a row, so each call reads on the host where documents "
               "begin and runs them as separate rows, in groups of similar length. For documents longer than 16 tokens "
               f"padding at most doubles its work: at most {2 * whole[part]:.3g} operations per token instead of "
               f"{whole[part]:.3g}.")
