"""The linear recurrence in chunks of tokens, forward and backward, for decays that all features of a key share.

    S_t = a_t S_{t-1} + k_t v_t^T,   o_t = q_t S_t

`states` goes from chunk to chunk and stores the state before each; `outputs` then computes all chunks at once, from
that state and from products of queries and keys within the chunk. `states_backward` goes back over the chunks and
stores the gradient of the state after each, and `backward` computes all chunks' gradients at once. Products are in
float32 of full precision: with queries and keys in bfloat16 by products of bfloat16, else by three of TF32.

Decays enter as sums of logarithms over the tokens between a key and its query, never as differences of sums from the
chunk's first token on: so a decay of zero (minus infinity, here `NONE`) is exact, and so is what comes after it.
"""

import triton
import triton.language as tl

NONE = tl.constexpr(-1e30)


@triton.jit
def _thirds(x):
    """Three tensors of bfloat16 whose sum is ``x``: each has 8 of the 24 bits."""
    first = x.to(tl.bfloat16)
    rest = x - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _narrow_dot(x, y, found, PRECISION: tl.constexpr):
    """``found`` and x y of tensors in bfloat16; the interpreter, which runs in full precision, multiplies none such."""
    if PRECISION == "ieee":
        found = tl.dot(x.to(tl.float32), y.to(tl.float32), found, input_precision=PRECISION)
    else:
        found = tl.dot(x, y, found)
    return found


@triton.jit
def _dot(x, y, PRECISION: tl.constexpr):
    """x y, in float32: of tensors in bfloat16 one product, which is exact, and with one of them three."""
    found = tl.full([x.shape[0], y.shape[1]], 0.0, tl.float32)
    if x.dtype == tl.bfloat16:
        if y.dtype == tl.bfloat16:
            found = _narrow_dot(x, y, found, PRECISION)
        else:
            first, second, third = _thirds(y)
            found = _narrow_dot(x, third, found, PRECISION)
            found = _narrow_dot(x, first, _narrow_dot(x, second, found, PRECISION), PRECISION)
    elif y.dtype == tl.bfloat16:
        first, second, third = _thirds(x)
        found = _narrow_dot(third, y, found, PRECISION)
        found = _narrow_dot(first, y, _narrow_dot(second, y, found, PRECISION), PRECISION)
    else:
        found = tl.dot(x, y, input_precision=PRECISION)
    return found


@triton.jit
def _logs(log, first, steps, stride, CHUNK: tl.constexpr):
    """Logarithms of a chunk's decays, and those of the token after each, zero after the chunk's last."""
    i = tl.arange(0, CHUNK)
    own = tl.load(log + (first + i) * stride, mask=first + i < steps, other=0.0)
    later = tl.load(log + (first + i + 1) * stride, mask=(first + i + 1 < steps) & (i < CHUNK - 1), other=0.0)
    return tl.maximum(own, NONE), tl.maximum(later, NONE)


@triton.jit
def _between(logs, CHUNK: tl.constexpr, DECAYS: tl.constexpr):
    """The decay [query,key] from each key to each query, zero for later keys."""
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    weights = (i >= j).to(tl.float32)
    if DECAYS:
        weights *= tl.exp(tl.cumsum(tl.where(i > j, logs[:, None], 0.0), 0))
    return weights


@triton.jit
def _products(x, y, x_rows, y_rows, t, steps, width, PRECISION: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """x y^T of a chunk's tokens."""
    found = tl.full([CHUNK, CHUNK], 0.0, tl.float32)
    for first in range(0, width, BLOCK):
        e = (first + tl.arange(0, BLOCK))[None, :]
        inside = (t < steps) & (e < width)
        left, right = tl.load(x + x_rows + e, mask=inside, other=0.0), tl.load(y + y_rows + e, mask=inside, other=0.0)
        found += _dot(left, right.T, PRECISION)
    return found


@triton.jit
def states(k, v, log, before, kept, after, steps, key_heads, heads, keys, values, row_stride, step_stride,
           DECAYS: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    e, f = (tl.program_id(1) * BE + tl.arange(0, BE))[None, :], (tl.program_id(2) * BF + tl.arange(0, BF))[None, :]
    place, held = e.T * values + f, (e.T < keys) & (f < values)
    size, chunks = keys * values, (steps + CHUNK - 1) // CHUNK
    k += row * steps * key_heads * keys + head // (heads // key_heads) * keys
    v += row * steps * heads * values + head * values
    if DECAYS:
        log += row * row_stride + head
    state = (row * heads + head) * size
    s = tl.load(before + state + place, mask=held, other=0.0)
    kept += (row * heads + head) * chunks * size
    for chunk in range(0, chunks):
        tl.store(kept + chunk * size + place, s, mask=held)
        t = (chunk * CHUNK + tl.arange(0, CHUNK))[:, None]
        key = tl.load(k + t * (key_heads * keys) + e, mask=(t < steps) & (e < keys), other=0.0)
        value = tl.load(v + t * (heads * values) + f, mask=(t < steps) & (f < values), other=0.0)
        if DECAYS:
            logs, later = _logs(log, chunk * CHUNK, steps, step_stride, CHUNK)
            value *= tl.exp(tl.cumsum(later, 0, reverse=True))[:, None]
            s *= tl.exp(tl.sum(logs, 0))
        s += _dot(key.T, value, PRECISION)
    tl.store(after + state + place, s, mask=held)


@triton.jit
def outputs(q, k, v, log, kept, y, steps, query_heads, key_heads, heads, keys, values, row_stride, step_stride,
            DECAYS: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):
    chunks, wide = (steps + CHUNK - 1) // CHUNK, tl.maximum(query_heads, heads)
    chunk, own = tl.program_id(0) % chunks, tl.program_id(0) // chunks % wide
    row = tl.program_id(0).to(tl.int64) // chunks // wide
    head, size = own // (wide // heads), keys * values
    f, t = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :], (chunk * CHUNK + tl.arange(0, CHUNK))[:, None]
    in_values = (t < steps) & (f < values)
    q += row * steps * query_heads * keys + own // (wide // query_heads) * keys
    k += row * steps * key_heads * keys + head // (heads // key_heads) * keys
    v += row * steps * heads * values + head * values
    kept += ((row * heads + head) * chunks + chunk) * size
    scores = tl.full([CHUNK, CHUNK], 0.0, tl.float32)
    found = tl.full([CHUNK, BF], 0.0, tl.float32)
    for first in range(0, keys, BE):
        e = (first + tl.arange(0, BE))[None, :]
        in_keys = (t < steps) & (e < keys)
        query = tl.load(q + t * (query_heads * keys) + e, mask=in_keys, other=0.0)
        key = tl.load(k + t * (key_heads * keys) + e, mask=in_keys, other=0.0)
        scores += _dot(query, key.T, PRECISION)
        before = tl.load(kept + e.T * values + f, mask=(e.T < keys) & (f < values), other=0.0)
        found += _dot(query, before, PRECISION)
    if DECAYS:
        logs, _ = _logs(log + row * row_stride + head, chunk * CHUNK, steps, step_stride, CHUNK)
        found *= tl.exp(tl.cumsum(logs, 0))[:, None]
        scores *= _between(logs, CHUNK, True)
    else:
        scores *= _between(0.0, CHUNK, False)
    value = tl.load(v + t * (heads * values) + f, mask=in_values, other=0.0)
    found += _dot(scores, value, PRECISION)
    tl.store(y + row * steps * wide * values + own * values + t * (wide * values) + f, found, mask=in_values)


@triton.jit
def states_backward(q, dy, log, dafter, leaving, dbefore, steps, query_heads, heads, keys, values, row_stride,
                    step_stride, DECAYS: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, BE: tl.constexpr,
                    BF: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    e, f = (tl.program_id(1) * BE + tl.arange(0, BE))[None, :], (tl.program_id(2) * BF + tl.arange(0, BF))[None, :]
    place, held = e.T * values + f, (e.T < keys) & (f < values)
    size, chunks, wide = keys * values, (steps + CHUNK - 1) // CHUNK, tl.maximum(query_heads, heads)
    q += row * steps * query_heads * keys
    dy += row * steps * wide * values
    if DECAYS:
        log += row * row_stride + head
    state = (row * heads + head) * size
    slope = tl.load(dafter + state + place, mask=held, other=0.0)
    leaving += (row * heads + head) * chunks * size
    for back in range(0, chunks):
        chunk = chunks - 1 - back
        tl.store(leaving + chunk * size + place, slope, mask=held)
        t = (chunk * CHUNK + tl.arange(0, CHUNK))[:, None]
        into = tl.full([CHUNK], 1.0, tl.float32)
        if DECAYS:
            logs, _ = _logs(log, chunk * CHUNK, steps, step_stride, CHUNK)
            into = tl.exp(tl.cumsum(logs, 0))
            slope *= tl.exp(tl.sum(logs, 0))
        for own in range(head * (wide // heads), (head + 1) * (wide // heads)):
            query = tl.load(q + own // (wide // query_heads) * keys + t * (query_heads * keys) + e,
                            mask=(t < steps) & (e < keys), other=0.0)
            above = tl.load(dy + own * values + t * (wide * values) + f, mask=(t < steps) & (f < values), other=0.0)
            slope += _dot(query.T, above * into[:, None], PRECISION)
    tl.store(dbefore + state + place, slope, mask=held)


@triton.jit
def backward(q, k, v, log, dy, kept, leaving, dq, dk, dv, dlog, steps, query_heads, key_heads, heads, keys, values,
             row_stride, step_stride, DECAYS: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
             BE: tl.constexpr, BF: tl.constexpr):
    """The gradients of one query head and the state that it reads: ``dq``, and its part of ``dk``, ``dv`` and ``dlog``;
    the first query head of a state adds what keys and values give to later chunks."""
    chunks, wide = (steps + CHUNK - 1) // CHUNK, tl.maximum(query_heads, heads)
    chunk, own = tl.program_id(0) % chunks, tl.program_id(0) // chunks % wide
    row = tl.program_id(0).to(tl.int64) // chunks // wide
    head, size, t = own // (wide // heads), keys * values, (chunk * CHUNK + tl.arange(0, CHUNK))[:, None]
    leads = (own % (wide // heads) == 0).to(tl.float32)
    q += row * steps * query_heads * keys + own // (wide // query_heads) * keys
    k += row * steps * key_heads * keys + head // (heads // key_heads) * keys
    v += row * steps * heads * values + head * values
    by_values, by_keys = row * steps * wide * values + own * values, row * steps * wide * keys + own * keys
    dy, dv, dq, dk = dy + by_values, dv + by_values, dq + by_keys, dk + by_keys
    q_rows, k_rows, v_rows = t * (query_heads * keys), t * (key_heads * keys), t * (heads * values)
    wide_keys, wide_values = t * (wide * keys), t * (wide * values)
    state = ((row * heads + head) * chunks + chunk) * size
    kept, leaving = kept + state, leaving + state
    scores = _products(q, k, q_rows, k_rows, t, steps, keys, PRECISION, CHUNK, BE)
    slopes = _products(dy, v, wide_values, v_rows, t, steps, values, PRECISION, CHUNK, BF)
    into, out, over = tl.full([CHUNK], 1.0, tl.float32), tl.full([CHUNK], 1.0, tl.float32), 1.0
    if DECAYS:
        logs, later = _logs(log + row * row_stride + head, chunk * CHUNK, steps, step_stride, CHUNK)
        into, out = tl.exp(tl.cumsum(logs, 0)), tl.exp(tl.cumsum(later, 0, reverse=True))
        over = tl.exp(tl.sum(logs, 0))
        weights = _between(logs, CHUNK, True)
    else:
        weights = _between(0.0, CHUNK, False)
    scores *= weights
    pairs = scores * slopes
    slopes *= weights
    out *= leads
    reading, writing = tl.full([CHUNK], 0.0, tl.float32), tl.full([CHUNK], 0.0, tl.float32)
    passing = tl.full([BE, BF], 0.0, tl.float32)
    for first in range(0, keys, BE):
        e = (first + tl.arange(0, BE))[None, :]
        in_keys = (t < steps) & (e < keys)
        query = tl.load(q + q_rows + e, mask=in_keys, other=0.0)
        key = tl.load(k + k_rows + e, mask=in_keys, other=0.0)
        from_before, to_later = tl.full([CHUNK, BE], 0.0, tl.float32), tl.full([CHUNK, BE], 0.0, tl.float32)
        for column in range(0, values, BF):
            f = (column + tl.arange(0, BF))[None, :]
            in_values, in_state = (t < steps) & (f < values), (e.T < keys) & (f < values)
            before = tl.load(kept + e.T * values + f, mask=in_state, other=0.0)
            slope = tl.load(leaving + e.T * values + f, mask=in_state, other=0.0)
            above = tl.load(dy + wide_values + f, mask=in_values, other=0.0)
            value = tl.load(v + v_rows + f, mask=in_values, other=0.0)
            from_before += _dot(above, before.T, PRECISION)
            to_later += _dot(value, slope.T, PRECISION)
            passing += before * slope
        from_before *= into[:, None]
        to_later *= out[:, None]
        reading += tl.sum(query * from_before, 1)
        writing += tl.sum(key * to_later, 1)
        from_before += _dot(slopes, key, PRECISION)
        to_later += _dot(slopes.T, query, PRECISION)
        tl.store(dq + wide_keys + e, from_before, mask=in_keys)
        tl.store(dk + wide_keys + e, to_later, mask=in_keys)
    for column in range(0, values, BF):
        f = (column + tl.arange(0, BF))[None, :]
        in_values = (t < steps) & (f < values)
        held = tl.full([CHUNK, BF], 0.0, tl.float32)
        for first in range(0, keys, BE):
            e = (first + tl.arange(0, BE))[None, :]
            key = tl.load(k + k_rows + e, mask=(t < steps) & (e < keys), other=0.0)
            slope = tl.load(leaving + e.T * values + f, mask=(e.T < keys) & (f < values), other=0.0)
            held += _dot(key, slope, PRECISION)
        held *= out[:, None]
        above = tl.load(dy + wide_values + f, mask=in_values, other=0.0)
        held += _dot(scores.T, above, PRECISION)
        tl.store(dv + wide_values + f, held, mask=in_values)
    if DECAYS:
        # A decay is part of all that passes its token: between pairs of this chunk's tokens, from the state before to
        # later queries, from earlier keys to the chunk's end, and from the state before to there.
        within = tl.sum(pairs, 1) - tl.sum(pairs, 0) + reading
        found = tl.cumsum(within, 0, reverse=True) + tl.cumsum(writing, 0) - writing
        found += leads * over * tl.sum(tl.sum(passing, 1), 0)
        i = chunk * CHUNK + tl.arange(0, CHUNK)
        tl.store(dlog + (row * steps + i) * wide + own, found, mask=i < steps)
