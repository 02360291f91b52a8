"""The law of rewriting: what stands in the place of a map or a part computes what that did.

It is run once by whatever rewrites the model at hand, on a row of a few tokens: whatever was put in and is called there
is given the same inputs as what it replaced, and so is, on random vectors, every map that is not called. In exact
arithmetic they are equal; what keeps a matrix in fewer bits says by how much it may miss it (`Rewritten.bound`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from weft.core.errors import LawError
from weft.core.model import Classifier, EncoderInputs, LanguageModel, Model, Readout
from weft.core.output import Output
from weft.core.span import Span
from weft.linear.linear import Rewritten
from weft.linear.replacing import Replacement

TOKENS = 5
"""Of the row: enough that a convolution, a shift or an expert sees more than one."""

ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""By how much two ways of summing the same products may differ in a dtype, relative to the largest output: its spacing
(1e-16, 6e-8, 5e-4, 4e-3) times the rounding of some thousand terms that cancel, or of a gated unit's dozen
roundings."""


def require_same(model: nn.Module, replacements: Sequence[Replacement], *, where: str,
                 runs: Callable[[], bool]) -> None:
    """Compare what was put into a model with what it replaced.

    Args:
        model: as it is now. One without storage is taken at its word.
        replacements: those that are to be compared.
        where: what rewrote it, for the error.
        runs: whether the model before ran on a row of tokens alone, which decides whose fault it is if this does not.

    Raises:
        LawError: naming the first layer that is off.
    """
    if not replacements or any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return
    with torch.no_grad(), _in_evaluation([model, *(each.before for each in replacements)]):
        comparison = _Comparison(replacements, where)
        try:
            comparison.run(model)
        except LawError:
            raise
        except Exception as error:
            if runs():
                raise LawError(f"rewritten, the model does not run: {type(error).__name__}: {error}", where=where,
                               remedy="Leave out what reads its matrix instead of calling its map.") from error
        comparison.call_the_rest()


def runs(model: nn.Module) -> bool:
    """Whether a model runs on a row of tokens alone, as one that reads a memory from outside does not."""
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return False
    try:
        with torch.no_grad(), _in_evaluation([model]):
            _hidden(model)
    except Exception:  # a part may raise anything
        return False
    return True


@final
class _Comparison:
    """What is compared, and what has been."""

    def __init__(self, replacements: Sequence[Replacement], where: str) -> None:
        self._pairs = {id(each.after): each for each in replacements}
        self._where = where
        self._seen: set[int] = set()

    def run(self, model: nn.Module) -> None:
        """Call the model, and compare whatever is called in it, and readouts, which are not called."""
        handles = [each.after.register_forward_hook(self._compare) for each in self._pairs.values()]
        try:
            h = _hidden(model)
        finally:
            for handle in handles:
                handle.remove()
        for each in self._pairs.values():
            if isinstance(each.after, Readout) and isinstance(each.before, Readout) and h is not None:
                self._require_close(each, each.after.logits(h), each.before.logits(h), None)

    def call_the_rest(self) -> None:
        """Compare the maps that were not called, on random vectors."""
        generator = torch.Generator().manual_seed(0)
        for key, each in self._pairs.items():
            if key not in self._seen and isinstance(each.before, nn.Linear):
                weight = each.before.weight
                x = torch.randn(2, each.before.in_features, generator=generator, dtype=torch.float64).to(weight)
                self._compare(each.after, (x,), each.after(x))

    def _compare(self, module: nn.Module, inputs: tuple[Any, ...], found: Any) -> None:
        each = self._pairs[id(module)]
        self._seen.add(id(module))
        bound = each.after.bound(inputs[0]) if isinstance(each.after, Rewritten) else None
        self._require_close(each, _tensor(found), _tensor(each.before(*inputs)), bound)

    def _require_close(self, each: Replacement, found: Tensor | None, wanted: Tensor | None,
                       bound: Tensor | None) -> None:
        if found is None or wanted is None or not wanted.numel():
            return
        off = (found.double() - wanted.double()).abs()
        largest = wanted.double().abs().amax()
        room = ROUNDING.get(wanted.dtype, ROUNDING[torch.float32]) * largest
        room = room if bound is None else room + bound.double()
        if not bool((off <= room).all()):  # what is no number is not within anything
            worst = (off - room).flatten().nan_to_num(nan=torch.inf).argmax()
            raise LawError(f"{each.path}: rewritten, it does not compute what it did: off by "
                           f"{float(off.flatten()[worst]):.2e} where {float(room.expand_as(off).flatten()[worst]):.2e} "
                           "is allowed.", where=self._where, remedy="Leave it out of the rewrite, and see weft check.")


def _tensor(found: Any) -> Tensor | None:
    """What a part gives: a tensor, or the tensor of an `Output`."""
    given = found.y if isinstance(found, Output) else found
    return given if isinstance(given, Tensor) else None


def _hidden(model: nn.Module) -> Tensor | None:
    """What a short call of a model gives, whose head and readout are called too; None where it is none that takes
    tokens."""
    if not isinstance(model, Model) or "tokens" not in model.reads():
        return None
    device = next(iter([*model.parameters(), *model.buffers()]), torch.zeros(())).device
    if isinstance(model, LanguageModel) and model.takes_source:
        memory = model.encode(_inputs(model.source_vocab_size, device))
        tokens = _inputs(model.vocab_size, device).tokens
        assert tokens is not None, "made so"
        h = model.hidden(tokens, None, Span(memory=memory)).y
    else:
        h = model.vectors(_inputs(model.reads()["tokens"], device)).y
    for head in (model.head, model.readout if isinstance(model, LanguageModel) else None):
        if isinstance(head, Classifier):
            head.scores(h, Span())
        elif isinstance(head, Readout):
            head.logits(h)
    return h


def _inputs(size: int, device: torch.device) -> EncoderInputs:
    return EncoderInputs(tokens=torch.arange(TOKENS, device=device)[None] % size)


@contextmanager
def _in_evaluation(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, these are in evaluation mode; afterwards each module is in the mode it was in."""
    before = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
