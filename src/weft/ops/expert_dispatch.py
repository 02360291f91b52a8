"""Bringing tokens to experts and back without dropping any: two forms of one sum.

    y_t = sum over the chosen experts n of gate_tn expert_n(x_t)

`dense` is the naive form: every expert on every token, N/k times the work, static shapes. `grouped` sorts the choices
by expert, runs each expert once on its own contiguous rows, and puts the results back. Neither has a capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

Expert = Callable[[Tensor], Tensor]


def one_hot(chosen: Int64[Tensor, "rows k"], n_experts: int) -> Bool[Tensor, "rows k N"]:
    """True at each choice's expert."""
    return chosen[..., None] == torch.arange(n_experts, device=chosen.device)


def dense(x: Float[Tensor, "rows D"], experts: Sequence[Expert], chosen: Int64[Tensor, "rows k"],
          gates: Float[Tensor, "rows k"]) -> Float[Tensor, "rows D"]:
    """Every expert on every token, weighted by its gate, which is zero where it was not chosen."""
    weights = (one_hot(chosen, len(experts)) * gates[..., None]).sum(1)
    y = torch.zeros_like(x)
    for expert, weight in zip(experts, weights.to(x.dtype).unbind(1), strict=True):
        y = y + weight[:, None] * expert(x)
    return y


def grouped(x: Float[Tensor, "rows D"], experts: Sequence[Expert], chosen: Int64[Tensor, "rows k"],
            gates: Float[Tensor, "rows k"], valid: Bool[Tensor, " rows"] | None) -> Float[Tensor, "rows D"]:
    """Each expert on the tokens that chose it; padding is given to none and gets zero.

    The sizes of the groups are read on the host, once. Every expert is called, on no rows if need be, so that its
    parameters always get a gradient.
    """
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
