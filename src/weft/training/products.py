"""The matrix products of a run's training step, so that they can be measured before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.shapes import shape_of
from weft.analysis.step import training_step
from weft.ops.forms import OPERATIONS, Decision
from weft.ops.linear_cross_entropy import PIECE_ENTRIES
from weft.ops.products import Product, Which
from weft.training.config import DTYPES, RunConfig

PASSES: tuple[Which, ...] = ("forward", "input", "weight")
ROUTED = frozenset({"library", "routed"})
"""Forms of a linear map whose products can take a route."""


def products_of(config: RunConfig) -> tuple[Product, ...]:
    """Those of one batch, found by running the model on shapes; nothing of its size is allocated."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    dtype = DTYPES[config.training.dtype]
    model = shape_of(config.model, mode, dtype)
    with OPERATIONS.observed() as seen:
        training_step(model, mode, config.training.batch_size, config.context)
    return tuple(dict.fromkeys(products_in(seen, str(dtype))))


def products_in(decisions: Iterable[Decision], dtype: str) -> Iterator[Product]:
    """The products of the linear maps and readouts that were observed."""
    for each in decisions:
        if each.operation == "linear" and each.form in ROUTED:
            (*batch, inputs), (outputs, _) = each.sizes[:2]
            rows = math.prod(batch)
        elif each.operation in ("log_prob", "cross_entropy"):
            (*batch, inputs), (outputs, _) = each.sizes[:2]
            rows = min(math.prod(batch), max(1, PIECE_ENTRIES // outputs))
        else:
            continue
        yield from (Product(which, rows, inputs, outputs, dtype) for which in PASSES if rows)
