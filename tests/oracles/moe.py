"""Dropless mixture of experts, one token at a time, and the router's losses.

x[T, D]; router[N, D] without bias, N the number of experts; k experts per token.
Compared with transformers' MixtralSparseMoeBlock and load_balancing_loss_func (stored numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import logsumexp, softmax

Array = NDArray[Any]


def route(logits: Array, k: int, renormalise: bool = True) -> tuple[list[list[int]], Array]:
    """The k experts of each token, largest first, and the gates[T, N], zero for experts not chosen.

    Gates are the softmax over all N experts; renormalised, the chosen ones are divided by their sum, which equals a
    softmax over the chosen logits (Mixtral; Jiang et al. 2024, section 2.1). Not renormalised: Switch (Fedus et al.
    2022, eq. 2). Ties go to the lower index.
    """
    probabilities = softmax(logits)
    gates = np.zeros(logits.shape)
    chosen = []
    for t, row in enumerate(probabilities):
        best = sorted(range(len(row)), key=lambda n: -logits[t, n])[:k]
        total = sum(row[n] for n in best) if renormalise else 1.0
        for n in best:
            gates[t, n] = row[n] / total
        chosen.append(best)
    return chosen, gates


def grouped_route(
    logits: Array,
    k: int,
    *,
    sigmoid: bool,
    groups: int,
    top_groups: int,
    best_two: bool,
    correction: Array | None = None,
    renormalise: bool = True,
    factor: float = 1.0,
) -> tuple[list[list[int]], Array]:
    """The k experts of each token among those of its best groups, and the gates[T, N].

    DeepSeek-AI 2024, arXiv:2405.04434, section 2.2.2: softmax, a group is as good as its best expert; arXiv:2412.19437,
    equations 12 to 16: sigmoid, a correction added for the choice alone, a group is worth its two best together.
    Compared with transformers' DeepseekV2TopkRouter and DeepseekV3TopkRouter through whole models.
    """
    scores = 1.0 / (1.0 + np.exp(-logits)) if sigmoid else softmax(logits)
    gates, chosen, size = np.zeros(logits.shape), [], logits.shape[1] // groups
    for t, row in enumerate(scores):
        worth = row if correction is None else row + correction
        parts = [sorted(worth[g * size : (g + 1) * size], reverse=True)[: 2 if best_two else 1] for g in range(groups)]
        open_groups = sorted(range(groups), key=lambda g, parts=parts: -sum(parts[g]))[:top_groups]
        open_experts = [n for n in range(len(row)) if n // size in open_groups]
        best = sorted(open_experts, key=lambda n, worth=worth: -worth[n])[:k]
        total = sum(row[n] for n in best) if renormalise else 1.0
        for n in best:
            gates[t, n] = factor * row[n] / total
        chosen.append(best)
    return chosen, gates


def mixture(
    x: Array, router: Array, experts: Sequence[Callable[[Array], Array]], k: int, renormalise: bool = True
) -> Array:
    """y_t = sum over chosen experts n of gate_tn expert_n(x_t); Shazeer et al. 2017, eq. 1; no token is dropped.

    An expert maps [1, D] to [1, D]: bind a function of `feedforward` to its weights.
    """
    chosen, gates = route(x @ router.T, k, renormalise)
    y = np.zeros(x.shape)
    for t in range(len(x)):
        for n in chosen[t]:
            y[t] = y[t] + gates[t, n] * experts[n](x[t : t + 1])[0]
    return y


def load_balancing_loss(
    logits: Array, k: int, valid: Sequence[bool] | None = None, normalisation: str = "assignment"
) -> float:
    """N sum_n f_n P_n: P_n the mean router probability, f_n how often expert n was chosen; Fedus et al. 2022, eq. 4-6.

    "assignment": f_n is the share of all T k choices, so f sums to 1 and perfect balance gives 1 (Switch, where k=1).
    "token": f_n is choices per token, so f sums to k and balance gives k (transformers' Mixtral). Padding (valid[t]
    false) does not count. The gradient flows through P alone: f is a step function.
    """
    tokens = [t for t in range(len(logits)) if valid is None or valid[t]]
    n_experts = logits.shape[1]
    chosen, _ = route(logits, k)
    counts = [sum(chosen[t].count(n) for t in tokens) for n in range(n_experts)]
    choices = len(tokens) * (k if normalisation == "assignment" else 1)
    probabilities = softmax(logits)
    loss = 0.0
    for n in range(n_experts):
        mean_probability = sum(probabilities[t, n] for t in tokens) / len(tokens)
        loss += counts[n] / choices * mean_probability
    return float(n_experts * loss)


def router_z_loss(logits: Array, valid: Sequence[bool] | None = None) -> float:
    """mean_t (log sum_n exp(logits_tn))^2 over real tokens; Zoph et al. 2022 (ST-MoE), eq. 5. Compared with torch."""
    squares = [z * z for t, z in enumerate(logsumexp(logits)) if valid is None or valid[t]]
    return float(sum(squares) / len(squares))
