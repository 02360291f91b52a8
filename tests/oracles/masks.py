"""Who may look at whom: one predicate per rule, query position i, key position j, true where i may see j.

A rule says only what its name says: window, strided, fixed, prefix and documents are meant to be joined with `causal`
by `and`. `dense` turns a rule into mask[T, S]; rows are queries, columns are keys. Compared with torch.tril, with the
numbers of keys that the papers state, and with patterns drawn by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def dense(rule: Callable[[int, int], bool], queries: Iterable[int], keys: Iterable[int]) -> Array:
    """mask[t, s] = rule(queries[t], keys[s]), bool; a continuation has queries range(S - T, S) and keys range(S)."""
    keys = list(keys)
    return np.array([[bool(rule(i, j)) for j in keys] for i in queries], dtype=bool)


def causal(i: int, j: int) -> bool:
    """j <= i."""
    return j <= i


def window(i: int, j: int, width: int) -> bool:
    """i - width < j <= i: `width` keys including the query's own; Jiang et al. 2023 (Mistral) as in transformers."""
    return i - width < j <= i


def window_symmetric(i: int, j: int, width: int) -> bool:
    """|i - j| <= width / 2, width even: width + 1 keys with the query's own; Beltagy et al. 2020, section 3.1.

    Its causal half has width/2 + 1 keys.
    """
    return abs(i - j) <= width // 2


def window_dilated(i: int, j: int, width: int, dilation: int) -> bool:
    """i - j in {0, dilation, ..., (width - 1) dilation}: `width` keys with gaps, causal.

    One side of Beltagy et al. 2020, figure 2c.
    """
    return (i - j) in [step * dilation for step in range(width)]


def window_dilated_symmetric(i: int, j: int, width: int, dilation: int) -> bool:
    """|i - j| in {0, dilation, ..., (width / 2) dilation}: Longformer's two-sided dilated window."""
    return abs(i - j) in [step * dilation for step in range(width // 2 + 1)]


def segments(i: int, j: int, size: int, memory: int) -> bool:
    """j <= i and j in i's segment of `size` tokens or among the `memory` tokens before it; Dai et al. 2019, 3.2."""
    return j <= i and j >= (i // size) * size - memory


def prefix(i: int, j: int, length: int) -> bool:
    """j <= i, or key j lies in the prefix of `length` tokens, which all may see (causal included); Raffel 2020."""
    return j <= i or j < length


def document_of(begins: Sequence[bool]) -> list[int]:
    """Document number of each token: how many documents have begun up to and including it."""
    number, numbers = 0, []
    for begin in begins:
        number += 1 if begin else 0
        numbers.append(number)
    return numbers


def same_document(i: int, j: int, begins: Sequence[bool]) -> bool:
    """No document begins between the two, the later one included."""
    first, last = min(i, j), max(i, j)
    return not any(begins[t] for t in range(first + 1, last + 1))


def real_key(i: int, j: int, real: Sequence[bool]) -> bool:
    """Key j is a token and not padding; the query does not matter."""
    return bool(real[j])


def strided_local(i: int, j: int, stride: int) -> bool:
    """j in {max(0, i - stride), ..., i}: stride + 1 keys; Child et al. 2019, section 4.2 (first strided head).

    The released code keeps `stride` keys: that is window(i, j, stride).
    """
    return max(0, i - stride) <= j <= i


def strided(i: int, j: int, stride: int) -> bool:
    """j <= i and (i - j) mod stride = 0; Child et al. 2019, section 4.2 (second strided head)."""
    return j <= i and (i - j) % stride == 0


def fixed_local(i: int, j: int, stride: int) -> bool:
    """j <= i in the same block of `stride` tokens; Child et al. 2019, section 4.2 (first fixed head)."""
    return j <= i and j // stride == i // stride


def fixed(i: int, j: int, stride: int, n_summary: int, head: int = 0) -> bool:
    """j <= i and j one of the block's summary columns; Child et al. 2019, section 4.2 (second fixed head).

    With head = 0 the last c = n_summary columns, j mod stride in {stride - c, ..., stride - 1}; head h takes the c
    columns before those of head h - 1, section 4.2's remark that heads should use distinct sub-blocks.
    """
    return j <= i and stride - (head + 1) * n_summary <= j % stride < stride - head * n_summary


def global_tokens(i: int, j: int, globals_: Collection[int]) -> bool:
    """Either is a global token: it sees all and all see it; Beltagy et al. 2020, section 3.1 (not causal)."""
    return i in globals_ or j in globals_
