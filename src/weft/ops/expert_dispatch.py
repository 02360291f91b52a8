"""Bringing tokens to experts and back without dropping any.

    y_t = sum over the chosen experts n of gate_tn expert_n(x_t)

The naive form runs every expert on every token, N/k times the work, in static shapes. ``grouped`` sorts the choices by
expert, runs each expert once on its own contiguous rows, and restores the order of the tokens. Neither has a capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation

Expert = Callable[[Tensor], Tensor]
FEW_ROWS = 16
"""Tokens up to which an expert costs what reading its weights costs, however many of the tokens it is given."""
SPARED_BYTES = 1 << 24
"""Weights that can be read in the time that sorting tokens by expert costs. The group sizes are read on the host, so a
decoding step that sorts cannot be recorded, and what recording would have saved is part of the cost. It was 18 MiB on
an AMD EPYC and 10 on an Intel Xeon."""


class DispatchCall(NamedTuple):
    """The arguments of the operation.

    Attributes:
        x: the tokens.
        experts: each a map of rows.
        chosen, gates: the experts of each token, and their weights.
        valid: False for padding, which gets no weight; None: all rows are tokens.
    """

    x: Float[Tensor, "rows D"]
    experts: Sequence[Expert]
    chosen: Int64[Tensor, "rows k"]
    gates: Float[Tensor, "rows k"]
    valid: Bool[Tensor, " rows"] | None


def one_hot(chosen: Int64[Tensor, "rows k"], n_experts: int) -> Bool[Tensor, "rows k N"]:
    """True at each choice's expert."""
    return chosen[..., None] == torch.arange(n_experts, device=chosen.device)


def _dense(call: DispatchCall) -> Tensor:
    """Every expert on every token, weighted by its gate, which is zero where it was not chosen."""
    x, experts, chosen, gates, valid = call
    weights = (one_hot(chosen, len(experts)) * gates[..., None]).sum(1)
    weights = weights if valid is None else weights.masked_fill(~valid[:, None], 0)
    y = torch.zeros_like(x)
    for expert, weight in zip(experts, weights.to(x.dtype).unbind(1), strict=True):
        y = y + weight[:, None] * expert(x)
    return y


def _grouped(call: DispatchCall) -> Tensor:
    """Each expert on the tokens that chose it; padding goes to no expert, and its output is zero.

    The sizes of the groups are read on the host, once. Every expert is called, with no rows where no token chose it, so
    that its parameters always get a gradient.
    """
    x, experts, chosen, gates, valid = call
    k, n_experts = chosen.shape[1], len(experts)
    owner = chosen if valid is None else torch.where(valid[:, None], chosen, n_experts)
    by_expert = owner.flatten().argsort(stable=True)
    sizes = torch.bincount(owner.flatten(), minlength=n_experts + 1).tolist()
    *groups, padding = torch.split(x[by_expert // k], sizes)
    results = [expert(group) for expert, group in zip(experts, groups, strict=True)]
    back = torch.empty_like(by_expert)
    back[by_expert] = torch.arange(len(by_expert), device=x.device)
    parts = torch.cat([*results, torch.zeros_like(padding)])[back].reshape(x.shape[0], k, x.shape[1])
    return (parts * gates.to(x.dtype)[..., None]).sum(1)


def _many(call: DispatchCall) -> str | None:
    """Why grouping does not pay. Without gradients and for few tokens it spares reading the weights of experts that no
    token chose, 12 D^2 numbers each: experts are functions here, and a gated unit of width 4 D has as many."""
    rows, width = call.x.shape
    idle = max(0, len(call.experts) - rows * call.chosen.shape[1])
    if torch.is_grad_enabled() or rows > FEW_ROWS or 12 * width * width * idle * call.x.element_size() > SPARED_BYTES:
        return None
    return "sorting a few tokens costs more than it saves"


def _examples(make: Make) -> Iterator[DispatchCall]:
    def expert(weight: Tensor) -> Expert:
        return lambda rows: (rows @ weight).tanh()

    for rows, valid in ((1, None), (9, None), (9, torch.arange(9) % 4 != 2)):
        chosen = torch.stack([torch.arange(rows) % 3, (torch.arange(rows) + 1) % 3], 1)  # no token chooses the fourth
        yield DispatchCall(make(rows, 5), [expert(make(5, 5)) for _ in range(4)], chosen, make(rows, 2), valid)


EXPERT_DISPATCH = OPERATIONS.add(Operation(
    "expert_dispatch", "tokens to the experts that they chose, and back",
    Form(REFERENCE, _dense, "every expert on every token", known_as=("dense",)),
    Form("grouped", _grouped, "each expert on its own tokens", compiled=False, transformed=False,
         worth=_many),
    subject="x", examples=_examples, known_as=("moe", "experts", "dispatch")))
