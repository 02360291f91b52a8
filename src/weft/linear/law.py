"""The law of rewriting: a module that replaces a map or a part computes what that did.

Every rewrite of a model checks it once, on a row of a few tokens: each new module that is called there gets the same
inputs as the module that it replaced, and their outputs are compared; maps that are not called are compared on random
vectors. In exact arithmetic they are equal; a module that keeps a matrix in fewer bits declares by how much it may
differ (`Rewritten.bound`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.errors import LawError
from weft.core.model import Classifier, EncoderInputs, LanguageModel, Model, Readout
from weft.core.span import Output, Span
from weft.linear.linear import Rewritten
from weft.linear.replacing import Replacement

TOKENS = 5
"""Length of the row: enough that a convolution, a shift or an expert reads more than one token."""

ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""By how much two orders of summing the same products may differ, relative to the largest output: the spacing of the
dtype (1e-16, 6e-8, 5e-4, 4e-3) times the roundings of some thousand terms that cancel, or of a gated unit's dozen
operations."""


def require_same(model: nn.Module, replacements: Sequence[Replacement], *, where: str,
                 runs: Callable[[], bool]) -> None:
    """Compare the modules that were put into a model with those that they replaced.

    Args:
        model: after the rewrite. One without storage cannot be compared and passes.
        where: the rewrite, for the error.
        runs: whether the model ran on a row of tokens alone before the rewrite; if it did not, a failure now is not the
            rewrite's and is ignored.

    Raises:
        LawError: an output differs, or the model does not run any more; the message names the first layer.
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
    """Whether a model runs on a row of tokens alone; one that needs an encoder's output does not."""
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return False
    try:
        with torch.no_grad(), _in_evaluation([model]):
            _hidden(model)
    except Exception:  # a part may raise anything
        return False
    return True


class _Comparison:
    """The replacements of a model, and which of them have been compared."""

    def __init__(self, replacements: Sequence[Replacement], where: str) -> None:
        self._pairs = {id(each.after): each for each in replacements}
        self._where = where
        self._seen: set[int] = set()

    def run(self, model: nn.Module) -> None:
        """Call the model and compare every new module that is called in it, and readouts, which are not called as
        modules."""
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

    def _compare(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        each = self._pairs[id(module)]
        self._seen.add(id(module))
        bound = each.after.bound(inputs[0]) if isinstance(each.after, Rewritten) else None
        self._require_close(each, _tensor(output), _tensor(each.before(*inputs)), bound)

    def _require_close(self, each: Replacement, actual: Tensor | None, expected: Tensor | None,
                       bound: Tensor | None) -> None:
        if actual is None or expected is None or not expected.numel():
            return
        off = (actual.double() - expected.double()).abs()
        largest = expected.double().abs().amax()
        room = ROUNDING.get(expected.dtype, ROUNDING[torch.float32]) * largest
        room = room if bound is None else room + bound.double()
        if not bool((off <= room).all()):  # written so that NaN fails
            worst = (off - room).flatten().nan_to_num(nan=torch.inf).argmax()
            raise LawError(f"{each.path}: rewritten, it does not compute what it did: off by "
                           f"{float(off.flatten()[worst]):.2e} where {float(room.expand_as(off).flatten()[worst]):.2e} "
                           "is allowed.", where=self._where, remedy="Leave it out of the rewrite, and see weft check.")


def _tensor(result: Any) -> Tensor | None:
    """The tensor that a part returned, by itself or in an `Output`; None where it returned something else."""
    y = result.y if isinstance(result, Output) else result
    return y if isinstance(y, Tensor) else None


def _hidden(model: nn.Module) -> Tensor | None:
    """The hidden vectors of a short call of a model, whose head and readout are called too; None for a module that
    takes no tokens."""
    if not isinstance(model, Model) or not {"tokens", "patches"} & set(model.reads()):
        return None
    device = next(iter([*model.parameters(), *model.buffers()]), torch.zeros(())).device
    if isinstance(model, LanguageModel) and model.takes_source:
        memory = model.encode(_inputs(model.source_vocab_size, device))
        tokens = _inputs(model.vocab_size, device).tokens
        assert tokens is not None, "_inputs sets them"
        h = model.hidden(tokens, None, Span(memory=memory)).y
    elif size := model.reads().get("patches"):
        values = torch.arange(TOKENS * size, device=device, dtype=torch.float32).sin()  # between -1 and 1
        patches = values.to(next(model.parameters()).dtype).reshape(1, TOKENS, size)
        h = model.vectors(EncoderInputs(patches=patches)).y
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
    """Inside, these modules are in evaluation mode; afterwards each is in its former mode."""
    before = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
