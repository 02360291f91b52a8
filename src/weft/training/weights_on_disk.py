"""Weights that are only read and written as a whole, in a file in place of memory."""

from __future__ import annotations

import mmap
import shutil
import sys
import tempfile
from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn

LEAST_BYTES = 1 << 26
"""Bytes of weights from which on they are written to a file."""
ALIGNED = 64
"""Bytes of which every weight begins at a multiple."""


@final
class LaidAside:
    """Moves the values of parameters from memory to an unnamed file in the folder for temporary files (``TMPDIR``).

    The file is memory-mapped, so that the parameters are read and changed as before, and disappears with its last
    reader. What is read lies in memory until `release`. They stay in memory where they take less than ``least`` bytes,
    where the file would take more than half of what is free there, which others need too, or cannot be written; and so
    do those that do not lie in the memory of a CPU in one piece.

    Args:
        parameters: each once.
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
