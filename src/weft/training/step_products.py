"""The matrix products of a run's training step, so that they can be measured before it begins."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import training_step
from weft.analysis.matmul import products_in
from weft.analysis.shapes import shape_of
from weft.core.declarations import Trait
from weft.core.layer import traits_of
from weft.ops.forms import OPERATIONS
from weft.ops.linear import Product
from weft.training.config import RunConfig


def products_of(config: RunConfig) -> tuple[Product, ...]:
    """The products of one batch, recorded by running the model on shapes alone, so that nothing of its size is
    allocated. Empty for a model that is fitted by counting."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    dtype = config.training.dtype_on("cpu")
    model = shape_of(config.model, mode, dtype)
    if Trait.NOT_DIFFERENTIABLE in traits_of(model):
        return ()
    with OPERATIONS.observed() as seen:
        training_step(model, mode, config.training.batch_size, config.context)
    return tuple(dict.fromkeys(products_in(seen, str(dtype))))
