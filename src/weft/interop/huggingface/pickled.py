"""Files of torch.save: the one place that reads a pickle, and only its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import is_zipfile

import torch
from torch import Tensor

from weft.core.errors import CheckpointError

CONVERT = "Convert the file to safetensors where you trust it."


def read_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of torch.save, by name, mapped from it where its format allows.

    Raises:
        CheckpointError: it is damaged, or holds anything but tensors by name.
    """
    try:
        # Files from before torch 1.6 are no archives and cannot be mapped.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # whatever the unpickler meets in a file that is not what it should be
        if type(error).__name__ == "UnpicklingError":
            raise CheckpointError("the file holds more than tensors (code that unpickling would run, or damage), so it "
                                  "is not opened.", where=str(path), remedy=CONVERT) from None
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path),
                              remedy="Copy the folder again, whole.") from None
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError("the file is no mapping from names to tensors.", where=str(path), remedy=CONVERT)
    return {str(name): tensor for name, tensor in content.items()}
