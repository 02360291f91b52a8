"""The step of one token compiled with `torch.compile`: buffers of declared capacity, positions as tensors, so that what
is compiled for the first step serves every later one."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from weft.core.errors import UnsupportedError
from weft.core.inference import inference_form
from weft.core.model import LanguageModel, ModelState
from weft.core.span import Span
from weft.decoding.mode import declares_length


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
        self.model = inference_form(model)
        frozen: dict[str, Any] | None = {"freezing": True} if backend == "inductor" else None
        self._step = torch.compile(self._one_token, fullgraph=True, dynamic=False, backend=backend, options=frozen)

    def __call__(self, tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Logits [B,V] after the tokens [B], and the state, which was started with a capacity.

        Raises:
            UnsupportedError: this model or machine cannot be compiled.
        """
        from torch._dynamo.exc import TorchDynamoException  # imports the compiler, which takes a second

        try:
            return self._step(tokens, state)
        except TorchDynamoException as error:
            reason = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
            raise UnsupportedError(f"torch.compile failed: {reason}.", where="compile",
                                   remedy="Leave it out, or see `weft doctor` for what the compiler needs.") from None

    def _one_token(self, tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        out = self.model.hidden(tokens[:, None], state, Span())
        assert out.state is not None, "a call with a state gives one back"
        return self.model.readout.logits(out.y)[:, -1], out.state
