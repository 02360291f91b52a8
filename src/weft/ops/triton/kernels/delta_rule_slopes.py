"""The backward pass of the delta rule in chunks of tokens, beside `delta_rule`, which it takes its tiles from.

`solve_backward` prepares the way back over the chunks: G is the gradient of the state after a chunk, and R = W G + Y
that of what its tokens read from the state before, with W = T^T B and Y = T^T QB^T dO. Where `states` of `delta_rule`
has stored R and every G, `value_slopes` has the gradients of the values of all chunks at once, and `reader_slopes` and
`writer_slopes` those of q and a, of b and k, and of the decays, from the slopes of the scores that `score_slopes`
stores. Where decays differ between features, `delta_rule_near` adds what passes between tokens of one run of 16.
"""

import triton
import triton.language as tl

from weft.ops.triton.kernels.delta_rule import (
    NEAR,
    decays_after,
    decays_before,
    halves_of,
    logs_of,
    pairs_of,
    scores_of,
    sums,
    tile_of,
)


@triton.jit
def solve_backward(q, a, b, log, near, inverse, do, w, y, before_a, before_q, steps, heads, row_stride, stride,
                   keys: tl.constexpr, values: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr,
                   CHUNK: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, LEVELS: tl.constexpr):
    """W and Y of the way back; in ``before_a`` and ``before_q`` the decays before each token, of a head alone, of
    features with a and q."""
    chunks = tl.cdiv(steps, CHUNK)
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, first = tl.program_id(0).to(tl.int64) // chunks // heads, chunk * CHUNK
    i = tl.arange(0, CHUNK)[:, None]
    t, by_key, by_value = first + i, (row * steps * heads + head) * keys, (row * steps * heads + head) * values
    q, a, b, w, do, y = q + by_key, a + by_key, b + by_key, w + by_key, do + by_value, y + by_value
    if BY > 0:
        log += row * row_stride + head * (keys if BY == 2 else 1)
    if BY == 2:
        near += (row * steps * heads + head) * 4 * NEAR
        before_a, before_q = before_a + by_key, before_q + by_key
    square = tl.program_id(0).to(tl.int64) * CHUNK * CHUNK
    solved = tl.load(inverse + square + i * CHUNK + tl.arange(0, CHUNK)[None, :])
    for start in range(0, keys, BE):
        e = start + tl.arange(0, BE)[None, :]
        inside, place = (t < steps) & (e < keys), t * (heads * keys) + e
        write = tile_of(b, t, e, steps, heads * keys, keys)
        write *= decays_after(log, first, e, steps, stride, keys, CHUNK, BY, CHUNK, BE)
        tl.store(w + place, tl.dot(solved.T, write, input_precision=PRECISION), mask=inside)
        if BY == 2:
            until = decays_before(log, first, e, steps, stride, keys, False, CHUNK, 2, CHUNK, BE)
            tl.store(before_a + place, until * tile_of(a, t, e, steps, heads * keys, keys), mask=inside)
            into = decays_before(log, first, e, steps, stride, keys, True, CHUNK, 2, CHUNK, BE)
            tl.store(before_q + place, into * tile_of(q, t, e, steps, heads * keys, keys), mask=inside)
    if BY == 1:
        place = (row * steps + t) * heads + head
        tl.store(before_a + place, decays_before(log, first, i, steps, stride, 1, False, CHUNK, 1, CHUNK, 1),
                 mask=t < steps)
        tl.store(before_q + place, decays_before(log, first, i, steps, stride, 1, True, CHUNK, 1, CHUNK, 1),
                 mask=t < steps)
    scores = scores_of(q, b, near, log, first, steps, heads, stride, keys, 0, BY, PRECISION, CHUNK, BE, LEVELS)
    scores = tl.dot(scores, solved, input_precision=PRECISION)
    for column in range(0, values, BF):
        f = column + tl.arange(0, BF)[None, :]
        above = tile_of(do, t, f, steps, heads * values, values)
        tl.store(y + t * (heads * values) + f, tl.dot(scores.T, above, input_precision=PRECISION),
                 mask=(t < steps) & (f < values))


@triton.jit
def value_slopes(q, k, a, log, near, do, r, leaving, dv, steps, heads, row_stride, stride, keys: tl.constexpr,
                 values: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
                 BE: tl.constexpr, BF: tl.constexpr, LEVELS: tl.constexpr):
    """K G + QK^T dO + AK^T R."""
    chunks = tl.cdiv(steps, CHUNK)
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, first = tl.program_id(0).to(tl.int64) // chunks // heads, chunk * CHUNK
    t, f = first + tl.arange(0, CHUNK)[:, None], tl.program_id(1) * BF + tl.arange(0, BF)[None, :]
    by_key, by_value = (row * steps * heads + head) * keys, (row * steps * heads + head) * values
    q, k, a, do, r, dv = q + by_key, k + by_key, a + by_key, do + by_value, r + by_value, dv + by_value
    leaving += tl.program_id(0).to(tl.int64) * (keys * values)
    if BY > 0:
        log += row * row_stride + head * (keys if BY == 2 else 1)
    if BY == 2:
        near += (row * steps * heads + head) * 4 * NEAR
    found = tl.full([CHUNK, BF], 0.0, tl.float32)
    for start in range(0, keys, BE):
        e, column = start + tl.arange(0, BE)[None, :], start + tl.arange(0, BE)[:, None]
        key = tile_of(k, t, e, steps, heads * keys, keys)
        key *= decays_after(log, first, e, steps, stride, keys, CHUNK, BY, CHUNK, BE)
        slope = tl.load(leaving + column * values + f, mask=(column < keys) & (f < values), other=0.0)
        found += tl.dot(key, slope, input_precision=PRECISION)
    scores = scores_of(q, k, near, log, first, steps, heads, stride, keys, 1, BY, PRECISION, CHUNK, BE, LEVELS)
    found += tl.dot(scores.T, tile_of(do, t, f, steps, heads * values, values), input_precision=PRECISION)
    scores = scores_of(a, k, near, log, first, steps, heads, stride, keys, 3, BY, PRECISION, CHUNK, BE, LEVELS)
    found += tl.dot(scores.T, tile_of(r, t, f, steps, heads * values, values), input_precision=PRECISION)
    tl.store(dv + t * (heads * values) + f, found, mask=(t < steps) & (f < values))


@triton.jit
def score_slopes(v, u, log, near, do, r, squares, steps, heads, row_stride, stride, keys: tl.constexpr,
                 values: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
                 BF: tl.constexpr):
    """dO U^T, dO V^T, R U^T and R V^T, [4,token,token], in programs by U and V: the slopes of the scores, before their
    decays where these differ between features; then those of one run are in ``near`` too."""
    chunks, which = tl.cdiv(steps, CHUNK), tl.program_id(1)
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, first = tl.program_id(0).to(tl.int64) // chunks // heads, chunk * CHUNK
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    t, by_value = first + i, (row * steps * heads + head) * values
    do, r, written = do + by_value, r + by_value, (u if which == 0 else v) + by_value
    asked, taken = tl.full([CHUNK, CHUNK], 0.0, tl.float32), tl.full([CHUNK, CHUNK], 0.0, tl.float32)
    for column in range(0, values, BF):
        f = column + tl.arange(0, BF)[None, :]
        value = tile_of(written, t, f, steps, heads * values, values)
        asked += tl.dot(tile_of(do, t, f, steps, heads * values, values), value.T, input_precision=PRECISION)
        taken += tl.dot(tile_of(r, t, f, steps, heads * values, values), value.T, input_precision=PRECISION)
    if BY == 2:
        close = (t < steps) & (i // NEAR == j // NEAR) & (i >= j)
        place = near + ((row * steps + t) * heads + head) * 4 * NEAR + which * NEAR + i - j
        tl.store(place, asked, mask=close)
        tl.store(place + 2 * NEAR, taken, mask=close)
    else:
        if BY == 1:
            log += row * row_stride + head
        asked *= pairs_of(log, first, steps, stride, True, BY, CHUNK)
        taken *= pairs_of(log, first, steps, stride, False, BY, CHUNK)
    place = squares + (tl.program_id(0).to(tl.int64) * 4 + which) * CHUNK * CHUNK + i * CHUNK + j
    tl.store(place, asked)
    tl.store(place + 2 * CHUNK * CHUNK, taken)


@triton.jit
def _by_writers(square, b, k, log, first, t, e, steps, heads, stride, keys: tl.constexpr, OWN: tl.constexpr,
                BY: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, BE: tl.constexpr,
                LEVELS: tl.constexpr):
    """The gradient of a reader by its scores."""
    by_write, by_key = tl.load(square), tl.load(square + CHUNK * CHUNK)
    write, key = tile_of(b, t, e, steps, heads * keys, keys), tile_of(k, t, e, steps, heads * keys, keys)
    if BY == 2:
        found = tl.full([CHUNK, BE], 0.0, tl.float32)
        for level in tl.static_range(LEVELS):
            halves = halves_of(NEAR << level, CHUNK)
            out = decays_after(log, first, e, steps, stride, keys, NEAR << level, 2, CHUNK, BE)
            part = tl.dot(tl.where(halves, by_write, 0.0), write * out, input_precision=PRECISION)
            part += tl.dot(tl.where(halves, by_key, 0.0), key * out, input_precision=PRECISION)
            found += part * decays_before(log, first, e, steps, stride, keys, OWN, NEAR << level, 2, CHUNK, BE)
    else:
        found = tl.dot(by_write, write, input_precision=PRECISION)
        found += tl.dot(by_key, key, input_precision=PRECISION)
    return found


@triton.jit
def _by_readers(square, q, a, log, first, t, e, steps, heads, stride, keys: tl.constexpr, BY: tl.constexpr,
                PRECISION: tl.constexpr, CHUNK: tl.constexpr, BE: tl.constexpr, LEVELS: tl.constexpr):
    """The gradient of a writer by its scores."""
    asked, taken = tl.load(square), tl.load(square + 2 * CHUNK * CHUNK)
    query, read = tile_of(q, t, e, steps, heads * keys, keys), tile_of(a, t, e, steps, heads * keys, keys)
    if BY == 2:
        found = tl.full([CHUNK, BE], 0.0, tl.float32)
        for level in tl.static_range(LEVELS):
            halves = halves_of(NEAR << level, CHUNK)
            into = query * decays_before(log, first, e, steps, stride, keys, True, NEAR << level, 2, CHUNK, BE)
            until = read * decays_before(log, first, e, steps, stride, keys, False, NEAR << level, 2, CHUNK, BE)
            part = tl.dot(tl.where(halves, asked, 0.0).T, into, input_precision=PRECISION)
            part += tl.dot(tl.where(halves, taken, 0.0).T, until, input_precision=PRECISION)
            found += part * decays_after(log, first, e, steps, stride, keys, NEAR << level, 2, CHUNK, BE)
    else:
        found = tl.dot(asked.T, query, input_precision=PRECISION)
        found += tl.dot(taken.T, read, input_precision=PRECISION)
    return found


@triton.jit
def _by_state(x, state, t, e, steps, heads, keys: tl.constexpr, values: tl.constexpr, PRECISION: tl.constexpr,
              CHUNK: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):
    """The product of a vector of values of each token with a state, transposed."""
    found = tl.full([CHUNK, BE], 0.0, tl.float32)
    for column in range(0, values, BF):
        f = column + tl.arange(0, BF)[None, :]
        tile = tl.load(state + e.T * values + f, mask=(e.T < keys) & (f < values), other=0.0)
        found += tl.dot(tile_of(x, t, f, steps, heads * values, values), tile.T, input_precision=PRECISION)
    return found


@triton.jit
def _of_features(x, BY: tl.constexpr):
    """Terms of the gradient of each decay of a token, summed over the features that share it."""
    return tl.sum(x, 1)[:, None] if BY == 1 else x


@triton.jit
def _passing(kept, leaving, e, keys: tl.constexpr, values: tl.constexpr, BY: tl.constexpr, BE: tl.constexpr,
             BF: tl.constexpr):
    """A state times the gradient of the one after the chunk, summed over what a decay is a factor of."""
    found = tl.full([BE], 0.0, tl.float32)
    for column in range(0, values, BF):
        place = e.T * values + column + tl.arange(0, BF)[None, :]
        held = (e.T < keys) & (column + tl.arange(0, BF)[None, :] < values)
        found += tl.sum(tl.load(kept + place, mask=held, other=0.0) * tl.load(leaving + place, mask=held, other=0.0), 1)
    return tl.sum(found, 0) if BY == 1 else found[None, :]


@triton.jit
def reader_slopes(q, k, a, b, log, squares, do, r, kept, leaving, dq, da, dlog, steps, heads, row_stride, stride,
                  keys: tl.constexpr, values: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr,
                  CHUNK: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, LEVELS: tl.constexpr):
    """dQ and dA; in ``dlog`` what decays pass to readers and from the state before to the state after."""
    chunks = tl.cdiv(steps, CHUNK)
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, first = tl.program_id(0).to(tl.int64) // chunks // heads, chunk * CHUNK
    i = tl.arange(0, CHUNK)[:, None]
    t, e = first + i, tl.program_id(1) * BE + tl.arange(0, BE)[None, :]
    place, inside = t * (heads * keys) + e, (t < steps) & (e < keys)
    by_key, by_value = (row * steps * heads + head) * keys, (row * steps * heads + head) * values
    q, k, a, b, do, r = q + by_key, k + by_key, a + by_key, b + by_key, do + by_value, r + by_value
    state = tl.program_id(0).to(tl.int64) * (keys * values)
    kept, leaving = kept + state, leaving + state
    squares += tl.program_id(0).to(tl.int64) * 4 * CHUNK * CHUNK + i * CHUNK + tl.arange(0, CHUNK)[None, :]
    if BY > 0:
        log += row * row_stride + head * (keys if BY == 2 else 1)
    slope = _by_state(do, kept, t, e, steps, heads, keys, values, PRECISION, CHUNK, BE, BF)
    slope *= decays_before(log, first, e, steps, stride, keys, True, CHUNK, BY, CHUNK, BE)
    slope += _by_writers(squares, b, k, log, first, t, e, steps, heads, stride, keys, True, BY, PRECISION, CHUNK, BE,
                         LEVELS)
    tl.store(dq + by_key + place, slope, mask=inside)
    reading = _of_features(slope * tile_of(q, t, e, steps, heads * keys, keys), BY)
    slope = _by_state(r, kept, t, e, steps, heads, keys, values, PRECISION, CHUNK, BE, BF)
    slope *= decays_before(log, first, e, steps, stride, keys, False, CHUNK, BY, CHUNK, BE)
    slope += _by_writers(squares + 2 * CHUNK * CHUNK, b, k, log, first, t, e, steps, heads, stride, keys, False, BY,
                         PRECISION, CHUNK, BE, LEVELS)
    tl.store(da + by_key + place, slope, mask=inside)
    if BY > 0:
        own = _of_features(slope * tile_of(a, t, e, steps, heads * keys, keys), BY)
        found = sums(reading + own, CHUNK, CHUNK, BE if BY == 2 else 1, True) - own
        over = tl.exp(tl.sum(logs_of(log, t, e if BY == 2 else i, i >= 0, steps, stride, keys, BY), 0))[None, :]
        found += over * _passing(kept, leaving, e, keys, values, BY, BE, BF)
        dlog = _decay_place(dlog, row * steps * heads + head, t, e, heads, keys, BY)
        tl.store(dlog, found, mask=inside if BY == 2 else t < steps)


@triton.jit
def _decay_place(dlog, at, t, e, heads, keys: tl.constexpr, BY: tl.constexpr):
    """Where the gradient of a decay lies, of a feature or, for each program of a chunk, of a head."""
    if BY == 2:
        return dlog + at * keys + t * (heads * keys) + e
    else:
        return dlog + (at + t * heads) * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def writer_slopes(q, k, v, a, b, u, log, squares, leaving, dk, db, dlog, steps, heads, row_stride, stride,
                  keys: tl.constexpr, values: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr,
                  CHUNK: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, LEVELS: tl.constexpr):
    """dK and dB; adds to ``dlog`` what decays pass from writers."""
    chunks = tl.cdiv(steps, CHUNK)
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, first = tl.program_id(0).to(tl.int64) // chunks // heads, chunk * CHUNK
    i = tl.arange(0, CHUNK)[:, None]
    t, e = first + i, tl.program_id(1) * BE + tl.arange(0, BE)[None, :]
    place, inside = t * (heads * keys) + e, (t < steps) & (e < keys)
    by_key, by_value = (row * steps * heads + head) * keys, (row * steps * heads + head) * values
    q, k, a, b, v, u = q + by_key, k + by_key, a + by_key, b + by_key, v + by_value, u + by_value
    leaving += tl.program_id(0).to(tl.int64) * (keys * values)
    squares += tl.program_id(0).to(tl.int64) * 4 * CHUNK * CHUNK + i * CHUNK + tl.arange(0, CHUNK)[None, :]
    if BY > 0:
        log += row * row_stride + head * (keys if BY == 2 else 1)
    after = decays_after(log, first, e, steps, stride, keys, CHUNK, BY, CHUNK, BE)
    slope = _by_readers(squares, q, a, log, first, t, e, steps, heads, stride, keys, BY, PRECISION, CHUNK, BE, LEVELS)
    later = after * _by_state(u, leaving, t, e, steps, heads, keys, values, PRECISION, CHUNK, BE, BF)
    tl.store(db + by_key + place, slope + later, mask=inside)
    writer = tile_of(b, t, e, steps, heads * keys, keys)
    within, writing = _of_features(writer * slope, BY), _of_features(writer * later, BY)
    slope = _by_readers(squares + CHUNK * CHUNK, q, a, log, first, t, e, steps, heads, stride, keys, BY, PRECISION,
                        CHUNK, BE, LEVELS)
    later = after * _by_state(v, leaving, t, e, steps, heads, keys, values, PRECISION, CHUNK, BE, BF)
    tl.store(dk + by_key + place, slope + later, mask=inside)
    if BY > 0:
        writer = tile_of(k, t, e, steps, heads * keys, keys)
        within += _of_features(writer * slope, BY)
        writing += _of_features(writer * later, BY)
        found = sums(writing, CHUNK, CHUNK, BE if BY == 2 else 1, False) - writing
        found -= sums(within, CHUNK, CHUNK, BE if BY == 2 else 1, True)
        dlog = _decay_place(dlog, row * steps * heads + head, t, e, heads, keys, BY)
        held = inside if BY == 2 else t < steps
        tl.store(dlog, tl.load(dlog, mask=held, other=0.0) + found, mask=held)
