"""Training in bfloat16: weights are kept in float32, and the model computes with a copy of them in bfloat16. The
float32 values of weights that no step changes are needed for checkpoints alone, and lie in a file.

Weights that are only read and written as a whole, in a file in place of memory.
"""

from __future__ import annotations

import mmap
import shutil
import sys
import tempfile
from collections.abc import Iterable
from copy import deepcopy

import torch
from torch import Tensor, nn

from weft.core.model import Model
from weft.core.part import kept_dtypes


def narrowed(model: Model, dtype: torch.dtype) -> Model:
    """A copy of the model in ``dtype``, except for what parts declare `exact` or `wide_in_training`, which is in
    float32 or wider in it. No second copy in the model's own dtype is made on the way. The two share buffers of
    integers, such as quantised matrices, and weights that do not train and have the same dtype in both."""
    kept = kept_dtypes(model)
    held: dict[int, Tensor] = {id(each): each for each in model.buffers() if not (
        each.is_floating_point() or each.is_complex())}
    for p in model.parameters():
        own = p.detach().to(p.dtype if id(p) in kept.exact else dtype, copy=p.requires_grad)
        held[id(p)] = nn.Parameter(own, requires_grad=p.requires_grad)
    copy = deepcopy(model, held).to(dtype)
    for weight, copied in zip(model.parameters(), copy.parameters(), strict=True):
        if id(weight) in kept.wide:  # which the cast has made narrow
            copied.data = weight.detach().to(torch.promote_types(dtype, torch.float32), copy=weight.requires_grad)
    return copy


class Precision:
    """The model that is updated and saved, and the one that computes.

    In float32 and float64 they are the same. In bfloat16, whose 8 bits of mantissa would lose an update below 1/256 of
    a weight, the computing model is a copy that is refreshed after every update. What a part declares `exact`, such as
    the modes of a state-space model, is as exact in it, and so are the weights of norms, which are near 1: a step of
    3e-4 would be lost there in bfloat16 (`Declared.wide_in_training`). Linear maps multiply in float32 where that is
    faster (`weft.ops.wide_linear`).

    A weight that does not train is rounded once, which gives the copy of every step. Its float32 values are read only
    where the model is saved, so they lie in a file (`LaidAside`) until `finish`. Which weights train is read here, and
    not from what gradual unfreezing takes out of single steps.

    Args:
        model: weights to train, in float32 or float64.
        dtype: what to compute in.
    """

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self.model = model if dtype == torch.bfloat16 else model.to(dtype)
        unchanged = _unchanged(model, dtype) if dtype == torch.bfloat16 else []
        self._aside = LaidAside(unchanged, _others(model, unchanged))
        self.working = narrowed(model, dtype) if dtype == torch.bfloat16 else self.model
        self._aside.release()

    def collect_gradients(self) -> None:
        """Add the copy's gradients to those of the weights, and copy its buffers (running statistics) to the model's.

        Called after every backward pass, so that batches of one step are added up in the weights' dtype and not in the
        copy's.
        """
        if self.working is self.model:
            return
        if next(self.model.parameters()).is_cuda:
            collect_together(self.model, self.working)
            return
        for weight, copy in zip(self.model.parameters(), self.working.parameters(), strict=True):
            if copy.grad is not None:
                weight.grad = copy.grad.to(weight.dtype) if weight.grad is None else weight.grad.add_(copy.grad)
            copy.grad = None
        for buffer, copied in zip(self.model.buffers(), self.working.buffers(), strict=True):
            if not torch.equal(buffer.to(copied.dtype), copied):
                buffer.copy_(copied)

    @torch.no_grad()
    def refresh(self, *, buffers: bool = False, frozen: bool = False) -> None:
        """Copy the updated weights to the copy; with ``buffers`` the buffers too, and with ``frozen`` the weights that
        no step changes, after a checkpoint was loaded."""
        if self.working is self.model:
            return
        pairs = [(copy, weight) for weight, copy in zip(self.model.parameters(), self.working.parameters(), strict=True)
                 if weight.requires_grad or frozen]
        if pairs:  # in few calls, of which a GPU makes few kernels
            torch._foreach_copy_([copy for copy, _ in pairs], [weight for _, weight in pairs])
        if buffers:
            for buffer, copied in zip(self.model.buffers(), self.working.buffers(), strict=True):
                copied.copy_(buffer)
        self._aside.release()

    def finish(self) -> None:
        """Bring what lies in a file back to memory, after the last step."""
        self._aside.take_back()


def collect_together(model: Model, working: Model) -> None:
    """Do what `Precision.collect_gradients` does in few calls, of which a GPU makes few kernels, without waiting for
    it; it takes the memory of all gradients in both dtypes at a time."""
    sums: list[tuple[Tensor, Tensor]] = []
    firsts: list[tuple[Tensor, Tensor]] = []
    for weight, copy in zip(model.parameters(), working.parameters(), strict=True):
        if copy.grad is not None and weight.grad is None:
            weight.grad = torch.empty_like(copy.grad, dtype=weight.dtype)
            firsts.append((weight.grad, copy.grad))
        elif copy.grad is not None and weight.grad is not None:
            sums.append((weight.grad, copy.grad))
        copy.grad = None
    for chosen, work in ((firsts, torch._foreach_copy_), (sums, torch._foreach_add_)):
        if chosen:
            work([own for own, _ in chosen], [given for _, given in chosen])
    for buffer, copied in zip(model.buffers(), working.buffers(), strict=True):
        if buffer is not copied:
            buffer.copy_(torch.where(buffer.to(copied.dtype) == copied, buffer, copied.to(buffer.dtype)))


def _others(model: Model, weights: list[nn.Parameter]) -> list[Tensor]:
    """The parameters and buffers of a model besides these."""
    known = {id(each) for each in weights}
    return [each for each in (*model.parameters(), *model.buffers()) if id(each) not in known]


def _unchanged(model: Model, dtype: torch.dtype) -> list[nn.Parameter]:
    """The weights that no step changes and of which `narrowed` makes a copy."""
    kept = kept_dtypes(model)
    return [p for p in model.parameters() if not p.requires_grad and p.dtype != dtype
            and id(p) not in kept.exact and id(p) not in kept.wide]


LEAST_BYTES = 1 << 26
"""Bytes of weights from which on they are written to a file."""
ALIGNED = 64
"""Bytes of which every weight begins at a multiple."""


class LaidAside:
    """Moves the values of parameters from memory to an unnamed file in the folder for temporary files (``TMPDIR``).

    The file is memory-mapped, so that the parameters are read and changed as before, and disappears with its last
    reader. What is read lies in memory until `release`. They stay in memory where they take less than ``least`` bytes,
    where the file would take more than half of what is free there, which others need too, or cannot be written; and so
    do those that do not lie in the memory of a CPU in one piece.

    Args:
        beside: the other tensors of the model. They get memory of their own: each of them that is a view of the file
            that the model was loaded from would keep the whole of that file in memory.
        least: bytes from which on it is worth a file.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], beside: Iterable[Tensor] = (), *,
                 least: int = LEAST_BYTES) -> None:
        self._parameters = [p for p in parameters if p.device.type == "cpu" and p.is_contiguous() and p.numel()]
        self._content: mmap.mmap | None = None
        size = sum(p.nbytes for p in self._parameters)
        if size >= max(1, least):
            self._write(size)
        if self._content is not None:
            for tensor in beside:
                tensor.data = tensor.detach().clone()

    def release(self) -> None:
        """Free the memory of what was read; it is read from the file again when it is used again."""
        if self._content is not None and sys.platform != "win32":
            self._content.madvise(mmap.MADV_DONTNEED)

    def take_back(self) -> None:
        """Bring the parameters back to memory."""
        if self._content is None:
            return
        for parameter in self._parameters:
            parameter.data = parameter.detach().clone()
        self._content = None

    def _write(self, size: int) -> None:
        try:
            if 2 * size > shutil.disk_usage(tempfile.gettempdir()).free:
                return
            with tempfile.TemporaryFile() as file:
                places = []
                for parameter in self._parameters:
                    file.write(b"\0" * (-file.tell() % ALIGNED))
                    places.append(file.tell())
                    file.write(_bytes(parameter).numpy().data)
                file.flush()
                content = mmap.mmap(file.fileno(), file.tell(), access=mmap.ACCESS_WRITE)
        except OSError:  # such as a full disk; nothing has been changed
            return
        for parameter, place in zip(self._parameters, places, strict=True):
            values = torch.frombuffer(content, dtype=parameter.dtype, count=parameter.numel(), offset=place)
            parameter.data = values.view(parameter.shape)
        self._content = content


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
