"""What a plan says in words: reasons, costs that figures do not show, and what was not counted."""

from __future__ import annotations

from collections.abc import Iterator

from weft.analysis.flops import Flops
from weft.core.layer import traits_of
from weft.core.model import Model
from weft.core.traits import Trait
from weft.positions.regimes import regimes

DEFINITION = ("A multiplication and an addition are two operations. Matrix products, convolutions, Fourier transforms "
              "and recurrent scans are counted; element-wise work (activations, norms, softmax, rotations, the "
              "experts' routing) is not.")


def all_notes(model: Model, flops: Flops | None) -> tuple[str, ...]:
    """Everything worth saying about a model before it runs."""
    found = list(_trait_notes(model, flops))
    if flops is not None:
        found = [DEFINITION, *found, *_packing_notes(flops)]
        if flops.uncounted:
            found.append(f"Not counted, for want of a formula: {', '.join(flops.uncounted)}.")
    return tuple(found)


def _trait_notes(model: Model, flops: Flops | None) -> Iterator[str]:
    traits = traits_of(model)
    if Trait.DECLARED_LENGTH in traits:
        yield _regime_note(model, flops)
    for trait in sorted(traits - {Trait.DECLARED_LENGTH}, key=lambda trait: trait.name):
        yield f"{trait.name.lower().replace('_', ' ').capitalize()}: {trait.value}."


def _regime_note(model: Model, flops: Flops | None) -> str:
    """At which lengths generation starts over, and what that costs."""
    context = model.config.context if flops is None else flops.context
    places = (regimes(model, context)[1:].diff().nonzero()[:, 0] + 2).tolist()
    what = "Its rotation depends on the length of the document"
    if not places:
        return f"{what}, and is the same for all lengths up to {context} tokens."
    first, last = places[0], places[-1]
    if len(places) == 1:
        when = f"At {first} tokens"
    elif len(places) == last - first + 1:
        when = f"At every length from {first} to {last} tokens"
    else:
        when = f"At {len(places)} of the lengths from {first} to {last} tokens"
    cost = "" if flops is None else (f": about {flops.visible:.3g} operations for each token so far, at a length of "
                                     f"{context}")
    return f"{what}. {when} a generated row outgrows its state and runs its whole text again{cost}."


def _packing_notes(flops: Flops) -> Iterator[str]:
    whole = {part.part: part.full for part in flops.parts}
    for part in flops.fourier:
        yield (f"Packed documents: {part} cannot reset inside a row, so each call reads the marks on the host and runs "
               "the documents as rows of their own, in groups of length. Padding at most doubles its work for "
               f"documents longer than 16 tokens: at most {2 * whole[part]:.3g} operations a token in place of "
               f"{whole[part]:.3g}.")
