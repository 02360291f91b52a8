"""Attention of one query of each head over stored keys, whose number each row reads on the device.

A program has the query heads that share one key head, as the rows of a matrix, and some consecutive keys of one row of
the batch: it goes from the first key that the row's query may attend to to the last, so that the unused slots of a
buffer are not read. Scores, weights and sums are in float32, and factors of products in the dtype PRODUCTS. Where a
row's keys are divided among several programs, `joined` adds up what they found.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def _base_of(most):
    """The number that is subtracted from scores before the exponential: the largest, or 0 where there is none."""
    return tl.where(most == NOTHING, 0.0, most)


@triton.jit
def partial(q, k, v, allowed, bias, sinks, start, stop, y, sums, most_of, total_of, keys, group, size, width, per,
            q_row, q_head, k_row, k_key, k_head, v_row, v_key, v_head, a_row, a_head, a_key, b_row, b_head, b_key,
            scale, cap, heads, RANGED: tl.constexpr, ALLOWED: tl.constexpr, BIAS: tl.constexpr, CAPPED: tl.constexpr,
            SINKS: tl.constexpr, SPLITS: tl.constexpr, PRODUCTS: tl.constexpr, PRECISION: tl.constexpr, G: tl.constexpr,
            S: tl.constexpr, E: tl.constexpr, F: tl.constexpr):
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    g, s, e, f = tl.arange(0, G), tl.arange(0, S), tl.arange(0, E), tl.arange(0, F)
    own = head * group + g  # the query heads
    real = g < group
    first, last = split * per, tl.minimum(split * per + per, keys)
    if RANGED:
        first = tl.maximum(first, tl.load(start + row).to(tl.int32))
        last = tl.minimum(last, tl.load(stop + row).to(tl.int32))
    queries = tl.load(q + row * q_row + own[:, None] * q_head + e[None, :], mask=real[:, None] & (e[None, :] < size),
                      other=0.0).to(PRODUCTS)
    most, total = tl.full([G], NOTHING, tl.float32), tl.full([G], 0.0, tl.float32)
    found = tl.full([G, F], 0.0, tl.float32)
    for begin in range(first, last, S):
        place = (begin + s).to(tl.int64)
        inside = place < last
        held = tl.load(k + row * k_row + head * k_head + place[:, None] * k_key + e[None, :],
                       mask=inside[:, None] & (e[None, :] < size), other=0.0).to(PRODUCTS)
        scores = tl.dot(queries, tl.trans(held), input_precision=PRECISION) * scale
        seen = inside[None, :] & real[:, None]
        if BIAS:
            scores += tl.load(bias + row * b_row + own[:, None] * b_head + place[None, :] * b_key, mask=seen,
                              other=0.0).to(tl.float32)
        if CAPPED:
            scores = cap * (2.0 * tl.sigmoid(2.0 * scores / cap) - 1.0)
        if ALLOWED:
            seen = seen & (tl.load(allowed + row * a_row + own[:, None] * a_head + place[None, :] * a_key, mask=seen,
                                   other=0) != 0)
        scores = tl.where(seen, scores, NOTHING)
        higher = tl.maximum(most, tl.max(scores, 1))
        base = _base_of(higher)
        weights, kept = tl.exp(scores - base[:, None]), tl.exp(most - base)
        values = tl.load(v + row * v_row + head * v_head + place[:, None] * v_key + f[None, :],
                         mask=inside[:, None] & (f[None, :] < width), other=0.0).to(PRODUCTS)
        found = found * kept[:, None] + tl.dot(weights.to(PRODUCTS), values, input_precision=PRECISION)
        total = total * kept + tl.sum(weights, 1)
        most = higher
    inner = real[:, None] & (f[None, :] < width)
    if SPLITS == 1:
        if SINKS:
            sink = tl.load(sinks + own, mask=real, other=0.0).to(tl.float32)
            higher = tl.maximum(most, sink)
            kept = tl.exp(most - higher)
            total, found = total * kept + tl.exp(sink - higher), found * kept[:, None]
        found = found / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(y + (row * heads + own[:, None]) * width + f[None, :], found.to(y.dtype.element_ty), mask=inner)
    else:
        place = (row * heads + own) * SPLITS + split
        tl.store(most_of + place, most, mask=real)
        tl.store(total_of + place, total, mask=real)
        tl.store(sums + place[:, None] * width + f[None, :], found, mask=inner)


@triton.jit
def joined(sums, most_of, total_of, sinks, y, heads, splits, width, SINKS: tl.constexpr, N: tl.constexpr,
           F: tl.constexpr):
    row, n, f = tl.program_id(0).to(tl.int64), tl.arange(0, N), tl.arange(0, F)
    most = tl.load(most_of + row * splits + n, mask=n < splits, other=NOTHING)
    total = tl.load(total_of + row * splits + n, mask=n < splits, other=0.0)
    highest = tl.max(most, 0)
    if SINKS:
        sink = tl.load(sinks + row % heads).to(tl.float32)
        highest = tl.maximum(highest, sink)
    highest = _base_of(highest)
    weights = tl.exp(most - highest)
    whole = tl.sum(total * weights, 0)
    if SINKS:
        whole += tl.exp(sink - highest)
    found = tl.load(sums + (row * splits + n[:, None]) * width + f[None, :],
                    mask=(n[:, None] < splits) & (f[None, :] < width), other=0.0)
    found = tl.sum(found * weights[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(y + row * width + f, found.to(y.dtype.element_ty), mask=f < width)
