"""Losses in nats, averaged over the tokens that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import log_softmax, logsumexp

Array = NDArray[Any]


def gathered_log_prob(logits: Array, targets: Sequence[int]) -> Array:
    """log softmax(logits_t)[target_t], [T]."""
    return np.array([log_softmax(row)[target] for row, target in zip(logits, targets, strict=True)])


def cross_entropy(
    logits: Array, targets: Sequence[int], counts: Sequence[bool] | None = None, label_smoothing: float = 0.0
) -> float:
    """Mean over counted tokens of -sum_v q_v log p_v, q = (1 - e) one-hot + e / V; Szegedy et al. 2016, section 7.

    logits[T, V]; targets[t] of tokens that do not count may be anything. The smoothing mass is spread over all V
    classes, the target included (torch); Vaswani et al. 2017 use e = 0.1. Compared with
    torch.nn.functional.cross_entropy(label_smoothing=, ignore_index=).
    """
    losses = []
    for t, target in enumerate(targets):
        if counts is None or counts[t]:
            log_p = log_softmax(logits[t])
            smooth = -sum(log_p) / len(log_p)
            losses.append((1.0 - label_smoothing) * -log_p[target] + label_smoothing * smooth)
    return float(sum(losses) / len(losses))


def z_loss(logits: Array, counts: Sequence[bool] | None = None) -> float:
    """Mean over counted tokens of log(Z)^2, Z = sum_v exp(logit_v), without its coefficient (PaLM: 1e-4).

    Chowdhery et al. 2022, section 5. Compared with torch.logsumexp.
    """
    squares = [z * z for t, z in enumerate(logsumexp(logits)) if counts is None or counts[t]]
    return float(sum(squares) / len(squares))


def adaptive_log_prob(
    h: Array,
    head: Array,
    tails: Sequence[tuple[Array, Array]],
    cutoffs: Sequence[int],
    head_bias: Array | None = None,
) -> Array:
    """log p(v | h), [T, V], of the adaptive softmax; Grave et al. 2017, section 4.

    The head is a softmax over the first cutoffs[0] words and one entry per cluster: head[cutoffs[0] + n, D]. Cluster
    n holds the words cutoffs[n] .. cutoffs[n + 1] - 1 and tails[n] = (projection[D_n, D], words[size_n, D_n]):
    log p(v) = log p(cluster n) + log p(v | cluster n). cutoffs end with V. Compared with
    torch.nn.AdaptiveLogSoftmaxWithLoss.log_prob, whose clusters have no biases either.
    """
    shortlist = cutoffs[0]
    out = np.zeros((len(h), cutoffs[-1]))
    for t, hidden in enumerate(h):
        head_log_p = log_softmax(head @ hidden + (0.0 if head_bias is None else head_bias))
        out[t, :shortlist] = head_log_p[:shortlist]
        for n, (projection, words) in enumerate(tails):
            inside = log_softmax(words @ (projection @ hidden))
            out[t, cutoffs[n] : cutoffs[n + 1]] = head_log_p[shortlist + n] + inside
    return out
