"""The step of one token compiled with `torch.compile`: buffers of declared capacity, positions as tensors, so that what
is compiled for the first step serves every later one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from weft.core.compiling import compiler_errors
from weft.core.errors import UnsupportedError
from weft.core.model import LanguageModel, ModelState
from weft.core.span import Span
from weft.decoding.mode import declares_length
from weft.linear.inference import checked_inference_form

Step: TypeAlias = Callable[[Tensor, ModelState], tuple[Tensor, ModelState]]


@final
class CompiledStep:
    """One token in every row, compiled in its first call, which takes a minute, and again for another number of rows
    or another capacity. Keep it to decode more than once.

    Args:
        model: as it is now; later changes of its weights may or may not be seen.
        backend: of `torch.compile`.

    Raises:
        UnsupportedError: a model that treats a row's earlier tokens anew when the row grows (dynamic NTK, LongRoPE).
    """

    def __init__(self, model: LanguageModel, *, backend: str = "inductor") -> None:
        if declares_length(model):
            raise UnsupportedError("this model turns its keys by the document's length, so a step has no fixed form.",
                                   where="compile", remedy="Leave it out.")
        self._model, self._backend = model, backend

    def __call__(self, tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Logits [B,V] after the tokens [B], and the state, which was started with a capacity.

        Raises:
            UnsupportedError: this model or machine cannot be compiled.
        """
        with compiler_errors("compile"):
            return (self._of_one_row if len(tokens) == 1 else self._of_rows)(tokens, state)

    @cached_property
    def _form(self) -> LanguageModel:
        return checked_inference_form(self._model, where="compile")

    @cached_property
    def _of_one_row(self) -> Step:
        """One token, which linear maps multiply in a loop that the compiler makes (the form ``one_token`` of
        `weft.ops.linear`)."""
        return self._compile(self._form, {})

    @cached_property
    def _of_rows(self) -> Step:
        """Weights become constants, which the compiler lays out as its products of many rows want them."""
        return self._compile(self._form, {"freezing": True})

    def _compile(self, model: LanguageModel, options: dict[str, Any]) -> Step:
        def step(tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
            out = model.hidden(tokens[:, None], state, Span())
            assert out.state is not None, "a call with a state gives one back"
            return model.readout.logits(out.y)[:, -1], out.state

        # The compiler keeps what it makes with the code object, and only so much of it. With an object of its own, a
        # step meets no other model's, and nothing of this form, which never changes, needs to be compared at each call.
        step.__code__ = step.__code__.replace()
        quick = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe, "size_asserts": False}
        return torch.compile(step, fullgraph=True, dynamic=False, backend=self._backend,
                             options={**quick, **options} if self._backend == "inductor" else None)
