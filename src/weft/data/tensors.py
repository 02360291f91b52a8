"""Conversion of batches to tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.data.batch import Batch


@final
@dataclass(frozen=True, eq=False)
class TensorBatch:
    """A `Batch` on a device, with the same attributes."""

    inputs: Int64[Tensor, "B T"]
    targets: Int64[Tensor, "B T"]
    begins: Bool[Tensor, "B T"]
    scored: Bool[Tensor, "B T"]
    target_bytes: Int64[Tensor, "B T"]
    fresh: bool
    count: Int64[Tensor, " B"] | None


def to_tensors(batch: Batch, device: torch.device | str = "cpu") -> TensorBatch:
    """``batch`` on ``device``."""
    return TensorBatch(
        inputs=torch.from_numpy(batch.inputs).to(device),
        targets=torch.from_numpy(batch.targets).to(device),
        begins=torch.from_numpy(batch.begins).to(device),
        scored=torch.from_numpy(batch.scored).to(device),
        target_bytes=torch.from_numpy(batch.target_bytes).to(device),
        fresh=batch.fresh,
        count=None if batch.count is None else torch.from_numpy(batch.count).to(device),
    )
