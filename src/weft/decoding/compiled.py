"""The step of one token compiled with `torch.compile`: buffers of declared capacity, positions as tensors, so that what
is compiled for the first step serves every later one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.compiling import compiler_errors
from weft.core.errors import UnsupportedError
from weft.core.inference import inference_form
from weft.core.model import LanguageModel, ModelState
from weft.core.span import Span
from weft.decoding.mode import declares_length

Step: TypeAlias = Callable[[Tensor, ModelState], tuple[Tensor, ModelState]]


@final
class OneTokenLinear(nn.Linear):
    """A linear map that multiplies one token by sums of products in float32 or wider; more tokens as ever.

    The compiler makes one loop of it, which reads the matrix once and as it is, whereas libraries lay out and widen
    narrow matrices for products of many rows. Not compiled it would be slow.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [...,in] to [...,out]."""
        if x.numel() != self.in_features:
            return F.linear(x, self.weight, self.bias)
        wide = torch.promote_types(x.dtype, torch.float32)
        # A view by strides makes the compiler store the token, whose norm it would else work out anew for every output.
        token = x.reshape(-1).to(wide).contiguous().as_strided((1, self.in_features), (self.in_features, 1))
        y = (self.weight.to(wide) * token).sum(-1)
        y = y if self.bias is None else y + self.bias.to(wide)
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)


def _of_one_token(linear: nn.Linear) -> nn.Linear:
    return OneTokenLinear(linear) if linear.weight.device.type == "cpu" else linear


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
    def _of_one_row(self) -> Step:
        return self._compile(inference_form(self._model, _of_one_token), {})

    @cached_property
    def _of_rows(self) -> Step:
        """Weights become constants, which the compiler lays out as its products of many rows want them."""
        return self._compile(inference_form(self._model), {"freezing": True})

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
