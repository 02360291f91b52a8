"""What `torch.compile` chooses among the forms of an operation, and what it traces of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.ops.form import Form, Make
from weft.ops.forms import Operation


class Sum(NamedTuple):
    x: Tensor


def naive(call: Sum) -> Tensor:
    return call.x.sum()


def even(call: Sum) -> str | None:
    return None if call.x.numel() % 2 == 0 else "it takes an even count of numbers"


def examples(make: Make) -> Iterator[Sum]:
    yield Sum(make(3))


def summing(*others: Form[Sum, Tensor]) -> Operation[Sum, Tensor]:
    return Operation("sum", "adds up", Form("reference", naive, ""), *others, subject="x", examples=examples)


def marked(name: str, mark: float, **declared: Any) -> Form[Sum, Tensor]:
    """A form whose results tell that it was chosen: the sum, and ``mark``."""
    return Form(name, lambda call: call.x.sum() + mark, "", **declared)


def test_the_compiler_chooses_by_what_forms_declare_and_by_the_call() -> None:
    """Two operations in one graph, each of whose forms declares something else; other dtypes, shapes, and gradients."""
    one = summing(marked("single", 10, dtypes=frozenset({torch.float32})), marked("eager", 20, compiled=False),
                  marked("recorded", 30, gradients="with"), marked("even", 40, serves=even))
    two = summing(marked("traced", 50, eager=False, dtypes=frozenset({torch.float64})), marked("one row", 60, rows=1))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (one(Sum(x)), two(Sum(x))), fullgraph=True, backend="eager")

    def marks(x: Tensor) -> list[float]:
        return [float(each.detach() - x.sum()) for each in compiled(x)]

    with torch.no_grad():
        assert marks(torch.ones(4)) == [10, 60]
        assert marks(torch.ones(4).double()) == [40, 50]
        assert marks(torch.ones(3).double()) == [0, 50]
        assert marks(torch.ones(2, 3)) == [10, 0]
    assert marks(torch.ones(4).double()) == [30, 50]


def test_the_compiler_does_not_trace_what_forms_declare() -> None:
    """A form that cannot serve costs no instruction."""
    counts = []
    for others in (0, 20):
        operation = summing(*(marked(f"other {n}", n, dtypes=frozenset({torch.float64})) for n in range(others)))
        torch._dynamo.reset()
        explained = torch._dynamo.explain(lambda x, taken=operation: taken(Sum(x)))(torch.ones(4))
        counts.append(len(explained.out_guards))
    assert counts[0] == counts[1]
